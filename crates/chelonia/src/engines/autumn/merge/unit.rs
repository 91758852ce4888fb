//! A merge unit: merges tables of one level, or a key span of the sinking level-0 sequences, into
//! the next level.
//!
//! ```text
//!   upper     [ a ......... ][ b ... ]       sinking sequences, newest first
//!             [ c .... ][ d ............ ]
//!   lower        [ X ... ]    [ Y ... ]       overlapping tables of the level below
//!             |        :             |
//!            from     cut            to       the part between two cuts is one piece
//! ```
//!
//! All entries of upper tables within the range of the unit are merged. Upper tables that end
//! within the range are removed; those that extend behind it (`b`, `d`; only in level 0) keep the
//! rest. Lower tables are always merged completely, so no cut between pieces goes through one.
//!
//! Large values: those of merged entries that are not written again are lost. A table that is
//! merged completely has a list of them; for other tables the merge records those it reads.

use crate::base::error::{Error, Result};
use crate::base::ids::BlockNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{LargeRef, SortedStream, Update};
use crate::engine::OwnedExtent;
use crate::engines::autumn::bounds::Edges;
use crate::engines::autumn::counters::Counters;
use crate::engines::autumn::merge::output::{Output, TableWriter};
use crate::engines::autumn::table::Table;
use crate::memory::epoch::Guard;
use crate::merge::{Merge, Tombstones};
use crate::run::{RangesStream, Totals, weight};
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::runtime::workers::Workers;
use crate::storage::cache::Heat;
use crate::structure::{SharedKey, events};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Inputs of a unit.
#[derive(Default)]
pub(in crate::engines::autumn) struct Unit {
    /// Upper tables by sequence, newest first, each in key order.
    pub upper: Vec<Vec<Table>>,
    /// Overlapping tables of the level below, in key order.
    pub lower: Vec<Table>,
    /// End of the key range (exclusive); `None` for the end of all keys.
    pub to: Option<SharedKey>,
    /// Cuts between pieces, ascending; no lower table spans a cut.
    pub cuts: Vec<SharedKey>,
    /// First keys of lower tables outside the unit, ascending: no new table spans one.
    pub barriers: Vec<SharedKey>,
    /// Options of the output.
    pub goal: Goal,
}

/// Output options for the tables of a level.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::engines::autumn) struct Goal {
    /// Size of a table, in bytes.
    pub table_bytes: u64,
    /// Filter bits per key.
    pub bits_per_key: u32,
    /// No older data lies below: tombstones are dropped.
    pub bottom: bool,
}

/// Result of a unit.
#[derive(Default)]
pub(in crate::engines::autumn) struct Merged {
    /// New tables of the level below, in key order.
    pub tables: Vec<Table>,
    /// Remainders of upper tables, by the first block of their run.
    pub left: BTreeMap<BlockNo, Table>,
}

/// Result of a piece.
#[derive(Default)]
struct Done {
    tables: Vec<Table>,
    /// For partly merged tables: the merged totals and number of large values.
    parts: Vec<(BlockNo, Totals, u64)>,
    /// Large values of merged entries; `written` holds those that were written again.
    consumed: BTreeSet<LargeRef>,
    written: Vec<LargeRef>,
}

impl Unit {
    /// Merges all pieces and writes the new tables.
    pub fn run(
        &self,
        output: &Output<'_>,
        counters: &Counters,
        workers: &Workers,
    ) -> Result<Merged> {
        let ranges = self.ranges();
        let done: Vec<Mutex<Option<Done>>> = ranges.iter().map(|_| Mutex::default()).collect();
        workers.run(ranges.len(), &|index| {
            let piece = Piece { unit: self, range: &ranges[index], output, counters };
            *done[index].lock() = Some(piece.run()?);
            Ok(())
        })?;
        let mut merged = Merged::default();
        let mut parts: BTreeMap<BlockNo, (Totals, u64)> = BTreeMap::new();
        let (mut consumed, mut written) = (BTreeSet::new(), Vec::new());
        for done in done {
            let Some(mut done) = done.into_inner() else {
                return Err(Error::internal("a piece of a merge was not done"));
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

    /// Returns the remainder of an upper table, if any.
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

    /// Returns the key ranges of the pieces.
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
struct Piece<'a> {
    unit: &'a Unit,
    range: &'a KeyRange,
    output: &'a Output<'a>,
    counters: &'a Counters,
}

impl Piece<'_> {
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
        events::add(&self.counters.tombstones_dropped, passed.tombstones);
        events::add(&self.counters.entries_shadowed, passed.entries - passed.tombstones);
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

    /// Opens all sources, newest first.
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
                    // The exact share is unknown; half is a fair guess.
                    *expected += table.live.weight() / 2;
                    sources.push(Source::part(table, clip(live, self.range))?);
                }
            }
            if !whole.is_empty() {
                sources.push(Source::whole(whole)?);
            }
        }
        let mut lower = Vec::new();
        // A lower table that extends behind the unit is merged completely by the last piece.
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

    /// Writes the merged entries as tables of similar size.
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

    /// Returns the heat of the block that contained `key` before, if it was in memory: of lower
    /// tables, which hold most entries, or of upper ones.
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

/// Returns the size of the next table. `expected` is the estimated weight of the merge inputs, of
/// which `written` was written and `passed` was consumed. The rest is cut into tables of similar
/// size, at most `most` each. The last table may be slightly larger, so that no small remainder is
/// left.
fn even_share(expected: u64, written: u64, passed: u64, most: u64) -> u64 {
    let rest = expected.saturating_sub(written + passed);
    let count = rest.saturating_sub(most / 8).div_ceil(most).max(1);
    // The inputs are an estimate: never far more than a table.
    (rest / count + most / 64).clamp(most / 2, most + most / 8)
}

/// Intersects both ranges; `live` has a lower bound only.
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
    /// The run, if the source covers only some entries of one table: then these are counted.
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
        // Far more entries were hidden than expected.
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
