//! Range reads: one slice of a leaf's range at a time.
//!
//! ```text
//!   path    root pivot p -> node pivot q -> leaf       (an `Arc` to each node on it)
//!   slice   a part of the leaf's range in which each level has one run at most: from one first key
//!           of a run to the next
//!   merge   cursors over the parts of p, then of q, then the leaf: newest first,
//!           each clipped to the slice and to the range asked for
//! ```
//!
//! When the merge ends, the cursor goes to the next slice in its direction, then to the next pivot,
//! and the runs that are live there are opened; cursors of runs that were already open move on,
//! with their read-ahead. So only runs along the path are opened. All cursors start together:
//! uncached first blocks are read in one batch. Tombstones hide older entries and are dropped.
//!
//! A cursor holds its version, so that no extent it reads is reused meanwhile; the nodes on its
//! path stay in memory. It has one user, on any thread.

use crate::base::error::Result;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{SortedStream, Update};
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Child, Node, NodeSlot, Pivot};
use crate::buffer_tree::read::read_cost;
use crate::buffer_tree::version::TreeVersion;
use crate::merge::{Merge, Tombstones};
use crate::run::{Run, RunCursor, first_blocks};
use crate::runtime::sync::Arc;
use crate::structure::SharedKey;
use std::ops::Bound;

/// A node on the path to the position of the cursor.
struct Step {
    node: Arc<Node>,
    pivot: usize,
    /// End of the node's range.
    upper: Option<SharedKey>,
}

impl Step {
    /// Returns the end of the pivot's range.
    fn pivot_upper(&self) -> Option<SharedKey> {
        let next = self.node.pivots.get(self.pivot + 1);
        next.map_or_else(|| self.upper.clone(), |next| Some(next.key.clone()))
    }
}

/// Cursors of one leaf's range while they are opened, newest first.
struct Sources {
    /// Cursors of the previous range that were not taken over.
    before: Vec<RunCursor>,
    opened: Vec<RunCursor>,
    range: Arc<KeyRange>,
    direction: Direction,
}

impl Sources {
    fn new(before: Vec<RunCursor>, range: KeyRange, direction: Direction) -> Self {
        let opened = Vec::with_capacity(before.len() + 1);
        Self { before, opened, range: Arc::new(range), direction }
    }

    /// Opens the runs of the parts of `pivot` that may have keys in the slice: of each level the
    /// last one that begins by its first key, if it begins before `upper`.
    fn open_parts(&mut self, pivot: &Pivot, upper: Option<&SharedKey>) -> Result<&[RunCursor]> {
        let first = self.opened.len();
        let whole = pivot.pending().entries + pivot.settled_entries();
        for level in pivot.parts.chunk_by(|one, next| one.level == next.level) {
            let entries = level.iter().map(|part| part.totals.entries).sum();
            for (index, part) in level.iter().enumerate() {
                let is_passed = level.get(index + 1).is_some_and(|next| match &self.range.lower {
                    Bound::Included(lower) | Bound::Excluded(lower) => {
                        next.segment.first <= **lower
                    }
                    Bound::Unbounded => false,
                });
                if !is_passed && upper.is_none_or(|upper| part.segment.first < *upper) {
                    self.open(&part.segment.run, first_blocks(entries, whole))?;
                }
            }
        }
        Ok(&self.opened[first..])
    }

    /// Opens `run`, or takes over its cursor if it was already open.
    fn open(&mut self, run: &Arc<Run>, first_blocks: u32) -> Result<()> {
        let known = self.before.iter().position(|cursor| Arc::ptr_eq(cursor.run(), run));
        let range = Arc::clone(&self.range);
        self.opened.push(match known {
            Some(place) => {
                let mut cursor = self.before.swap_remove(place);
                cursor.move_on(range)?;
                cursor
            }
            None => RunCursor::located(run, range, self.direction, first_blocks)?,
        });
        Ok(())
    }
}

/// The slices of a leaf's range.
#[derive(Default)]
struct Slices {
    /// The first key of each, ascending.
    bounds: Vec<SharedKey>,
    /// The end of the last one.
    upper: Option<SharedKey>,
    /// The current one.
    at: usize,
}

impl Slices {
    /// Divides the range of the leaf at the end of `path` at the first keys of runs that lie within
    /// `range`.
    fn of(path: &[Step], range: &KeyRange, direction: Direction) -> Self {
        let Some(last) = path.last() else { return Self::default() };
        let (lower, upper) = (&last.node.pivots[last.pivot].key, last.pivot_upper());
        let mut bounds = vec![lower.clone()];
        for step in path {
            for two in step.node.pivots[step.pivot].parts.windows(2) {
                let first = &two[1].segment.first;
                let is_inside = first > lower && upper.as_ref().is_none_or(|end| first < end);
                if two[0].level == two[1].level && is_inside && first.is_within(range) {
                    bounds.push(first.clone());
                }
            }
        }
        bounds.sort();
        bounds.dedup();
        let at = if direction == Direction::Ascending { 0 } else { bounds.len() - 1 };
        Self { bounds, upper, at }
    }

    /// The current slice: its first key, and its end.
    fn current(&self) -> Option<(&SharedKey, Option<&SharedKey>)> {
        let lower = self.bounds.get(self.at)?;
        Some((lower, self.bounds.get(self.at + 1).or(self.upper.as_ref())))
    }

    /// Goes to the next slice in `direction`; false if there is none.
    fn advance(&mut self, direction: Direction) -> bool {
        let next = match direction {
            Direction::Ascending => Some(self.at + 1),
            Direction::Descending => self.at.checked_sub(1),
        };
        let next = next.filter(|next| *next < self.bounds.len());
        self.at = next.unwrap_or(self.at);
        next.is_some()
    }
}

/// The entries of a version within a range: see the module documentation.
pub struct TreeCursor {
    version: Arc<TreeVersion>,
    range: KeyRange,
    direction: Direction,
    /// From the root down; empty at the end.
    path: Vec<Step>,
    /// Slices of the range of the current leaf.
    slices: Slices,
    /// Entries of the current slice.
    merge: Option<Merge<RunCursor>>,
}

impl TreeCursor {
    /// Creates a cursor positioned on the first entry.
    pub fn new(version: Arc<TreeVersion>, range: KeyRange, direction: Direction) -> Result<Self> {
        let root = Arc::clone(&version.root);
        let (path, slices) = (Vec::new(), Slices::default());
        let mut cursor = Self { version, range, direction, path, slices, merge: None };
        if !cursor.range.is_empty() {
            cursor.descend(root, None, true)?;
            cursor.slices = Slices::of(&cursor.path, &cursor.range, direction);
            cursor.open()?;
            cursor.settle()?;
        }
        Ok(cursor)
    }

    /// Extends the path from the node of `slot` down to a leaf: to the start of the range, or to
    /// the first leaf in cursor direction.
    fn descend(
        &mut self,
        mut slot: Arc<NodeSlot>,
        mut upper: Option<SharedKey>,
        to_bound: bool,
    ) -> Result<()> {
        loop {
            let node = self.version.shared.node_cache.load_owned(&slot)?;
            let begin = match self.direction {
                Direction::Ascending => &self.range.lower,
                Direction::Descending => &self.range.upper,
            };
            let pivot = match (begin, self.direction) {
                (Bound::Included(key) | Bound::Excluded(key), _) if to_bound => node.pivot_of(key),
                (_, Direction::Ascending) => 0,
                (_, Direction::Descending) => node.pivots.len() - 1,
            };
            let child = match &node.pivots[pivot].child {
                Child::Node(child, _) => Some(Arc::clone(child)),
                Child::None | Child::Leaf(_) => None,
            };
            let step = Step { node, pivot, upper };
            upper = step.pivot_upper();
            self.path.push(step);
            match child {
                Some(child) => slot = child,
                None => return Ok(()),
            }
        }
    }

    /// Opens the runs that are live in the current slice, and charges the read cost of the buffered
    /// runs above the leaf.
    fn open(&mut self) -> Result<()> {
        let before = self.merge.take().map(Merge::into_sources).unwrap_or_default();
        let Some((lower, upper)) = self.slices.current() else { return Ok(()) };
        let Some(last) = self.path.last() else { return Ok(()) };
        let leaf = &last.node.pivots[last.pivot];
        let range = clip(&self.range, lower, upper);
        if range.is_empty() {
            return Ok(());
        }
        let mut sources = Sources::new(before, range, self.direction);
        for step in &self.path {
            let pivot = &step.node.pivots[step.pivot];
            let opened = sources.open_parts(pivot, upper)?;
            let reads = opened.iter().filter(|cursor| cursor.must_read()).count();
            let paid = read_cost::sources(opened.len(), reads);
            self.version.shared.read_costs.pay(pivot, paid, paid);
        }
        if let Child::Leaf(run) = &leaf.child {
            let settled = leaf.settled_entries();
            sources.open(run, first_blocks(settled, settled + leaf.pending().entries))?;
        }
        let events = &self.version.shared.events;
        events.add(Event::RangesOpened, 1);
        events.add(Event::SourcesOpened, sources.opened.len() as u64);
        RunCursor::start(&mut sources.opened)?;
        self.merge = Some(Merge::new(sources.opened, self.direction, Tombstones::Drop)?);
        Ok(())
    }

    /// Advances to the next slice until there is an entry, or to the end.
    fn settle(&mut self) -> Result<()> {
        while self.merge.as_ref().is_none_or(|merge| merge.key().is_none()) {
            if !self.slices.advance(self.direction) {
                if !self.next_leaf()? {
                    self.path.clear();
                    self.slices = Slices::default();
                    self.merge = None;
                    return Ok(());
                }
                self.slices = Slices::of(&self.path, &self.range, self.direction);
            }
            self.open()?;
        }
        Ok(())
    }

    /// Moves the path to the next leaf's range; returns false if that is beyond the requested
    /// range.
    fn next_leaf(&mut self) -> Result<bool> {
        while let Some(step) = self.path.last_mut() {
            let next = match self.direction {
                Direction::Ascending => Some(step.pivot + 1),
                Direction::Descending => step.pivot.checked_sub(1),
            };
            let Some(next) = next.filter(|next| *next < step.node.pivots.len()) else {
                self.path.pop();
                continue;
            };
            step.pivot = next;
            let pivot = &step.node.pivots[next];
            let upper = step.pivot_upper();
            let within = match self.direction {
                Direction::Ascending => pivot.key.is_admitted(&self.range),
                Direction::Descending => ends_after_lower(&self.range, upper.as_ref()),
            };
            if !within {
                return Ok(false);
            }
            if let Child::Node(child, _) = &pivot.child {
                let child = Arc::clone(child);
                self.descend(child, upper, false)?;
            }
            return Ok(true);
        }
        Ok(false)
    }
}

impl SortedStream for TreeCursor {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.merge.as_ref().and_then(Merge::key)
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.merge.as_ref().map_or(Update::Delete, Merge::update)
    }

    fn advance(&mut self) -> Result<()> {
        if let Some(merge) = &mut self.merge {
            merge.advance()?;
            if merge.key().is_some() {
                return Ok(());
            }
        }
        self.settle()
    }
}

/// Intersects `range` with `lower` to `upper` (exclusive).
fn clip(range: &KeyRange, lower: &SharedKey, upper: Option<&SharedKey>) -> KeyRange {
    let lower = match &range.lower {
        Bound::Included(key) | Bound::Excluded(key) if *lower <= **key => range.lower.clone(),
        _ => Bound::Included(lower.to_bytes().into_owned()),
    };
    let upper = match (&range.upper, upper) {
        (bound, None) => bound.clone(),
        (Bound::Included(key), Some(upper)) if *upper > **key => range.upper.clone(),
        (Bound::Excluded(key), Some(upper)) if *upper >= **key => range.upper.clone(),
        (_, Some(upper)) => Bound::Excluded(upper.to_bytes().into_owned()),
    };
    KeyRange { lower, upper }
}

/// Returns true if keys below `upper` can be within the lower bound of `range`.
fn ends_after_lower(range: &KeyRange, upper: Option<&SharedKey>) -> bool {
    match (&range.lower, upper) {
        (Bound::Included(lower) | Bound::Excluded(lower), Some(upper)) => *upper > **lower,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(key: &[u8]) -> SharedKey {
        SharedKey::whole(key)
    }

    #[test]
    fn ranges_are_clipped_to_the_leaf() {
        use Bound::{Excluded, Included, Unbounded};
        let key = |text: &str| text.as_bytes().to_vec();
        let range = |lower, upper| KeyRange { lower, upper };
        let leaf = |range: &KeyRange| clip(range, &shared(b"f"), Some(&shared(b"p")));
        let whole = range(Included(key("f")), Excluded(key("p")));
        assert_eq!(leaf(&range(Unbounded, Unbounded)), whole);
        assert_eq!(leaf(&range(Included(key("a")), Included(key("p")))), whole);
        let inner = range(Excluded(key("f")), Included(key("k")));
        assert_eq!(leaf(&inner), inner);
        assert!(leaf(&range(Included(key("p")), Unbounded)).is_empty());
        assert_eq!(clip(&inner, &SharedKey::LEAST, None), inner);
        assert!(!ends_after_lower(&range(Included(key("p")), Unbounded), Some(&shared(b"p"))));
        assert!(ends_after_lower(&range(Included(key("o")), Unbounded), Some(&shared(b"p"))));
    }
}
