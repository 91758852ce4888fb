//! The inner nodes of the index: reading and changing them. Their memory layout is in `layout`, the
//! tagged addresses that link them are in `child`.
//!
//! A node represents all keys that begin with one byte string, its path. `prefix` is the part of
//! the path below its parent's slot: up to 8 bytes are stored in the node; longer ones are an
//! address of key bytes in some record. `terminal` holds the entry whose key is the path itself;
//! the slot of a byte holds an entry (if there is only one such key) or a node.
//!
//! Invariants:
//! 1. Prefix and kind never change. A node whose prefix or size no longer fits is replaced by a
//!    copy and marked obsolete; from then on it never changes again.
//! 2. A child that is not null never becomes null, and a key once in a node keeps its slot: keys
//!    are appended in the order of insertion, not sorted. A slot's child may be replaced by one
//!    that holds all entries of the old one.
//! 3. All changes of a node are made under its lock, and only if it is not obsolete. The store of a
//!    child is a release; in nodes of 4, 16 and 48 the key is published after its child.
//!
//! Thread-safety: by 1 to 3 a reader needs no lock, no version and no validation: everything it
//! finds was inserted, and everything inserted before it came is found, in obsolete nodes too.

#![expect(unsafe_code, reason = "an island: nodes laid out in arena memory")]

use super::child::{Child, Kind, Slot, Tagged};
use super::layout::{
    Header, N4, N16, N48, N256, PREFIX_INLINE_BYTES, Prefix, greatest, least, set_byte,
};
use super::record::{Entry, Record};
use crate::kernels::node16::position16;
use crate::memtable::arena::Arena;
use crate::runtime::sync::{AtomicU8, Mutex, MutexGuard, Ordering};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Position of a child in the order of its node: 0 is the terminal, `1 + b` the slot of byte `b`.
pub(super) type Position = u16;

/// The greatest position.
pub(super) const POSITION_MAX: Position = 256;

/// The position of byte `byte`.
#[inline]
pub(super) fn position_of(byte: u8) -> Position {
    Position::from(byte) + 1
}

/// The byte of `position`, if it is neither the terminal nor beyond the last.
#[inline]
fn byte_at(position: Position) -> Option<u8> {
    u8::try_from(position.checked_sub(1)?).ok()
}

/// The target of a child.
#[derive(Clone, Copy)]
pub(super) enum Target<'t> {
    /// No child.
    Nothing,
    /// The only key below this child.
    Entry(Entry<'t>),
    /// The node of all keys below this child.
    Node(Node<'t>),
}

impl Child {
    /// Resolves the child.
    ///
    /// # Safety
    /// The child was loaded from a slot, a terminal or the root of a tree that outlives `'t`, with
    /// acquire order, or made on this thread.
    #[inline]
    pub(super) unsafe fn target<'t>(self) -> Target<'t> {
        match self.tagged() {
            Tagged::Nothing => Target::Nothing,
            // SAFETY: the caller's word; children without a tag are records.
            Tagged::Entry(at) => Target::Entry(unsafe { Entry::from_raw(at.cast::<Record>()) }),
            Tagged::Node(at, kind) => Target::Node(Node { at: at.cast(), kind, tree: PhantomData }),
        }
    }
}

/// A node of a tree, borrowed from it.
#[derive(Clone, Copy)]
pub(super) struct Node<'t> {
    at: NonNull<Header>,
    kind: Kind,
    tree: PhantomData<&'t Arena>,
}

/// The held lock of a node that is not obsolete.
pub(super) struct Held<'t> {
    node: Node<'t>,
    obsolete: MutexGuard<'t, bool>,
}

/// The body of a node, by kind.
#[derive(Clone, Copy)]
enum Body<'t> {
    N4(&'t N4),
    N16(&'t N16),
    N48(&'t N48),
    N256(&'t N256),
}

impl<'t> Node<'t> {
    /// Creates a node without children, not yet visible to other threads. A prefix that does not
    /// fit into the node is referenced in place: it lives in the same tree.
    pub(super) fn create(arena: &'t Arena, kind: Kind, prefix: &'t [u8]) -> Self {
        let size = match kind {
            Kind::N4 => size_of::<N4>(),
            Kind::N16 => size_of::<N16>(),
            Kind::N48 => size_of::<N48>(),
            Kind::N256 => size_of::<N256>(),
        };
        let place = arena.node(size);
        let mut inline = [0; PREFIX_INLINE_BYTES];
        let kept = if prefix.len() <= PREFIX_INLINE_BYTES {
            inline[..prefix.len()].copy_from_slice(prefix);
            Prefix { inline }
        } else {
            Prefix { outside: prefix.as_ptr() }
        };
        let header = Header {
            lock: Mutex::new(false),
            _unused: 0,
            count: AtomicU8::new(0),
            prefix_bytes: u32::try_from(prefix.len()).expect("the arena refuses longer keys"),
            prefix: kept,
            terminal: Slot::new(Child::NONE),
        };
        let at = place.cast::<Header>();
        // SAFETY: the arena gave `size` bytes, 8-aligned, to us alone. Zeros are no keys and null
        // slots in every kind.
        unsafe {
            place.write_bytes(0, size);
            at.write(header);
        }
        Self { at, kind, tree: PhantomData }
    }

    /// The child that links to this node.
    pub(super) fn child(self) -> Child {
        Child::node(self.at.cast(), self.kind)
    }

    /// The kind.
    pub(super) fn kind(self) -> Kind {
        self.kind
    }

    #[inline]
    fn header(self) -> &'t Header {
        // SAFETY: nodes are written before they are published, live for `'t`, and change in their
        // atomics and their lock only.
        unsafe { self.at.as_ref() }
    }

    #[inline]
    fn body(self) -> Body<'t> {
        // SAFETY: as in `header`; the kind is what the memory was written as.
        unsafe {
            match self.kind {
                Kind::N4 => Body::N4(self.at.cast().as_ref()),
                Kind::N16 => Body::N16(self.at.cast().as_ref()),
                Kind::N48 => Body::N48(self.at.cast().as_ref()),
                Kind::N256 => Body::N256(self.at.cast().as_ref()),
            }
        }
    }

    #[inline]
    fn count(self) -> usize {
        usize::from(self.header().count.load(Ordering::Acquire))
    }

    /// The length of the prefix.
    #[inline]
    pub(super) fn prefix_bytes(self) -> usize {
        self.header().prefix_bytes as usize
    }

    /// The prefix.
    #[inline]
    pub(super) fn prefix(self) -> &'t [u8] {
        let header = self.header();
        let length = header.prefix_bytes as usize;
        if length <= PREFIX_INLINE_BYTES {
            // SAFETY: prefixes up to this long are inline, and any bytes are valid there.
            unsafe { &header.prefix.inline[..length] }
        } else {
            // SAFETY: longer ones are key bytes of a record of this tree (`create`), which never
            // change and live for `'t`.
            unsafe { std::slice::from_raw_parts(header.prefix.outside, length) }
        }
    }

    /// The slot of the entry whose key ends here.
    #[inline]
    pub(super) fn terminal(self) -> &'t Slot {
        &self.header().terminal
    }

    /// The slot of `byte`; `None` if the node has none (a node of 256 always has).
    #[inline]
    pub(super) fn slot(self, byte: u8) -> Option<&'t Slot> {
        match self.body() {
            Body::N4(node) => {
                let (keys, count) = node.keys(self.count());
                let place = keys[..count].iter().position(|key| *key == byte)?;
                node.slots.get(place)
            }
            Body::N16(node) => {
                let (keys, count) = node.keys(self.count());
                node.slots.get(position16(keys, count, byte)?)
            }
            Body::N48(node) => {
                let word = node.index[usize::from(byte) / 8].load(Ordering::Acquire);
                let place = word.to_le_bytes()[usize::from(byte) % 8];
                node.slots.get(usize::from(place).checked_sub(1)?)
            }
            Body::N256(node) => Some(&node.slots[usize::from(byte)]),
        }
    }

    /// Takes the lock; `None` if the node is obsolete.
    pub(super) fn hold(self) -> Option<Held<'t>> {
        let obsolete = self.header().lock.lock();
        (!*obsolete).then_some(Held { node: self, obsolete })
    }

    /// The first child at or after `position`, with its position.
    #[inline]
    pub(super) fn child_from(self, position: Position) -> Option<(Position, Child)> {
        if position == 0 {
            let terminal = self.terminal().load();
            if !terminal.is_none() {
                return Some((0, terminal));
            }
        }
        let from = byte_at(position.max(1))?;
        let (key, slot) = match self.body() {
            Body::N4(node) => {
                let (keys, count) = node.keys(self.count());
                let at = least(&keys[..count], from)?;
                (keys[at], &node.slots[at])
            }
            Body::N16(node) => {
                let (keys, count) = node.keys(self.count());
                let at = least(&keys[..count], from)?;
                (keys[at], &node.slots[at])
            }
            Body::N48(node) => {
                let key = node.key_from(from)?;
                (key, self.slot(key)?)
            }
            Body::N256(node) => {
                let mut slots = node.slots[usize::from(from)..].iter();
                let skipped = slots.position(|slot| !slot.load().is_none())?;
                let key = from + u8::try_from(skipped).ok()?;
                (key, &node.slots[usize::from(key)])
            }
        };
        Some((position_of(key), slot.load()))
    }

    /// The last child at or before `position`, with its position.
    #[inline]
    pub(super) fn child_upto(self, position: Position) -> Option<(Position, Child)> {
        self.byte_child_upto(position).or_else(|| {
            let terminal = self.terminal().load();
            (!terminal.is_none()).then_some((0, terminal))
        })
    }

    #[inline]
    fn byte_child_upto(self, position: Position) -> Option<(Position, Child)> {
        let upto = byte_at(position)?;
        let (key, slot) = match self.body() {
            Body::N4(node) => {
                let (keys, count) = node.keys(self.count());
                let at = greatest(&keys[..count], upto)?;
                (keys[at], &node.slots[at])
            }
            Body::N16(node) => {
                let (keys, count) = node.keys(self.count());
                let at = greatest(&keys[..count], upto)?;
                (keys[at], &node.slots[at])
            }
            Body::N48(node) => {
                let key = node.key_upto(upto)?;
                (key, self.slot(key)?)
            }
            Body::N256(node) => {
                let slots = &node.slots[..=usize::from(upto)];
                let at = slots.iter().rposition(|slot| !slot.load().is_none())?;
                (u8::try_from(at).ok()?, &slots[at])
            }
        };
        Some((position_of(key), slot.load()))
    }

    /// Prefetches the first lines of the nodes below, if this node is of the kind that has many
    /// entries and few nodes: a walk will visit them soon.
    #[inline]
    pub(super) fn prefetch_nodes(self) {
        let slots = match self.body() {
            Body::N4(node) => &node.slots[..],
            Body::N16(node) => &node.slots[..],
            Body::N48(node) => &node.slots[..],
            Body::N256(node) => &node.slots[..],
        };
        slots.iter().for_each(|slot| slot.load().prefetch_node());
    }

    /// True if it has a slot for every byte: it is near the root, or has many keys.
    #[inline]
    pub(super) fn is_full_sized(self) -> bool {
        self.kind == Kind::N256
    }

    /// A copy of kind `kind` (not a smaller one) with all children, under another prefix. The
    /// caller holds the lock of this node, which it then marks obsolete.
    pub(super) fn copy(self, arena: &'t Arena, kind: Kind, prefix: &'t [u8]) -> Node<'t> {
        let copy = Node::create(arena, kind, prefix);
        copy.terminal().store(self.terminal().load());
        self.for_each_slot(|byte, slot| {
            let added = copy.append(byte, slot.load());
            debug_assert!(added, "a copy is not smaller than its original");
        });
        copy
    }

    /// Visits the used slots with their bytes, in no order.
    #[inline]
    fn for_each_slot(self, mut visit: impl FnMut(u8, &Slot)) {
        match self.body() {
            Body::N4(node) => {
                let (keys, count) = node.keys(self.count());
                keys[..count].iter().zip(&node.slots).for_each(|(key, slot)| visit(*key, slot));
            }
            Body::N16(node) => {
                let (keys, count) = node.keys(self.count());
                keys[..count].iter().zip(&node.slots).for_each(|(key, slot)| visit(*key, slot));
            }
            Body::N48(node) => {
                let places = node.index.iter().flat_map(|word| {
                    let word = word.load(Ordering::Acquire);
                    word.to_le_bytes()
                });
                for (key, place) in (0..=u8::MAX).zip(places) {
                    if let Some(place) = usize::from(place).checked_sub(1) {
                        visit(key, &node.slots[place]);
                    }
                }
            }
            Body::N256(node) => {
                let slots = (0..=u8::MAX).zip(&node.slots);
                slots
                    .filter(|(_, slot)| !slot.load().is_none())
                    .for_each(|(key, slot)| visit(key, slot));
            }
        }
    }

    /// Adds a child for a byte that has none; false if the node is full. The node is locked, or not
    /// published yet.
    pub(super) fn append(self, byte: u8, child: Child) -> bool {
        let count = self.count();
        let slots = match self.body() {
            Body::N4(node) => &node.slots[..],
            Body::N16(node) => &node.slots[..],
            Body::N48(node) => &node.slots[..],
            Body::N256(node) => {
                node.slots[usize::from(byte)].store(child);
                return true;
            }
        };
        let (Some(slot), Ok(next)) = (slots.get(count), u8::try_from(count + 1)) else {
            return false;
        };
        slot.store(child);
        match self.body() {
            Body::N4(node) => set_byte(&node.keys, count, byte),
            Body::N16(node) => set_byte(&node.keys[count / 8], count % 8, byte),
            Body::N48(node) => {
                set_byte(&node.index[usize::from(byte) / 8], usize::from(byte) % 8, next);
            }
            Body::N256(_) => {}
        }
        self.header().count.store(next, Ordering::Release);
        true
    }
}

impl<'t> Held<'t> {
    /// The locked node.
    pub(super) fn node(&self) -> Node<'t> {
        self.node
    }

    /// Marks the node obsolete: the caller has replaced it.
    pub(super) fn retire(mut self) {
        *self.obsolete = true;
    }
}
