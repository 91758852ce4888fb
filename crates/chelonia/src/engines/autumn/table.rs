//! Tables in memory, and the nodes that list them.
//!
//! ```text
//!   sequence   [ node | node | node ]     of each, without reading it: where it begins, how much
//!                 |                       is in it
//!                 '-> [ table | table | ... ]      up to NODE_TABLES_MAX, in the order of keys
//!                          |
//!                          '-> run
//! ```
//!
//! A *table* is a run, and which of its entries are live: those from `first` on. `first` and `last`
//! are bounds, not always keys (`bounds.rs`). Tables of a level
//! are live as a whole. Those of level 0 lose their entries from the left, as these go down.
//!
//! Invariants (checked when a node is decoded, and by `verify`):
//! 1. The tables of a sequence are in the order of keys, and no live key is in two.
//! 2. A table has at least one live entry; all of them are from `first` to `last`; `live` counts
//!    them exactly.
//! 3. Every table belongs to one sequence, and every node to one sequence of each version.
//!
//! Nodes and tables never change; any thread may read them.

use super::codec;
use crate::base::error::{ErrorKind, Result};
use crate::base::keys::KeyRange;
use crate::base::stream::LargeRef;
use crate::engine::OwnedExtent;
use crate::memory::budget::Charge;
use crate::run::{OpenRuns, Run, RunFilter, RunRef, Totals};
use crate::runtime::sync::Arc;
use crate::structure::{self, NodeRef, SharedKey, Slot, Structure, begun_by};
use std::ops::Bound;

/// The most tables of a node: its blocks are few enough to be written anew with every merge.
pub(super) const NODE_TABLES_MAX: usize = 128;

/// The bytes that the keys of a node take in memory, unless one table alone takes more.
pub(super) const NODE_KEY_BYTES: usize = 512 << 10;

/// A node that has half of that ends before a table whose first bound has at most this many bytes:
/// the directory holds the first bound of each node.
pub(super) const SHORT_BOUND_BYTES: usize = 1 << 10;

/// A node with fewer tables than this should be joined with its neighbour.
pub(super) const NODE_TABLES_SMALL: usize = 32;

/// The place of a node.
pub(super) type NodeSlot = Slot<Node>;

/// Which nodes of a tree are in memory, and its open runs.
pub(super) type NodeCache = structure::NodeCache<Node>;

/// A run, and what of it is live.
#[derive(Clone)]
pub(super) struct Table {
    /// The run.
    pub run: Arc<Run>,
    /// No live key is less.
    pub first: SharedKey,
    /// No live key is greater.
    pub last: SharedKey,
    /// The live entries.
    pub live: Totals,
    /// So many of the large values that the run lists come first in it and are not live any more.
    pub large_skipped: u64,
    /// The filter of the run: most lookups need no more of it.
    pub filter: RunFilter,
}

impl Table {
    /// All of a run, whose keys are from `first` to `last`.
    pub fn whole(run: Arc<Run>, first: SharedKey, last: SharedKey) -> Self {
        let filter = run.filter().clone();
        let live = Totals::of_run(&run);
        Self { run, first, last, live, large_skipped: 0, filter }
    }

    /// The same table, whose keys share bytes with those of the one before it in its node.
    pub fn beside(self, before: Option<&Table>) -> Self {
        let first = match before {
            Some(before) => self.first.beside(&before.last),
            None => self.first.alone(),
        };
        let last = self.last.beside(&first);
        Self { first, last, ..self }
    }

    /// What its keys take on the heap, in bytes, behind those of the table before it in its node.
    pub fn key_bytes(&self, before: Option<&Table>) -> usize {
        let first = self.first.heap_bytes(before.map(|before| &before.last));
        first + self.last.heap_bytes(Some(&self.first))
    }

    /// True if `key` may be in it.
    #[inline]
    pub fn covers(&self, key: &[u8]) -> bool {
        self.first <= *key && self.last >= *key
    }

    /// True if a key of both tables may be the same.
    pub fn overlaps(&self, other: &Table) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// True if all its entries are live.
    pub fn is_complete(&self) -> bool {
        self.live.entries == self.run.reference().entries
    }

    /// The keys that are live, as exactly as it is known.
    pub fn bounds(&self) -> KeyRange {
        KeyRange {
            lower: Bound::Included(self.first.to_bytes().into_owned()),
            upper: Bound::Included(self.last.to_bytes().into_owned()),
        }
    }

    /// The range of its run that is live.
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

    /// Where the run is.
    pub fn owned(&self) -> OwnedExtent {
        owned_run(self.run.reference())
    }
}

/// The extent of a run as db sees it.
pub(super) fn owned_run(reference: &RunRef) -> OwnedExtent {
    OwnedExtent { extent: reference.extent, generation: reference.generation, large_value: false }
}

/// The extent of a node as db sees it.
pub(super) fn owned_node(reference: NodeRef) -> OwnedExtent {
    OwnedExtent { extent: reference.extent, generation: reference.generation, large_value: false }
}

/// Neighbouring tables of one sequence.
pub(super) struct Node {
    /// At least one, in the order of keys.
    pub tables: Vec<Table>,
    /// The first bytes of their first keys as numbers.
    heads: Vec<u64>,
    /// What it takes in memory; `None` in a node that is being looked at before it is kept.
    charge: Option<Charge>,
}

impl Node {
    /// The node of these tables.
    pub fn new(tables: Vec<Table>) -> Self {
        let heads = tables.iter().map(|table| table.first.head()).collect();
        Self { tables, heads, charge: None }
    }

    /// How many tables begin at `key` or before.
    #[inline]
    pub fn begun_by(&self, key: &[u8]) -> usize {
        begun_by(&self.heads, key, |index| &self.tables[index].first)
    }

    /// The table that may have `key`.
    #[inline]
    pub fn table_of(&self, key: &[u8]) -> Option<&Table> {
        let table = &self.tables[self.begun_by(key).checked_sub(1)?];
        (table.last >= *key).then_some(table)
    }

    /// What is live in all of them.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.tables.iter().for_each(|table| totals += table.live);
        totals
    }
}

impl Structure for Node {
    type About = ();
    type Context = OpenRuns;

    fn decode(bytes: &[u8], (): (), node_cache: &NodeCache) -> Result<Self> {
        codec::decode_node(bytes, node_cache)
    }

    fn empty((): ()) -> Self {
        Self::new(Vec::new())
    }

    fn heap_bytes(&self) -> u64 {
        let mut bytes = size_of::<Self>();
        let mut before = None;
        for table in &self.tables {
            bytes += size_of::<Table>() + 8 + table.key_bytes(before);
            before = Some(table);
        }
        bytes as u64
    }

    fn footprint_bytes(&self) -> u64 {
        self.heap_bytes() + self.tables.iter().map(|it| it.run.footprint_bytes()).sum::<u64>()
    }

    fn keep(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }
}

/// A node and what is known of it without reading it.
#[derive(Clone)]
pub(super) struct Listed {
    /// The first key of its first table.
    pub first: SharedKey,
    /// The node.
    pub slot: Arc<NodeSlot>,
    /// What is live in it.
    pub totals: Totals,
    /// Its tables.
    pub tables: u32,
}

/// Tables in the order of keys: a level, or one of the sorted runs of level 0.
#[derive(Clone, Default)]
pub(super) struct Sequence {
    /// Its nodes, in the order of keys.
    pub nodes: Vec<Listed>,
    heads: Vec<u64>,
    totals: Totals,
    tables: u64,
}

impl Sequence {
    /// The sequence of these nodes.
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

    /// True if it has no tables.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// What is live in it.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The size that decisions go by, in bytes.
    pub fn weight(&self) -> u64 {
        self.totals.weight()
    }

    /// How many tables it has.
    pub fn tables(&self) -> u64 {
        self.tables
    }

    /// What it takes on the heap, about, in bytes: nodes are counted where they are.
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

    /// The number of the node that has `key` if any has: the last that begins there or before.
    #[inline]
    pub fn node_of(&self, key: &[u8]) -> Option<usize> {
        begun_by(&self.heads, key, |index| &self.nodes[index].first).checked_sub(1)
    }

    /// The node of this number, or what is not known if it is damaged.
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

    /// The tables that may have keys of `range`.
    pub fn tables_in(&self, node_cache: &NodeCache, range: &KeyRange) -> Result<Found> {
        let begin = match &range.lower {
            Bound::Included(key) | Bound::Excluded(key) => self.node_of(key).unwrap_or(0),
            Bound::Unbounded => 0,
        };
        let mut found = Found::default();
        for index in begin..self.nodes.len() {
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

    /// Tables just before `key` and just behind it, the nearest first: those of the node where it
    /// would be.
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

/// Keys of which nothing is known: the node that lists their tables is damaged.
#[derive(Clone)]
pub(super) struct Hole {
    /// Where they begin.
    pub first: SharedKey,
    /// Where what is known goes on.
    pub next: Option<SharedKey>,
    /// The tables that it is said to have.
    pub tables: u64,
}

impl Hole {
    /// True if it has keys from `first` to `last`.
    pub fn meets(&self, first: &SharedKey, last: &SharedKey) -> bool {
        self.first <= *last && self.next.as_ref().is_none_or(|next| first < next)
    }
}

/// What there is in a range of keys of a sequence.
#[derive(Default)]
pub(super) struct Found {
    /// Tables, in order.
    pub tables: Vec<Table>,
    /// Where there may be more.
    pub holes: Vec<Hole>,
}
