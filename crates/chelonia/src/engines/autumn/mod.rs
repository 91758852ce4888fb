//! The autumn engine: an LSM-tree whose levels grow with the data, after the Autumn paper.
//!
//! Structure, policy, and how it relates to the paper: `docs/engines/autumn.md`.
//!
//! | module | what it is |
//! | --- | --- |
//! | `garnering` | the policy: capacities, levels, filter bits |
//! | `table` | tables, nodes and sequences in memory |
//! | `codec` | their bytes; the root blob |
//! | `plan` | what goes down next |
//! | `unit` | a unit of merging |
//! | `output` | what was written, and what is no longer referred to |
//! | `damage` | what merges cannot read, and do without |
//! | `lookup` `cursor` | reads |
//! | `verify` `salvage` | the check of everything; what damage leaves |
//! | `describe` | the structure for people |
//! | `counters` | what happened, counted |
//!
//! Invariants:
//! 1. The newest version is replaced only after everything it refers to was written.
//! 2. A failed absorb or unit changes nothing: the newest version stays, and what was allocated is
//!    given back.
//! 3. What came and went is exactly the difference of the extents of two versions.
//! 4. Of two sequences the one that comes first (level 0 from the newest on, then level 1, 2, ...)
//!    has the newer updates.
//!
//! Locks: `writer` is held for a whole absorb or unit; `newest` for moments; inside it nothing is
//! taken.

use self::codec::{Directory, RootBlob, YOUNG_MAX};
use self::counters::Counters;
use self::damage::Damage;
use self::garnering::{Garnering, Sizing};
use self::output::{Change, Output};
use self::plan::{Down, Measure, Sizes, Step, YOUNG_TRIGGER};
use self::table::{Residence, Sequence, Table};
use self::unit::{Goal, Merged, Unit};
use super::EngineOptions;
use crate::base::check::CheckReport;
use crate::base::checksum::KeyHash;
use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::stream::{SortedStream, SortedUpdates};
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, RwLock};
use crate::base::workers::Workers;
use crate::engine::{
    Absorbed, Answer, Engine, EngineStats, LevelOptions, OwnedExtent, Salvaged, Version, Work,
};
use crate::merge::UpdatesStream;
use crate::run::{OpenRuns, RunOptions, weight};
use crate::storage::Storage;
use crate::storage::block::DATA_FILE;
use crate::structure::NodeRef;
use std::collections::BTreeMap;

mod codec;
mod counters;
mod cursor;
mod damage;
mod describe;
mod garnering;
mod lookup;
mod output;
mod plan;
mod salvage;
mod table;
mod unit;
mod verify;

#[cfg(test)]
mod tests;

/// Tables that follow the checkpoint distance are at least and at most this large.
const TABLE_AUTO_MIN: u64 = 256 << 10;
const TABLE_AUTO_MAX: u64 = 2 << 20;

/// So many tables come with one absorb, if they follow the checkpoint distance.
const TABLES_PER_ABSORB: u64 = 32;

/// A job of a unit merges about so many tables, and no more bytes than this.
const JOB_TABLES: u64 = 16;
const JOB_BYTES_MAX: u64 = 32 << 20;

/// All workers together build tables of at most this part of the budget: one that is being built
/// takes several times its weight.
const TABLES_PART: u64 = 16;

/// One get of so many asks for level 0 to be merged when nothing is written.
const READS_SAMPLED: u64 = 64;

/// The measures of a tree.
#[derive(Clone, Copy, Debug)]
pub struct AutumnOptions {
    /// About the most bytes of a table; 0 lets it follow the checkpoint distance.
    pub table_bytes: u64,
    /// Bytes of updates that come with one absorb, about.
    pub checkpoint_distance: u64,
    /// The shape of the levels.
    pub levels: LevelOptions,
    /// How new runs are made; the bits per key are those of all filters together.
    pub run: RunOptions,
}

impl AutumnOptions {
    /// The measures for the options of a keyspace.
    #[must_use]
    pub fn new(options: &EngineOptions) -> Self {
        Self {
            table_bytes: options.leaf_bytes,
            checkpoint_distance: options.checkpoint_distance,
            levels: options.levels,
            run: RunOptions { filter: options.filter, bits_per_key: options.bits_per_key },
        }
    }

    fn policy(&self) -> Garnering {
        let base = self.checkpoint_distance.saturating_mul(YOUNG_TRIGGER as u64);
        let sizing = if self.levels.relative { Sizing::Relative } else { Sizing::Absolute };
        Garnering::new(self.levels.size_ratio, self.levels.scaling_percent, base, sizing)
    }

    fn table_bytes(&self) -> u64 {
        let power = |bytes: u64| 1_u64 << bytes.max(1).ilog2();
        match self.table_bytes {
            0 => power(self.checkpoint_distance / TABLES_PER_ABSORB)
                .clamp(TABLE_AUTO_MIN, TABLE_AUTO_MAX),
            bytes => bytes,
        }
    }

    /// The size of the tables of level `level` (0: level 0) of `levels`: a table there meets about
    /// as many below as the ratio of the two levels says, and they must fit a job.
    fn table_bytes_of(&self, level: usize, levels: usize) -> u64 {
        let usual = self.table_bytes();
        if level == 0 || level >= levels {
            return usual;
        }
        let policy = self.policy();
        let ratio = policy.capacity(level + 1, levels) / policy.capacity(level, levels).max(1);
        usual.min((JOB_BYTES_MAX / (1 + ratio)).max(TABLE_AUTO_MIN))
    }
}

/// What an engine and its versions share.
struct Shared {
    residence: Residence,
    counters: Counters,
    /// Something was read that level 0 made dearer.
    is_read: AtomicBool,
}

/// A tree: see the head of the file.
pub struct Autumn {
    shared: Arc<Shared>,
    newest: RwLock<Arc<AutumnVersion>>,
    /// What may change while an absorb runs.
    options: Mutex<AutumnOptions>,
    writer: Mutex<Writer>,
    /// Updates are expected soon.
    busy: AtomicBool,
    wants: AtomicBool,
    debt: AtomicU64,
}

/// What only absorbs and merges use.
#[derive(Default)]
struct Writer {
    damage: Damage,
    /// Where each level goes on, when its turn comes.
    from: BTreeMap<usize, Arc<[u8]>>,
    /// Levels of which nothing can go down, for something cannot be read.
    stuck: Vec<usize>,
}

/// A state of a tree.
pub struct AutumnVersion {
    shared: Arc<Shared>,
    /// Where the list of all nodes is; `None` in an empty tree that was never written.
    directory: Option<NodeRef>,
    /// The sequences of level 0, newest first.
    young: Vec<Arc<Sequence>>,
    /// How many of them, the oldest, are going down to level 1.
    sinking: usize,
    /// The levels, from level 1 on.
    levels: Vec<Arc<Sequence>>,
    /// The blocks of everything it refers to.
    disk_blocks: u64,
}

/// What the next version is made of.
struct Next {
    young: Vec<Arc<Sequence>>,
    sinking: usize,
    levels: Vec<Arc<Sequence>>,
}

impl Next {
    fn of(version: &AutumnVersion) -> Self {
        Self {
            young: version.young.clone(),
            sinking: version.sinking,
            levels: version.levels.clone(),
        }
    }

    /// Takes sequences out that have sunk altogether.
    fn settle(&mut self) {
        let first = self.young.len() - self.sinking;
        let mut place = 0;
        self.young.retain(|sequence| {
            place += 1;
            place <= first || !sequence.is_empty()
        });
        self.sinking = self.young.len() - first;
    }
}

impl Autumn {
    /// Opens the tree that `root` describes, or an empty one. Reads the directory.
    pub fn open(
        storage: &Arc<Storage>,
        options: AutumnOptions,
        root: Option<&[u8]>,
    ) -> Result<Self> {
        let residence = Residence::new(Arc::clone(storage), OpenRuns::default());
        let blob = root.map_or_else(|| Ok(RootBlob::default()), RootBlob::decode)?;
        let directory = match blob.directory {
            Some(place) => Directory::decode(&place.read(storage)?, &residence)
                .map_err(|error| error.at(DATA_FILE, place.extent.offset()))?,
            None => Directory::default(),
        };
        let shared = Arc::new(Shared {
            residence,
            counters: Counters::default(),
            is_read: AtomicBool::new(false),
        });
        let version = AutumnVersion {
            shared: Arc::clone(&shared),
            directory: blob.directory,
            young: directory.young.into_iter().map(Arc::new).collect(),
            sinking: directory.sinking,
            levels: directory.levels.into_iter().map(Arc::new).collect(),
            disk_blocks: blob.disk_blocks,
        };
        let tree = Self {
            shared,
            newest: RwLock::new(Arc::new(version)),
            options: Mutex::new(options),
            writer: Mutex::default(),
            busy: AtomicBool::new(true),
            wants: AtomicBool::new(false),
            debt: AtomicU64::new(0),
        };
        tree.weigh(&[]);
        Ok(tree)
    }

    fn newest(&self) -> Arc<AutumnVersion> {
        Arc::clone(&self.newest.read())
    }

    fn options(&self) -> AutumnOptions {
        *self.options.lock()
    }

    /// True if level 0 is to be merged for reads: they pay for it, and nothing is written.
    fn is_eager(&self) -> bool {
        !self.busy.load(Ordering::Relaxed) && self.shared.is_read.load(Ordering::Relaxed)
    }

    /// The step that comes next, but for levels that are stuck.
    fn step(&self, version: &AutumnVersion, stuck: &[usize]) -> Option<Step> {
        let mut sizes = Sizes::of(version);
        for level in stuck {
            match level {
                0 => sizes.sinking = 0,
                level => sizes.levels[level - 1] = 0,
            }
        }
        if stuck.contains(&0) {
            sizes.young.clear();
        }
        sizes.step(&self.options().policy(), self.is_eager())
    }

    /// Finds out anew whether there is something to do, and how much.
    fn weigh(&self, stuck: &[usize]) {
        let version = self.newest();
        let policy = self.options().policy();
        let mut sizes = Sizes::of(&version);
        if stuck.contains(&0) {
            sizes.young.clear();
        }
        self.debt.store(sizes.debt(&policy), Ordering::Relaxed);
        let wants = self.step(&version, stuck).is_some();
        self.wants.store(wants, Ordering::Relaxed);
    }

    /// How many of `workers` may build tables at one time.
    fn room(&self, workers: Workers, table_bytes: u64) -> Workers {
        let part = self.shared.residence.storage().budget().limit() / TABLES_PART;
        let count = part / table_bytes.clamp(TABLE_AUTO_MIN, TABLE_AUTO_MAX);
        workers.at_most(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Bits per key of the filters of a table in a sequence of so many entries; it takes the place of
    /// the sequence `place` (level 0 first, newest first), or comes before all.
    fn filter_bits(&self, version: &AutumnVersion, place: Option<usize>, entries: u64) -> u32 {
        let options = self.options();
        if !options.levels.filters_by_level || options.run.bits_per_key == 0 {
            return options.run.bits_per_key;
        }
        let sequences = version.young.iter().chain(&version.levels);
        let mut all: Vec<u64> = sequences.map(|sequence| sequence.totals().entries).collect();
        let place = match place.filter(|place| *place < all.len()) {
            Some(place) => {
                all[place] = all[place].max(entries);
                place
            }
            None => {
                all.insert(0, entries);
                0
            }
        };
        Garnering::filter_bits(options.run.bits_per_key, &all)[place]
    }

    /// Writes the updates as a sequence of level 0.
    fn write_young(
        &self,
        version: &AutumnVersion,
        updates: &dyn SortedUpdates,
        work: &Work<'_>,
        output: &Output<'_>,
    ) -> Result<Sequence> {
        let count = updates.len();
        let weight_of = |from: usize, to: usize| {
            let bytes = updates.bytes_before(to) - updates.bytes_before(from);
            weight((to - from) as u64, bytes)
        };
        let table_bytes = self.options().table_bytes();
        let total = weight_of(0, count);
        let tables = total.div_ceil(table_bytes).max(1);
        let bits = self.filter_bits(version, None, count as u64);
        // Ranks at which tables of like weight begin.
        let mut begins = vec![0];
        for table in 1..tables {
            let target = total / tables * table;
            let rank = partition_point(count, |rank| weight_of(0, rank) < target);
            if begins.last().is_some_and(|last| rank > *last) && rank < count {
                begins.push(rank);
            }
        }
        begins.push(count);
        let written: Vec<Mutex<Option<Table>>> =
            begins.windows(2).map(|_| Mutex::default()).collect();
        let workers = self.room(*work.workers, table_bytes);
        workers.run(written.len(), &|index| {
            let ranks = begins[index]..begins[index + 1];
            let mut stream = UpdatesStream::new(updates, vec![ranks], work.progress);
            let mut writer = output.writer(bits);
            while let Some(key) = stream.key() {
                writer.add(key, stream.update())?;
                stream.advance()?;
            }
            *written[index].lock() = Some(writer.finish(None)?);
            output.give_back(writer);
            let large = stream.finish();
            output.gain(large.iter().map(OwnedExtent::from));
            Ok(())
        })?;
        let tables: Option<Vec<Table>> = written.into_iter().map(Mutex::into_inner).collect();
        let tables = tables.ok_or_else(|| Error::internal("a table was not written"))?;
        output.write_sequence(tables)
    }

    /// Writes the directory of the version that `next` describes, and makes it the newest one.
    fn publish(&self, version: &AutumnVersion, next: Next, output: Output<'_>) -> Result<Absorbed> {
        let directory = match output.write_directory(version.directory, &next) {
            Ok(directory) => directory,
            Err(error) => {
                // The first error tells more than one of giving back would.
                let _ = output.roll_back();
                return Err(error);
            }
        };
        let (gained, lost) = output.settle();
        let blocks = |extents: &[OwnedExtent]| -> u64 {
            extents.iter().map(|owned| u64::from(owned.extent.blocks)).sum()
        };
        let disk_blocks = (version.disk_blocks + blocks(&gained)).saturating_sub(blocks(&lost));
        let Next { young, sinking, levels } = next;
        let shared = Arc::clone(&self.shared);
        let next =
            Arc::new(AutumnVersion { shared, directory, young, sinking, levels, disk_blocks });
        *self.newest.write() = Arc::clone(&next);
        Ok(Absorbed { version: next, gained, lost })
    }

    /// Does `step`; `None` if nothing of it can be done.
    fn take(
        &self,
        step: &Step,
        version: &AutumnVersion,
        writer: &mut Writer,
        workers: Workers,
    ) -> Result<Option<Absorbed>> {
        let counters = &self.shared.counters;
        let output = Output::new(&self.shared.residence, counters, self.options().run);
        let mut next = Next::of(version);
        match step {
            Step::Sink => {
                next.sinking = next.young.len();
                Counters::add(&counters.sinkings, 1);
            }
            Step::AddLevel(place) => {
                next.levels.insert(*place, Arc::default());
                writer.from.clear();
                Counters::add(&counters.levels_added, 1);
            }
            Step::RemoveLevel(place) => {
                next.levels.remove(*place);
                writer.from.clear();
                Counters::add(&counters.levels_removed, 1);
            }
            Step::Down(level) => {
                let workers = self.room(workers, self.options().table_bytes());
                let done = match self.down(*level, version, writer, &mut next, &output, workers) {
                    Ok(done) => done,
                    Err(error) => {
                        // The first error tells more than one of giving back would.
                        let _ = output.roll_back();
                        return Err(error);
                    }
                };
                if !done {
                    writer.stuck.push(*level);
                    return Ok(None);
                }
            }
        }
        next.settle();
        self.publish(version, next, output).map(Some)
    }

    /// Lets something go down from `level`; false if nothing can.
    fn down(
        &self,
        level: usize,
        version: &AutumnVersion,
        writer: &mut Writer,
        next: &mut Next,
        output: &Output<'_>,
        workers: Workers,
    ) -> Result<bool> {
        let (residence, options) = (&self.shared.residence, self.options());
        let job = JOB_BYTES_MAX.min(JOB_TABLES * options.table_bytes());
        let jobs = workers.threads();
        let measure = Measure { unit_bytes: job * jobs as u64, jobs };
        let goal = self.goal(version, level);
        let down = if level == 0 {
            plan::from_young(version, residence, measure, goal, &writer.damage)?
        } else {
            let from = writer.from.entry(level).or_insert_with(|| Arc::from(&b""[..]));
            plan::from_level(version, residence, level, from, measure, goal, &writer.damage)?
        };
        match down {
            Down::Stuck => Ok(false),
            Down::Moves(moves) => {
                self.move_tables(level, moves, version, next, output)?;
                Ok(true)
            }
            Down::Unit(unit) => {
                let merged = unit.run(output, &self.shared.counters, &workers);
                let merged = merged.inspect_err(|error| {
                    let stuck = writer.damage.learn(&unit, error);
                    Counters::add(&self.shared.counters.tables_stuck, stuck);
                })?;
                self.replace(level, &unit, merged, next, output)?;
                writer.damage.forget(unit.upper.iter().flatten().chain(&unit.lower));
                let counters = &self.shared.counters;
                let units = if level == 0 { &counters.young_units } else { &counters.level_units };
                Counters::add(units, 1);
                Ok(true)
            }
        }
    }

    /// How tables that come down from `level` are written.
    fn goal(&self, version: &AutumnVersion, level: usize) -> Goal {
        let levels = version.levels.len();
        let below = version.levels.get(level);
        let coming = match level {
            0 => version.young.iter().map(|sequence| sequence.totals().entries).sum(),
            level => version.levels[level - 1].totals().entries,
        };
        let entries = below.map_or(0, |below| below.totals().entries).max(coming);
        let place = version.young.len() + level;
        Goal {
            table_bytes: self.options().table_bytes_of(level + 1, levels),
            bits_per_key: self.filter_bits(version, Some(place), entries),
            bottom: version.levels[level + 1..].iter().all(|below| below.is_empty()),
        }
    }

    /// Moves tables from `level` to the one below as they are.
    fn move_tables(
        &self,
        level: usize,
        moves: Vec<(usize, Table)>,
        version: &AutumnVersion,
        next: &mut Next,
        output: &Output<'_>,
    ) -> Result<()> {
        let count = moves.len() as u64;
        let mut removed: BTreeMap<usize, Vec<Table>> = BTreeMap::new();
        let mut added = Vec::with_capacity(moves.len());
        for (sequence, table) in moves {
            added.push(table.clone());
            removed.entry(sequence).or_default().push(table);
        }
        for (sequence, removed) in removed {
            let place = match level {
                0 => &mut next.young[sequence],
                level => &mut next.levels[level - 1],
            };
            let change = Change { removed, added: Vec::new() };
            *place = Arc::new(output.change(place, change)?);
        }
        let change = Change { removed: Vec::new(), added };
        next.levels[level] = Arc::new(output.change(&version.levels[level], change)?);
        Counters::add(&self.shared.counters.tables_moved, count);
        Ok(())
    }

    /// Puts what a unit made in the place of what it merged.
    fn replace(
        &self,
        level: usize,
        unit: &Unit,
        mut merged: Merged,
        next: &mut Next,
        output: &Output<'_>,
    ) -> Result<()> {
        let mut gone: Vec<OwnedExtent> = unit.lower.iter().map(Table::owned).collect();
        let first = next.young.len() - next.sinking;
        for (place, upper) in unit.upper.iter().enumerate() {
            let mut change = Change { removed: upper.clone(), added: Vec::new() };
            for table in upper {
                match merged.left.remove(&table.run.reference().extent.start) {
                    Some(left) => change.added.push(left),
                    None => gone.push(table.owned()),
                }
            }
            let sequence = match level {
                0 => &mut next.young[first + place],
                level => &mut next.levels[level - 1],
            };
            *sequence = Arc::new(output.change(sequence, change)?);
        }
        let below = &mut next.levels[level];
        let change = Change { removed: unit.lower.clone(), added: merged.tables };
        *below = Arc::new(output.change(below, change)?);
        output.lose(gone);
        Ok(())
    }
}

/// The least number up to `count` of which `before` is not true.
fn partition_point(count: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

impl Engine for Autumn {
    fn version(&self) -> Arc<dyn Version> {
        self.newest()
    }

    fn absorb(&self, updates: &dyn SortedUpdates, work: &Work<'_>) -> Result<Absorbed> {
        let mut writer = self.writer.lock();
        let version = self.newest();
        if updates.is_empty() {
            return Ok(Absorbed { version, gained: Vec::new(), lost: Vec::new() });
        }
        if version.young.len() >= YOUNG_MAX {
            return Err(Error::internal("level 0 has as many runs as it can have"));
        }
        let output = Output::new(&self.shared.residence, &self.shared.counters, self.options().run);
        let sequence = match self.write_young(&version, updates, work, &output) {
            Ok(sequence) => sequence,
            Err(error) => {
                // The first error tells more than one of giving back would.
                let _ = output.roll_back();
                return Err(error);
            }
        };
        let mut next = Next::of(&version);
        next.young.insert(0, Arc::new(sequence));
        let absorbed = self.publish(&version, next, output)?;
        Counters::add(&self.shared.counters.absorbs, 1);
        // What was stuck is tried again.
        writer.stuck.clear();
        self.weigh(&[]);
        Ok(absorbed)
    }

    fn root(&self) -> Result<Vec<u8>> {
        let version = self.newest();
        let blob = RootBlob { directory: version.directory, disk_blocks: version.disk_blocks };
        Ok(blob.encode())
    }

    fn maintain(&self, work: &Work<'_>) -> Result<Option<Absorbed>> {
        let mut writer = self.writer.lock();
        loop {
            let version = self.newest();
            let Some(step) = self.step(&version, &writer.stuck) else {
                self.shared.is_read.store(false, Ordering::Relaxed);
                self.weigh(&writer.stuck);
                return Ok(None);
            };
            let before = self.shared.counters.tables_stuck.load(Ordering::Relaxed);
            match self.take(&step, &version, &mut writer, *work.workers) {
                Ok(Some(absorbed)) => {
                    self.weigh(&writer.stuck);
                    return Ok(Some(absorbed));
                }
                // It is stuck now; there may be something else to do.
                Ok(None) => {}
                Err(_) if self.shared.counters.tables_stuck.load(Ordering::Relaxed) > before => {}
                Err(error) => {
                    if !error.is_passing()
                        && let Step::Down(level) = step
                    {
                        writer.stuck.push(level);
                    }
                    self.weigh(&writer.stuck);
                    return Err(error);
                }
            }
        }
    }

    fn wants_maintenance(&self) -> bool {
        self.wants.load(Ordering::Relaxed)
    }

    fn expect_updates(&self, expected: bool) {
        let before = self.busy.swap(expected, Ordering::Relaxed);
        if (before || !self.wants.load(Ordering::Relaxed)) && self.is_eager() {
            self.wants.store(!self.newest().young.is_empty(), Ordering::Relaxed);
        }
    }

    fn debt_bytes(&self) -> u64 {
        self.debt.load(Ordering::Relaxed)
    }

    fn set_checkpoint_distance(&self, bytes: u64) {
        self.options.lock().checkpoint_distance = bytes;
        self.weigh(&[]);
    }

    fn set_levels(&self, levels: LevelOptions) {
        self.options.lock().levels = levels;
        self.weigh(&[]);
    }

    fn stats(&self) -> EngineStats {
        let version = self.newest();
        let counters = &self.shared.counters;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let sequences: Vec<&Arc<Sequence>> = version.young.iter().chain(&version.levels).collect();
        let last = version.levels.last().filter(|last| !last.is_empty());
        let last = last.or_else(|| version.levels.iter().rev().find(|level| !level.is_empty()));
        let (leaves, leaf_bytes) = last.map_or((0, 0), |last| (last.tables(), last.totals().bytes));
        let all: u64 = sequences.iter().map(|sequence| sequence.totals().bytes).sum();
        let tables: u64 = sequences.iter().map(|sequence| sequence.tables()).sum();
        EngineStats {
            height: u32::try_from(version.levels.len()).unwrap_or(u32::MAX),
            nodes: sequences.iter().map(|sequence| sequence.nodes.len() as u64).sum(),
            leaves,
            buffered_runs: tables - leaves,
            leaf_bytes,
            buffered_bytes: all - leaf_bytes,
            disk_bytes: version.disk_blocks * BLOCK_BYTES_U64,
            run_bytes_written: read(&counters.run_bytes),
            node_bytes_written: read(&counters.node_bytes),
            merge_bytes_read: read(&counters.read_bytes),
            events: counters.list(self.shared.residence.moves()),
        }
    }
}

impl AutumnVersion {
    /// Notes a read that level 0 made dearer.
    fn note_read(&self) {
        let is_read = &self.shared.is_read;
        if !self.young.is_empty() && !is_read.load(Ordering::Relaxed) {
            is_read.store(true, Ordering::Relaxed);
        }
    }
}

impl Version for AutumnVersion {
    fn get(&self, key: &[u8], hash: KeyHash) -> Result<Answer> {
        if hash.0 % READS_SAMPLED == 0 {
            self.note_read();
        }
        self.find(key, hash)
    }

    fn multi_get(&self, keys: &[(&[u8], KeyHash)]) -> Result<Vec<Answer>> {
        self.note_read();
        self.find_all(keys)
    }

    fn cursor(
        self: Arc<Self>,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn SortedStream + Send>> {
        self.note_read();
        Ok(Box::new(cursor::AutumnCursor::new(&self, range, direction)?))
    }

    fn extents(&self, visit: &mut dyn FnMut(OwnedExtent) -> Result<()>) -> Result<()> {
        verify::walk_extents(self, visit)
    }

    fn verify(&self, report: &mut dyn CheckReport) -> Result<()> {
        verify::verify(self, report)
    }

    fn salvage(&self, found: &mut dyn Salvaged) -> Result<()> {
        salvage::salvage(self, found)
    }

    fn describe(&self, out: &mut dyn std::fmt::Write) -> Result<()> {
        describe::describe(self, out)
    }
}
