//! Merges: their options, and their effect on the contents of the next version.

use crate::base::error::Result;
use crate::base::limits::SLAB_BYTES;
use crate::engine::OwnedExtent;
use crate::engines::autumn::merge::garnering::Garnering;
use crate::engines::autumn::merge::output::{Change, Output};
use crate::engines::autumn::merge::plan::LEVEL0_TRIGGER;
use crate::engines::autumn::merge::unit::{Goal, Merged, Unit};
use crate::engines::autumn::table::{Sequence, Table};
use crate::engines::autumn::version::{AutumnVersion, Next};
use crate::engines::autumn::{Autumn, Writer};
use crate::runtime::sync::Arc;
use crate::runtime::workers::Workers;
use crate::structure::events;
use std::collections::BTreeMap;

/// Divisor of the memory budget that limits the read-ahead of merges of level 0.
const MERGE_PART: u64 = 16;

/// Maximum bits per key of a filter, as a multiple of the configured average; a few bits are always
/// allowed.
const FILTER_BITS_TIMES: u32 = 2;
const FILTER_BITS_OFTEN: u32 = 8;

impl Autumn {
    /// Returns the maximum number of sequences that begin to sink together: a merge reads ahead in
    /// each of them.
    pub(in crate::engines::autumn) fn sinking_max(&self, workers: Workers) -> usize {
        let part = self.shared.node_cache.storage().budget().limit() / MERGE_PART;
        let streams = part / SLAB_BYTES as u64 / workers.threads() as u64;
        usize::try_from(streams).unwrap_or(usize::MAX).max(LEVEL0_TRIGGER)
    }

    /// Merges a unit, and records its unreadable tables.
    pub(in crate::engines::autumn) fn merge(
        &self,
        unit: &Unit,
        writer: &mut Writer,
        output: &Output<'_>,
        workers: Workers,
    ) -> Result<Merged> {
        let merged = unit.run(output, &self.shared.counters, &workers).inspect_err(|error| {
            let stuck = writer.damage.learn(unit, error);
            events::add(&self.shared.counters.tables_stuck, stuck);
        })?;
        writer.damage.forget(unit.upper.iter().flatten().chain(&unit.lower));
        Ok(merged)
    }

    /// Returns the output options for tables that come from `level`.
    pub(in crate::engines::autumn) fn goal(&self, version: &AutumnVersion, level: usize) -> Goal {
        let levels = version.levels.len();
        let below = version.levels.get(level);
        let coming = match level {
            0 => version.level0.iter().map(|sequence| sequence.totals().entries).sum(),
            level => version.levels[level - 1].totals().entries,
        };
        let entries = below.map_or(0, |below| below.totals().entries).max(coming);
        Goal {
            table_bytes: self.options().table_bytes_of(level + 1, levels),
            bits_per_key: self.filter_bits(version, Some(level), entries),
            bottom: version.levels[level + 1..].iter().all(|below| below.is_empty()),
        }
    }

    /// Moves tables from `level` to the level below without rewriting them.
    pub(in crate::engines::autumn) fn move_tables(
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
                0 => &mut next.level0[sequence],
                level => &mut next.levels[level - 1],
            };
            let change = Change { removed, added: Vec::new() };
            *place = Arc::new(output.change(place, change)?);
        }
        let change = Change { removed: Vec::new(), added };
        next.levels[level] = Arc::new(output.change(&version.levels[level], change)?);
        events::add(&self.shared.counters.tables_moved, count);
        Ok(())
    }

    /// Replaces the inputs of a unit from `level` by its output; `first` is the index of the first
    /// level-0 sequence that it took from.
    pub(in crate::engines::autumn) fn replace(
        (level, first): (usize, usize),
        unit: &Unit,
        mut merged: Merged,
        next: &mut Next,
        output: &Output<'_>,
    ) -> Result<()> {
        let mut gone: Vec<OwnedExtent> = unit.lower.iter().map(Table::owned).collect();
        for (place, upper) in unit.upper.iter().enumerate() {
            let mut change = Change { removed: upper.clone(), added: Vec::new() };
            for table in upper {
                match merged.left.remove(&table.run.reference().extent.start) {
                    Some(left) => change.added.push(left),
                    None => gone.push(table.owned()),
                }
            }
            let sequence = match level {
                0 => &mut next.level0[first + place],
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

    /// Replaces the inputs of a unit within level 0: the output goes to the last of the sequences
    /// from `first` on.
    pub(in crate::engines::autumn) fn replace_within(
        first: usize,
        unit: &Unit,
        merged: Merged,
        next: &mut Next,
        output: &Output<'_>,
    ) -> Result<()> {
        let mut added = merged.tables;
        for (place, removed) in unit.upper.iter().enumerate().rev() {
            let sequence = &mut next.level0[first + place];
            let change = Change { removed: removed.clone(), added: std::mem::take(&mut added) };
            *sequence = Arc::new(output.change(sequence, change)?);
        }
        output.lose(unit.upper.iter().flatten().map(Table::owned));
        Ok(())
    }

    /// Returns the filter bits per key of a table in a sequence of `entries` entries: in level
    /// index `level` (0 is level 1), or in a new sequence of level 0 (`None`).
    ///
    /// The lower levels share the budget among themselves. Level 0 is temporary, but filters of
    /// lower levels persist: if level 0 took a share, they would permanently have too few bits.
    /// Meanwhile all filters together may exceed the budget by those of level 0.
    pub(in crate::engines::autumn) fn filter_bits(
        &self,
        version: &AutumnVersion,
        level: Option<usize>,
        entries: u64,
    ) -> u32 {
        let options = self.options();
        if !options.levels.allocate_filters_by_level || options.run.bits_per_key == 0 {
            return options.run.bits_per_key;
        }
        let entries_of = |sequence: &Arc<Sequence>| sequence.totals().entries;
        let mut all: Vec<u64> = version.levels.iter().map(entries_of).collect();
        let place = match level {
            Some(level) => {
                all.resize(all.len().max(level + 1), 0);
                all[level] = all[level].max(entries);
                level
            }
            None => {
                all.splice(..0, version.level0.iter().map(entries_of));
                all.insert(0, entries);
                0
            }
        };
        let bits = Garnering::filter_bits(options.run.bits_per_key, &all)[place];
        // Tables that move keep their filters, and may hold most of the tree one day.
        bits.min((FILTER_BITS_TIMES * options.run.bits_per_key).max(FILTER_BITS_OFTEN))
    }
}
