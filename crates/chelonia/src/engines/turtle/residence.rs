//! Which nodes are in memory.
//!
//! Whoever refers to a node (a parent, a version) holds its [`NodeSlot`]. The node itself is read
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
//! is freed when no guard of that time is left. A pass, which takes long, keeps an `Arc` instead.
//!
//! Invariants:
//! 1. A slot's node never changes: what is loaded again is the same.
//! 2. `resident_bytes` is the sum of the footprints of the slots that hold a node.
//! 3. After a load, nodes are dropped until that is within the share (a sixteenth of the budget),
//!    or every node was looked at since the clock last passed.
//!
//! The root of an empty tree is nowhere on disk; its slot makes it anew.
//!
//! Lock order: the clock's mutex and the table of runs are taken last and never together.

use super::codec::{self, NodeRef, Opener};
use super::events::{Event, Events};
use super::node::Node;
use crate::base::budget::Use;
use crate::base::epoch::EpochSlot;
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent};
use crate::base::limits::BLOCK_BYTES;
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, Weak};
use crate::run::{Run, RunRef};
use crate::storage::Storage;
use crate::storage::block::{BlockKind, DATA_FILE, expect_kind};
use crossbeam_epoch::Guard;
use std::collections::{BTreeMap, VecDeque};

/// The part of the budget that nodes and the handles of their runs may take.
const BUDGET_PARTS: u64 = 16;

/// The place of a node: on disk always, in memory sometimes.
pub(super) struct NodeSlot {
    /// `None` for the root of an empty tree.
    reference: Option<NodeRef>,
    height: u8,
    node: EpochSlot<Arc<Node>>,
    /// Looked at since the clock last passed.
    used: AtomicBool,
    /// The footprint of the node while it is resident.
    bytes: AtomicU64,
    /// The sum over all slots.
    resident_bytes: Arc<AtomicU64>,
}

impl NodeSlot {
    /// Where the node is; `None` for the root of an empty tree.
    pub fn reference(&self) -> Option<NodeRef> {
        self.reference
    }

    /// The node's height.
    pub fn height(&self) -> u8 {
        self.height
    }

    fn evict(&self, guard: &Guard) -> bool {
        let dropped = self.node.clear(guard);
        if dropped {
            let bytes = self.bytes.swap(0, Ordering::Relaxed);
            self.resident_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        dropped
    }
}

impl Drop for NodeSlot {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.resident_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The nodes of one tree that are in memory, and its open runs.
pub(super) struct Residence {
    storage: Arc<Storage>,
    events: Arc<Events>,
    /// Open runs by first block, so that a run that is met twice is open once.
    runs: Mutex<RunTable>,
    clock: Mutex<Clock>,
    resident_bytes: Arc<AtomicU64>,
}

#[derive(Default)]
struct Clock {
    /// Slots that hold a node, in the order the clock passes them.
    slots: VecDeque<Weak<NodeSlot>>,
    /// When they are this many, those that no longer exist are taken out.
    prune_at: usize,
}

#[derive(Default)]
struct RunTable {
    runs: BTreeMap<BlockNo, Weak<Run>>,
    /// When the table is this long, dead entries are taken out.
    prune_at: usize,
}

impl Residence {
    /// Nothing is in memory.
    pub fn new(storage: Arc<Storage>, events: Arc<Events>) -> Self {
        Self {
            storage,
            events,
            runs: Mutex::default(),
            clock: Mutex::default(),
            resident_bytes: Arc::default(),
        }
    }

    /// Where nodes and runs are.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Bytes of resident nodes and the handles of their runs.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes.load(Ordering::Relaxed)
    }

    /// A slot for the node at `reference`, absent.
    pub fn slot(&self, reference: Option<NodeRef>, height: u8) -> Arc<NodeSlot> {
        Arc::new(NodeSlot {
            reference,
            height,
            node: EpochSlot::empty(),
            used: AtomicBool::new(true),
            bytes: AtomicU64::new(0),
            resident_bytes: Arc::clone(&self.resident_bytes),
        })
    }

    /// A slot for a node that was just written.
    pub fn admit(&self, reference: Option<NodeRef>, node: Node) -> Arc<NodeSlot> {
        let slot = self.slot(reference, node.height);
        self.keep(&slot, node, &crossbeam_epoch::pin());
        slot
    }

    /// The node of `slot`, read if it is absent.
    #[inline]
    pub fn load<'g>(&self, slot: &'g Arc<NodeSlot>, guard: &'g Guard) -> Result<&'g Arc<Node>> {
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        match slot.node.get(guard) {
            Some(node) => Ok(node),
            None => self.load_absent(slot, guard),
        }
    }

    /// The node of `slot`, to keep longer than an epoch guard should live.
    pub fn load_owned(&self, slot: &Arc<NodeSlot>) -> Result<Arc<Node>> {
        self.load(slot, &crossbeam_epoch::pin()).map(Arc::clone)
    }

    #[cold]
    fn load_absent<'g>(&self, slot: &'g Arc<NodeSlot>, guard: &'g Guard) -> Result<&'g Arc<Node>> {
        let node = match slot.reference {
            None => Node::empty(),
            Some(reference) => self.read(reference, slot.height)?,
        };
        self.events.add(Event::NodesLoaded, 1);
        Ok(self.keep(slot, node, guard))
    }

    /// Reads and decodes a node without keeping it.
    pub fn read(&self, reference: NodeRef, height: u8) -> Result<Node> {
        let first = reference.extent.start;
        self.check_within_file(reference.extent)?;
        let mut blocks = vec![0; reference.extent.blocks as usize * BLOCK_BYTES];
        let _charge = self.storage.budget().charge(Use::Work, 2 * blocks.len() as u64);
        self.storage.read_blocks(first, reference.generation, &mut blocks)?;
        for (index, block) in blocks.chunks_exact(BLOCK_BYTES).enumerate() {
            expect_kind(block, BlockKind::Engine, BlockNo(first.0 + index as u64))?;
        }
        let bytes = codec::from_blocks(&blocks, reference.bytes);
        codec::decode_node(&bytes, height, self)
            .map_err(|error| error.at(DATA_FILE, reference.extent.offset()))
    }

    /// Makes `node` resident in `slot`, unless another thread was faster, and drops others if there
    /// are too many.
    fn keep<'g>(&self, slot: &'g Arc<NodeSlot>, mut node: Node, guard: &'g Guard) -> &'g Arc<Node> {
        let footprint = node.footprint_bytes();
        node.charge = Some(self.storage.budget().charge(Use::Metadata, node.heap_bytes()));
        let (kept, mine) = slot.node.put(Arc::new(node), guard);
        if mine {
            slot.bytes.store(footprint, Ordering::Relaxed);
            self.resident_bytes.fetch_add(footprint, Ordering::Relaxed);
            let mut clock = self.clock.lock();
            clock.slots.push_back(Arc::downgrade(slot));
            if clock.slots.len() > clock.prune_at {
                clock.slots.retain(|slot| slot.strong_count() > 0);
                clock.prune_at = 2 * clock.slots.len() + 64;
            }
            drop(clock);
            self.shrink(self.storage.budget().limit() / BUDGET_PARTS, slot, guard);
        }
        kept
    }

    /// Drops nodes until their footprint is within `limit`; never that of `spared`.
    fn shrink(&self, limit: u64, spared: &Arc<NodeSlot>, guard: &Guard) {
        if self.resident_bytes() <= limit {
            return;
        }
        // Slots are dropped after the lock: their parents may be the last to hold runs and slots.
        let mut passed = Vec::new();
        let mut clock = self.clock.lock();
        for _ in 0..clock.slots.len() {
            if self.resident_bytes() <= limit {
                break;
            }
            let Some(weak) = clock.slots.pop_front() else { break };
            let Some(slot) = weak.upgrade() else { continue };
            let spare = Arc::ptr_eq(&slot, spared) || slot.used.swap(false, Ordering::Relaxed);
            if spare {
                clock.slots.push_back(weak);
            } else if slot.evict(guard) {
                self.events.add(Event::NodesEvicted, 1);
            }
            passed.push(slot);
        }
        drop(clock);
        drop(passed);
    }
}

impl Residence {
    fn check_within_file(&self, extent: Extent) -> Result<()> {
        if self.storage.holds(extent) {
            return Ok(());
        }
        Err(Error::corrupt("a node refers to blocks beyond the data file"))
    }

    /// The open run of `reference`, which is known to be right.
    pub fn open_run(&self, reference: RunRef) -> Arc<Run> {
        let mut table = self.runs.lock();
        let start = reference.extent.start;
        if let Some(run) = table.runs.get(&start).and_then(Weak::upgrade)
            && *run.reference() == reference
        {
            return run;
        }
        let run = Run::open(&self.storage, reference);
        table.runs.insert(start, Arc::downgrade(&run));
        if table.runs.len() > table.prune_at {
            table.runs.retain(|_, run| run.strong_count() > 0);
            table.prune_at = 2 * table.runs.len() + 64;
        }
        run
    }
}

impl Opener for Residence {
    fn run(&self, reference: RunRef) -> Result<Arc<Run>> {
        self.check_within_file(reference.extent)?;
        Ok(self.open_run(reference))
    }

    fn node(&self, reference: NodeRef, height: u8) -> Result<Arc<NodeSlot>> {
        self.check_within_file(reference.extent)?;
        Ok(self.slot(Some(reference), height))
    }
}
