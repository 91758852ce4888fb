//! Unreadable runs that merges skip.
//!
//! A merge that meets an unreadable block frees its output, and the table becomes *stuck*: it stays
//! in its level, and so do overlapping tables in the level above. All other tables are merged as
//! before. In level 0 the merged keys advance from left to right, and past a stuck table only where
//! no other table spans its end.
//!
//! Known damage is not stored: after an open the first merge that reaches the block tries again.

use crate::base::error::{Error, ErrorKind};
use crate::base::ids::BlockNo;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engines::autumn::merge::unit::Unit;
use crate::engines::autumn::table::Table;
use std::collections::BTreeSet;

/// Unreadable runs, by first block.
#[derive(Default)]
pub(in crate::engines::autumn) struct Damage {
    runs: BTreeSet<BlockNo>,
}

impl Damage {
    /// Returns true if `table` is known to be damaged.
    pub fn has(&self, table: &Table) -> bool {
        !self.runs.is_empty() && self.runs.contains(&table.run.reference().extent.start)
    }

    /// Records the unreadable tables of `unit` and returns their number: zero if `error` has
    /// another cause.
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
            // The error does not say which of these tables cannot be read.
            self.runs.extend(tables().map(start));
        }
        (self.runs.len() - before) as u64
    }

    /// Forgets runs that no longer exist.
    pub fn forget<'t>(&mut self, gone: impl Iterator<Item = &'t Table>) {
        if !self.runs.is_empty() {
            gone.for_each(|table| {
                self.runs.remove(&table.run.reference().extent.start);
            });
        }
    }
}
