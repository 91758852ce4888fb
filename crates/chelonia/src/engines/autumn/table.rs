//! Tables in memory, and the nodes that list them.
//!
//! ```text
//!   sequence   [ node | node | node ]     the sequence knows the first key and the totals of each
//!                 |                       node without reading it
//!                 '-> [ table | table | ... ]      up to NODE_TABLES_MAX, in key order
//!                          |
//!                          '-> run
//! ```
//!
//! A *table* is a run together with its live entries: those from `first` on. `first` and `last` are
//! bounds, not always keys (`bounds.rs`). Tables of a level are entirely live. Tables of level 0
//! lose live entries from the left, as these are merged into level 1.
//!
//! Invariants (checked when a node is decoded, and by `verify`):
//! 1. The tables of a sequence are in key order, and no live key is in two tables.
//! 2. A table has at least one live entry; all of them are from `first` to `last`; `live` counts
//!    them exactly.
//! 3. Every table belongs to one sequence, and every node to one sequence of each version.
//!
//! Nodes and tables are immutable; any thread may read them.

use crate::base::error::{ErrorKind, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::LargeRef;
use crate::engine::OwnedExtent;
use crate::memory::budget::Charge;
use crate::run::{Run, RunFilter, RunRef, Totals};
use crate::runtime::sync::Arc;
use crate::structure::{self, SharedKey, Slot, begun_by};
use std::ops::Bound;

/// Maximum tables of a node: small enough to be rewritten with every merge.
pub(super) const NODE_TABLES_MAX: usize = 128;

/// Maximum memory of the keys of a node in bytes, unless a single table takes more.
pub(super) const NODE_KEY_BYTES: usize = 512 << 10;

/// Maximum length in bytes of a short bound. A node that is half full by key memory ends before a
/// table whose first bound is that short: the directory holds the first bound of each node.
pub(super) const SHORT_BOUND_BYTES: usize = 1 << 10;

/// A node with fewer tables than this should be joined with its neighbour.
pub(super) const NODE_TABLES_SMALL: usize = 32;

/// Slot of a node.
pub(super) type NodeSlot = Slot<Node>;

/// The nodes of a tree that are in memory, and its open runs.
pub(super) type NodeCache = structure::NodeCache<Node>;

/// A run, and its live entries.
#[derive(Clone)]
pub(super) struct Table {
    /// The run.
    pub run: Arc<Run>,
    /// Lower bound of the live keys (inclusive).
    pub first: SharedKey,
    /// Upper bound of the live keys (inclusive).
    pub last: SharedKey,
    /// The live entries.
    pub live: Totals,
    /// Number of large values, from the beginning of the list of the run, that are no longer live.
    pub large_skipped: u64,
    /// The filter of the run: most lookups need nothing else of the run.
    pub filter: RunFilter,
}

impl Table {
    /// Creates a table of a whole run, whose keys are from `first` to `last`.
    pub fn whole(run: Arc<Run>, first: SharedKey, last: SharedKey) -> Self {
        let filter = run.filter().clone();
        let live = run.reference().totals();
        Self { run, first, last, live, large_skipped: 0, filter }
    }

    /// Returns the same table with keys that share storage with those of the preceding table of its
    /// node.
    pub fn beside(self, before: Option<&Table>) -> Self {
        let first = match before {
            Some(before) => self.first.beside(&before.last),
            None => self.first.alone(),
        };
        let last = self.last.beside(&first);
        Self { first, last, ..self }
    }

    /// Heap bytes of its keys, when stored after those of the preceding table of its node.
    pub fn key_bytes(&self, before: Option<&Table>) -> usize {
        let first = self.first.heap_bytes(before.map(|before| &before.last));
        first + self.last.heap_bytes(Some(&self.first))
    }

    /// Returns true if the table may contain `key`.
    #[inline]
    pub fn covers(&self, key: &[u8]) -> bool {
        self.first <= *key && self.last >= *key
    }

    /// Returns true if both tables may have a common key.
    pub fn overlaps(&self, other: &Table) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns true if all its entries are live.
    pub fn is_complete(&self) -> bool {
        self.live.entries == self.run.reference().entries
    }

    /// Returns the range of live keys, as exactly as it is known.
    pub fn bounds(&self) -> KeyRange {
        KeyRange {
            lower: Bound::Included(self.first.to_bytes().into_owned()),
            upper: Bound::Included(self.last.to_bytes().into_owned()),
        }
    }

    /// Returns the live range of its run.
    pub fn live_range(&self) -> KeyRange {
        if self.is_complete() { KeyRange::all() } else { self.first.range_to(None) }
    }

    /// Visits the large values of live entries.
    pub fn visit_large(&self, visit: &mut dyn FnMut(LargeRef) -> Result<()>) -> Result<()> {
        if self.run.reference().large_blocks == 0 {
            return Ok(());
        }
        self.run.large_refs_from(self.large_skipped, &self.live_range(), visit)
    }

    /// Returns the extent of the run.
    pub fn owned(&self) -> OwnedExtent {
        owned_run(self.run.reference())
    }
}

/// Returns the extent of a run as an [`OwnedExtent`].
pub(super) fn owned_run(reference: &RunRef) -> OwnedExtent {
    OwnedExtent::structure(reference.extent, reference.generation)
}

/// Neighbouring tables of one sequence.
pub(super) struct Node {
    /// At least one table, in key order.
    pub tables: Vec<Table>,
    /// Numeric prefixes of the first keys of the tables.
    heads: Vec<u64>,
    /// Memory charge; `None` while a node is examined before it is cached.
    pub charge: Option<Charge>,
}

impl Node {
    /// Creates a node of these tables.
    pub fn new(tables: Vec<Table>) -> Self {
        let heads = tables.iter().map(|table| table.first.head()).collect();
        Self { tables, heads, charge: None }
    }

    /// Returns the number of tables that begin at or before `key`.
    #[inline]
    pub fn begun_by(&self, key: &[u8]) -> usize {
        begun_by(&self.heads, key, |index| &self.tables[index].first)
    }

    /// Returns the table that may contain `key`.
    #[inline]
    pub fn table_of(&self, key: &[u8]) -> Option<&Table> {
        let table = &self.tables[self.begun_by(key).checked_sub(1)?];
        (table.last >= *key).then_some(table)
    }

    /// Returns the totals of the live entries of all tables.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.tables.iter().for_each(|table| totals += table.live);
        totals
    }

    /// Returns its approximate heap bytes, without the runs.
    pub fn heap_bytes(&self) -> u64 {
        let mut bytes = size_of::<Self>();
        let mut before = None;
        for table in &self.tables {
            bytes += size_of::<Table>() + 8 + table.key_bytes(before);
            before = Some(table);
        }
        bytes as u64
    }
}

/// A node with the facts that are known without reading it.
#[derive(Clone)]
pub(super) struct Listed {
    /// First bound of its first table.
    pub first: SharedKey,
    /// The node.
    pub slot: Arc<NodeSlot>,
    /// Totals of its live entries.
    pub totals: Totals,
    /// Number of its tables.
    pub tables: u32,
}

/// Tables in key order: a level, or one of the sorted sequences of level 0.
#[derive(Clone, Default)]
pub(super) struct Sequence {
    /// Its nodes, in key order.
    pub nodes: Vec<Listed>,
    heads: Vec<u64>,
    totals: Totals,
    tables: u64,
}

impl Sequence {
    /// Creates a sequence of these nodes.
    pub fn new(mut nodes: Vec<Listed>) -> Self {
        for place in 1..nodes.len() {
            nodes[place].first = nodes[place].first.beside(&nodes[place - 1].first);
        }
        let heads = nodes.iter().map(|node| node.first.head()).collect();
        let mut totals = Totals::default();
        nodes.iter().for_each(|node| totals += node.totals);
        let tables = nodes.iter().map(|node| u64::from(node.tables)).sum();
        Self { nodes, heads, totals, tables }
    }

    /// Returns true if it has no tables.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the totals of its live entries.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the size in bytes on which decisions are based.
    pub fn weight(&self) -> u64 {
        self.totals.weight()
    }

    /// Returns the number of its tables.
    pub fn tables(&self) -> u64 {
        self.tables
    }

    /// Returns its approximate heap bytes, without nodes, which have charges of their own.
    pub fn heap_bytes(&self) -> u64 {
        const SLOT_BYTES: usize = 128;
        let mut bytes = 0;
        let mut before = None;
        for node in &self.nodes {
            bytes += size_of::<Listed>() + 8 + node.first.heap_bytes(before) + SLOT_BYTES;
            before = Some(&node.first);
        }
        bytes as u64
    }

    /// Returns the index of the only node that may contain `key`: the last that begins at or before
    /// it.
    #[inline]
    pub fn node_of(&self, key: &[u8]) -> Option<usize> {
        begun_by(&self.heads, key, |index| &self.nodes[index].first).checked_sub(1)
    }

    /// Returns the node at this index, or the unknown key range if the node is damaged.
    pub fn node(&self, node_cache: &NodeCache, index: usize) -> Result<Result<Arc<Node>, Hole>> {
        let listed = &self.nodes[index];
        match node_cache.load_owned(&listed.slot) {
            Ok(node) => Ok(Ok(node)),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Err(Hole {
                first: listed.first.clone(),
                next: self.nodes.get(index + 1).map(|next| next.first.clone()),
                tables: u64::from(listed.tables),
            })),
            Err(error) => Err(error),
        }
    }

    /// Returns the tables that may have keys of `range`.
    pub fn tables_in(&self, node_cache: &NodeCache, range: &KeyRange) -> Result<Found> {
        let begin = range.start(Direction::Ascending).and_then(|key| self.node_of(key));
        let mut found = Found::default();
        for index in begin.unwrap_or(0)..self.nodes.len() {
            if !self.nodes[index].first.is_admitted(range) {
                break;
            }
            let within =
                |table: &&Table| table.first.is_admitted(range) && table.last.is_reached(range);
            match self.node(node_cache, index)? {
                Ok(node) => found.tables.extend(node.tables.iter().filter(within).cloned()),
                Err(hole) => found.holes.push(hole),
            }
        }
        Ok(found)
    }

    /// Returns tables before and behind `key`, the nearest first: those of the node that would
    /// contain it.
    pub fn near(
        &self,
        node_cache: &NodeCache,
        key: &SharedKey,
    ) -> Result<(Vec<Table>, Vec<Table>)> {
        if self.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let Ok(node) = self.node(node_cache, self.node_of(&key.to_bytes()).unwrap_or(0))? else {
            return Ok((Vec::new(), Vec::new()));
        };
        let before = node.tables.iter().rev().filter(|table| table.last < *key);
        let behind = node.tables.iter().filter(|table| table.first > *key);
        Ok((before.cloned().collect(), behind.cloned().collect()))
    }
}

/// Key range whose tables are unknown: the node that lists them is damaged.
#[derive(Clone)]
pub(super) struct Hole {
    /// Its first key.
    pub first: SharedKey,
    /// First key behind it; `None` if it extends to the end of all keys.
    pub next: Option<SharedKey>,
    /// Number of its tables according to the directory.
    pub tables: u64,
}

impl Hole {
    /// Returns true if it overlaps the keys from `first` to `last`.
    pub fn meets(&self, first: &SharedKey, last: &SharedKey) -> bool {
        self.first <= *last && self.next.as_ref().is_none_or(|next| first < next)
    }
}

/// Contents of a key range of a sequence.
#[derive(Default)]
pub(super) struct Found {
    /// Tables, in key order.
    pub tables: Vec<Table>,
    /// Unknown key ranges.
    pub holes: Vec<Hole>,
}
