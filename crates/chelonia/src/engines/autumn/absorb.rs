//! Absorbing: a memtable becomes a sequence of level 0. Nothing that is there is read.

use super::options::TABLE_AUTO_MIN;
use super::output::Output;
use super::table::{Sequence, Table};
use super::{Autumn, AutumnVersion};
use crate::base::error::{Error, Result};
use crate::base::stream::{SortedStream, SortedUpdates};
use crate::base::sync::Mutex;
use crate::base::workers::Workers;
use crate::engine::{OwnedExtent, Work};
use crate::merge::UpdatesStream;
use crate::run::weight;

/// All workers together build tables of at most this part of the budget: one that is being built
/// takes several times its weight.
const TABLES_PART: u64 = 16;

impl Autumn {
    /// How many of `workers` may build tables at one time.
    pub(super) fn room(&self, workers: Workers, table_bytes: u64) -> Workers {
        let part = self.shared.residence.storage().budget().limit() / TABLES_PART;
        let count = part / table_bytes.max(TABLE_AUTO_MIN);
        workers.at_most(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Writes the updates as a sequence of level 0.
    pub(super) fn write_level0(
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
