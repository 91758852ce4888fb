//! A unit of merging: tables of one level, or a stretch of the sequences of level 0, go down by one
//! level.
//!
//! ```text
//!   upper     [ a ......... ][ b ... ]       sequences that go down, newest first
//!             [ c .... ][ d ............ ]
//!   lower        [ X ... ]    [ Y ... ]       tables of the level below that they meet
//!             |        :             |
//!            from     cut            to       each part between cuts is a job of its own
//! ```
//!
//! All entries of upper tables within the unit's range go down. Upper tables that end within it are
//! gone then; those that go on behind it (`b`, `d`; only of level 0) keep what is behind. Lower
//! tables are always merged whole, so no cut between jobs goes through one.
//!
//! Large values: those of merged entries that are not written again are lost. A table that is
//! merged whole has a list of them; of others the merge notes what it meets.

use super::bounds::Edges;
use super::counters::Counters;
use super::output::{Output, TableWriter};
use super::table::Table;
use crate::base::error::{Error, Result};
use crate::base::ids::BlockNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{LargeRef, SortedStream, Update};
use crate::engine::OwnedExtent;
use crate::memory::epoch::Guard;
use crate::merge::{Merge, Tombstones};
use crate::run::{RangesStream, Totals, weight};
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::runtime::workers::Workers;
use crate::storage::cache::Heat;
use crate::structure::SharedKey;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// What goes down.
#[derive(Default)]
pub(super) struct Unit {
    /// Newest first, each in the order of keys.
    pub upper: Vec<Vec<Table>>,
    /// What it meets, in the order of keys.
    pub lower: Vec<Table>,
    /// Where the range of keys ends, if it does not go to the end of all keys.
    pub to: Option<SharedKey>,
    /// Where it is cut into jobs, ascending; no lower table goes through a cut.
    pub cuts: Vec<SharedKey>,
    /// Where tables of the level below begin that are not met, ascending: no new one goes across.
    pub barriers: Vec<SharedKey>,
    /// How it is written.
    pub goal: Goal,
}

/// How the tables of a level are written.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Goal {
    /// The size of a table, in bytes.
    pub table_bytes: u64,
    /// Bits per key of its filter.
    pub bits_per_key: u32,
    /// Nothing older lies below: tombstones are dropped.
    pub bottom: bool,
}

/// What became of a unit.
#[derive(Default)]
pub(super) struct Merged {
    /// The new tables of the level below, in the order of keys.
    pub tables: Vec<Table>,
    /// Upper tables of which something is left, by the first block of their run.
    pub left: BTreeMap<BlockNo, Table>,
}

/// What a job gave.
#[derive(Default)]
struct Done {
    tables: Vec<Table>,
    /// Of tables that were merged in part: how much of them.
    parts: Vec<(BlockNo, Totals, u64)>,
    /// Large values that were merged, and of those what was written.
    consumed: BTreeSet<LargeRef>,
    written: Vec<LargeRef>,
}

impl Unit {
    /// Merges everything and writes the new tables.
    pub fn run(
        &self,
        output: &Output<'_>,
        counters: &Counters,
        workers: &Workers,
    ) -> Result<Merged> {
        let ranges = self.ranges();
        let done: Vec<Mutex<Option<Done>>> = ranges.iter().map(|_| Mutex::default()).collect();
        workers.run(ranges.len(), &|index| {
            let job = Job { unit: self, range: &ranges[index], output, counters };
            *done[index].lock() = Some(job.run()?);
            Ok(())
        })?;
        let mut merged = Merged::default();
        let mut parts: BTreeMap<BlockNo, (Totals, u64)> = BTreeMap::new();
        let (mut consumed, mut written) = (BTreeSet::new(), Vec::new());
        for done in done {
            let Some(mut done) = done.into_inner() else {
                return Err(Error::internal("a job of a merge was not done"));
            };
            merged.tables.append(&mut done.tables);
            consumed.append(&mut done.consumed);
            written.append(&mut done.written);
            for (run, totals, large) in done.parts {
                let sum = parts.entry(run).or_default();
                sum.0 += totals;
                sum.1 += large;
            }
        }
        for table in self.upper.iter().flatten() {
            if let Some(rest) = self.rest_of(table, &parts) {
                merged.left.insert(rest.run.reference().extent.start, rest);
            }
        }
        for large in written {
            consumed.remove(&large);
        }
        output.lose(consumed.iter().map(OwnedExtent::from));
        Ok(merged)
    }

    /// What is left of an upper table.
    fn rest_of(&self, table: &Table, parts: &BTreeMap<BlockNo, (Totals, u64)>) -> Option<Table> {
        let to = self.to.as_ref().filter(|to| table.last >= **to)?;
        let mut rest = table.clone();
        if let Some((totals, large)) = parts.get(&table.run.reference().extent.start) {
            rest.live -= *totals;
            rest.large_skipped += large;
        }
        if rest.first < *to {
            rest.first = to.clone();
        }
        (rest.live.entries > 0).then_some(rest)
    }

    /// The ranges of the jobs.
    fn ranges(&self) -> Vec<KeyRange> {
        let bound = |key: &SharedKey| Bound::Excluded(key.to_bytes().into_owned());
        let uppers = self.cuts.iter().map(bound);
        let uppers = uppers.chain([self.to.as_ref().map_or(Bound::Unbounded, bound)]);
        let mut lower = Bound::Unbounded;
        let mut ranges = Vec::new();
        for upper in uppers {
            let next = match &upper {
                Bound::Excluded(key) => Bound::Included(key.clone()),
                _ => Bound::Unbounded,
            };
            ranges.push(KeyRange { lower: std::mem::replace(&mut lower, next), upper });
        }
        ranges
    }
}

/// The part of a unit between two cuts.
struct Job<'a> {
    unit: &'a Unit,
    range: &'a KeyRange,
    output: &'a Output<'a>,
    counters: &'a Counters,
}

impl Job<'_> {
    fn run(&self) -> Result<Done> {
        let mut done = Done::default();
        let mut expected = 0;
        let sources = self.open(&mut done, &mut expected)?;
        if sources.is_empty() {
            return Ok(done);
        }
        let tombstones = if self.unit.goal.bottom { Tombstones::Drop } else { Tombstones::Keep };
        let mut merge = Merge::new(sources, Direction::Ascending, tombstones)?;
        let mut writer = self.output.writer(self.unit.goal.bits_per_key);
        self.write(&mut merge, &mut writer, expected, &mut done.tables)?;
        done.written = writer.take_large();
        self.output.give_back(writer);
        let passed = merge.passed_over();
        Counters::add(&self.counters.tombstones_dropped, passed.tombstones);
        Counters::add(&self.counters.entries_shadowed, passed.entries - passed.tombstones);
        let mut read = 0;
        for source in merge.into_sources() {
            read += source.stream.bytes_read();
            if let Some(run) = source.part_of {
                done.parts.push((run, source.totals, source.large.len() as u64));
                done.consumed.extend(source.large);
            }
        }
        self.counters.read_bytes.fetch_add(read, Ordering::Relaxed);
        Ok(done)
    }

    /// Opens everything that takes part, newest first.
    fn open(&self, done: &mut Done, expected: &mut u64) -> Result<Vec<Source>> {
        let mut sources = Vec::new();
        for sequence in &self.unit.upper {
            let mut whole = Vec::new();
            for table in sequence {
                let live = table.live_range();
                let begins = table.first.is_admitted(self.range);
                if !begins || !table.last.is_reached(self.range) {
                    continue;
                }
                if table.first.is_within(self.range) && table.last.is_within(self.range) {
                    self.take_whole(table, done, expected)?;
                    whole.push((Arc::clone(&table.run), live));
                } else {
                    // How much of it is not known before; about half is a fair guess.
                    *expected += table.live.weight() / 2;
                    sources.push(Source::part(table, clip(live, self.range))?);
                }
            }
            if !whole.is_empty() {
                sources.push(Source::whole(whole)?);
            }
        }
        let mut lower = Vec::new();
        // A lower table that goes on behind the unit is merged whole by its last job.
        for table in self.unit.lower.iter().filter(|table| table.first.is_within(self.range)) {
            self.take_whole(table, done, expected)?;
            lower.push((Arc::clone(&table.run), table.live_range()));
        }
        if !lower.is_empty() {
            sources.push(Source::whole(lower)?);
        }
        Ok(sources)
    }

    fn take_whole(&self, table: &Table, done: &mut Done, expected: &mut u64) -> Result<()> {
        *expected += table.live.weight();
        table.visit_large(&mut |large| {
            done.consumed.insert(large);
            Ok(())
        })
    }

    /// Writes what the merge gives as tables of like size.
    fn write(
        &self,
        merge: &mut Merge<Source>,
        writer: &mut TableWriter<'_>,
        expected: u64,
        tables: &mut Vec<Table>,
    ) -> Result<()> {
        let most = self.unit.goal.table_bytes.max(1);
        let was_cached = |key: &[u8], guard: &Guard| self.heat(key, guard);
        let mut written = 0;
        let mut barriers = self.unit.barriers.iter().peekable();
        let merged: Vec<&Table> =
            self.unit.upper.iter().flatten().chain(&self.unit.lower).collect();
        while let Some(first) = merge.key() {
            while barriers.next_if(|barrier| **barrier <= *first).is_some() {}
            let size = even_share(expected, written, passed_weight(merge), most);
            while let Some(key) = merge.key() {
                let is_across = barriers.peek().is_some_and(|barrier| **barrier <= *key);
                if writer.weight() >= size || is_across {
                    break;
                }
                writer.add(key, merge.update())?;
                merge.advance()?;
            }
            written += writer.weight();
            let edges = Edges {
                before: tables.last().map(|table| &table.last),
                behind: merge.key(),
                range: Some(self.range),
                merged: &merged,
            };
            let table = writer.finish(Some(&was_cached), &edges)?;
            tables.push(table);
        }
        Ok(())
    }

    /// How hot the block is that had `key` before, if it was in memory: below, where most is, or
    /// above.
    fn heat(&self, key: &[u8], guard: &Guard) -> Option<Heat> {
        let of = |tables: &[Table]| {
            let place = tables.partition_point(|table| table.last < *key);
            let table = tables.get(place).filter(|table| table.covers(key))?;
            table.run.heat(key, guard)
        };
        of(&self.unit.lower).or_else(|| self.unit.upper.iter().find_map(|tables| of(tables)))
    }
}

fn passed_weight(merge: &Merge<Source>) -> u64 {
    let passed = merge.passed_over();
    weight(passed.entries, passed.bytes)
}

/// The size of the next table, if what goes into a merge weighs `expected` and so much of it was
/// written and passed over: what is left, cut into tables of like size that are at most `most`. The
/// last one may be a little larger, so that no small rest is left.
fn even_share(expected: u64, written: u64, passed: u64, most: u64) -> u64 {
    let rest = expected.saturating_sub(written + passed);
    let count = rest.saturating_sub(most / 8).div_ceil(most).max(1);
    // What goes in is an estimate: never far more than a table.
    (rest / count + most / 64).clamp(most / 2, most + most / 8)
}

/// What lies in both; `live` is all from a key on.
fn clip(live: KeyRange, range: &KeyRange) -> KeyRange {
    let lower = match (&live.lower, &range.lower) {
        (Bound::Unbounded, _) => range.lower.clone(),
        (Bound::Included(one), Bound::Included(other)) if other > one => range.lower.clone(),
        _ => live.lower,
    };
    KeyRange { lower, upper: range.upper.clone() }
}

/// Entries of tables of one sequence.
struct Source {
    stream: RangesStream,
    /// The run, if these are some entries of one table: then they are counted.
    part_of: Option<BlockNo>,
    totals: Totals,
    large: Vec<LargeRef>,
}

impl Source {
    fn whole(ranges: Vec<(Arc<crate::run::Run>, KeyRange)>) -> Result<Self> {
        let stream = RangesStream::new(ranges)?;
        Ok(Self { stream, part_of: None, totals: Totals::default(), large: Vec::new() })
    }

    fn part(table: &Table, range: KeyRange) -> Result<Self> {
        let stream = RangesStream::new(vec![(Arc::clone(&table.run), range)])?;
        let part_of = Some(table.run.reference().extent.start);
        Ok(Self { stream, part_of, totals: Totals::default(), large: Vec::new() })
    }
}

impl SortedStream for Source {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.stream.key()
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.stream.update()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if self.part_of.is_some()
            && let Some(key) = self.stream.key()
        {
            let update = self.stream.update();
            self.totals.add_entry(key, &update);
            self.large.extend(update.large());
        }
        self.stream.advance()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_of_like_size_and_leave_no_small_rest() {
        let mut sizes = Vec::new();
        let mut written = 0;
        while written < 1_000 {
            let size = even_share(1_000, written, 0, 300).min(1_000 - written);
            sizes.push(size);
            written += size;
        }
        assert_eq!(sizes.len(), 4);
        assert!(sizes.iter().all(|size| (230..=310).contains(size)), "{sizes:?}");
        assert!(even_share(320, 0, 0, 300) >= 320);
        // Much was hidden, more than was thought.
        assert_eq!(even_share(1_000, 900, 200, 300), 150);
    }

    #[test]
    fn ranges_are_clipped_to_both() {
        let key = |text: &str| text.as_bytes().to_vec();
        let live = KeyRange { lower: Bound::Included(key("d")), upper: Bound::Unbounded };
        assert_eq!(clip(live.clone(), &KeyRange::all()), live);
        let range = KeyRange::half_open(b"f", Some(b"k"));
        assert_eq!(clip(live.clone(), &range), range);
        assert_eq!(clip(KeyRange::all(), &range), range);
        let clipped = clip(live, &KeyRange::half_open(b"a", Some(b"z")));
        assert_eq!(clipped, KeyRange::half_open(b"d", Some(b"z")));
    }
}
