//! Changes of the tree by writers: the table in `memtable/art/mod.rs`, row by row.
//!
//! An insert walks down without locks to the position of its key, locks the nodes it will change,
//! validates that they are unchanged, and changes them. If validation fails, another writer made
//! progress there first; the insert restarts from the root, and reuses the record that it has
//! written into the arena.
//!
//! This module is safe code: its rules (locks, validation) are those of the tree's invariants, not
//! of memory safety.

use super::Tree;
use super::child::{Child, Kind, Slot};
use super::node::{Held, Node, Target};
use super::record::Entry;
use crate::base::ids::SeqNo;
use crate::base::stream::{LargeRef, Update};
use crate::kernels::prefix::common_prefix;
use crate::memtable::Pins;

/// An insert in progress.
struct Insert<'t, 'a> {
    tree: &'t Tree,
    key: &'a [u8],
    update: Update<'a>,
    seqno: SeqNo,
    pins: &'a dyn Pins,
    /// The record, once it was written.
    draft: Option<Entry<'t>>,
}

/// The parent of a node, and its slot.
#[derive(Clone, Copy)]
struct Parent<'t> {
    node: Node<'t>,
    slot: &'t Slot,
}

/// Result of a round.
enum Round {
    /// The insert is complete, with a new key or a new version of one.
    Done { new_key: bool },
    /// Another writer came first: restart.
    Again,
}

const DONE: Round = Round::Done { new_key: true };

impl Tree {
    /// Inserts a version of `key`; true if the key is new. Several inserts of one key may come in
    /// any order of their seqnos.
    pub fn insert(&self, key: &[u8], update: Update<'_>, seqno: SeqNo, pins: &dyn Pins) -> bool {
        let mut insert = Insert { tree: self, key, update, seqno, pins, draft: None };
        loop {
            if let Round::Done { new_key } = insert.round() {
                if new_key {
                    self.arena.count_key();
                }
                return new_key;
            }
        }
    }

    /// The root, created if it is missing.
    fn root_or_made(&self) -> Node<'_> {
        if let Some(root) = self.root_node() {
            return root;
        }
        let _held = self.making_root.lock();
        self.root_node().unwrap_or_else(|| {
            let root = Node::create(&self.arena, Kind::N256, &[]);
            self.root.store(root.child());
            root
        })
    }

    fn keep_unlinked(&self, large: LargeRef) {
        self.unlinked.lock().push(large);
    }
}

impl<'t> Insert<'t, '_> {
    fn round(&mut self) -> Round {
        let mut node = self.tree.root_or_made();
        let mut parent: Option<Parent<'t>> = None;
        let mut depth = 0;
        loop {
            let prefix = node.prefix();
            let common = common_prefix(prefix, &self.key[depth..]);
            if common < prefix.len() {
                // The root has no prefix, so there is a parent.
                return parent
                    .map_or(Round::Again, |parent| self.split_prefix(parent, node, depth, common));
            }
            depth += prefix.len();
            let step = self.key.get(depth).copied();
            let Some(slot) = slot_of(node, step) else {
                return self.hang(parent, node, step);
            };
            let child = slot.load();
            match self.tree.target(child) {
                Target::Nothing => return self.hang(parent, node, step),
                Target::Entry(entry) if entry.key() == self.key => return self.overwrite(entry),
                Target::Entry(entry) => {
                    return self.split_entry(Parent { node, slot }, entry, depth + 1);
                }
                Target::Node(below) => {
                    parent = Some(Parent { node, slot });
                    node = below;
                    depth += 1;
                }
            }
        }
    }

    /// Adds a version to an existing entry of the key.
    fn overwrite(&mut self, entry: Entry<'t>) -> Round {
        let tree = self.tree;
        let mut unlinked = |large| tree.keep_unlinked(large);
        match self.draft.take() {
            Some(draft) => entry.adopt(draft, self.pins, &mut unlinked),
            None => {
                entry.overwrite(&tree.arena, self.update, self.seqno, self.pins, &mut unlinked);
            }
        }
        Round::Done { new_key: false }
    }

    /// Inserts the entry into `node`, which has no child for `step`.
    fn hang(&mut self, parent: Option<Parent<'t>>, node: Node<'t>, step: Option<u8>) -> Round {
        let entry = self.draft();
        {
            let Some(held) = node.hold() else { return Round::Again };
            if !is_free(&held, step) {
                return Round::Again;
            }
            if put(node, step, Child::entry(entry)) {
                return DONE;
            }
        }
        parent.map_or(Round::Again, |parent| self.grow(parent, node, step, entry))
    }

    /// Replaces `node`, which was full, by a larger copy.
    fn grow(
        &self,
        parent: Parent<'t>,
        node: Node<'t>,
        step: Option<u8>,
        entry: Entry<'t>,
    ) -> Round {
        let Some((_held_above, held)) = hold_both(parent, node) else { return Round::Again };
        if !is_free(&held, step) {
            return Round::Again;
        }
        let larger = node.copy(&self.tree.arena, node.kind().larger(), node.prefix());
        let fits = put(larger, step, Child::entry(entry));
        debug_assert!(fits, "a larger node has room for one more");
        parent.slot.store(larger.child());
        held.retire();
        DONE
    }

    /// Replaces an entry of another key by a node with both. Their paths diverge at `depth` or
    /// later.
    fn split_entry(&mut self, place: Parent<'t>, other: Entry<'t>, depth: usize) -> Round {
        let entry = self.draft();
        let (ours, theirs) = (&self.key[depth..], &other.key()[depth..]);
        let common = common_prefix(ours, theirs);
        let both = Node::create(&self.tree.arena, Kind::N4, &theirs[..common]);
        put(both, theirs.get(common).copied(), Child::entry(other));
        put(both, ours.get(common).copied(), Child::entry(entry));
        let Some(_held) = place.node.hold() else { return Round::Again };
        if place.slot.load() != Child::entry(other) {
            return Round::Again;
        }
        place.slot.store(both.child());
        DONE
    }

    /// Splits the prefix of `node` (which begins at `depth`) after `common` bytes: puts a node with
    /// the common part above a copy with the rest.
    fn split_prefix(
        &mut self,
        parent: Parent<'t>,
        node: Node<'t>,
        depth: usize,
        common: usize,
    ) -> Round {
        let entry = self.draft();
        let prefix = node.prefix();
        let Some((_held_above, held)) = hold_both(parent, node) else { return Round::Again };
        let below = node.copy(&self.tree.arena, node.kind(), &prefix[common + 1..]);
        let above = Node::create(&self.tree.arena, Kind::N4, &prefix[..common]);
        put(above, Some(prefix[common]), below.child());
        put(above, self.key.get(depth + common).copied(), Child::entry(entry));
        parent.slot.store(above.child());
        held.retire();
        DONE
    }

    /// The record of this insert, written at most once.
    fn draft(&mut self) -> Entry<'t> {
        let (tree, key, update, seqno) = (self.tree, self.key, self.update, self.seqno);
        *self.draft.get_or_insert_with(|| Entry::create(&tree.arena, key, update, seqno))
    }
}

/// The slot of the child for `step` (`None`: the key ends here).
#[inline]
fn slot_of(node: Node<'_>, step: Option<u8>) -> Option<&Slot> {
    match step {
        Some(byte) => node.slot(byte),
        None => Some(node.terminal()),
    }
}

/// True if the node has no child for `step`. It is locked, so that remains true.
fn is_free(held: &Held<'_>, step: Option<u8>) -> bool {
    slot_of(held.node(), step).is_none_or(|slot| slot.load().is_none())
}

/// Adds a child to a node that has none for `step`; false if it is full. The node is locked, or not
/// published yet.
fn put(node: Node<'_>, step: Option<u8>, child: Child) -> bool {
    match step {
        Some(byte) => node.append(byte, child),
        None => {
            node.terminal().store(child);
            true
        }
    }
}

/// Locks a node and its parent; `None` unless the parent still links to it.
fn hold_both<'t>(parent: Parent<'t>, node: Node<'t>) -> Option<(Held<'t>, Held<'t>)> {
    let above = parent.node.hold()?;
    if parent.slot.load() != node.child() {
        return None;
    }
    Some((above, node.hold()?))
}
