//! Absorbing: writes a memtable as a sequence of level 0.
//!
//! Existing data is not read, except for small sequences. A memtable that is cut at hundreds of
//! snapshots arrives in hundreds of parts. If each part stayed a sequence, lookups would check all
//! of them, every few of them would trigger a merge with level 1, and every version would list them
//! all. Therefore four neighbours of similar size that together do not exceed a usual memtable are
//! merged before the next part is written: each entry is rewritten at most once per power of four
//! of the number of parts.

use crate::base::error::{Error, Result};
use crate::base::keys::KeyRange;
use crate::base::stream::{SortedStream, SortedUpdates};
use crate::engine::{OwnedExtent, Work};
use crate::engines::autumn::bounds::Edges;
use crate::engines::autumn::merge::output::Output;
use crate::engines::autumn::merge::unit::Unit;
use crate::engines::autumn::options::{JOBS_MAX, TABLE_AUTO_MIN};
use crate::engines::autumn::table::{Found, Sequence, Table};
use crate::engines::autumn::version::{AutumnVersion, Next};
use crate::engines::autumn::{Autumn, Writer};
use crate::merge::{UpdatesStream, small_neighbours};
use crate::run::even_ranges;
use crate::runtime::sync::Mutex;
use crate::runtime::workers::Workers;
use crate::structure::{SharedKey, events};
use std::ops::Range;

/// Divisor of the memory budget for tables under construction by all workers: a table under
/// construction takes several times its weight.
const TABLES_PART: u64 = 16;

impl Autumn {
    /// Merges small neighbours of level 0 in `next` into one sequence, if there are enough of them.
    /// Leaves them unchanged if they cannot be read or there is no space.
    pub(in crate::engines::autumn) fn gather_small(
        &self,
        version: &AutumnVersion,
        writer: &mut Writer,
        next: &mut Next,
        output: &Output<'_>,
        work: &Work<'_>,
    ) {
        let whole = &version.level0[..version.level0.len() - version.sinking];
        let weights: Vec<u64> = whole.iter().map(|sequence| sequence.weight()).collect();
        let distance = self.options().checkpoint_distance;
        let Some(group) = small_neighbours(&weights, distance) else {
            return;
        };
        let own = self.output(work);
        let first = group.start;
        let before = next.level0.clone();
        match self.merge_small(version, writer, (group, &mut *next), &own, *work.workers) {
            Ok(()) => {
                let (gained, lost) = own.settle();
                output.gain(gained);
                output.lose(lost);
                events::add(&self.shared.counters.merges_within, 1);
                debug_assert!(!next.level0[first].is_empty(), "nothing is dropped in level 0");
            }
            Err(_) => {
                next.level0 = before;
                // The updates can still be absorbed.
                let _ = own.roll_back();
            }
        }
    }

    fn merge_small(
        &self,
        version: &AutumnVersion,
        writer: &mut Writer,
        (group, next): (Range<usize>, &mut Next),
        output: &Output<'_>,
        workers: Workers,
    ) -> Result<()> {
        let node_cache = &self.shared.node_cache;
        let mut unit = Unit::default();
        let mut entries = 0;
        for sequence in &version.level0[group.clone()] {
            let Found { tables, holes } = sequence.tables_in(node_cache, &KeyRange::all())?;
            if !holes.is_empty() || tables.iter().any(|table| writer.damage.has(table)) {
                return Err(Error::corrupt("a node of a level-0 sequence cannot be read"));
            }
            entries += sequence.totals().entries;
            unit.upper.push(tables);
        }
        unit.goal.table_bytes = self.options().table_bytes();
        unit.goal.bits_per_key = self.filter_bits(version, None, entries);
        let merged = self.merge(&unit, writer, output, workers)?;
        Self::replace_within(group.start, &unit, merged, next, output)?;
        // The last sequence now contains all of them.
        next.level0.drain(group.start..group.end - 1);
        Ok(())
    }

    /// Number of `workers` that may build tables at the same time.
    pub(in crate::engines::autumn) fn room(&self, workers: Workers, table_bytes: u64) -> Workers {
        let part = self.shared.node_cache.storage().budget().limit() / TABLES_PART;
        let count = part / table_bytes.max(TABLE_AUTO_MIN);
        workers.at_most(JOBS_MAX).at_most(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Writes the updates as a sequence of level 0.
    pub(in crate::engines::autumn) fn write_level0(
        &self,
        version: &AutumnVersion,
        updates: &dyn SortedUpdates,
        work: &Work<'_>,
        output: &Output<'_>,
    ) -> Result<Sequence> {
        let count = updates.len();
        let table_bytes = self.options().table_bytes();
        let bits = self.filter_bits(version, None, count as u64);
        let ranges = even_ranges(updates, table_bytes);
        let written: Vec<Mutex<Option<Table>>> = ranges.iter().map(|_| Mutex::default()).collect();
        let workers = self.room(*work.workers, table_bytes);
        workers.run(written.len(), &|index| {
            let ranks = ranges[index].clone();
            let Range { start, end } = ranks;
            let mut stream = UpdatesStream::new(updates, vec![ranks], work.progress);
            let mut writer = output.writer(bits);
            while let Some(key) = stream.key() {
                writer.add(key, stream.update())?;
                stream.advance()?;
            }
            let before = start.checked_sub(1).map(|rank| SharedKey::whole(updates.key(rank)));
            let behind = Some(end).filter(|rank| *rank < count);
            let edges = Edges {
                before: before.as_ref(),
                behind: behind.map(|rank| updates.key(rank)),
                ..Edges::default()
            };
            *written[index].lock() = Some(writer.finish(None, &edges)?);
            output.give_back(writer);
            let large = stream.finish();
            output.gain(large.iter().map(OwnedExtent::from));
            Ok(())
        })?;
        let tables: Option<Vec<Table>> = written.into_iter().map(Mutex::into_inner).collect();
        let tables = tables.ok_or_else(|| Error::internal("a table was not written"))?;
        output.write_sequence(tables)
    }
}
