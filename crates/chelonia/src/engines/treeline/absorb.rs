//! Absorbing: a memtable is staged, as runs. Pages are neither read nor written.
//!
//! Small staged memtables are merged before (`merge/neighbours.rs`): lookups ask all filters.

use super::Treeline;
use super::codec::STAGED_MAX;
use super::config::TreelineConfig;
use super::output::Output;
use super::staged::{Staged, Table};
use super::sweep::updates::StagedStream;
use super::version::Parts;
use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{SortedStream, SortedUpdates};
use crate::engine::{Absorbed, OwnedExtent, Work, WriteBudget};
use crate::merge::{Merge, Tombstones, UpdatesStream, small_neighbours};
use crate::run::{RunBuilder, even_ranges, weight};
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::structure::{Ledger, SharedKey, events};
use std::collections::BTreeSet;

/// Number of runs that are built side by side.
const BUILDERS_MAX: usize = 4;

impl Treeline {
    /// Makes the next version of the newest one and `updates`.
    pub(super) fn stage(
        &self,
        updates: &dyn SortedUpdates,
        budget: WriteBudget,
        work: &Work<'_>,
    ) -> Result<Absorbed> {
        let version = self.newest();
        if version.parts.staged.len() >= STAGED_MAX {
            return Err(Error::internal("too many memtables wait to be swept into pages"));
        }
        let output = self.output(work.quota);
        let mut parts = version.parts.clone();
        if budget == WriteBudget::Usual {
            self.gather(&mut parts, &output, work);
        }
        let tables = match self.write_staged(updates, &output, work) {
            Ok(tables) => tables,
            Err(error) => {
                // The first error is more useful than one from the roll-back.
                let _ = output.into_ledger().roll_back(self.storage());
                return Err(error);
            }
        };
        parts.staged.insert(0, Staged::new(tables, self.storage().budget()));
        let absorbed = self.publish(&version, parts, output)?;
        events::add(&self.shared.counters.absorbs, 1);
        self.note_pending();
        Ok(absorbed)
    }

    /// Merges small neighboring memtables that no sweep has begun or claimed into one, if there are
    /// enough of them. Leaves them unchanged if they cannot be read or there is no space.
    fn gather(&self, parts: &mut Parts, output: &Output<'_>, work: &Work<'_>) {
        let swept = parts.sinking.max(self.claimed.load(Ordering::SeqCst));
        let whole = &parts.staged[..parts.staged.len() - swept];
        let weights: Vec<u64> = whole.iter().map(|staged| staged.weight()).collect();
        let Some(group) = small_neighbours(&weights, self.config().checkpoint_distance) else {
            return;
        };
        let own = self.output(work.quota);
        match merge_staged(&whole[group.clone()], self.config(), &own) {
            Ok(tables) => {
                let Ledger { gained, lost } = own.into_ledger();
                output.gain(gained);
                output.lose(lost);
                parts.staged.splice(group, [Staged::new(tables, self.storage().budget())]);
                events::add(&self.shared.counters.gathered, 1);
            }
            // The updates can still be staged.
            Err(_) => drop(own.into_ledger().roll_back(self.storage())),
        }
    }

    fn write_staged(
        &self,
        updates: &dyn SortedUpdates,
        output: &Output<'_>,
        work: &Work<'_>,
    ) -> Result<Vec<Table>> {
        let config = self.config();
        let ranges = even_ranges(updates, config.run_bytes);
        let written: Vec<Mutex<Option<Table>>> = ranges.iter().map(|_| Mutex::default()).collect();
        work.workers.at_most(BUILDERS_MAX).run(ranges.len(), &|index| {
            let ranks = ranges[index].clone();
            let mut stream = UpdatesStream::new(updates, vec![ranks], work.progress);
            let mut builder = RunBuilder::new(output.storage(), config.run);
            while let Some(key) = stream.key() {
                builder.add(key, stream.update())?;
                stream.advance()?;
            }
            *written[index].lock() = Some(finish(&mut builder, output)?);
            output.gain(stream.finish().iter().map(OwnedExtent::from));
            Ok(())
        })?;
        let tables: Option<Vec<Table>> = written.into_iter().map(Mutex::into_inner).collect();
        tables.ok_or_else(|| Error::internal("a staged run was not written"))
    }
}

/// Writes the entries of several memtables, newest first, as those of one.
fn merge_staged(
    group: &[Arc<Staged>],
    config: TreelineConfig,
    output: &Output<'_>,
) -> Result<Vec<Table>> {
    let sources: Result<Vec<StagedStream>> =
        group.iter().map(|staged| StagedStream::new(staged, &KeyRange::all())).collect();
    let mut merge = Merge::new(sources?, Direction::Ascending, Tombstones::Keep)?;
    let (mut tables, mut kept) = (Vec::new(), BTreeSet::new());
    let mut builder = RunBuilder::new(output.storage(), config.run);
    while let Some(key) = merge.key() {
        let update = merge.update();
        kept.extend(update.large());
        builder.add(key, update)?;
        merge.advance()?;
        let is_full = weight(builder.entries(), builder.user_bytes()) >= config.run_bytes;
        if is_full || merge.key().is_none() {
            tables.push(finish(&mut builder, output)?);
        }
    }
    for source in merge.into_sources() {
        let hidden = source.large.iter().filter(|large| !kept.contains(large));
        output.lose(hidden.map(OwnedExtent::from));
    }
    output.lose(group.iter().flat_map(|staged| &staged.tables).map(Table::owned));
    Ok(tables)
}

/// Writes the run of a builder.
fn finish(builder: &mut RunBuilder, output: &Output<'_>) -> Result<Table> {
    let first = SharedKey::whole(builder.first_key().unwrap_or_default());
    let last = SharedKey::whole(builder.last_key().unwrap_or_default());
    let reference = builder.finish(output.quota)?;
    let node_cache = output.node_cache;
    let run = node_cache.context().open(node_cache.storage(), reference);
    let table = Table::new(run, first, last);
    output.gain([table.owned()]);
    output.counters.data_bytes.fetch_add(reference.extent.bytes(), Ordering::Relaxed);
    Ok(table)
}
