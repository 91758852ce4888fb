//! Output of a pass: extents written, and references removed.
//!
//! Every extent that a pass allocates is recorded at once, so that a failure frees all of them.
//! Reference changes go to the counts (`counts.rs`) when the pass has succeeded.
//!
//! Workers share the output; builders are recycled between them, so that a pass touches fresh
//! memory only once per worker.

use crate::base::error::Result;
use crate::base::limits::KEY_BYTES_MAX;
use crate::base::stream::{LargeRef, NewValues, Update};
use crate::buffer_tree::codec::{self, LEVEL_MAX};
use crate::buffer_tree::counts::Ledger;
use crate::buffer_tree::events::{Event, Events};
use crate::buffer_tree::node::{Child, Node, NodeCache, Pivot};
use crate::buffer_tree::source::{self, Source};
use crate::engine::Work;
use crate::memory::budget::{Charge, Use};
use crate::merge::Merge;
use crate::run::{Run, RunBuilder, RunOptions, RunRef, Totals, WasCached, weight};
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::storage::quota::Quota;
use crate::structure::NodeRef;
use std::collections::{BTreeMap, BTreeSet};

/// Output of one pass.
pub struct Output<'t> {
    node_cache: &'t NodeCache,
    events: &'t Events,
    options: RunOptions,
    quota: &'t Quota<'t>,
    values: NewValues<'t>,
    builders: Mutex<Vec<RunBuilder>>,
    ledger: Mutex<Ledger>,
}

impl<'t> Output<'t> {
    /// Creates an empty output of `work`.
    pub fn new(
        node_cache: &'t NodeCache,
        events: &'t Events,
        options: RunOptions,
        work: &Work<'t>,
    ) -> Self {
        let (builders, ledger) = (Mutex::default(), Mutex::default());
        let Work { quota, values, .. } = *work;
        Self { node_cache, events, options, quota, values, builders, ledger }
    }

    /// Creates an output that continues after another one, whose records are `ledger`.
    pub fn after(self, ledger: Ledger) -> Self {
        Self { ledger: Mutex::new(ledger), ..self }
    }

    /// Ends a merge: counts its entries and those written, and records what arrived with it.
    pub fn count_merge(&self, merge: Merge<Source<'_>>, written: impl Iterator<Item = Totals>) {
        let passed = merge.passed_over();
        let written: u64 = written.map(|totals| totals.weight()).sum();
        self.events.add(Event::MergesDone, 1);
        self.events.add(Event::MergedBytes, written + weight(passed.entries, passed.bytes));
        self.events.add(Event::TombstonesDropped, passed.tombstones);
        self.events.add(Event::EntriesShadowed, passed.entries - passed.tombstones);
        let counted = source::finish(merge.into_sources());
        self.events.read_bytes.fetch_add(counted.bytes_read, Ordering::Relaxed);
        self.arrived(counted.large);
    }

    /// Returns a writer of leaves; end it with `give_back`.
    pub fn leaf_writer(&self) -> RunWriter<'_> {
        self.run_writer(self.options.bits_per_key)
    }

    /// Returns a writer of buffer runs; end it with `give_back`. Most lookups that check these
    /// runs seek a key that is elsewhere, and check several: so their filters have a third more
    /// bits than those of leaves, since memory should go where it saves most [Autumn 3.3, Monkey].
    pub fn level_writer(&self) -> RunWriter<'_> {
        self.run_writer(self.options.bits_per_key.div_ceil(3) + self.options.bits_per_key)
    }

    fn run_writer(&self, bits_per_key: u32) -> RunWriter<'_> {
        let recycled = self.builders.lock().pop();
        let mut builder =
            recycled.unwrap_or_else(|| RunBuilder::new(self.node_cache.storage(), self.options));
        builder.set_bits_per_key(bits_per_key);
        builder.set_values(self.values);
        RunWriter { builder, output: self }
    }

    /// Returns a charge of zero bytes for merge memory.
    pub fn work_charge(&self) -> Charge {
        self.node_cache.storage().budget().charge(Use::Work, 0)
    }

    /// Records large values that arrived with updates.
    pub fn arrived(&self, large: Vec<LargeRef>) {
        if !large.is_empty() {
            self.ledger.lock().large.extend(large);
        }
    }

    /// Records that the next version does not have this node.
    pub fn retire(&self, reference: Option<NodeRef>, node: &Node) {
        let mut ledger = self.ledger.lock();
        if let Some(reference) = reference {
            ledger.retire(reference.owned());
        }
        ledger.refer(node.runs(), -1);
    }

    /// Records a run that was written, and opens it.
    fn note_run(&self, reference: RunRef) -> Arc<Run> {
        let before = self.ledger.lock().runs.insert(reference.extent.start, reference);
        assert!(before.is_none(), "an extent was allocated twice in one pass");
        self.events.run_bytes.fetch_add(reference.extent.bytes(), Ordering::Relaxed);
        self.node_cache.context().open(self.node_cache.storage(), reference)
    }

    /// Writes a node and returns the pivot that refers to it.
    pub fn write_node(&self, height: u8, pivots: Vec<Pivot>) -> Result<Pivot> {
        let mut pivots = pivots;
        if let Some(first) = pivots.first_mut() {
            // The key must not keep the storage of other nodes' keys alive.
            first.key = first.key.alone();
        }
        let pivots = beside_each_other(pivots);
        let key = pivots[0].key.clone();
        let node = Node::new(height, pivots);
        debug_assert_eq!(node.broken_invariant(), None, "a pass writes nodes that can be decoded");
        let levels = node.levels();
        assert!(levels <= usize::from(LEVEL_MAX) + 1, "a node has levels that cannot be encoded");
        let summary = node.summary();
        let bytes = codec::encode_node(&node);
        let reference =
            NodeRef::write(self.node_cache.storage(), self.quota, &bytes, |reference| {
                let mut ledger = self.ledger.lock();
                ledger.nodes.push(reference.owned());
                ledger.refer(node.runs(), 1);
            })?;
        drop(bytes);
        self.events.node_bytes.fetch_add(reference.extent.bytes(), Ordering::Relaxed);
        self.events.raise(Event::LevelsMax, levels as u64);
        let slot = self.node_cache.admit(Some(reference), height, node);
        Ok(Pivot::settled(key, Child::Node(slot, summary)))
    }

    /// Marks the segments that several nodes will refer to, into which `pivots` are cut with these
    /// `sizes`.
    pub fn mark_shared(&self, pivots: &[Pivot], sizes: &[usize]) {
        if sizes.len() < 2 {
            return;
        }
        let mut seen = BTreeMap::new();
        let mut shared = BTreeSet::new();
        let nodes =
            sizes.iter().enumerate().flat_map(|(node, size)| std::iter::repeat_n(node, *size));
        for (node, pivot) in nodes.zip(pivots) {
            for part in &pivot.parts {
                let extent = part.segment.run.reference().extent;
                if *seen.entry(extent).or_insert(node) != node {
                    shared.insert(extent);
                }
            }
        }
        self.events.add(Event::SegmentsShared, shared.len() as u64);
        for part in pivots.iter().flat_map(|pivot| &pivot.parts) {
            if shared.contains(&part.segment.run.reference().extent) {
                part.segment.shared.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Returns the records of the pass.
    pub fn into_ledger(self) -> Ledger {
        self.ledger.into_inner()
    }
}

/// Returns the same pivots with keys that store common prefixes once.
pub fn beside_each_other(mut pivots: Vec<Pivot>) -> Vec<Pivot> {
    for place in 0..pivots.len() {
        pivots[place].key = match place.checked_sub(1) {
            Some(before) => pivots[place].key.beside(&pivots[before].key),
            None => pivots[place].key.alone(),
        };
    }
    pivots
}

/// Returns the memory of the keys of pivots, in bytes.
pub fn key_bytes(pivots: &[Pivot]) -> usize {
    let mut before = None;
    let mut bytes = 0;
    for pivot in pivots {
        bytes += pivot.key.heap_bytes(before);
        before = Some(&pivot.key);
    }
    bytes
}

/// A run that has been written.
pub struct WrittenRun {
    /// The run.
    pub run: Arc<Run>,
    /// Its least key.
    pub first: Box<[u8]>,
    /// Its greatest key.
    pub last: Box<[u8]>,
}

/// Writes runs one after the other.
pub struct RunWriter<'o> {
    builder: RunBuilder,
    output: &'o Output<'o>,
}

impl RunWriter<'_> {
    /// Ends the use of a writer without an open run.
    pub fn give_back(self) {
        self.output.builders.lock().push(self.builder);
    }

    /// Returns true if nothing was added since the last run.
    pub fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    /// Returns the weight of the added entries.
    #[inline]
    pub fn weight(&self) -> u64 {
        weight(self.builder.entries(), self.builder.user_bytes())
    }

    /// Returns true if the run has entries and this entry would make it exceed `leaf`.
    #[inline]
    pub fn is_over(&self, leaf: u64, key: &[u8], update: &Update<'_>) -> bool {
        let entry = weight(1, (key.len() + update.inline_bytes()) as u64);
        !self.is_empty() && self.weight() + entry > leaf
    }

    /// Adds an entry; its key is greater than the previous one.
    #[inline]
    pub fn add(&mut self, key: &[u8], update: Update<'_>) -> Result<()> {
        debug_assert!(key.len() <= KEY_BYTES_MAX);
        self.builder.add(key, update)
    }

    /// Writes the run. It must have entries. Keys that `was_cached` marks as previously cached stay
    /// in the cache.
    pub fn finish(&mut self, was_cached: Option<&WasCached<'_>>) -> Result<WrittenRun> {
        let first = self.builder.first_key().unwrap_or_default().into();
        let last = self.builder.last_key().unwrap_or_default().into();
        let output = self.output;
        let quota = output.quota;
        let open = |reference| output.note_run(reference);
        let run = match was_cached {
            Some(was_cached) => self.builder.finish_warm(quota, open, was_cached)?,
            None => open(self.builder.finish(quota)?),
        };
        Ok(WrittenRun { run, first, last })
    }
}
