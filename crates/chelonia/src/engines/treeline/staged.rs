//! Staged updates: memtables that were absorbed and not swept into pages yet.
//!
//! ```text
//!   staged, newest first   [ run | run | run ]
//!                          [ run | run ]
//!   sinking, the oldest    [ ..... | run | run ]      keys below `swept_to` are in pages
//!                          [ .. | run ]
//! ```
//!
//! A memtable is written as runs, in key order, so that its first ones can be freed before the last
//! ones are swept. Of the run that the sweep is in, the entries below `swept_to` are not live.

use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::base::stream::LargeRef;
use crate::engine::OwnedExtent;
use crate::memory::budget::{Budget, Charge, Use};
use crate::run::{Run, RunFilter, weight};
use crate::runtime::sync::Arc;
use crate::structure::SharedKey;
use std::ops::Bound;

/// A staged run.
#[derive(Clone)]
pub(super) struct Table {
    /// The run.
    pub run: Arc<Run>,
    /// Its filter: most lookups need nothing else of it.
    pub filter: RunFilter,
    /// Its first key.
    pub first: SharedKey,
    /// Its last key.
    pub last: SharedKey,
    /// Number of its large values, from the first on, that are in pages already.
    pub large_skipped: u64,
}

impl Table {
    /// Creates the table of a run whose keys are from `first` to `last`.
    pub fn new(run: Arc<Run>, first: SharedKey, last: SharedKey) -> Self {
        let filter = run.filter().clone();
        Self { run, filter, first, last, large_skipped: 0 }
    }

    /// The extent of the run.
    pub fn owned(&self) -> OwnedExtent {
        let reference = self.run.reference();
        OwnedExtent::structure(reference.extent, reference.generation)
    }

    /// The size on which decisions are based.
    pub fn weight(&self) -> u64 {
        let reference = self.run.reference();
        weight(reference.entries, reference.user_bytes)
    }

    /// Visits the large values of live entries, if those below `from` are not live.
    pub fn visit_large(
        &self,
        from: &SharedKey,
        visit: &mut dyn FnMut(LargeRef) -> Result<()>,
    ) -> Result<()> {
        if self.run.reference().large_blocks == 0 {
            return Ok(());
        }
        let live = if *from > self.first { from.range_to(None) } else { KeyRange::all() };
        self.run.large_refs_from(self.large_skipped, &live, visit)
    }

    /// True if it may have keys of `range`.
    pub fn meets(&self, range: &KeyRange) -> bool {
        self.first.is_admitted(range) && self.last.is_reached(range)
    }
}

/// A memtable that was absorbed.
pub(super) struct Staged {
    /// Its runs, in key order; at least one.
    pub tables: Vec<Table>,
    /// Memory charge, shared by the versions that refer to it.
    _charge: Charge,
}

impl Staged {
    /// Creates a memtable of these runs, charged to `budget`.
    pub fn new(tables: Vec<Table>, budget: &Arc<Budget>) -> Arc<Self> {
        let charge = budget.charge(Use::Metadata, heap_bytes(&tables));
        Arc::new(Self { tables, _charge: charge })
    }

    /// The run that may have `key`.
    #[inline]
    pub fn table_of(&self, key: &[u8]) -> Option<&Table> {
        let begun = self.tables.partition_point(|table| table.first <= *key);
        let table = &self.tables[begun.checked_sub(1)?];
        (table.last >= *key).then_some(table)
    }

    /// The size on which decisions are based.
    pub fn weight(&self) -> u64 {
        self.tables.iter().map(Table::weight).sum()
    }

    /// The runs that are left when keys below `to` are in pages; `None` if there are none. `skip`
    /// knows how many large values of a run are in pages.
    pub fn rest_from(&self, to: &SharedKey, skip: impl Fn(&Table) -> u64) -> Option<Vec<Table>> {
        let left = self.tables.iter().filter(|table| table.last >= *to);
        let tables: Vec<Table> =
            left.map(|table| Table { large_skipped: skip(table), ..table.clone() }).collect();
        (!tables.is_empty()).then_some(tables)
    }
}

/// Approximate heap bytes of a list of runs, whose blocks are charged by the cache.
fn heap_bytes(tables: &[Table]) -> u64 {
    let keys = |table: &Table| table.first.heap_bytes(None) + table.last.heap_bytes(None);
    let bytes = tables.iter().map(|table| size_of::<Table>() + keys(table));
    (64 + bytes.sum::<usize>()) as u64
}

/// `range` without the keys below `from`.
pub(super) fn from_key(range: &KeyRange, from: &SharedKey) -> KeyRange {
    let lower = match &range.lower {
        Bound::Included(key) | Bound::Excluded(key) if *from <= **key => range.lower.clone(),
        _ if from.len() == 0 => range.lower.clone(),
        _ => Bound::Included(from.to_bytes().into_owned()),
    };
    KeyRange { lower, upper: range.upper.clone() }
}
