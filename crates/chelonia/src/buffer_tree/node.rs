//! Nodes in memory: pivots, their children, and their pending parts.
//!
//! ```text
//!   Node (height 1)
//!     Pivot "a"   child: leaf run    parts: [level 0, segment s] [level 2, segment t]
//!     Pivot "k"   child: none        parts: [level 0, segment s]
//! ```
//!
//! A pivot covers the keys from its own to the next pivot's (the last one: to the end of the node's
//! range, which the parent knows). A part states that all entries of its segment's run within the
//! pivot's range are live there; entries of the run outside of that range are ignored.
//!
//! Invariants (checked when a node is decoded, and by `verify`):
//! 1. Pivot keys ascend strictly; there is at least one pivot.
//! 2. At height 1 children are leaves or none; above, nodes one lower or none.
//! 3. The parts of a pivot are ordered by level; those of one level by key, and their entries
//!    within the pivot's range do not overlap.
//! 4. A part has at least one entry, and its totals are exact unless they are marked as estimated.
//!    An estimated part may have no entry, and has no more than its run.
//! 5. Entries of a part are newer than those of later parts of the pivot, and these are newer than
//!    those of the child.
//!
//! A node is immutable; any thread that holds it may read it. It is referenced by a [`NodeSlot`],
//! which may hold it in memory or not: see `structure/node_cache.rs`.

mod parts;

pub use parts::{Part, Parts};

use crate::buffer_tree::span::KeySpan;
use crate::memory::budget::Charge;
use crate::run::{Run, RunFilter, Totals};
use crate::runtime::sync::{Arc, AtomicBool, AtomicU32, Ordering};
use crate::structure::{self, KeyView, SHARED_MIN, SharedKey, Slot, begun_by};
use std::ops::AddAssign;

/// Maximum height of a tree; with 64 pivots per node it exceeds any file.
pub const HEIGHT_MAX: u8 = 16;

/// Totals of everything below a pivot, stored with the reference to the child so that plans and
/// statistics need not read it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Entries in leaves.
    pub leaf: Totals,
    /// Entries in parts.
    pub buffered: Totals,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of nodes, including the child.
    pub nodes: u64,
    /// Number of segments, counted once for every node that refers to them.
    pub segments: u64,
    /// Number of pivots of the child itself.
    pub pivots: u64,
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.leaf += other.leaf;
        self.buffered += other.buffered;
        self.leaves += other.leaves;
        self.nodes += other.nodes;
        self.segments += other.segments;
    }
}

/// A run in a buffer.
pub struct Segment {
    /// The run.
    pub run: Arc<Run>,
    /// Lower bound of the keys of the run: determines which of several parts of one level can
    /// contain a key. May be far less than the least key, even empty.
    pub first: SharedKey,
    /// Set permanently when a second node refers to the run. Unset means that exactly one does.
    pub shared: AtomicBool,
}

/// Base for prefix compression of the first key of a segment: the first key of the last preceding
/// segment of the node that is long enough. Many first keys are empty.
#[derive(Default)]
pub struct SegmentBase(SharedKey);

impl SegmentBase {
    /// The key.
    pub fn key(&self) -> &SharedKey {
        &self.0
    }

    /// Updates the base after a segment that begins at `first`.
    pub fn pass(&mut self, first: &SharedKey) {
        if first.len() >= SHARED_MIN {
            self.0 = first.clone();
        }
    }
}

/// Location of the settled entries of a pivot.
#[derive(Clone)]
pub enum Child {
    /// There are no settled entries.
    None,
    /// In a leaf (height 1).
    Leaf(Arc<Run>),
    /// In a node (above height 1).
    Node(Arc<NodeSlot>, Summary),
}

/// Read cost accumulated at a pivot, in the units of `read/read_cost.rs`. A clone copies the sums.
#[derive(Default, Debug)]
pub struct ReadCost {
    all: AtomicU32,
    /// The part of it that fewer levels would have saved.
    by_levels: AtomicU32,
}

impl Clone for ReadCost {
    fn clone(&self) -> Self {
        Self { all: AtomicU32::new(self.paid()), by_levels: AtomicU32::new(self.by_levels()) }
    }
}

impl ReadCost {
    /// Returns the sum.
    pub fn paid(&self) -> u32 {
        self.all.load(Ordering::Relaxed)
    }

    /// Returns the part of the sum that fewer levels would have saved.
    pub fn by_levels(&self) -> u32 {
        self.by_levels.load(Ordering::Relaxed)
    }

    /// Adds to the sum `units`, of which fewer levels would have saved `by_levels`. A race loses a
    /// cost, no more.
    pub fn pay(&self, units: u32, by_levels: u32) {
        self.all.store(self.paid().saturating_add(units), Ordering::Relaxed);
        if by_levels > 0 {
            self.by_levels.store(self.by_levels().saturating_add(by_levels), Ordering::Relaxed);
        }
    }

    /// Returns what is left after `permille` of the part that fewer levels would have saved were
    /// spent on merging levels.
    pub fn after_spending(&self, permille: u32) -> Self {
        let by_levels = self.by_levels();
        let spent = by_levels / 1000 * permille + by_levels % 1000 * permille / 1000;
        Self {
            all: AtomicU32::new(self.paid().saturating_sub(spent)),
            by_levels: AtomicU32::new(by_levels - spent),
        }
    }
}

/// A key range of a node, with its child and its pending updates.
#[derive(Clone)]
pub struct Pivot {
    /// Lower bound of the range.
    pub key: SharedKey,
    /// Settled entries.
    pub child: Child,
    /// Pending updates, newest first.
    pub parts: Parts,
    /// Read cost accumulated for the pending updates.
    pub read_cost: ReadCost,
    /// The filter of the child, if that is a leaf: most lookups of a key that the leaf does not
    /// have need nothing else of it.
    pub leaf_filter: Option<RunFilter>,
}

impl Pivot {
    /// Creates a pivot without pending updates.
    pub fn settled(key: SharedKey, child: Child) -> Self {
        Self::new(key, child, Vec::new(), ReadCost::default())
    }

    /// Creates a pivot with pending `parts` and their accumulated `read_cost`.
    pub fn new(key: SharedKey, child: Child, parts: Vec<Part>, read_cost: ReadCost) -> Self {
        let leaf_filter = match &child {
            Child::Leaf(run) => Some(run.filter().clone()),
            Child::None | Child::Node(..) => None,
        };
        Self { key, child, parts: Parts::new(parts), read_cost, leaf_filter }
    }

    /// Returns the number of levels in use: one more than the highest.
    pub fn levels(&self) -> usize {
        self.parts.last().map_or(0, |part| usize::from(part.level) + 1)
    }

    /// Returns the totals of the pending updates.
    pub fn pending(&self) -> Totals {
        let mut totals = Totals::default();
        self.parts.iter().for_each(|part| totals += part.totals);
        totals
    }

    /// Returns the number of entries in the child and below.
    pub fn settled_entries(&self) -> u64 {
        match &self.child {
            Child::None => 0,
            Child::Leaf(run) => run.reference().entries,
            Child::Node(_, summary) => summary.leaf.entries + summary.buffered.entries,
        }
    }

    /// Returns the bytes of the entries in the child and below.
    pub fn settled_bytes(&self) -> u64 {
        match &self.child {
            Child::None => 0,
            Child::Leaf(run) => run.reference().user_bytes,
            Child::Node(_, summary) => summary.leaf.bytes + summary.buffered.bytes,
        }
    }

    /// Returns true if the pivot has no entries.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && matches!(self.child, Child::None)
    }
}

/// A node: see the module documentation.
pub struct Node {
    /// 1 if its children are leaves.
    pub height: u8,
    /// At least one pivot.
    pub pivots: Vec<Pivot>,
    /// Numeric prefixes of the keys of the pivots.
    heads: Vec<u64>,
    /// Memory charge; `None` while a node is examined before it is cached.
    pub charge: Option<Charge>,
}

impl Node {
    /// Creates a node of these pivots.
    pub fn new(height: u8, pivots: Vec<Pivot>) -> Self {
        assert!(!pivots.is_empty() && height > 0, "a node needs pivots and a height above 0");
        let heads = pivots.iter().map(|pivot| pivot.key.head()).collect();
        Self { height, pivots, heads, charge: None }
    }

    /// Creates the root of an empty tree.
    pub fn empty() -> Self {
        Self::new(1, vec![Pivot::settled(SharedKey::LEAST, Child::None)])
    }

    /// Returns the pivot whose range contains `key`. Keys below the first pivot belong to it, too.
    #[inline]
    pub fn pivot_of(&self, key: &[u8]) -> usize {
        begun_by(&self.heads, key, |index| &self.pivots[index].key).saturating_sub(1)
    }

    /// Returns the range of pivot `index`, in a node whose range ends at `upper`.
    pub fn span_of<'a>(&'a self, index: usize, upper: Option<KeyView<'a>>) -> KeySpan<'a> {
        KeySpan { lower: self.pivots[index].key.view(), upper: self.upper_of(index, upper) }
    }

    /// Returns the end of the range of pivot `index`, in a node whose range ends at `upper`.
    pub fn upper_of<'a>(&'a self, index: usize, upper: Option<KeyView<'a>>) -> Option<KeyView<'a>> {
        self.pivots.get(index + 1).map_or(upper, |next| Some(next.key.view()))
    }

    /// Returns the number of levels in use: one more than the highest.
    pub fn levels(&self) -> usize {
        self.pivots.iter().map(Pivot::levels).max().unwrap_or(0)
    }

    /// Returns the distinct segments, in the order of their first part.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        let mut seen = std::collections::BTreeSet::new();
        let parts = self.pivots.iter().flat_map(|pivot| &pivot.parts);
        parts
            .filter(|part| seen.insert(part.segment.run.reference().extent))
            .map(|part| Arc::clone(&part.segment))
            .collect()
    }

    /// Returns the runs it refers to, leaves and segments, each once.
    pub fn runs(&self) -> impl Iterator<Item = Arc<Run>> {
        let segments = self.segments().into_iter().map(|segment| Arc::clone(&segment.run));
        let leaves = self.pivots.iter().filter_map(|pivot| match &pivot.child {
            Child::Leaf(run) => Some(Arc::clone(run)),
            Child::None | Child::Node(..) => None,
        });
        segments.chain(leaves)
    }

    /// Returns the totals of the node and everything below.
    pub fn summary(&self) -> Summary {
        let mut summary =
            Summary { nodes: 1, segments: self.segments().len() as u64, ..Summary::default() };
        for pivot in &self.pivots {
            summary.buffered += pivot.pending();
            match &pivot.child {
                Child::None => {}
                Child::Leaf(run) => {
                    summary.leaves += 1;
                    summary.leaf += run.reference().totals();
                }
                Child::Node(_, below) => summary += *below,
            }
        }
        summary.pivots = self.pivots.len() as u64;
        summary
    }

    /// Returns which of the invariants 1 to 4 the node breaks, as far as they can be checked
    /// without reading runs: for assertions. A decoded node breaks none.
    pub fn broken_invariant(&self) -> Option<&'static str> {
        let fits = |pivot: &Pivot| match &pivot.child {
            Child::None => true,
            Child::Leaf(_) => self.height == 1,
            Child::Node(slot, _) => slot.about() + 1 == self.height,
        };
        let is_live = |part: &Part| {
            let run = part.segment.run.reference().totals();
            let live = part.totals;
            live.entries > 0 && live.entries <= run.entries && live.bytes <= run.bytes
        };
        if !self.pivots.is_sorted_by(|before, pivot| before.key < pivot.key) {
            return Some("1: pivot keys ascend");
        }
        if !self.pivots.iter().all(fits) {
            return Some("2: children are leaves at height 1, and nodes one lower above");
        }
        if !self.pivots.iter().all(|pivot| pivot.parts.is_sorted_by_key(|part| part.level)) {
            return Some("3: the parts of a pivot are ordered by level");
        }
        let mut parts = self.pivots.iter().flat_map(|pivot| &pivot.parts);
        (!parts.all(is_live)).then_some("4: a part has entries, and not more than its run")
    }

    /// Returns its approximate heap bytes, without the runs.
    pub fn heap_bytes(&self) -> u64 {
        let mut bytes = size_of::<Self>();
        let mut before = None;
        for pivot in &self.pivots {
            bytes += size_of::<Pivot>() + pivot.parts.heap_bytes() + pivot.key.heap_bytes(before);
            before = Some(&pivot.key);
        }
        let mut base = SegmentBase::default();
        for segment in self.segments() {
            bytes += size_of::<Segment>() + segment.first.heap_bytes(Some(base.key()));
            base.pass(&segment.first);
        }
        bytes as u64
    }
}

/// Slot of a node, with its height.
pub type NodeSlot = Slot<Node>;

/// The nodes of a tree that are in memory, and its open runs.
pub type NodeCache = structure::NodeCache<Node>;
