//! Nodes in memory: pivots, their children, and the parts that wait for them.
//!
//! ```text
//!   Node (height 1)
//!     Pivot "a"   child: leaf run    parts: [level 0, segment s] [level 2, segment t]
//!     Pivot "k"   child: none        parts: [level 0, segment s]
//! ```
//!
//! A pivot holds the keys from its own to the next pivot's (the last one: to the end of the node's
//! range, which the parent knows). A part says that all entries of its segment's run within the
//! pivot's range are live there; a run may hold entries outside of it, which count for nothing.
//!
//! Invariants (checked when a node is decoded, and by `verify`):
//! 1. Pivot keys ascend strictly; there is at least one pivot.
//! 2. At height 1 children are leaves or none; above, nodes one lower or none.
//! 3. The parts of a pivot are in the order of levels; those of one level in the order of keys, and
//!    their entries within the pivot's range do not overlap.
//! 4. A part has at least one entry, and its totals are exact.
//! 5. What is in a part is newer than what is in later parts of the pivot, and that is newer than
//!    what is in the child.
//!
//! A node never changes; whoever holds it may read it from any thread. What refers to it is a
//! [`NodeSlot`], which may hold it or not: `structure/node_cache.rs` tells how it comes and goes.

use super::codec;
use super::read_cost::ReadCost;
use crate::base::error::Result;
use crate::base::keys::head64;
use crate::memory::budget::Charge;
use crate::run::{OpenRuns, Run, RunFilter, Totals};
use crate::runtime::sync::{Arc, AtomicBool};
use crate::structure::{self, KeyView, SHARED_MIN, SharedKey, Slot, Structure, begun_by};
use std::ops::AddAssign;

/// The highest tree; 64 pivots each make it hold far more than the file can.
pub(super) const HEIGHT_MAX: u8 = 16;

/// What lies below a pivot: kept with the reference to the child so that plans and figures need
/// not read it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Summary {
    /// What leaves hold.
    pub leaf: Totals,
    /// What parts hold.
    pub buffered: Totals,
    /// Leaves.
    pub leaves: u64,
    /// Nodes, the child included.
    pub nodes: u64,
    /// Segments, each once for every node that refers to it.
    pub segments: u64,
    /// Pivots of the child itself.
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
pub(super) struct Segment {
    /// The run.
    pub run: Arc<Run>,
    /// No key of the run is less: tells which of several parts of one level can hold a key. May be
    /// far less than the least key, even empty.
    pub first: SharedKey,
    /// Set for good when a second node refers to the run. Unset means that exactly one does.
    pub shared: AtomicBool,
}

/// What the first key of a segment may share bytes with: that of the last segment before it, in the
/// order of the node, that has enough bytes. Many begin nowhere.
#[derive(Default)]
pub(super) struct SegmentBase(SharedKey);

impl SegmentBase {
    /// The key.
    pub fn key(&self) -> &SharedKey {
        &self.0
    }

    /// The next segment begins at `first`.
    pub fn pass(&mut self, first: &SharedKey) {
        if first.len() >= SHARED_MIN {
            self.0 = first.clone();
        }
    }
}

/// The live entries of a segment in the range of one pivot.
#[derive(Clone)]
pub(super) struct Part {
    /// 0 is the newest.
    pub level: u8,
    /// The run they are in.
    pub segment: Arc<Segment>,
    /// How much it is.
    pub totals: Totals,
    /// The first bytes of the segment's first key as a number, and the filter of its run: most
    /// lookups need no more of it.
    head: u64,
    pub filter: RunFilter,
}

impl Part {
    /// The live entries of `segment` in the range of a pivot: so many.
    pub fn new(level: u8, segment: Arc<Segment>, totals: Totals) -> Self {
        let filter = segment.run.filter().clone();
        Self { level, head: segment.first.head(), filter, segment, totals }
    }

    /// The same part at another level.
    pub fn at_level(&self, level: u8) -> Self {
        Self { level, ..self.clone() }
    }

    /// True if the segment begins at `key`, whose head is `head`, or before.
    #[inline]
    fn begins_by(&self, key: &[u8], head: u64) -> bool {
        match self.head.cmp(&head) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.segment.first <= *key,
            std::cmp::Ordering::Greater => false,
        }
    }
}

/// Where a pivot's settled entries are.
#[derive(Clone)]
pub(super) enum Child {
    /// Nowhere: there are none.
    None,
    /// In a leaf (height 1).
    Leaf(Arc<Run>),
    /// In a node (above height 1).
    Node(Arc<NodeSlot>, Summary),
}

/// A range of keys of a node.
#[derive(Clone)]
pub(super) struct Pivot {
    /// The range's lower bound.
    pub key: SharedKey,
    /// What is settled.
    pub child: Child,
    /// What waits, newest first.
    pub parts: Vec<Part>,
    /// What reads have paid for that.
    pub read_cost: ReadCost,
    /// The filter of the child, if that is a leaf: most lookups that come to a leaf without its key
    /// need no more of it.
    pub leaf_filter: Option<RunFilter>,
}

impl Pivot {
    /// A pivot of which nothing waits.
    pub fn settled(key: SharedKey, child: Child) -> Self {
        Self::new(key, child, Vec::new(), ReadCost::default())
    }

    /// A pivot of which `parts` wait, for which reads have paid `toll`.
    pub fn new(key: SharedKey, child: Child, parts: Vec<Part>, read_cost: ReadCost) -> Self {
        let leaf_filter = match &child {
            Child::Leaf(run) => Some(run.filter().clone()),
            Child::None | Child::Node(..) => None,
        };
        Self { key, child, parts, read_cost, leaf_filter }
    }

    /// What waits.
    pub fn pending(&self) -> Totals {
        let mut totals = Totals::default();
        self.parts.iter().for_each(|part| totals += part.totals);
        totals
    }

    /// How many entries are below.
    pub fn settled_entries(&self) -> u64 {
        match &self.child {
            Child::None => 0,
            Child::Leaf(run) => run.reference().entries,
            Child::Node(_, summary) => summary.leaf.entries + summary.buffered.entries,
        }
    }

    /// The bytes of the entries below.
    pub fn settled_bytes(&self) -> u64 {
        match &self.child {
            Child::None => 0,
            Child::Leaf(run) => run.reference().user_bytes,
            Child::Node(_, summary) => summary.leaf.bytes + summary.buffered.bytes,
        }
    }

    /// True if nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && matches!(self.child, Child::None)
    }

    /// True if part `index` can hold `key`, which is in the pivot's range: it is the last of its
    /// level that begins at the key or before.
    #[inline]
    pub fn is_candidate(&self, index: usize, key: &[u8]) -> bool {
        let head = head64(key);
        let part = &self.parts[index];
        let next = self.parts.get(index + 1).filter(|next| next.level == part.level);
        part.begins_by(key, head) && !next.is_some_and(|next| next.begins_by(key, head))
    }
}

/// A node: see the head of the file.
pub(super) struct Node {
    /// 1 if its children are leaves.
    pub height: u8,
    /// At least one.
    pub pivots: Vec<Pivot>,
    /// The first bytes of the pivots' keys as numbers.
    heads: Vec<u64>,
    /// What it takes in memory; `None` in a node that is being looked at before it is kept.
    pub charge: Option<Charge>,
}

impl Node {
    /// The node of these pivots.
    pub fn new(height: u8, pivots: Vec<Pivot>) -> Self {
        assert!(!pivots.is_empty() && height > 0, "a node has pivots and a height");
        let heads = pivots.iter().map(|pivot| pivot.key.head()).collect();
        Self { height, pivots, heads, charge: None }
    }

    /// The root of an empty tree.
    pub fn empty() -> Self {
        Self::new(1, vec![Pivot::settled(SharedKey::LEAST, Child::None)])
    }

    /// The pivot in whose range `key` is. Keys below the first pivot's belong to it too.
    #[inline]
    pub fn pivot_of(&self, key: &[u8]) -> usize {
        begun_by(&self.heads, key, |index| &self.pivots[index].key).saturating_sub(1)
    }

    /// Where the range of pivot `index` ends, in a node whose range ends at `upper`.
    pub fn upper_of<'a>(&'a self, index: usize, upper: Option<KeyView<'a>>) -> Option<KeyView<'a>> {
        self.pivots.get(index + 1).map_or(upper, |next| Some(next.key.view()))
    }

    /// The levels in use: one more than the highest.
    pub fn levels(&self) -> usize {
        let highest = self.pivots.iter().flat_map(|pivot| &pivot.parts).map(|part| part.level);
        highest.max().map_or(0, |level| usize::from(level) + 1)
    }

    /// The distinct segments, in the order of their first part.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        let mut seen = std::collections::BTreeSet::new();
        let parts = self.pivots.iter().flat_map(|pivot| &pivot.parts);
        parts
            .filter(|part| seen.insert(part.segment.run.reference().extent))
            .map(|part| Arc::clone(&part.segment))
            .collect()
    }

    /// The runs it refers to, each once, leaves and segments.
    pub fn runs(&self) -> impl Iterator<Item = Arc<Run>> {
        let segments = self.segments().into_iter().map(|segment| Arc::clone(&segment.run));
        let leaves = self.pivots.iter().filter_map(|pivot| match &pivot.child {
            Child::Leaf(run) => Some(Arc::clone(run)),
            Child::None | Child::Node(..) => None,
        });
        segments.chain(leaves)
    }

    /// What lies in and below it.
    pub fn summary(&self) -> Summary {
        let mut summary =
            Summary { nodes: 1, segments: self.segments().len() as u64, ..Summary::default() };
        for pivot in &self.pivots {
            summary.buffered += pivot.pending();
            match &pivot.child {
                Child::None => {}
                Child::Leaf(run) => {
                    summary.leaves += 1;
                    summary.leaf += Totals::of_run(run);
                }
                Child::Node(_, below) => summary += *below,
            }
        }
        summary.pivots = self.pivots.len() as u64;
        summary
    }
}

/// The place of a node, and how high it is.
pub(super) type NodeSlot = Slot<Node>;

/// Which nodes of a tree are in memory, and its open runs.
pub(super) type NodeCache = structure::NodeCache<Node>;

impl Structure for Node {
    type About = u8;
    type Context = OpenRuns;

    fn decode(bytes: &[u8], height: u8, node_cache: &NodeCache) -> Result<Self> {
        codec::decode_node(bytes, height, node_cache)
    }

    fn empty(_: u8) -> Self {
        Node::empty()
    }

    fn heap_bytes(&self) -> u64 {
        let mut bytes = size_of::<Self>();
        let mut before = None;
        for pivot in &self.pivots {
            let parts = pivot.parts.len() * size_of::<Part>();
            bytes += size_of::<Pivot>() + parts + pivot.key.heap_bytes(before);
            before = Some(&pivot.key);
        }
        let mut base = SegmentBase::default();
        for segment in self.segments() {
            bytes += size_of::<Segment>() + segment.first.heap_bytes(Some(base.key()));
            base.pass(&segment.first);
        }
        bytes as u64
    }

    fn footprint_bytes(&self) -> u64 {
        let runs = self.runs();
        self.heap_bytes() + runs.map(|run| run.footprint_bytes()).sum::<u64>()
    }

    fn keep(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }
}
