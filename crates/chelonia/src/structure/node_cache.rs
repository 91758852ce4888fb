//! Which nodes are in memory.
//!
//! Whoever refers to a node (a parent, a version) holds its [`Slot`]. The node itself is read
//! when it is first wanted and may be dropped again at any time.
//!
//! ```text
//!            admit (just written)
//!          +-----------------------+
//!          |        load           v           clock (its turn came twice, not looked at)
//!   slot: absent ------------> resident ---------------------------------------> absent
//! ```
//!
//! Readers look at a resident node under an epoch guard, without a lock or a count; a dropped node
//! is freed when no guard of that time is left. An absorb, which takes long, keeps an `Arc`
//! instead.
//!
//! Invariants:
//! 1. A slot's node never changes: what is loaded again is the same.
//! 2. A slot that holds a node is counted with its footprint by the clock that all engines of the
//!    database share (`memory/node_clock.rs`), which says how much may be in memory.
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

/// What an engine's nodes are.
pub trait Structure: Sized + Send + Sync + 'static {
    /// What whoever refers to a node knows of it besides its place.
    type About: Copy + Send + Sync;

    /// What decoding needs besides the bytes.
    type Context: Send + Sync;

    /// Reads a node.
    fn decode(bytes: &[u8], about: Self::About, node_cache: &NodeCache<Self>) -> Result<Self>;

    /// The node that is nowhere on disk, if there is one: the root of an empty tree.
    fn empty(about: Self::About) -> Self;

    /// What it takes on the heap, about, in bytes.
    fn heap_bytes(&self) -> u64;

    /// The same with what it keeps alive that is counted elsewhere, in bytes.
    fn footprint_bytes(&self) -> u64;

    /// Keeps the charge for its memory as long as it lives.
    fn keep(&mut self, charge: Charge);
}

/// Nodes that were read, and dropped, since the engine was opened.
#[derive(Default)]
struct Moves {
    loaded: AtomicU64,
    evicted: AtomicU64,
}

/// The nodes of one engine that are in memory.
pub struct NodeCache<N: Structure> {
    storage: Arc<Storage>,
    context: N::Context,
    moves: Arc<Moves>,
}

impl<N: Structure> NodeCache<N> {
    /// Nothing is in memory.
    #[must_use]
    pub fn new(storage: Arc<Storage>, context: N::Context) -> Self {
        Self { storage, context, moves: Arc::default() }
    }

    /// Where nodes and runs are.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// What decoding needs besides the bytes.
    pub fn context(&self) -> &N::Context {
        &self.context
    }

    /// How often a node was read because it was not in memory, and dropped from it.
    pub fn moves(&self) -> (u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.moves.loaded), read(&self.moves.evicted))
    }

    /// A slot for the node at `reference`, absent.
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

    /// The same for a reference that was read from a file: the node must lie in it.
    pub fn slot_of(&self, reference: NodeRef, about: N::About) -> Result<Arc<Slot<N>>> {
        self.check_within_file(reference.extent)?;
        Ok(self.slot(Some(reference), about))
    }

    /// Fails if blocks that a node refers to lie outside of the data file.
    pub fn check_within_file(&self, extent: Extent) -> Result<()> {
        if self.storage.holds(extent) {
            return Ok(());
        }
        Err(Error::corrupt("a node refers to blocks beyond the data file"))
    }

    /// A slot for a node that was just written.
    pub fn admit(&self, reference: Option<NodeRef>, about: N::About, node: N) -> Arc<Slot<N>> {
        let slot = self.slot(reference, about);
        self.keep(&slot, node, &self.storage.epochs().pin());
        slot
    }

    /// The node of `slot`, if it is in memory.
    #[inline]
    pub fn resident<'g>(&self, slot: &'g Arc<Slot<N>>, guard: &'g Guard) -> Option<&'g Arc<N>> {
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        slot.node.get(guard)
    }

    /// The node of `slot`, if it is in memory, to keep longer than an epoch guard should live.
    pub fn resident_owned(&self, slot: &Arc<Slot<N>>) -> Option<Arc<N>> {
        self.resident(slot, &self.storage.epochs().pin()).map(Arc::clone)
    }

    /// The same, read if it is absent. No guard is held while it is read, and the caller should
    /// hold none.
    pub fn load_owned(&self, slot: &Arc<Slot<N>>) -> Result<Arc<N>> {
        match self.resident_owned(slot) {
            Some(node) => Ok(node),
            None => self.load_absent(slot),
        }
    }

    #[cold]
    fn load_absent(&self, slot: &Arc<Slot<N>>) -> Result<Arc<N>> {
        let node = match slot.reference {
            None => N::empty(slot.about),
            Some(reference) => self.read(reference, slot.about)?,
        };
        self.moves.loaded.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::clone(self.keep(slot, node, &self.storage.epochs().pin())))
    }

    /// Reads and decodes a node without keeping it.
    pub fn read(&self, reference: NodeRef, about: N::About) -> Result<N> {
        let bytes = reference.read(&self.storage)?;
        N::decode(&bytes, about, self)
            .map_err(|error| error.at(DATA_FILE, reference.extent.offset()))
    }

    /// Makes `node` resident in `slot`, unless another thread was faster.
    fn keep<'g>(&self, slot: &'g Arc<Slot<N>>, mut node: N, guard: &'g Guard) -> &'g Arc<N> {
        let footprint = node.footprint_bytes();
        node.keep(self.storage.budget().charge(Use::Metadata, node.heap_bytes()));
        let (kept, mine) = slot.node.put(Arc::new(node), guard);
        if mine {
            slot.bytes.store(footprint, Ordering::Relaxed);
            let resident: Weak<dyn ClockEntry> = Arc::downgrade(slot) as _;
            self.storage.node_clock().admit(&resident, footprint, guard);
        }
        kept
    }
}

/// The place of a node: on disk always, in memory sometimes.
pub struct Slot<N: Structure> {
    /// `None` for a node that is nowhere on disk.
    reference: Option<NodeRef>,
    about: N::About,
    node: EpochSlot<Arc<N>>,
    /// Looked at since the clock last passed.
    used: AtomicBool,
    /// The footprint of the node while it is resident.
    bytes: AtomicU64,
    clock: Arc<NodeClock>,
    moves: Arc<Moves>,
}

impl<N: Structure> Slot<N> {
    /// Where the node is; `None` if it is nowhere on disk.
    #[must_use]
    pub fn reference(&self) -> Option<NodeRef> {
        self.reference
    }

    /// What is known of the node.
    #[must_use]
    pub fn about(&self) -> N::About {
        self.about
    }

    /// The node, if it is in memory. Does not count as a look at it.
    pub fn peek<'g>(&'g self, guard: &'g Guard) -> Option<&'g Arc<N>> {
        self.node.get(guard)
    }
}

impl<N: Structure> ClockEntry for Slot<N> {
    fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn evict(&self, guard: &Guard) -> u64 {
        // Taken before the slot is cleared: from then on another thread may load the node again and
        // put the bytes of that in.
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

    const HEAP_BYTES: u64 = 3_000;
    const FOOTPRINT_BYTES: u64 = 10_000;

    /// A node that is nowhere on disk.
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

    /// Waits until the budget counts so many bytes of nodes: threads of other tests may be on their
    /// way.
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
        let node_cache = NodeCache::<Leaf>::new(Arc::clone(&storage), ());
        let slot = node_cache.admit(None, (), Leaf::empty(()));
        for round in 0..3 {
            assert!(slot.peek(&storage.epochs().pin()).is_some());
            assert_eq!(node_clock.bytes(), FOOTPRINT_BYTES);
            expect_charge(&storage, before + HEAP_BYTES);
            let kept = (round == 1).then(|| node_cache.load_owned(&slot).unwrap());
            let evicted = slot.evict(&storage.epochs().pin());
            assert_eq!(evicted, FOOTPRINT_BYTES);
            node_clock.forget(evicted);
            assert!(slot.peek(&storage.epochs().pin()).is_none());
            // Whoever holds it keeps its memory, and nobody else.
            expect_charge(&storage, before + if kept.is_some() { HEAP_BYTES } else { 0 });
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
