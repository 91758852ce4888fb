//! What a pass has written and what it no longer refers to.
//!
//! Every extent that a pass allocates is noted at once, so that a failure gives all of them
//! back. Notes on references go to the counts (`counts.rs`) when the pass has succeeded.
//!
//! Workers share it; builders are recycled between them, so that a pass touches fresh memory only
//! once per worker.

use super::codec;
use super::counts::{Counts, Ledger, Settled};
use super::events::{Event, Events};
use super::node::{Child, Node, NodeCache, Pivot};
use crate::base::error::Result;
use crate::base::limits::KEY_BYTES_MAX;
use crate::base::stream::{LargeRef, Update};
use crate::engine::OwnedExtent;
use crate::memory::budget::{Charge, Use};
use crate::run::{Run, RunBuilder, RunOptions, RunRef, WasCached, weight};
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::structure::NodeRef;

/// The output of one pass.
pub(super) struct Output<'t> {
    node_cache: &'t NodeCache,
    events: &'t Events,
    options: RunOptions,
    builders: Mutex<Vec<RunBuilder>>,
    ledger: Mutex<Ledger>,
}

impl<'t> Output<'t> {
    /// Nothing has been written.
    pub fn new(node_cache: &'t NodeCache, events: &'t Events, options: RunOptions) -> Self {
        Self { node_cache, events, options, builders: Mutex::default(), ledger: Mutex::default() }
    }

    /// A writer of leaves; give it back when done.
    pub fn leaf_writer(&self) -> RunWriter<'_> {
        self.run_writer(self.options.bits_per_key)
    }

    /// A writer of runs for buffers; give it back when done. Most lookups that ask them want a key
    /// that is elsewhere, and ask several: their filters have a third more bits than those of
    /// leaves, for memory should go where it saves most [Autumn 3.3, Monkey].
    pub fn level_writer(&self) -> RunWriter<'_> {
        self.run_writer(self.options.bits_per_key.div_ceil(3) + self.options.bits_per_key)
    }

    fn run_writer(&self, bits_per_key: u32) -> RunWriter<'_> {
        let recycled = self.builders.lock().pop();
        let mut builder =
            recycled.unwrap_or_else(|| RunBuilder::new(self.node_cache.storage(), self.options));
        builder.set_bits_per_key(bits_per_key);
        RunWriter { builder, output: self }
    }

    /// Takes a writer back that has nothing open.
    pub fn give_back(&self, writer: RunWriter<'_>) {
        self.builders.lock().push(writer.builder);
    }

    /// A count of zero bytes for merge work.
    pub fn work_charge(&self) -> Charge {
        self.node_cache.storage().budget().charge(Use::Work, 0)
    }

    /// Notes large values that came with updates.
    pub fn arrived(&self, large: Vec<LargeRef>) {
        if !large.is_empty() {
            self.ledger.lock().large.extend(large);
        }
    }

    /// Notes that the next version does not have this node.
    pub fn retire(&self, reference: Option<NodeRef>, node: &Node) {
        let mut ledger = self.ledger.lock();
        if let Some(reference) = reference {
            ledger.nodes_retired.push(owned(reference));
        }
        ledger.refer(node.runs(), -1);
    }

    /// Notes a run that was written, and opens it.
    fn note_run(&self, reference: RunRef) -> Arc<Run> {
        self.ledger.lock().runs.insert(reference.extent.start, reference);
        self.events.run_bytes.fetch_add(reference.extent.bytes(), Ordering::Relaxed);
        self.node_cache.context().open(self.node_cache.storage(), reference)
    }

    /// Writes a node and gives the pivot that refers to it.
    pub fn write_node(&self, height: u8, pivots: Vec<Pivot>) -> Result<Pivot> {
        let mut pivots = pivots;
        if let Some(first) = pivots.first_mut() {
            // Those of other nodes keep nothing alive for this one.
            first.key = first.key.alone();
        }
        let pivots = beside_each_other(pivots);
        let key = pivots[0].key.clone();
        let node = Node::new(height, pivots);
        let summary = node.summary();
        let bytes = codec::encode_node(&node);
        let reference = NodeRef::write(self.node_cache.storage(), &bytes, |reference| {
            let mut ledger = self.ledger.lock();
            ledger.nodes.push(owned(reference));
            ledger.refer(node.runs(), 1);
        })?;
        drop(bytes);
        self.events.node_bytes.fetch_add(reference.extent.bytes(), Ordering::Relaxed);
        self.events.raise(Event::LevelsMax, node.levels() as u64);
        let slot = self.node_cache.admit(Some(reference), height, node);
        Ok(Pivot::settled(key, Child::Node(slot, summary)))
    }

    /// Applies the notes of a pass that succeeded to `counts`, and frees what it wrote in vain.
    pub fn settle(&self, counts: &mut Counts) -> Result<Settled> {
        let ledger = self.ledger.lock();
        let settled = counts.settle(&ledger, self.node_cache)?;
        for unused in &settled.unused {
            // If that fails the space is missed until the next open finds it: no reason to give the
            // whole pass up after the counts have changed.
            let _ = self.node_cache.storage().free(unused.extent);
        }
        Ok(settled)
    }

    /// Gives everything back that a pass allocated before it failed; all that can be given back,
    /// even if something cannot.
    pub fn roll_back(self) -> Result<()> {
        let ledger = self.ledger.into_inner();
        let storage = self.node_cache.storage();
        let runs = ledger.runs.values().map(|run| run.extent);
        let nodes = ledger.nodes.iter().map(|node| node.extent);
        let freed = runs.chain(nodes).map(|extent| storage.free(extent));
        freed.fold(Ok(()), Result::and)
    }
}

/// The same pivots, whose keys hold what they have in common once.
pub(super) fn beside_each_other(mut pivots: Vec<Pivot>) -> Vec<Pivot> {
    for place in 0..pivots.len() {
        pivots[place].key = match place.checked_sub(1) {
            Some(before) => pivots[place].key.beside(&pivots[before].key),
            None => pivots[place].key.alone(),
        };
    }
    pivots
}

/// What the keys of pivots take in memory, in bytes.
pub(super) fn key_bytes(pivots: &[Pivot]) -> usize {
    let mut before = None;
    let mut bytes = 0;
    for pivot in pivots {
        bytes += pivot.key.heap_bytes(before);
        before = Some(&pivot.key);
    }
    bytes
}

fn owned(reference: NodeRef) -> OwnedExtent {
    OwnedExtent { extent: reference.extent, generation: reference.generation, large_value: false }
}

/// A run that has been written.
pub(super) struct WrittenRun {
    /// The run.
    pub run: Arc<Run>,
    /// Its least key.
    pub first: Box<[u8]>,
    /// Its greatest key.
    pub last: Box<[u8]>,
}

/// Writes one run after the other.
pub(super) struct RunWriter<'o> {
    builder: RunBuilder,
    output: &'o Output<'o>,
}

impl RunWriter<'_> {
    /// True if nothing was added since the last run.
    pub fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    /// The weight of what was added.
    #[inline]
    pub fn weight(&self) -> u64 {
        weight(self.builder.entries(), self.builder.user_bytes())
    }

    /// True if something was added and this entry would make it more than `leaf`.
    #[inline]
    pub fn is_over(&self, leaf: u64, key: &[u8], update: &Update<'_>) -> bool {
        let entry = weight(1, (key.len() + update.inline_bytes()) as u64);
        !self.is_empty() && self.weight() + entry > leaf
    }

    /// Adds an entry, greater than the one before.
    #[inline]
    pub fn add(&mut self, key: &[u8], update: Update<'_>) -> Result<()> {
        debug_assert!(key.len() <= KEY_BYTES_MAX);
        self.builder.add(key, update)
    }

    /// Writes the run. Something must have been added. What `was_cached` of its keys before stays
    /// in the cache.
    pub fn finish(&mut self, was_cached: Option<&WasCached<'_>>) -> Result<WrittenRun> {
        let first = self.builder.first_key().unwrap_or_default().into();
        let last = self.builder.last_key().unwrap_or_default().into();
        let output = self.output;
        let open = |reference| output.note_run(reference);
        let run = match was_cached {
            Some(was_cached) => self.builder.finish_warm(open, was_cached)?,
            None => open(self.builder.finish()?),
        };
        Ok(WrittenRun { run, first, last })
    }
}
