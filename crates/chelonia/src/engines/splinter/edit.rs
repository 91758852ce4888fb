//! Changes of the trunk: nodes are copied, changed and written; what they refer to is shared.
//!
//! ```text
//!   node over F * m bytes, or 3 F levels
//!     pivot  ""  [a][b][c]          flush of the fullest pivot: its parts move to the child,
//!     pivot "k"  [a][b]    <------  newest on top, and on from there while the child is full. No
//!     child "k"  [d][e]             entry is written.
//! ```
//!
//! A branch that moves becomes shared: the node keeps it for its other pivots. How many of its
//! entries are in the range of each new pivot is estimated from its index, or counted if these are
//! few.
//!
//! A run that comes to a pivot moves down through levels whose runs have no keys where it has some:
//! so keys that are inserted in order are never merged.
//!
//! Splits need no room in advance [4]: a change is made under one lock, from the leaves to the
//! root.
//!
//! Invariants:
//! 1. The levels of each pivot are numbered from 0 without gaps, newest first.
//! 2. Of several parts in one level of a pivot each begins at a key of its own, so that a lookup
//!    finds the right one.
//! 3. A pivot grows over the range of a neighbour only if every run of either is whole: no entry of
//!    it is in another pivot, or was replaced there.

use crate::base::error::{Error, Result};
use crate::buffer_tree::Shared;
use crate::buffer_tree::codec::LEVEL_MAX;
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Child, HEIGHT_MAX, Node, NodeSlot, Part, Pivot, Summary};
use crate::buffer_tree::output::{Output, beside_each_other};
use crate::buffer_tree::span::KeySpan;
use crate::engines::splinter::claims::Claims;
use crate::engines::splinter::due::hidden_beyond;
use crate::engines::splinter::parts::{begin_at, is_ordered, numbered, share, sink};
use crate::engines::splinter::pending::Changed;
use crate::engines::splinter::sizes::Sizes;
use crate::run::Totals;
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::structure::SharedKey;
use std::collections::BTreeSet;

/// Number of levels that a node keeps free when parts move into it.
const LEVELS_FREE: usize = 4;

/// Divisor: parts move down when they hide more than this part of what is below them.
const HIDDEN_PART: u64 = 4;

/// A node under change.
pub(super) struct Draft {
    pub height: u8,
    /// At least one.
    pub pivots: Vec<Pivot>,
    /// End of its range.
    pub upper: Option<SharedKey>,
}

impl Draft {
    /// Copies a node whose range ends at `upper`.
    pub fn of(node: &Node, upper: Option<SharedKey>) -> Self {
        Self { height: node.height, pivots: node.pivots.clone(), upper }
    }

    /// Returns the end of the range of pivot `index`.
    pub fn upper_of(&self, index: usize) -> Option<SharedKey> {
        let next = self.pivots.get(index + 1);
        next.map_or_else(|| self.upper.clone(), |next| Some(next.key.clone()))
    }

    fn levels(&self) -> usize {
        self.pivots.iter().map(Pivot::levels).max().unwrap_or(0)
    }
}

/// One change of a tree, until it is published.
pub(super) struct Edit<'t> {
    pub shared: &'t Shared,
    pub output: &'t Output<'t>,
    pub sizes: Sizes,
    /// Pivots that outstanding jobs read are not joined.
    pub claims: &'t Claims,
    /// Nodes that were written and retired.
    pub changed: Mutex<Changed>,
}

impl Edit<'_> {
    fn count(&self, event: Event, times: u64) {
        self.shared.events.add(event, times);
    }

    /// Records that the next version does not have the node of `slot`.
    pub fn retire(&self, slot: &NodeSlot, node: &Node) {
        self.output.retire(slot.reference(), node);
        self.changed.lock().retire(node);
    }

    /// Copies the child of pivot `index`, without retiring it; a new node if there is none.
    pub fn child_of(&self, draft: &Draft, index: usize) -> Result<(Option<Entered>, Draft)> {
        let pivot = &draft.pivots[index];
        let upper = draft.upper_of(index);
        match &pivot.child {
            Child::Node(slot, _) => {
                let node = self.shared.node_cache.load_owned(slot)?;
                check_node(&node, &pivot.key, upper.as_ref())?;
                let child = Draft::of(&node, upper);
                Ok((Some((Arc::clone(slot), node)), child))
            }
            Child::None => {
                let pivots = vec![Pivot::settled(pivot.key.clone(), Child::None)];
                Ok((None, Draft { height: draft.height - 1, pivots, upper }))
            }
            Child::Leaf(_) => Err(Error::corrupt("a trunk node refers to a leaf run")),
        }
    }

    /// Settles a node and writes it as one or several; returns the pivots that refer to them.
    pub fn finish(&self, mut draft: Draft) -> Result<Vec<Pivot>> {
        self.settle(&mut draft)?;
        self.write(draft)
    }

    /// Flushes while the node is full, and splits and joins what is below its pivots.
    fn settle(&self, draft: &mut Draft) -> Result<()> {
        self.flush(draft)?;
        if draft.height == 1 {
            self.split_leaves(draft)?;
        }
        self.join(draft)
    }

    fn write(&self, draft: Draft) -> Result<Vec<Pivot>> {
        if draft.pivots.len() == 1 && draft.pivots[0].is_empty() {
            let key = draft.pivots[0].key.alone();
            return Ok(vec![Pivot::settled(key, Child::None)]);
        }
        debug_assert!(
            draft.pivots.iter().all(|pivot| is_ordered(&pivot.parts)),
            "levels are numbered without gaps, and their runs in key order"
        );
        let pivots = beside_each_other(draft.pivots);
        let nodes = pivots.len().div_ceil(self.sizes.fanout);
        let sizes: Vec<usize> = (0..nodes)
            .map(|node| pivots.len() * (node + 1) / nodes - pivots.len() * node / nodes)
            .collect();
        self.output.mark_shared(&pivots, &sizes);
        self.count(Event::SplitsNode, u64::from(nodes > 1));
        let mut pivots = pivots.into_iter();
        let mut written = Vec::with_capacity(nodes);
        for (number, size) in sizes.iter().enumerate() {
            let own: Vec<Pivot> = pivots.by_ref().take(*size).collect();
            let is_last = number + 1 == nodes;
            let upper = if is_last { draft.upper.clone() } else { None };
            let upper = upper.or_else(|| pivots.as_slice().first().map(|next| next.key.clone()));
            self.changed.lock().write(draft.height, &own, upper.as_ref(), &self.sizes);
            written.push(self.output.write_node(draft.height, own)?);
        }
        Ok(written)
    }

    /// Makes `draft` the root: writes it, and new nodes above it until there is one.
    pub fn finish_root(&self, mut draft: Draft) -> Result<(Arc<NodeSlot>, Summary)> {
        loop {
            self.settle(&mut draft)?;
            if draft.height > 1
                && draft.pivots.len() == 1
                && let Some(child) = self.shrink(&draft)?
            {
                draft = child;
                continue;
            }
            let height = draft.height;
            let mut pivots = self.write(draft)?;
            if pivots.len() > 1 {
                if height >= HEIGHT_MAX {
                    return Err(Error::internal("the tree exceeds the maximum height"));
                }
                self.count(Event::RootGrown, 1);
                draft = Draft { height: height + 1, pivots, upper: None };
                continue;
            }
            return match pivots.pop().map(|pivot| pivot.child) {
                Some(Child::Node(root, summary)) => Ok((root, summary)),
                _ => Ok((self.shared.node_cache.slot(None, 1), Node::empty().summary())),
            };
        }
    }

    /// Returns the child of a root with a single pivot, to become the root; `None` if the child
    /// cannot take the levels of that pivot.
    fn shrink(&self, draft: &Draft) -> Result<Option<Draft>> {
        let (entered, mut child) = self.child_of(draft, 0)?;
        let pivot = &draft.pivots[0];
        if pivot.levels() + child.levels() + LEVELS_FREE > usize::from(LEVEL_MAX) {
            return Ok(None);
        }
        if let Some((slot, node)) = &entered {
            self.retire(slot, node);
        }
        self.receive(&mut child, &pivot.parts)?;
        self.count(Event::RootShrunk, 1);
        Ok(Some(child))
    }

    /// Moves parts to the children while the node is full [2.4], or a pivot hides much below it.
    fn flush(&self, draft: &mut Draft) -> Result<()> {
        if draft.height == 1 {
            return Ok(());
        }
        // By key: a flush may split the child, and so the pivot.
        let mut tried: BTreeSet<Vec<u8>> = BTreeSet::new();
        loop {
            let active: u64 = draft.pivots.iter().map(|pivot| pivot.pending().weight()).sum();
            let is_over = active > self.sizes.node_max();
            let is_high = draft.levels() > self.sizes.levels_max();
            let fullness = |pivot: &Pivot| match (is_over, is_high) {
                (true, _) => pivot.pending().weight(),
                (false, true) => pivot.levels() as u64,
                (false, false) => u64::from(self.hides_much(pivot)),
            };
            let left = draft.pivots.iter().enumerate().filter(|(_, pivot)| {
                !pivot.parts.is_empty() && !tried.contains(&*pivot.key.to_bytes())
            });
            let fullest = left.max_by_key(|(_, pivot)| fullness(pivot));
            let fullest = fullest.filter(|(_, pivot)| fullness(pivot) > 0);
            let Some(index) = fullest.map(|(index, _)| index) else { return Ok(()) };
            tried.insert(draft.pivots[index].key.to_bytes().into_owned());
            self.push(draft, index)?;
        }
    }

    /// Returns true if the parts of a pivot hide much more below it than they weigh.
    fn hides_much(&self, pivot: &Pivot) -> bool {
        let (entries, bytes) = (pivot.settled_entries(), pivot.settled_bytes());
        let settled = Totals { entries, tombstones: 0, bytes };
        let hidden = hidden_beyond(pivot.pending(), settled, &self.sizes);
        hidden > settled.weight() / HIDDEN_PART
    }

    /// Moves the parts of pivot `index` to its child; not if that has too many levels.
    pub fn push(&self, draft: &mut Draft, index: usize) -> Result<bool> {
        let (entered, mut child) = self.child_of(draft, index)?;
        let after = child.levels() + draft.pivots[index].levels();
        if after + LEVELS_FREE > usize::from(LEVEL_MAX) {
            return Ok(false);
        }
        if let Some((slot, node)) = &entered {
            self.retire(slot, node);
        }
        let parts = std::mem::take(&mut draft.pivots[index].parts);
        self.leave(draft, &parts);
        self.receive(&mut child, &parts)?;
        self.count(Event::Flushes, 1);
        let pivots = self.finish(child)?;
        draft.pivots.splice(index..=index, pivots);
        Ok(true)
    }

    /// Marks those of `parts` as shared that pivots of `draft` still refer to.
    fn leave(&self, draft: &Draft, parts: &[Part]) {
        let extent = |part: &Part| part.segment.run.reference().extent;
        let left: BTreeSet<_> =
            draft.pivots.iter().flat_map(|pivot| &pivot.parts).map(extent).collect();
        for part in parts.iter().filter(|part| left.contains(&extent(part))) {
            let before = part.segment.shared.swap(true, Ordering::Relaxed);
            self.count(Event::SegmentsShared, u64::from(!before));
        }
    }

    /// Adds `parts` on top of the levels of a node.
    fn receive(&self, child: &mut Draft, parts: &[Part]) -> Result<()> {
        let added = parts.last().map_or(0, |part| part.level + 1);
        let shares = divide(parts, child)?;
        for (index, share) in shares.into_iter().enumerate() {
            let own = child.pivots[index].parts.iter();
            let own = own.map(|part| part.at_level(part.level + added)).collect();
            self.put_on(child, index, share, own);
        }
        Ok(())
    }

    /// Gives pivot `index` the parts `newer`, and below them `older`, or between these where none
    /// of their keys meet.
    pub fn put_on(&self, draft: &mut Draft, index: usize, newer: Vec<Part>, older: Vec<Part>) {
        let upper = draft.upper_of(index);
        let upper = upper.as_ref().map(SharedKey::view);
        let pivot = &draft.pivots[index];
        let came = newer.chunk_by(|one, next| one.level == next.level).count();
        let mut parts = numbered([newer, older].concat());
        // A job would not find the levels that it merged.
        let span = KeySpan { lower: pivot.key.view(), upper };
        if !self.claims.meets(draft.height, span) {
            let moved;
            (parts, moved) = sink(&parts, came, upper);
            self.count(Event::TrivialMoves, moved);
        }
        let (key, below) = (pivot.key.clone(), pivot.child.clone());
        draft.pivots[index] = Pivot::new(key, below, parts, pivot.read_cost.clone());
    }

    /// Splits leaves whose merged branch is large, between its runs [2.5].
    fn split_leaves(&self, draft: &mut Draft) -> Result<()> {
        let mut index = 0;
        while index < draft.pivots.len() {
            let pivots = self.split(draft, index)?;
            let count = pivots.len();
            if count > 1 {
                self.count(Event::SplitsLeaf, 1);
                draft.pivots.splice(index..=index, pivots);
            }
            index += count.max(1);
        }
        Ok(())
    }

    /// Returns the pivots into which leaf `index` is split; none if it stays.
    fn split(&self, draft: &Draft, index: usize) -> Result<Vec<Pivot>> {
        let pivot = &draft.pivots[index];
        let Some(last) = pivot.parts.last() else { return Ok(Vec::new()) };
        let merged = pivot.parts.iter().filter(|part| part.level == last.level);
        let weight: u64 = merged.clone().map(|part| part.totals.weight()).sum();
        if weight <= self.sizes.leaf_split() / 2 * 3 {
            return Ok(Vec::new());
        }
        let pieces = weight.div_ceil(self.sizes.leaf_split());
        let (mut passed, mut keys) = (0, Vec::new());
        for part in merged {
            let key = &part.segment.first;
            let after = keys.last().unwrap_or(&pivot.key);
            if passed >= weight / pieces * (keys.len() as u64 + 1) && key > after {
                keys.push(key.clone());
            }
            passed += part.totals.weight();
        }
        let all = std::iter::once(&pivot.key).chain(&keys);
        let pivots = all.map(|key| Pivot::settled(key.alone(), Child::None)).collect();
        let mut split = Draft { height: 1, pivots, upper: draft.upper_of(index) };
        self.receive(&mut split, &pivot.parts)?;
        Ok(split.pivots)
    }

    /// Joins small neighbours: leaves whose runs are whole, and nodes with few pivots.
    fn join(&self, draft: &mut Draft) -> Result<()> {
        let mut index = 0;
        while index + 1 < draft.pivots.len() {
            let is_joined = match draft.height {
                1 => self.join_leaves(draft, index),
                _ => self.join_nodes(draft, index)?,
            };
            index += usize::from(!is_joined);
        }
        Ok(())
    }

    /// Joins leaf `index` and the next one, if they are small and no entry can become live by it.
    fn join_leaves(&self, draft: &mut Draft, index: usize) -> bool {
        let [left, right] = [&draft.pivots[index], &draft.pivots[index + 1]];
        let weight = left.pending().weight() + right.pending().weight();
        let mut all = left.parts.iter().chain(&right.parts);
        let upper = draft.upper_of(index + 1);
        let span = KeySpan { lower: left.key.view(), upper: upper.as_ref().map(SharedKey::view) };
        let is_small = weight <= self.sizes.leaf_small();
        if !(is_small || left.parts.is_empty() || right.parts.is_empty())
            || !all.all(Part::is_whole)
            || self.claims.meets(draft.height, span)
        {
            return false;
        }
        let event = if is_small { Event::JoinsLeaf } else { Event::PivotsRemoved };
        self.count(event, 1);
        let begun = right.parts.iter().map(|part| begin_at(part, &right.key));
        let mut parts: Vec<Part> = left.parts.iter().cloned().chain(begun).collect();
        // Stable: of one level the left ones stay first.
        parts.sort_by_key(|part| part.level);
        let (key, cost) = (left.key.clone(), left.read_cost.clone());
        draft.pivots[index] = Pivot::new(key, Child::None, numbered(parts), cost);
        draft.pivots.remove(index + 1);
        true
    }

    /// Joins the nodes below pivot `index` and the next one, if they have few pivots; their parts
    /// move down before.
    fn join_nodes(&self, draft: &mut Draft, index: usize) -> Result<bool> {
        let pivots = |pivot: &Pivot| match &pivot.child {
            Child::Node(_, summary) => usize::try_from(summary.pivots).unwrap_or(usize::MAX),
            Child::None | Child::Leaf(_) => 0,
        };
        let counts = [index, index + 1].map(|index| pivots(&draft.pivots[index]));
        let is_small = counts[0].saturating_add(counts[1]) <= self.sizes.fanout / 4 * 3;
        let upper = draft.upper_of(index + 1);
        let lower = draft.pivots[index].key.view();
        let span = KeySpan { lower, upper: upper.as_ref().map(SharedKey::view) };
        let is_read = (1..=draft.height).any(|height| self.claims.meets(height, span));
        if !is_small || is_read {
            return Ok(false);
        }
        let mut joined: Option<Draft> = None;
        let mut retired = Vec::new();
        for pivot in [index, index + 1] {
            let (entered, mut child) = self.child_of(draft, pivot)?;
            let parts = &draft.pivots[pivot].parts;
            if child.levels() + draft.pivots[pivot].levels() + LEVELS_FREE > LEVEL_MAX.into() {
                return Ok(false);
            }
            // The other pivots of the node, and the other child, may keep a reference.
            parts.iter().for_each(|part| part.segment.shared.store(true, Ordering::Relaxed));
            self.receive(&mut child, parts)?;
            retired.extend(entered);
            match &mut joined {
                None => joined = Some(child),
                Some(joined) => {
                    joined.pivots.append(&mut child.pivots);
                    joined.upper = child.upper;
                }
            }
        }
        let Some(joined) = joined else { return Ok(false) };
        retired.iter().for_each(|(slot, node)| self.retire(slot, node));
        self.count(Event::JoinsNode, 1);
        let pivots = self.finish(joined)?;
        let is_one = pivots.len() == 1;
        draft.pivots.splice(index..=index + 1, pivots);
        Ok(is_one)
    }
}

/// A node that is left for a draft of it, and its slot.
pub(super) type Entered = (Arc<NodeSlot>, Arc<Node>);

/// Fails if the pivots of a node are not within the range of its parent's pivot, or their parts do
/// not keep invariants 1 and 2.
pub(super) fn check_node(node: &Node, lower: &SharedKey, upper: Option<&SharedKey>) -> Result<()> {
    if node.pivots[0].key != *lower {
        return Err(Error::corrupt("the first key of a node differs from its parent"));
    }
    let last = &node.pivots[node.pivots.len() - 1].key;
    if upper.is_some_and(|upper| last >= upper) {
        return Err(Error::corrupt("a node has a pivot outside of its range"));
    }
    if node.pivots.iter().any(|pivot| matches!(pivot.child, Child::Leaf(_))) {
        return Err(Error::corrupt("a trunk node refers to a leaf run"));
    }
    if !node.pivots.iter().all(|pivot| is_ordered(&pivot.parts)) {
        return Err(Error::corrupt("the levels or runs of a pivot are out of order"));
    }
    Ok(())
}

/// Divides the parts of a range among the pivots of `draft`, which cover it.
pub(super) fn divide(parts: &[Part], draft: &Draft) -> Result<Vec<Vec<Part>>> {
    if draft.pivots.len() == 1 {
        return Ok(vec![parts.to_vec()]);
    }
    let upper = draft.upper.as_ref().map(SharedKey::view);
    let ends = draft.pivots[1..].iter().map(|next| Some(next.key.view())).chain([upper]);
    let spans = draft.pivots.iter().zip(ends);
    spans.map(|(pivot, upper)| share(parts, KeySpan { lower: pivot.key.view(), upper })).collect()
}
