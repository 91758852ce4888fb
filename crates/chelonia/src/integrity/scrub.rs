//! Scrubbing: what is stored is read again and again, slowly, so that rot is found while there is
//! still a copy somewhere.
//!
//! ```text
//!   tour   | roots | leg | leg | leg | ... |         one tour in `scrub_interval`
//!   leg    the extents that begin in one stretch of the data file
//!   piece  a few blocks of one extent: what a tick reads
//! ```
//!
//! Time pays for blocks: in one interval for as many as are in use. A leg lists extents as the
//! newest versions name them when it begins, and holds nothing. So an extent may be freed, and its
//! blocks written anew, before its turn comes; what looks damaged is believed only if a newest
//! version still names the extent, with the same generation.
//!
//! A tour reads both superblocks, the catalog, and every block of every extent. The log is not
//! read: it is short, and its files are written anew all the time. What lies in the blocks, and how
//! they refer to each other, is for [`crate::Database::verify`] to check. Structure that cannot be
//! read is a finding itself, and hides no more than what only it names.
//!
//! Thread-safety: one thread scrubs; its state is under a lock of its own, held for one tick.

use crate::base::error::Error;
use crate::base::ids::{Extent, KeyspaceId};
use crate::base::limits::{BLOCK_BYTES, SCRUB_FINDINGS_MAX};
use crate::engine::OwnedExtent;
use crate::memory::budget::{Charge, Use};
use crate::runtime::sync::Mutex;
use crate::state::core::Core;
use std::collections::BTreeSet;
use std::time::Duration;

/// Fewer blocks (64 KiB) are not worth a read.
const PIECE_BLOCKS_MIN: u64 = 16;

/// No more (4 MiB) are read at a tick, however much time has passed: readers come first.
const TICK_BLOCKS_MAX: u64 = 1024;

/// So many (256 KiB) are read together.
const PIECE_BLOCKS_MAX: u32 = 64;

/// A leg is a 64th of the data file, but not less than this (64 MiB): to list its extents all
/// structure has to be walked.
const LEG_BLOCKS_MIN: u64 = 16 << 10;

/// See [`LEG_BLOCKS_MIN`].
const LEGS_MAX: u64 = 64;

/// So many places are remembered, to be told once a tour.
const TOLD_MAX: usize = 4096;

/// What scrubbing has read and found since the database was opened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ScrubStats {
    /// Times that everything was read.
    pub tours: u64,
    /// Blocks read and checked.
    pub blocks: u64,
    /// Blocks that are damaged or could not be read, each counted once a tour.
    pub damaged_blocks: u64,
    /// What was found, each with file and offset: the first few of the last tour that found any.
    pub findings: Vec<Error>,
}

/// How far scrubbing has come.
#[derive(Default)]
pub struct Scrub {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The clock at the last look.
    looked: Duration,
    /// Blocks that time has paid for, times the nanoseconds of an interval.
    paid: u128,
    /// Extents of this leg that are still to be read, the next one last.
    waiting: Vec<OwnedExtent>,
    /// Counts that list.
    charge: Option<Charge>,
    /// Blocks read of the next one.
    within: u32,
    /// Where the next leg begins; the roots come first if that is 0.
    next: u64,
    /// What this tour has found.
    told: BTreeSet<Told>,
    stats: ScrubStats,
}

/// What is told once a tour: a block is come to by the walk of every leg, and by its own turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    /// Something at this offset of the data file.
    Offset(u64),
    /// Something in the structure of a keyspace, without a place.
    Structure(KeyspaceId),
    /// Something else without a place.
    Unplaced,
}

impl State {
    /// Notes a finding in the structure of a keyspace, or in blocks.
    fn find(&mut self, of: Option<KeyspaceId>, error: Error) {
        let told = match (error.offset(), of) {
            (Some(offset), _) => Told::Offset(offset),
            (None, Some(keyspace)) => Told::Structure(keyspace),
            (None, None) => Told::Unplaced,
        };
        if self.told.contains(&told) {
            return;
        }
        if self.told.is_empty() {
            self.stats.findings.clear();
        }
        if self.told.len() < TOLD_MAX {
            self.told.insert(told);
        }
        self.stats.damaged_blocks += 1;
        if self.stats.findings.len() < SCRUB_FINDINGS_MAX {
            self.stats.findings.push(error);
        }
    }
}

impl Scrub {
    /// What was read and found.
    pub fn stats(&self) -> ScrubStats {
        self.state.lock().stats.clone()
    }
}

impl Core {
    /// Reads as much as the time since the last call pays for.
    pub fn scrub_tick(&self) {
        let Some(interval) = self.scrub_interval else { return };
        let mut state = self.scrub.state.lock();
        let now = self.clock.now();
        let passed = now.saturating_sub(std::mem::replace(&mut state.looked, now));
        let each = interval.as_nanos().max(1);
        let used = u128::from(self.storage.stats().space.used_blocks);
        state.paid += passed.as_nanos() * used;
        // What one tick cannot read is forgiven: a tour takes longer then.
        state.paid = state.paid.min(each * u128::from(TICK_BLOCKS_MAX));
        let blocks = u64::try_from(state.paid / each).unwrap_or(TICK_BLOCKS_MAX);
        if blocks < PIECE_BLOCKS_MIN.min(u64::try_from(used).unwrap_or(PIECE_BLOCKS_MIN)) {
            return;
        }
        state.paid -= each * u128::from(blocks);
        self.scrub_blocks(&mut state, blocks);
    }

    /// Reads about so many blocks.
    fn scrub_blocks(&self, state: &mut State, blocks: u64) {
        let mut left = blocks;
        while left > 0 {
            let Some(owned) = state.waiting.last().copied() else {
                if self.begin_leg(state) {
                    continue;
                }
                // A tour ended: the next one is paid for by its own time.
                return;
            };
            let rest = owned.extent.blocks - state.within;
            let count = rest.min(u32::try_from(left).unwrap_or(u32::MAX)).min(PIECE_BLOCKS_MAX);
            let start = owned.extent.start.0 + u64::from(state.within);
            self.scrub_piece(state, &owned, Extent::new(start, count));
            state.within += count;
            left -= u64::from(count);
            if state.within == owned.extent.blocks {
                state.waiting.pop();
                state.within = 0;
            }
        }
    }

    /// Reads some blocks of an extent.
    fn scrub_piece(&self, state: &mut State, owned: &OwnedExtent, piece: Extent) {
        let mut buffer = vec![0; piece.blocks as usize * BLOCK_BYTES];
        let _charge = self.storage.budget().charge(Use::Work, buffer.len() as u64);
        let mut damage = Vec::new();
        let read = self.storage.check_blocks(piece.start, owned.generation, &mut buffer, |error| {
            damage.push(error);
        });
        state.stats.blocks += u64::from(piece.blocks);
        damage.extend(read.err());
        if !damage.is_empty() && self.may_name(owned) {
            damage.into_iter().for_each(|error| state.find(None, error));
        }
    }

    /// Lists the extents of the next leg; false if there is none: that was the end of a tour.
    fn begin_leg(&self, state: &mut State) -> bool {
        let file_blocks = self.storage.stats().space.file_blocks;
        if state.next == 0 {
            state.told.clear();
            match self.storage.verify_root() {
                Ok(blocks) => state.stats.blocks += blocks,
                Err(error) => state.find(None, error),
            }
        }
        if state.next >= file_blocks {
            state.next = 0;
            state.stats.tours += 1;
            return false;
        }
        let leg = state.next..state.next + (file_blocks / LEGS_MAX).max(LEG_BLOCKS_MIN);
        state.next = leg.end;
        let mut waiting = Vec::new();
        let unread = self.walk_newest(&mut |owned| {
            if leg.contains(&owned.extent.start.0) {
                waiting.push(owned);
            }
        });
        for (keyspace, error) in unread {
            state.find(Some(keyspace), error);
        }
        waiting.sort_unstable_by_key(|owned| std::cmp::Reverse(owned.extent.start));
        let bytes = (waiting.capacity() * size_of::<OwnedExtent>()) as u64;
        state.charge = Some(self.storage.budget().charge(Use::Metadata, bytes));
        state.waiting = waiting;
        true
    }

    /// True if a newest version refers to this very extent, or that cannot be told.
    fn may_name(&self, wanted: &OwnedExtent) -> bool {
        let mut is_there = false;
        let unread = self.walk_newest(&mut |owned| is_there |= owned == *wanted);
        is_there || !unread.is_empty()
    }

    /// Visits every extent of the newest version of every keyspace, as far as its structure can be
    /// read; gives the first error of each whose structure cannot.
    fn walk_newest(&self, visit: &mut dyn FnMut(OwnedExtent)) -> Vec<(KeyspaceId, Error)> {
        let mut unread = Vec::new();
        for keyspace in self.all_keyspaces() {
            let pin = self.pin_one(&keyspace);
            let view = keyspace.view_at(pin.seqno());
            let walked = view.version.version().extents(&mut |owned| {
                visit(owned);
                Ok(())
            });
            unread.extend(walked.err().map(|error| (keyspace.id, error)));
        }
        unread
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::builder::DatabaseBuilder;
    use crate::api::database::Database;
    use crate::base::limits::BLOCK_BYTES_U64;
    use crate::engine::{EngineKind, EngineOptions};
    use crate::options::keyspace::KeyspaceOptions;
    use crate::runtime::clock::Clock;
    use crate::runtime::sync::Arc;
    use crate::storage::block::{BlockKind, DATA_FILE};
    use crate::storage::io::memory::MemoryDirectory;
    use crate::storage::io::{Access, Directory, OpenMode};
    use std::path::Path;

    const INTERVAL: Duration = Duration::from_secs(100);

    fn open(directory: &MemoryDirectory, clock: &Clock) -> Database {
        let mut builder =
            DatabaseBuilder::new(Path::new("in memory")).scrub_interval(Some(INTERVAL));
        builder.settings.internals.directory = Some(Arc::new(directory.clone()));
        builder.settings.internals.stepped = true;
        builder.settings.internals.clock = clock.clone();
        builder.open().unwrap()
    }

    fn fill(database: &Database) {
        fill_keyspace(database, "default", EngineKind::Turtle);
    }

    fn fill_keyspace(database: &Database, name: &str, engine: EngineKind) {
        let options = KeyspaceOptions::new().engine(EngineOptions::tiny(engine, 16 << 10));
        let keyspace = database.keyspace(name, options).unwrap();
        keyspace.set_checkpoint_distance(30_000).unwrap();
        for number in 0..3_000_u64 {
            keyspace.insert(number.wrapping_mul(0x9e37_79b9).to_be_bytes(), [7; 90]).unwrap();
        }
        keyspace.insert("large", vec![1; 100_000]).unwrap();
        database.checkpoint().unwrap();
    }

    fn flip(directory: &MemoryDirectory, place: u64) {
        let file = directory.open(DATA_FILE, OpenMode::Write, Access::Buffered).unwrap();
        let mut byte = [0];
        file.read_at(&mut byte, place).unwrap();
        file.write_at(&[byte[0] ^ 1], place).unwrap();
    }

    /// The extents of one keyspace whose blocks are of this kind.
    fn extents_of(
        database: &Database,
        directory: &MemoryDirectory,
        name: &str,
        kind: BlockKind,
    ) -> Vec<Extent> {
        let keyspace = database.keyspace(name, KeyspaceOptions::new()).unwrap();
        let file = directory.open(DATA_FILE, OpenMode::Write, Access::Buffered).unwrap();
        let mut extents = Vec::new();
        let mut visit = |owned: OwnedExtent| {
            let mut byte = [0];
            file.read_at(&mut byte, owned.extent.offset() + 8).unwrap();
            if byte[0] == kind as u8 {
                extents.push(owned.extent);
            }
            Ok(())
        };
        keyspace.core.engine.version().extents(&mut visit).unwrap();
        extents
    }

    /// Lets `passed` go by in ticks.
    fn wait(database: &Database, clock: &Clock, passed: Duration) {
        for _ in 0..100 {
            clock.advance(passed / 100);
            database.handle.core().scrub_tick();
        }
    }

    #[test]
    fn a_tour_reads_everything_once_in_an_interval() {
        let (directory, clock) = (MemoryDirectory::new(), Clock::manual());
        let database = open(&directory, &clock);
        fill(&database);
        wait(&database, &clock, INTERVAL / 2);
        let half = database.stats().scrub;
        wait(&database, &clock, INTERVAL);
        let stats = database.stats();
        let used = stats.disk.data_used_bytes / BLOCK_BYTES_U64;
        assert!(half.tours == 0 && half.blocks.abs_diff(used / 2) < used / 10, "{half:?}, {used}");
        assert!(stats.scrub.tours == 1 && stats.scrub.blocks > used, "{:?}", stats.scrub);
        assert_eq!(stats.scrub.damaged_blocks, 0, "{:?}", stats.scrub);
    }

    #[test]
    fn rot_is_found_and_what_was_written_anew_is_not_rot() {
        let (directory, clock) = (MemoryDirectory::new(), Clock::manual());
        let database = open(&directory, &clock);
        fill(&database);
        // A leg is listed, then everything in it is written anew.
        wait(&database, &clock, INTERVAL / 10);
        fill(&database);
        wait(&database, &clock, 2 * INTERVAL);
        let healthy = database.stats().scrub;
        assert_eq!(healthy.damaged_blocks, 0, "{healthy:?}");
        let mut extents = Vec::new();
        database.handle.core().walk_newest(&mut |owned| extents.push(owned.extent));
        let place = extents[extents.len() / 2].start.0 * BLOCK_BYTES_U64 + 77;
        flip(&directory, place);
        wait(&database, &clock, 2 * INTERVAL);
        let scrub = database.stats().scrub;
        assert!(scrub.damaged_blocks >= 1, "{scrub:?}");
        assert!(scrub.findings.iter().all(|error| error.offset() == Some(place - 77)), "{scrub:?}");
        assert_eq!(scrub.findings.len(), 1, "{scrub:?}");
    }

    #[test]
    fn a_node_that_cannot_be_read_hides_nothing_else_and_is_told_once() {
        let (directory, clock) = (MemoryDirectory::new(), Clock::manual());
        let engines = [("0", EngineKind::Turtle), ("1", EngineKind::Autumn)];
        let database = open(&directory, &clock);
        for (name, engine) in engines {
            // More than one leg has; what comes last has a node of its own.
            fill_keyspace(&database, name, engine);
            let keyspace = database.keyspace(name, KeyspaceOptions::new()).unwrap();
            for number in 0..90_u64 {
                keyspace.insert(number.to_be_bytes(), vec![1; 1 << 20]).unwrap();
            }
            database.checkpoint().unwrap();
            keyspace.insert("last", "of all").unwrap();
            database.checkpoint().unwrap();
        }
        let mut damaged = BTreeSet::new();
        for (name, _) in engines {
            let of = |kind| extents_of(&database, &directory, name, kind);
            // The first node below what names all, the last entries, and the last large value.
            let nodes = of(BlockKind::Engine);
            assert!(nodes.len() > 2, "{name}: {nodes:?}");
            damaged.insert(nodes[1].offset());
            damaged.extend(
                [BlockKind::Data, BlockKind::LargeValue]
                    .map(|kind| of(kind).last().unwrap().offset()),
            );
        }
        damaged.iter().for_each(|offset| flip(&directory, offset + 77));
        // The nodes are in memory no more.
        let storage = &database.handle.storage;
        let limit = storage.budget().limit();
        storage.budget().set_limit(0);
        storage.residents().trim();
        storage.budget().set_limit(limit);
        while database.stats().scrub.tours == 0 {
            clock.advance(INTERVAL / 100);
            database.handle.core().scrub_tick();
        }
        let scrub = database.stats().scrub;
        let told: Vec<_> = scrub.findings.iter().filter_map(Error::offset).collect();
        assert_eq!(BTreeSet::from_iter(told.iter().copied()), damaged, "{scrub:?}");
        assert_eq!((told.len(), scrub.damaged_blocks), (damaged.len(), damaged.len() as u64));
    }

    #[test]
    fn rot_at_the_end_of_a_long_extent_is_found() {
        let (directory, clock) = (MemoryDirectory::new(), Clock::manual());
        let database = open(&directory, &clock);
        let keyspace = database.keyspace("default", KeyspaceOptions::new()).unwrap();
        keyspace.insert("large", vec![1; 3_000_000]).unwrap();
        database.checkpoint().unwrap();
        let mut extents = Vec::new();
        database.handle.core().walk_newest(&mut |owned| extents.push(owned.extent));
        let longest = extents.iter().max_by_key(|extent| extent.blocks).unwrap();
        assert!(longest.blocks > 10 * PIECE_BLOCKS_MAX, "{longest:?}");
        // What lies beyond one piece, and the last block.
        let places = [PIECE_BLOCKS_MAX, longest.blocks - 1];
        let places = places.map(|at| (longest.start.0 + u64::from(at)) * BLOCK_BYTES_U64);
        places.iter().for_each(|place| flip(&directory, place + 77));
        wait(&database, &clock, 2 * INTERVAL);
        let scrub = database.stats().scrub;
        let found: Vec<_> = scrub.findings.iter().map(|error| error.offset().unwrap()).collect();
        assert_eq!(found, places, "{scrub:?}");
    }
}
