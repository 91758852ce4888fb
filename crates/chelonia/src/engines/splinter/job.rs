//! Merges as jobs.
//!
//! ```text
//!   plan      a merge that is due at a node of the newest version; its runs are claimed
//!   run       merges them into one branch; absorbs flush the node meanwhile, or split it
//!   install   the branch replaces the runs where they still are (`replace.rs`)
//! ```
//!
//! A merge that met an unreadable block is dropped; the next plan leaves the block out.

use crate::base::error::{Error, ErrorKind, Result};
use crate::buffer_tree::check::damage::Damage;
use crate::buffer_tree::counts::{Ledger, walk_nodes};
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Child, Node, Part};
use crate::buffer_tree::output::Output;
use crate::buffer_tree::source::Incoming;
use crate::buffer_tree::span::KeySpan;
use crate::buffer_tree::version::TreeVersion;
use crate::engine::{Absorbed, Job, Work};
use crate::engines::splinter::claims::{Claim, run_of};
use crate::engines::splinter::due::{Around, Due, all_due, pending_bytes};
use crate::engines::splinter::edit::{Draft, Edit, check_node};
use crate::engines::splinter::merge::LevelsMerge;
use crate::engines::splinter::pending::{Changed, NodeKey};
use crate::engines::splinter::replace::Replacement;
use crate::engines::splinter::sizes::Sizes;
use crate::engines::splinter::{Splinter, Writer};
use crate::memory::epoch::Guard;
use crate::merge::NoUpdates;
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::structure::SharedKey;
use std::collections::BTreeMap;

/// A node, and the end of its range.
type Found = (Arc<Node>, Option<SharedKey>);

/// A merge from its plan to its install.
pub(super) struct MergeJob<'e> {
    tree: &'e Splinter,
    node: Arc<Node>,
    upper: Option<SharedKey>,
    due: Due,
    sizes: Sizes,
    claim: Arc<Claim>,
    merged: Option<Merged>,
}

struct Merged {
    ledger: Ledger,
    /// The new parts by pivot.
    outputs: BTreeMap<usize, Vec<Part>>,
}

impl Splinter {
    /// Plans the most urgent merge that can run beside the outstanding ones.
    pub(super) fn plan_job(&self) -> Result<Option<MergeJob<'_>>> {
        let mut writer = self.writer.lock();
        let version = self.newest();
        let counted = self.count(&mut writer, &version);
        if let Err(error) = counted.and_then(|()| self.survey_if_due(&mut writer, &version)) {
            // Nothing can be merged in a tree with an unreadable node; reads and absorbs report it.
            if error.kind() == ErrorKind::Corrupt {
                self.wants.store(false, Ordering::SeqCst);
                self.shared.read_costs.settle();
            }
            return unless_corrupt(error);
        }
        let sizes = self.sizes(&version, writer.overlap);
        for key in writer.pending.nodes() {
            // An unreadable node stops the merges of no other one. Reads report it.
            let Some((node, upper)) = self.find(&version, &key).or_else(unless_corrupt)? else {
                writer.pending.remove(&key);
                continue;
            };
            let around = Around {
                upper: upper.as_ref().map(SharedKey::view),
                claims: Some(&self.claims),
                damage: Some(&writer.damage),
            };
            let due = all_due(node.height, &node.pivots, &around, &sizes)?.into_iter().next();
            if let Some(due) = due {
                self.note_pending(&writer);
                return Ok(Some(self.job(node, upper, due, sizes)));
            }
            let span = KeySpan {
                lower: node.pivots[0].key.view(),
                upper: upper.as_ref().map(SharedKey::view),
            };
            if !self.claims.meets(node.height, span) {
                writer.pending.remove(&key);
            }
        }
        let job = self.plan_for_reads(&version, &writer, sizes)?;
        self.note_pending(&writer);
        Ok(job)
    }

    fn job(
        &self,
        node: Arc<Node>,
        upper: Option<SharedKey>,
        due: Due,
        sizes: Sizes,
    ) -> MergeJob<'_> {
        let end = upper.as_ref().map(SharedKey::view);
        let parts = due.pivots.iter().flat_map(|index| &node.pivots[*index].parts);
        let inputs = parts.filter(|part| usize::from(part.level) < due.levels).map(run_of);
        let span = match due.whole {
            true => node.span_of(due.pivots[0], end),
            false => KeySpan { lower: node.pivots[0].key.view(), upper: end },
        };
        let claim = self.claims.add(node.height, span, inputs.collect());
        MergeJob { tree: self, node, upper, due, sizes, claim, merged: None }
    }

    /// Finds the node of this height that begins at this key.
    fn find(&self, version: &TreeVersion, (height, key): &NodeKey) -> Result<Option<Found>> {
        let mut node = self.shared.node_cache.load_owned(&version.root)?;
        check_node(&node, &SharedKey::LEAST, None)?;
        let mut upper = None;
        while node.height > *height {
            let index = node.pivot_of(key);
            let Child::Node(slot, _) = &node.pivots[index].child else { return Ok(None) };
            let child = self.shared.node_cache.load_owned(slot)?;
            let next = node.pivots.get(index + 1).map(|next| next.key.clone());
            upper = next.or(upper);
            check_node(&child, &node.pivots[index].key, upper.as_ref())?;
            node = child;
        }
        let is_it = node.height == *height && node.pivots[0].key == **key;
        Ok(is_it.then_some((node, upper)))
    }

    /// Plans a merge that reads have paid for: of all levels of a leaf, or of a pivot above.
    fn plan_for_reads(
        &self,
        version: &TreeVersion,
        writer: &Writer,
        sizes: Sizes,
    ) -> Result<Option<MergeJob<'_>>> {
        if !self.shared.read_costs.may_be_due() {
            return Ok(None);
        }
        let mut keys = Vec::new();
        {
            let guard = self.shared.node_cache.storage().epochs().pin();
            if let Some(root) = version.root.peek(&guard) {
                self.paid_nodes(root, &guard, &mut keys);
            }
        }
        for key in keys {
            let found = self.find(version, &key).or_else(unless_corrupt)?;
            let Some((node, upper)) = found else { continue };
            if let Some(due) = self.paid_at(&node, upper.as_ref(), writer)? {
                return Ok(Some(self.job(node, upper, due, sizes)));
            }
        }
        // Claimed, or unreadable: planned again after the next read that pays.
        self.shared.read_costs.settle();
        Ok(None)
    }

    /// Returns the first merge at `node` that reads have paid for and that can run now.
    fn paid_at(
        &self,
        node: &Node,
        upper: Option<&SharedKey>,
        writer: &Writer,
    ) -> Result<Option<Due>> {
        let upper = upper.map(SharedKey::view);
        let whole = node.height == 1;
        for (index, pivot) in node.pivots.iter().enumerate() {
            let own = node.span_of(index, upper);
            // A job that merges levels above leaves claims its node.
            let claimed = KeySpan { lower: node.pivots[0].key.view(), upper };
            let claimed = if whole { own } else { claimed };
            if !self.shared.read_costs.is_due(pivot)
                || self.claims.meets(node.height, claimed)
                || writer.damage.sticks(pivot, own)?
            {
                continue;
            }
            let (levels, bytes) = (pivot.levels(), pivot.pending().weight());
            return Ok(Some(Due { pivots: vec![index], levels, whole, bytes }));
        }
        Ok(None)
    }

    /// Collects the nodes with a pivot that reads have paid for, parents first, as far as nodes are
    /// in memory.
    fn paid_nodes(&self, node: &Node, guard: &Guard, keys: &mut Vec<NodeKey>) {
        if node.pivots.iter().any(|pivot| self.shared.read_costs.is_due(pivot)) {
            keys.push((node.height, node.pivots[0].key.to_bytes().into_owned()));
        }
        for pivot in &node.pivots {
            if let Child::Node(slot, _) = &pivot.child
                && let Some(child) = slot.peek(guard)
            {
                self.paid_nodes(child, guard, keys);
            }
        }
    }

    /// Moves the parts of one pivot down, for a merge of leaves that frees space; `None` if all are
    /// in leaves.
    pub(super) fn push_one(&self, work: &Work<'_>) -> Result<Option<Absorbed>> {
        let mut writer = self.writer.lock();
        let version = self.newest();
        self.count(&mut writer, &version)?;
        let sizes = self.sizes(&version, writer.overlap);
        let output = self.output(work);
        let change = |edit: &Edit<'_>, root: &mut Draft| push_first(edit, root);
        self.change(&mut writer, &version, output, sizes, &change)
    }

    /// Plans the merge of a leaf for the space that it frees: of those that are readable and that
    /// no job merges, the one with the most updates beside its merged branch.
    pub(super) fn plan_reclaim(&self) -> Result<Option<MergeJob<'_>>> {
        let mut writer = self.writer.lock();
        let version = self.newest();
        self.count(&mut writer, &version)?;
        let sizes = self.sizes(&version, writer.overlap);
        let mut leaves: Vec<(u64, NodeKey, usize)> = Vec::new();
        walk_nodes(&self.shared.node_cache, &version.root, &mut None, &mut |_, node: &Node| {
            for (index, pivot) in node.pivots.iter().enumerate() {
                let has_tombstones = pivot.pending().tombstones > 0;
                if node.height == 1 && (pivot.levels() > 1 || has_tombstones) {
                    let key = node.pivots[0].key.to_bytes().into_owned();
                    leaves.push((pending_bytes(pivot, &sizes), (1, key), index));
                }
            }
            Ok(())
        })?;
        leaves.sort_by(|one, other| other.cmp(one));
        for (_, key, index) in leaves {
            let Some((node, upper)) = self.find(&version, &key)? else { continue };
            let pivot = &node.pivots[index];
            let bytes = pivot.pending().weight();
            let span = node.span_of(index, upper.as_ref().map(SharedKey::view));
            if !self.claims.meets(1, span) && !writer.damage.sticks(pivot, span)? {
                let due = Due { pivots: vec![index], levels: pivot.levels(), whole: true, bytes };
                return Ok(Some(self.job(node, upper, due, sizes)));
            }
        }
        Ok(None)
    }
}

impl Job for MergeJob<'_> {
    fn run(&mut self, work: &Work<'_>) -> Result<()> {
        let shared = &self.tree.shared;
        let output = self.tree.output(work);
        let merge = LevelsMerge {
            node: &self.node,
            upper: self.upper.as_ref().map(SharedKey::view),
            pivots: &self.due.pivots,
            levels: self.due.levels,
            whole: self.due.whole,
            incoming: Incoming { updates: &NoUpdates, ranks: 0..0, older: Vec::new() },
            sizes: self.sizes,
        };
        let workers = shared.workers_for(*work.workers, self.sizes.run);
        match merge.run(&output, &Work { workers: &workers, ..*work }) {
            Ok(outputs) => {
                self.merged = Some(Merged { ledger: output.into_ledger(), outputs });
                Ok(())
            }
            Err(error) => {
                // The first error is more useful than one from the roll-back.
                let _ = output.into_ledger().roll_back(shared.node_cache.storage());
                let mut damage = Damage::default();
                damage.meet(error)?;
                damage.learn();
                self.tree.writer.lock().damage.adopt(&mut damage);
                Ok(())
            }
        }
    }

    fn install(mut self: Box<Self>, work: &Work<'_>) -> Result<Option<Absorbed>> {
        let Some(Merged { ledger, outputs }) = self.merged.take() else { return Ok(None) };
        let tree = self.tree;
        let mut writer = tree.writer.lock();
        let version = tree.newest();
        let new = Replacement {
            node: &self.node,
            upper: self.upper.as_ref().map(SharedKey::view),
            pivots: &self.due.pivots,
            levels: self.due.levels,
            outputs: &outputs,
        };
        // The claim ends before nodes are evaluated: what is due there now can be planned.
        tree.claims.end(&self.claim);
        let output = tree.output(work).after(ledger);
        let change = |edit: &Edit<'_>, root: &mut Draft| edit.replace(root, &new);
        // The options may have changed since the plan.
        let sizes = tree.sizes(&version, writer.overlap);
        let absorbed = tree.change(&mut writer, &version, output, sizes, &change)?;
        let event = match (&absorbed, self.due.whole) {
            (None, _) => Event::JobsDropped,
            (Some(_), true) => Event::LeafMerges,
            (Some(_), false) => Event::Compactions,
        };
        tree.shared.events.add(event, 1);
        Ok(absorbed)
    }
}

impl Drop for MergeJob<'_> {
    fn drop(&mut self) {
        if let Some(merged) = self.merged.take() {
            // Nothing refers to it: what is not freed is found by the next open.
            let _ = merged.ledger.roll_back(self.tree.shared.node_cache.storage());
        }
        self.tree.claims.end(&self.claim);
    }
}

impl Splinter {
    /// Makes the next version by `change`, which changes the root, and writes what else the nodes
    /// need. `None`, with the output freed, if it changes nothing.
    pub(super) fn change(
        &self,
        writer: &mut Writer,
        version: &TreeVersion,
        output: Output<'_>,
        sizes: Sizes,
        change: &dyn Fn(&Edit<'_>, &mut Draft) -> Result<bool>,
    ) -> Result<Option<Absorbed>> {
        let shared = &self.shared;
        let changed = Mutex::new(Changed::default());
        let edit = Edit { shared, output: &output, sizes, claims: &self.claims, changed };
        let tried = shared.node_cache.load_owned(&version.root).and_then(|old| {
            check_node(&old, &SharedKey::LEAST, None)?;
            let mut root = Draft::of(&old, None);
            if !change(&edit, &mut root)? {
                return Ok(None);
            }
            edit.retire(&version.root, &old);
            edit.finish_root(root).map(Some)
        });
        let changed = edit.changed.into_inner();
        let ledger = output.into_ledger();
        match tried {
            Ok(Some(built)) => self.publish(writer, version, built, ledger, changed).map(Some),
            Ok(None) => ledger.roll_back(shared.node_cache.storage()).map(|()| None),
            Err(error) => {
                // The first error is more useful than one from the roll-back.
                let _ = ledger.roll_back(shared.node_cache.storage());
                Err(error)
            }
        }
    }
}

/// Returns nothing instead of damage.
fn unless_corrupt<T>(error: Error) -> Result<Option<T>> {
    if error.kind() == ErrorKind::Corrupt { Ok(None) } else { Err(error) }
}

/// Moves the parts of the first pivot that has any to its child; false if none above leaves has.
fn push_first(edit: &Edit<'_>, draft: &mut Draft) -> Result<bool> {
    if draft.height == 1 {
        return Ok(false);
    }
    for index in 0..draft.pivots.len() {
        if !draft.pivots[index].parts.is_empty() && edit.push(draft, index)? {
            return Ok(true);
        }
        let (entered, mut child) = edit.child_of(draft, index)?;
        let Some((slot, node)) = entered else { continue };
        if push_first(edit, &mut child)? {
            edit.retire(&slot, &node);
            // Its own parts stay, if the child could not take them.
            edit.put_back(draft, index, child)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// A tree without counts cannot be changed: for code that counts before.
pub(super) fn not_counted() -> Error {
    Error::internal("a tree lost its reference counts")
}
