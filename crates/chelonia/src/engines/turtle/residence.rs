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
//! 2. A slot that holds a node is counted with its footprint by the clock that all trees of the
//!    database share (`base/residents.rs`), which says how much may be in memory.
//!
//! The root of an empty tree is nowhere on disk; its slot makes it anew.
//!
//! Lock order: the clock's lock and the table of runs are taken last and never together.

use super::codec::{self, Opener};
use super::events::{Event, Events};
use super::node::{Node, NodeRef, NodeSlot};
use crate::base::budget::Use;
use crate::base::epoch::{self, Guard};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent};
use crate::base::limits::BLOCK_BYTES;
use crate::base::residents::Resident;
use crate::base::sync::{Arc, Mutex, Ordering, Weak};
use crate::run::{Run, RunRef};
use crate::storage::Storage;
use crate::storage::block::{BlockKind, DATA_FILE, expect_kind};
use std::collections::BTreeMap;

/// The nodes of one tree that are in memory, and its open runs.
pub(super) struct Residence {
    storage: Arc<Storage>,
    events: Arc<Events>,
    /// Open runs by first block, so that a run that is met twice is open once.
    runs: Mutex<RunTable>,
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
        Self { storage, events, runs: Mutex::default() }
    }

    /// Where nodes and runs are.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// A slot for the node at `reference`, absent.
    pub fn slot(&self, reference: Option<NodeRef>, height: u8) -> Arc<NodeSlot> {
        let clock = Arc::clone(self.storage.residents());
        NodeSlot::absent(reference, height, clock, Arc::clone(&self.events))
    }

    /// A slot for a node that was just written.
    pub fn admit(&self, reference: Option<NodeRef>, node: Node) -> Arc<NodeSlot> {
        let slot = self.slot(reference, node.height);
        self.keep(&slot, node, &epoch::pin());
        slot
    }

    /// The node of `slot`, read if it is absent.
    #[inline]
    pub fn load<'g>(&self, slot: &'g Arc<NodeSlot>, guard: &'g Guard) -> Result<&'g Arc<Node>> {
        match self.resident(slot, guard) {
            Some(node) => Ok(node),
            None => self.load_absent(slot, guard),
        }
    }

    /// The node of `slot`, if it is in memory.
    #[inline]
    pub fn resident<'g>(&self, slot: &'g Arc<NodeSlot>, guard: &'g Guard) -> Option<&'g Arc<Node>> {
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        slot.node.get(guard)
    }

    /// The node of `slot`, to keep longer than an epoch guard should live.
    pub fn load_owned(&self, slot: &Arc<NodeSlot>) -> Result<Arc<Node>> {
        self.load(slot, &epoch::pin()).map(Arc::clone)
    }

    #[cold]
    fn load_absent<'g>(&self, slot: &'g Arc<NodeSlot>, guard: &'g Guard) -> Result<&'g Arc<Node>> {
        let node = match slot.reference() {
            None => Node::empty(),
            Some(reference) => self.read(reference, slot.height())?,
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

    /// Makes `node` resident in `slot`, unless another thread was faster.
    fn keep<'g>(&self, slot: &'g Arc<NodeSlot>, mut node: Node, guard: &'g Guard) -> &'g Arc<Node> {
        let footprint = node.footprint_bytes();
        node.charge = Some(self.storage.budget().charge(Use::Metadata, node.heap_bytes()));
        let (kept, mine) = slot.node.put(Arc::new(node), guard);
        if mine {
            slot.bytes.store(footprint, Ordering::Relaxed);
            let resident: Weak<dyn Resident> = Arc::downgrade(slot) as _;
            self.storage.residents().admit(&resident, footprint, guard);
        }
        kept
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
