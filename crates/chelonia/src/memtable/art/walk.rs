//! Walks the tree in key order, in either direction, concurrently with writers.
//!
//! ```text
//!   stack            position looked at next, in each node from the root down
//!   ahead            records fetched from the stack and prefetched, in order, not yet visited
//!   standing         the current record (and version)
//! ```
//!
//! A walk keeps addresses, not locks. If its current node becomes obsolete, it continues in the old
//! one, which has all that was inserted before the walk was created (see the head of
//! `memtable/art/mod.rs`). So it never restarts, and returns each key at most once.
//!
//! It fetches ahead of its position, first few records, then more: entries are scattered in memory,
//! and prefetching them early is what makes a scan fast. The stack is a vector, so a path of 64 Ki
//! nodes needs no deep recursion.
//!
//! Invariants:
//! 1. All addresses belong to the tree, which the walk keeps alive.
//! 2. `standing`'s version, if there is one, belongs to its record.
//!
//! Thread-safety: a walk is for one thread at a time; it may move between threads.

#![expect(unsafe_code, reason = "an island: keeps addresses of nodes and records")]

use super::Tree;
use super::child::Child;
use super::node::{Node, POSITION_MAX, Position, Target, position_of};
use super::record::{Entry, Found, Record, Version, VersionRef};
use crate::base::ids::SeqNo;
use crate::base::keys::Direction;
use crate::base::stream::Update;
use crate::kernels::prefix::common_prefix;
use crate::runtime::sync::Arc;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;
use std::ptr::NonNull;

/// Number of records that a walk fetches at first, and at most, before it visits the first of them.
const AHEAD_MIN: usize = 2;
const AHEAD_MAX: usize = 32;

/// A node on the path, and the next position in it; `None` at its end.
struct Frame {
    node: Child,
    next: Option<Position>,
}

/// A walk; see the module documentation.
pub struct Walk {
    /// Keeps the addresses valid.
    _tree: Arc<Tree>,
    direction: Direction,
    stack: Vec<Frame>,
    ahead: VecDeque<NonNull<Record>>,
    /// Number of records to fetch when `ahead` is empty.
    fetch: usize,
    standing: Option<(NonNull<Record>, Option<NonNull<Version>>)>,
}

// SAFETY: the addresses are of memory that any thread may read (nodes and records of a tree that
// moves along); nothing in a walk is tied to a thread.
unsafe impl Send for Walk {}

/// Result of [`Walk::settle`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// A version: [`Walk::update`] returns it.
    Found,
    /// No version at or before the seqno.
    Absent,
    /// The version may have been unlinked.
    Pruned,
}

impl Walk {
    /// Creates a walk positioned before the first key within `bound` (a lower bound if it ascends,
    /// an upper one if it descends).
    pub fn new(tree: &Arc<Tree>, direction: Direction, bound: Bound<&[u8]>) -> Self {
        let mut walk = Self {
            _tree: Arc::clone(tree),
            direction,
            stack: Vec::new(),
            ahead: VecDeque::new(),
            fetch: AHEAD_MIN,
            standing: None,
        };
        if let Some(root) = tree.root_node() {
            match bound {
                Bound::Unbounded => walk.enter(root),
                Bound::Included(key) => walk.seek(root, key, true),
                Bound::Excluded(key) => walk.seek(root, key, false),
            }
        }
        walk
    }

    /// Moves to the next record; false at the end.
    #[inline]
    pub fn step(&mut self) -> bool {
        if self.ahead.is_empty() {
            self.fetch_ahead();
        }
        self.standing = self.ahead.pop_front().map(|record| (record, None));
        self.standing.is_some()
    }

    /// Chooses the newest version at or before `at` of the current record.
    pub fn settle(&mut self, at: SeqNo) -> Settled {
        let Some((record, chosen)) = &mut self.standing else { return Settled::Absent };
        // SAFETY: invariant 1.
        match unsafe { Entry::from_raw(*record) }.lookup(at) {
            Found::Version(version) => {
                *chosen = Some(version.raw());
                Settled::Found
            }
            Found::Absent => Settled::Absent,
            Found::Pruned => Settled::Pruned,
        }
    }

    /// The key of the current record; `None` at the end and before the first.
    #[inline]
    pub fn key(&self) -> Option<&[u8]> {
        // SAFETY: invariant 1.
        self.standing.map(|(record, _)| unsafe { Entry::from_raw(record) }.key())
    }

    /// The chosen version, if there is one.
    #[inline]
    pub fn update(&self) -> Option<Update<'_>> {
        let (_, version) = self.standing?;
        // SAFETY: invariants 1 and 2.
        version.map(|version| unsafe { VersionRef::from_raw(version) }.update())
    }

    fn fetch_ahead(&mut self) {
        for _ in 0..self.fetch {
            let Some(record) = self.fetch() else { break };
            self.ahead.push_back(record);
        }
        self.fetch = (self.fetch * 2).min(AHEAD_MAX);
    }

    /// The next record, prefetched but not read.
    #[inline]
    pub(super) fn fetch(&mut self) -> Option<NonNull<Record>> {
        loop {
            let frame = self.stack.last_mut()?;
            // SAFETY: invariant 1; the child was loaded from a slot.
            let Target::Node(node) = (unsafe { frame.node.target() }) else { return None };
            match neighbour(node, self.direction, frame.next) {
                None => {
                    self.stack.pop();
                }
                Some((position, child)) => {
                    frame.next = following(self.direction, position);
                    // SAFETY: invariant 1; the child was loaded from a slot of this tree.
                    match unsafe { child.target() } {
                        Target::Nothing => {}
                        Target::Entry(entry) => {
                            entry.prefetch();
                            return Some(entry.raw());
                        }
                        Target::Node(below) => self.enter(below),
                    }
                }
            }
        }
    }

    /// Pushes a node, to be walked completely.
    #[inline]
    fn enter(&mut self, node: Node<'_>) {
        let next = match self.direction {
            Direction::Ascending => 0,
            Direction::Descending => POSITION_MAX,
        };
        node.prefetch_nodes();
        self.stack.push(Frame { node: node.child(), next: Some(next) });
    }

    /// Fills the stack so that the walk begins at `bound`, from a node whose path was not compared
    /// yet.
    fn seek(&mut self, root: Node<'_>, bound: &[u8], included: bool) {
        let direction = self.direction;
        // A subtree whose keys are all within the bound is walked completely.
        let inside = match direction {
            Direction::Ascending => Ordering::Greater,
            Direction::Descending => Ordering::Less,
        };
        let (mut child, mut depth) = (root.child(), 0);
        loop {
            // SAFETY: invariant 1; the child is the root or was loaded from a slot below.
            match unsafe { child.target() } {
                Target::Nothing => return,
                Target::Entry(entry) => {
                    let side = entry.key().cmp(bound);
                    if side == inside || (included && side == Ordering::Equal) {
                        self.ahead.push_back(entry.raw());
                    }
                    return;
                }
                Target::Node(node) => {
                    let rest = &bound[depth..];
                    let side = side_of_prefix(node.prefix(), rest);
                    if side != Ordering::Equal {
                        if side == inside {
                            self.enter(node);
                        }
                        return;
                    }
                    depth += node.prefix_bytes();
                    let position = bound.get(depth).map_or(0, |byte| position_of(*byte));
                    let next = following(direction, position);
                    self.stack.push(Frame { node: node.child(), next });
                    child = match bound.get(depth) {
                        Some(byte) => node.slot(*byte).map_or(Child::NONE, |slot| slot.load()),
                        // The bound ends here: continue with the entry of this key, if there is
                        // one.
                        None => node.terminal().load(),
                    };
                    depth += 1;
                }
            }
        }
    }
}

/// Side of the bound on which a node's keys are, as far as its prefix decides it: `rest` is the
/// bound from the prefix on. `Equal`: the prefix does not decide it.
fn side_of_prefix(prefix: &[u8], rest: &[u8]) -> Ordering {
    let common = common_prefix(prefix, rest);
    match (prefix.get(common), rest.get(common)) {
        (None, _) => Ordering::Equal,
        // The bound is shorter than every key below.
        (Some(_), None) => Ordering::Greater,
        (Some(left), Some(right)) => left.cmp(right),
    }
}

/// The position after `position` in this direction.
#[inline]
fn following(direction: Direction, position: Position) -> Option<Position> {
    match direction {
        Direction::Ascending => (position < POSITION_MAX).then(|| position + 1),
        Direction::Descending => position.checked_sub(1),
    }
}

/// The nearest child at or after `position` in this direction.
#[inline]
fn neighbour(
    node: Node<'_>,
    direction: Direction,
    position: Option<Position>,
) -> Option<(Position, Child)> {
    match direction {
        Direction::Ascending => node.child_from(position?),
        Direction::Descending => node.child_upto(position?),
    }
}
