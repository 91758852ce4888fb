//! The node cache: nodes in memory.
//!
//! The holder of a reference to a node (a parent, a version) holds its [`Slot`]. The node itself is
//! loaded on first use and may be evicted at any time.
//!
//! ```text
//!            admit (just written)
//!          +-----------------------+
//!          |        load           v           clock (passed twice without a use)
//!   slot: absent ------------> in memory --------------------------------------> absent
//! ```
//!
//! Readers access a node in memory under an epoch guard, without a lock or a reference count; an
//! evicted node is freed when all guards of that time have ended. An absorb, which takes long,
//! keeps an `Arc` instead. It leaves absent nodes absent if memory is short: an absorb that goes
//! through all nodes would push out those that reads need.
//!
//! Invariants:
//! 1. A slot's node never changes: a reloaded node is equal.
//! 2. A slot with a node is charged with its footprint in the clock that all engines of the
//!    database share (`memory/node_clock.rs`), which bounds the memory of nodes.
//!
//! Lock order: the clock's lock is taken last.

use super::NodeRef;
use crate::base::error::{Error, Result};
use crate::base::ids::Extent;
use crate::memory::budget::{Charge, Use};
use crate::memory::epoch::{EpochSlot, Guard};
use crate::memory::node_clock::{ClockEntry, NodeClock};
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Ordering, Weak};
use crate::storage::Storage;
use crate::storage::block::DATA_FILE;

/// The node type of an engine.
pub trait Structure: Sized + Send + Sync + 'static {
    /// Data kept in the slot of a node, besides its location.
    type About: Copy + Send + Sync;

    /// Data needed for decoding, besides the bytes.
    type Context: Send + Sync;

    /// Decodes a node.
    fn decode(bytes: &[u8], about: Self::About, node_cache: &NodeCache<Self>) -> Result<Self>;

    /// Creates the node that is not on disk, if there is one: the root of an empty tree.
    fn empty(about: Self::About) -> Self;

    /// Approximate heap memory of the node, in bytes.
    fn heap_bytes(&self) -> u64;

    /// Heap memory including data it keeps alive that is charged elsewhere, in bytes.
    fn footprint_bytes(&self) -> u64;

    /// Stores the charge for its memory, for as long as it lives.
    fn keep(&mut self, charge: Charge);
}

/// Number of nodes loaded and evicted since the engine was opened.
#[derive(Default)]
struct Moves {
    loaded: AtomicU64,
    evicted: AtomicU64,
}

/// The cached nodes of one engine.
pub struct NodeCache<N: Structure> {
    storage: Arc<Storage>,
    context: N::Context,
    moves: Arc<Moves>,
}

impl<N: Structure> NodeCache<N> {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(storage: Arc<Storage>, context: N::Context) -> Self {
        Self { storage, context, moves: Arc::default() }
    }

    /// The storage of nodes and runs.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// The data needed for decoding.
    pub fn context(&self) -> &N::Context {
        &self.context
    }

    /// Number of nodes loaded, and number of nodes evicted.
    pub fn moves(&self) -> (u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.moves.loaded), read(&self.moves.evicted))
    }

    /// Creates a slot for the node at `reference`, absent.
    pub fn slot(&self, reference: Option<NodeRef>, about: N::About) -> Arc<Slot<N>> {
        Arc::new(Slot {
            reference,
            about,
            node: EpochSlot::empty(self.storage.epochs()),
            used: AtomicBool::new(true),
            bytes: AtomicU64::new(0),
            clock: Arc::clone(self.storage.node_clock()),
            moves: Arc::clone(&self.moves),
        })
    }

    /// As [`NodeCache::slot`], for a reference read from a file: fails if the node lies outside of
    /// it.
    pub fn slot_of(&self, reference: NodeRef, about: N::About) -> Result<Arc<Slot<N>>> {
        self.check_within_file(reference.extent)?;
        Ok(self.slot(Some(reference), about))
    }

    /// Fails if `extent`, which a node refers to, lies outside of the data file.
    pub fn check_within_file(&self, extent: Extent) -> Result<()> {
        if self.storage.holds(extent) {
            return Ok(());
        }
        Err(Error::corrupt("a node refers to blocks beyond the data file"))
    }

    /// Creates a slot for a node that was just written, in memory.
    pub fn admit(&self, reference: Option<NodeRef>, about: N::About, node: N) -> Arc<Slot<N>> {
        let slot = self.slot(reference, about);
        self.keep(&slot, node, &self.storage.epochs().pin());
        slot
    }

    /// As [`NodeCache::admit`]; the node is absent if another one would have to leave for it.
    pub fn admit_beside(&self, reference: NodeRef, about: N::About, node: N) -> Arc<Slot<N>> {
        let slot = self.slot(Some(reference), about);
        if self.has_space_for(&node) {
            self.keep(&slot, node, &self.storage.epochs().pin());
        }
        slot
    }

    fn has_space_for(&self, node: &N) -> bool {
        let node_clock = self.storage.node_clock();
        node_clock.bytes() + node.footprint_bytes() <= node_clock.share()
    }

    /// The node of `slot`, if it is in memory.
    #[inline]
    pub fn in_memory<'g>(&self, slot: &'g Arc<Slot<N>>, guard: &'g Guard) -> Option<&'g Arc<N>> {
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        slot.node.get(guard)
    }

    /// The node of `slot`, if it is in memory, as an `Arc` that may outlive an epoch guard.
    pub fn in_memory_owned(&self, slot: &Arc<Slot<N>>) -> Option<Arc<N>> {
        self.in_memory(slot, &self.storage.epochs().pin()).map(Arc::clone)
    }

    /// As [`NodeCache::in_memory_owned`], loaded if it is absent. No guard is held during the read,
    /// and the caller should hold none.
    pub fn load_owned(&self, slot: &Arc<Slot<N>>) -> Result<Arc<N>> {
        match self.in_memory_owned(slot) {
            Some(node) => Ok(node),
            None => self.load_absent(slot),
        }
    }

    /// As [`NodeCache::load_owned`], for a caller that goes through many nodes: those that were
    /// absent do not push out others, which are used more often.
    pub fn load_once(&self, slot: &Arc<Slot<N>>) -> Result<Arc<N>> {
        if let Some(node) = slot.peek(&self.storage.epochs().pin()).map(Arc::clone) {
            return Ok(node);
        }
        let mut node = self.read_absent(slot)?;
        if self.has_space_for(&node) {
            return Ok(Arc::clone(self.keep(slot, node, &self.storage.epochs().pin())));
        }
        node.keep(self.charge_for(&node));
        Ok(Arc::new(node))
    }

    #[cold]
    fn load_absent(&self, slot: &Arc<Slot<N>>) -> Result<Arc<N>> {
        let node = self.read_absent(slot)?;
        Ok(Arc::clone(self.keep(slot, node, &self.storage.epochs().pin())))
    }

    fn read_absent(&self, slot: &Slot<N>) -> Result<N> {
        let node = match slot.reference {
            None => N::empty(slot.about),
            Some(reference) => self.read(reference, slot.about)?,
        };
        self.moves.loaded.fetch_add(1, Ordering::Relaxed);
        Ok(node)
    }

    fn charge_for(&self, node: &N) -> Charge {
        self.storage.budget().charge(Use::Metadata, node.heap_bytes())
    }

    /// Reads and decodes a node without caching it.
    pub fn read(&self, reference: NodeRef, about: N::About) -> Result<N> {
        let bytes = reference.read(&self.storage)?;
        N::decode(&bytes, about, self)
            .map_err(|error| error.at(DATA_FILE, reference.extent.offset()))
    }

    /// Keeps `node` in `slot`, unless another thread did so first.
    fn keep<'g>(&self, slot: &'g Arc<Slot<N>>, mut node: N, guard: &'g Guard) -> &'g Arc<N> {
        let footprint = node.footprint_bytes();
        node.keep(self.charge_for(&node));
        let (kept, mine) = slot.node.put(Arc::new(node), guard);
        if mine {
            slot.bytes.store(footprint, Ordering::Relaxed);
            let entry: Weak<dyn ClockEntry> = Arc::downgrade(slot) as _;
            self.storage.node_clock().admit(&entry, footprint, guard);
        }
        kept
    }
}

/// The slot of a node: its location, and the node if it is in memory.
pub struct Slot<N: Structure> {
    /// `None` for a node that is not on disk.
    reference: Option<NodeRef>,
    about: N::About,
    node: EpochSlot<Arc<N>>,
    /// Used since the clock last passed.
    used: AtomicBool,
    /// The footprint of the node while it is in memory.
    bytes: AtomicU64,
    clock: Arc<NodeClock>,
    moves: Arc<Moves>,
}

impl<N: Structure> Slot<N> {
    /// Location of the node; `None` if it is not on disk.
    #[must_use]
    pub fn reference(&self) -> Option<NodeRef> {
        self.reference
    }

    /// The data kept about the node.
    #[must_use]
    pub fn about(&self) -> N::About {
        self.about
    }

    /// The node, if it is in memory. Does not count as a use.
    pub fn peek<'g>(&'g self, guard: &'g Guard) -> Option<&'g Arc<N>> {
        self.node.get(guard)
    }
}

impl<N: Structure> ClockEntry for Slot<N> {
    fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn evict(&self, guard: &Guard) -> u64 {
        // Read before the slot is cleared: from then on another thread may reload the node and
        // store its bytes.
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        if self.node.clear(guard) {
            self.moves.evicted.fetch_add(1, Ordering::Relaxed);
        }
        bytes
    }
}

impl<N: Structure> Drop for Slot<N> {
    fn drop(&mut self) {
        self.clock.forget(*self.bytes.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::budget::with_losses;

    const HEAP_BYTES: u64 = 3_000;
    const FOOTPRINT_BYTES: u64 = 10_000;

    /// A node that is not on disk.
    struct Leaf {
        charge: Option<Charge>,
    }

    impl Structure for Leaf {
        type About = ();
        type Context = ();

        fn decode(_bytes: &[u8], (): (), _node_cache: &NodeCache<Self>) -> Result<Self> {
            Err(Error::internal("there are no bytes of it"))
        }

        fn empty((): ()) -> Self {
            Self { charge: None }
        }

        fn heap_bytes(&self) -> u64 {
            HEAP_BYTES
        }

        fn footprint_bytes(&self) -> u64 {
            FOOTPRINT_BYTES
        }

        fn keep(&mut self, charge: Charge) {
            self.charge = Some(charge);
        }
    }

    /// Waits until the budget counts this many bytes of nodes: threads of other tests may still be
    /// working.
    fn expect_charge(storage: &Storage, bytes: u64) {
        let used = || storage.budget().used_by(Use::Metadata);
        let is_so = (0..1_000_000).any(|_| {
            storage.epochs().collect();
            std::thread::yield_now();
            used() == bytes
        });
        assert!(is_so, "{} bytes, not {bytes}", used());
    }

    #[test]
    fn an_evicted_node_is_gone_and_so_is_what_it_took() {
        let (storage, _directory) = Storage::testing(16 << 20);
        let node_clock = Arc::clone(storage.node_clock());
        let before = storage.budget().used_by(Use::Metadata);
        let heap_bytes = with_losses(Use::Metadata, HEAP_BYTES);
        let node_cache = NodeCache::<Leaf>::new(Arc::clone(&storage), ());
        let slot = node_cache.admit(None, (), Leaf::empty(()));
        for round in 0..3 {
            assert!(slot.peek(&storage.epochs().pin()).is_some());
            assert_eq!(node_clock.bytes(), FOOTPRINT_BYTES);
            expect_charge(&storage, before + heap_bytes);
            let kept = (round == 1).then(|| node_cache.load_owned(&slot).unwrap());
            let evicted = slot.evict(&storage.epochs().pin());
            assert_eq!(evicted, FOOTPRINT_BYTES);
            node_clock.forget(evicted);
            assert!(slot.peek(&storage.epochs().pin()).is_none());
            // A holder keeps the memory charged, and nothing else does.
            expect_charge(&storage, before + if kept.is_some() { heap_bytes } else { 0 });
            drop(kept);
            expect_charge(&storage, before);
            assert_eq!(slot.evict(&storage.epochs().pin()), 0);
            assert_eq!(node_cache.moves(), (round, round + 1));
            node_cache.load_owned(&slot).unwrap();
        }
        drop(slot);
        assert_eq!(node_clock.bytes(), 0);
        expect_charge(&storage, before);
    }
}
