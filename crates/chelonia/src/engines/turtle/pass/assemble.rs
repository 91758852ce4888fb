//! Assembly of a node after its tasks: new pivots; child nodes are cut, joined and written.

use super::{BufferPlan, Gathered, Grown, Pass, Place};
use crate::base::error::{Error, Result};
use crate::base::keys::separator;
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Child, Node, Part, Pivot};
use crate::buffer_tree::output::{WrittenRun, beside_each_other, key_bytes};
use crate::buffer_tree::source;
use crate::engines::turtle::pass::plan::{self, Group};
use crate::runtime::sync::Arc;
use crate::structure::SharedKey;

impl Pass<'_, '_> {
    /// Returns the new form of a pivot that was not flushed.
    fn stay(
        &self,
        (index, old): (usize, &Pivot),
        buffer: &BufferPlan,
        written: Option<Vec<Part>>,
    ) -> Pivot {
        let levels = buffer.levels_of(index);
        let rewritten = written.is_some();
        let mut parts = written.unwrap_or_default();
        for part in &old.parts {
            let level = match levels.renumbered.get(&part.level) {
                Some(level) => *level,
                None if rewritten => continue,
                None => 0,
            };
            parts.push(part.at_level(level));
        }
        let read_cost = buffer.read_cost_of(index, old);
        Pivot::new(old.key.clone(), old.child.clone(), parts, read_cost)
    }

    pub(super) fn assemble_leaves(
        &self,
        node: &Node,
        groups: &[Group],
        buffer: &BufferPlan,
        mut gathered: Gathered,
    ) -> Result<Grown> {
        gathered.complete(buffer);
        let mut pivots = Vec::with_capacity(node.pivots.len());
        for (number, group) in groups.iter().enumerate() {
            let old = &node.pivots[group.pivots.start];
            if group.flush.is_none() {
                let written = gathered.parts.remove(&group.pivots.start);
                pivots.push(self.stay((group.pivots.start, old), buffer, written));
                continue;
            }
            let leaves = gathered.leaves.remove(&number).unwrap_or_default();
            if group.pivots.len() == 1 && matches!(old.child, Child::Leaf(_)) && leaves.len() > 1 {
                self.events.add(Event::SplitsLeaf, 1);
            }
            let mut key = old.key.clone();
            if leaves.is_empty() {
                pivots.push(Pivot::settled(key.clone(), Child::None));
            }
            let mut last: Option<Box<[u8]>> = None;
            for leaf in leaves {
                if let Some(last) = last {
                    debug_assert!(last < leaf.first, "the leaves of a flush are in key order");
                    key = SharedKey::whole(&separator(&last, &leaf.first)).beside(&key);
                }
                debug_assert!(
                    key <= *leaf.first,
                    "the entries of a leaf are in the range of its pivot"
                );
                last = Some(leaf.last);
                pivots.push(Pivot::settled(key.clone(), Child::Leaf(leaf.run)));
            }
        }
        self.remove_empty(&mut pivots);
        Ok(Grown { height: 1, appended: is_appended(node, &pivots), pivots })
    }

    pub(super) fn keep_leaf(&self, pivot: &Pivot) -> Result<Vec<WrittenRun>> {
        let Child::Leaf(run) = &pivot.child else { return Ok(Vec::new()) };
        self.events.add(Event::LeavesKept, 1);
        let last = source::last_key(run)?.unwrap_or_default().into();
        Ok(vec![WrittenRun { run: Arc::clone(run), first: pivot.key.to_bytes().into(), last }])
    }

    /// Removes empty pivots where the range of a neighbour may grow over theirs: where the
    /// neighbour has no parts, and no child node whose runs would become live beyond its old range.
    fn remove_empty(&self, pivots: &mut Vec<Pivot>) {
        let may_grow =
            |pivot: &Pivot| pivot.parts.is_empty() && !matches!(pivot.child, Child::Node(..));
        let count = pivots.len();
        let mut kept: Vec<Pivot> = Vec::with_capacity(count);
        for mut pivot in pivots.drain(..) {
            if let Some(last) = kept.last() {
                if pivot.is_empty() && may_grow(last) {
                    continue;
                }
                if last.is_empty() && may_grow(&pivot) {
                    pivot.key = last.key.clone();
                    kept.pop();
                }
            }
            kept.push(pivot);
        }
        self.events.add(Event::PivotsRemoved, (count - kept.len()) as u64);
        *pivots = kept;
    }

    pub(super) fn assemble_nodes(
        &self,
        at: Place<'_>,
        groups: &[Group],
        buffer: &BufferPlan,
        mut gathered: Gathered,
    ) -> Result<Grown> {
        gathered.complete(buffer);
        let mut pivots = Vec::with_capacity(at.node.pivots.len());
        // Flushed neighbours that are not written yet.
        let mut open: Vec<Grown> = Vec::new();
        for group in groups {
            if group.flush.is_none() {
                let pivot = group.pivots.start;
                pivots.extend(self.write_children(std::mem::take(&mut open))?);
                let written = gathered.parts.remove(&pivot);
                pivots.push(self.stay((pivot, &at.node.pivots[pivot]), buffer, written));
                continue;
            }
            for pivot in group.pivots.clone() {
                let grown = gathered.children.remove(&pivot);
                let grown = grown.ok_or_else(|| Error::internal("a child was not visited"))?;
                self.join(&mut open, grown);
            }
        }
        if at.root
            && pivots.is_empty()
            && open.len() == 1
            && let Some(only) = open.pop()
        {
            // A single node below a root without a buffer becomes the root.
            let shrunk = only.pivots.len() <= self.geometry.pivots_max;
            self.events.add(Event::RootShrunk, u64::from(shrunk));
            return Ok(only);
        }
        pivots.extend(self.write_children(open)?);
        self.remove_empty(&mut pivots);
        let appended = is_appended(at.node, &pivots);
        Ok(Grown { height: at.node.height, appended, pivots })
    }

    /// Appends `next` to the preceding flushed neighbours; joins it with the last one if either is
    /// small.
    fn join(&self, open: &mut Vec<Grown>, mut next: Grown) {
        if let Some(last) = open.last_mut() {
            assert!(last.height == next.height, "neighbours have one height");
            let (count, other) = (last.pivots.len(), next.pivots.len());
            let small = count.min(other) <= self.geometry.pivots_small();
            if small && count + other <= self.geometry.pivots_joined() {
                last.pivots.append(&mut next.pivots);
                last.appended = false;
                self.remove_empty(&mut last.pivots);
                self.events.add(Event::JoinsNode, 1);
                return;
            }
        }
        open.push(next);
    }

    /// Cuts grown nodes to size and writes them.
    pub fn write_children(&self, grown: Vec<Grown>) -> Result<Vec<Pivot>> {
        let mut written = Vec::with_capacity(grown.len());
        for Grown { height, pivots, appended } in grown {
            if let [only] = pivots.as_slice()
                && only.is_empty()
            {
                // Nothing is left below: no node is needed.
                written.extend(pivots);
                continue;
            }
            let mut pivots = beside_each_other(pivots);
            let sizes = self.node_sizes(&pivots, appended);
            debug_assert_eq!(
                sizes.iter().sum::<usize>(),
                pivots.len(),
                "the nodes of a split have all of its pivots"
            );
            self.events.add(Event::SplitsNode, sizes.len() as u64 - 1);
            self.output.mark_shared(&pivots, &sizes);
            for size in sizes {
                let rest = pivots.split_off(size);
                written.push(self.output.write_node(height, pivots)?);
                pivots = rest;
            }
        }
        Ok(written)
    }

    /// Checks the new pivots of a node: they have its height, begin where it began, ascend, and end
    /// within its span.
    pub(super) fn check_grown(&self, at: Place<'_>, grown: &Grown) {
        assert!(at.root || grown.height == at.node.height, "only the root changes its height");
        let (old, new) = (&at.node.pivots, &grown.pivots);
        debug_assert!(
            new.first().is_some_and(|first| first.key == old[0].key),
            "a node begins at the same key after a pass"
        );
        debug_assert!(
            new.is_sorted_by(|before, pivot| before.key < pivot.key),
            "new pivots are in key order"
        );
        debug_assert!(at.contains(new), "new pivots are within the span of their node");
    }

    /// Returns the numbers of pivots of the nodes into which these are cut; their keys share
    /// storage.
    fn node_sizes(&self, pivots: &[Pivot], appended: bool) -> Vec<usize> {
        plan::node_sizes_by_keys(pivots.len(), key_bytes(pivots), appended, &self.geometry)
    }

    /// Returns true if these pivots exceed one node.
    pub fn is_over(&self, grown: &mut Grown) -> bool {
        grown.pivots = beside_each_other(std::mem::take(&mut grown.pivots));
        self.node_sizes(&grown.pivots, grown.appended).len() > 1
    }
}

/// Returns true if all pivots that `pivots` has beyond those of `node` come after them.
fn is_appended(node: &Node, pivots: &[Pivot]) -> bool {
    node.pivots.len() <= pivots.len()
        && node.pivots.iter().zip(pivots).all(|(old, new)| old.key == new.key)
}
