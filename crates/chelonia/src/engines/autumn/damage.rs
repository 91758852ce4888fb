//! What merges cannot read, and do without.
//!
//! A merge that meets a block that cannot be read gives back what it wrote, and the table is
//! *stuck*: it stays where it is, and so does what meets it in the level above. Everything else
//! goes down as before. In level 0 the keys that sink go from the left to the right, and past a
//! stuck table only where no other table goes through.
//!
//! What is known is not stored: after an open the first merge that comes there tries again.

use super::table::Table;
use super::unit::Unit;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::BlockNo;
use crate::base::limits::BLOCK_BYTES_U64;
use std::collections::BTreeSet;

/// Runs that cannot be read, by their first block.
#[derive(Default)]
pub(super) struct Damage {
    runs: BTreeSet<BlockNo>,
}

impl Damage {
    /// True if `table` is known to be damaged.
    pub fn has(&self, table: &Table) -> bool {
        !self.runs.is_empty() && self.runs.contains(&table.run.reference().extent.start)
    }

    /// Remembers what of `unit` cannot be read; how many tables that are: none if `error` says
    /// something else.
    pub fn learn(&mut self, unit: &Unit, error: &Error) -> u64 {
        if error.kind() != ErrorKind::Corrupt {
            return 0;
        }
        let block = error.offset().map(|offset| offset / BLOCK_BYTES_U64);
        let is_in = |table: &&Table| {
            let extent = table.run.reference().extent;
            let range = extent.start.0..extent.start.0 + u64::from(extent.blocks);
            block.is_some_and(|block| range.contains(&block))
        };
        let tables = || unit.upper.iter().flatten().chain(&unit.lower);
        let before = self.runs.len();
        let start = |table: &Table| table.run.reference().extent.start;
        self.runs.extend(tables().filter(is_in).map(start));
        if self.runs.len() == before {
            // It is known only that something of this cannot be read.
            self.runs.extend(tables().map(start));
        }
        (self.runs.len() - before) as u64
    }

    /// Forgets runs that no longer are.
    pub fn forget<'t>(&mut self, gone: impl Iterator<Item = &'t Table>) {
        if !self.runs.is_empty() {
            gone.for_each(|table| {
                self.runs.remove(&table.run.reference().extent.start);
            });
        }
    }
}
