//! Sweeps: the oldest staged memtables are merged into pages, span by span, as jobs.
//!
//! ```text
//!   plan       which memtables sink, if no sweep is under way
//!   run        a span of nodes from `swept_to` on; for each: staged updates into its groups
//!   install    new nodes take the place of the old ones; `swept_to` moves on; runs below are lost
//! ```
//!
//! One job is outstanding at a time, and only jobs change groups and the memtables that they
//! sweep, so an install always succeeds.
//! Within a job nodes are swept side by side. A sweep that meets an unreadable block ends there:
//! the updates stay staged, where reads find them, until the tree is opened again.
//!
//! | module | contents |
//! | --- | --- |
//! | here | the jobs; publishing versions |
//! | `due` | when a sweep is worth its writes |
//! | `update`, `change` | updating the groups of a node; new images of pages in a group |
//! | `updates` | streams of updates |
//! | `build`, `place` | writing groups; dividing entries among pages by a line |

pub(in crate::engines::treeline) use self::due::Due;
#[cfg(test)]
pub(in crate::engines::treeline) use self::due::SWEEP_TRIGGER;
use self::update::{NodeSweep, Swept};
use self::updates::{StagedStream, live_range};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::BlockNo;
use crate::base::keys::KeyRange;
use crate::engine::{Absorbed, Job, OwnedExtent, Work, blocks_after};
use crate::engines::treeline::Treeline;
use crate::engines::treeline::forecast::Met;
use crate::engines::treeline::node::{Directory, Item, Listed};
use crate::engines::treeline::output::{NextNodes, Output};
use crate::engines::treeline::staged::{Staged, Table};
use crate::engines::treeline::version::{Parts, TreelineVersion};
use crate::pages::{Bounds, Group};
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::structure::{Ledger, SharedKey, events};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

mod build;
mod change;
mod due;
mod place;
mod update;
pub(in crate::engines::treeline) mod updates;

/// A job of a sweep.
pub(in crate::engines::treeline) struct SweepJob<'a> {
    tree: &'a Treeline,
    version: Arc<TreelineVersion>,
    /// Number of memtables, the oldest, that the sweep sinks.
    sinking: usize,
    /// Staged bytes to sweep.
    bytes: u64,
    done: Option<Done>,
}

/// The output of a job.
struct Done {
    ledger: Ledger,
    nodes: NewNodes,
    /// Keys below are swept; `None` if all are.
    to: Option<SharedKey>,
}

/// The nodes that a job made.
struct NewNodes {
    /// The nodes in whose place they are.
    replaced: Range<usize>,
    next: Vec<Listed>,
    /// Number of large values that were swept, by the first block of their run.
    large: BTreeMap<BlockNo, u64>,
    /// The inserts of each group.
    met: Vec<Met>,
}

impl Treeline {
    /// Plans the next job of a sweep, of at least `bytes` staged bytes, due or not.
    pub(in crate::engines::treeline) fn plan_sweep(&self, bytes: u64) -> Option<SweepJob<'_>> {
        let version = self.newest();
        let parts = &version.parts;
        let sinking = match parts.sinking {
            0 if parts.staged.is_empty() => return None,
            0 => parts.staged.len(),
            sinking => sinking,
        };
        if self.shared.due.is_stuck() || self.claimed.load(Ordering::SeqCst) > 0 {
            return None;
        }
        self.claimed.store(sinking, Ordering::SeqCst);
        Some(SweepJob { tree: self, version, sinking, bytes, done: None })
    }
}

impl SweepJob<'_> {
    /// The parts of the version, with the memtables that this job sinks.
    fn parts(&self) -> Parts {
        Parts { sinking: self.sinking, ..self.version.parts.clone() }
    }

    /// The nodes that the job sweeps.
    fn span(&self, parts: &Parts) -> Result<Range<usize>> {
        let nodes = &parts.directory.nodes;
        let first = parts.directory.node_of(&parts.swept_to.to_bytes()).unwrap_or(0);
        let tables: Vec<&Table> = sinking_tables(parts).collect();
        let (mut end, mut bytes) = (first, 0.0);
        while end < nodes.len() && bytes < self.bytes as f64 {
            let upper = parts.directory.upper_of(end);
            let range = live_range(&nodes[end].first.range_to(upper), &parts.swept_to);
            for table in tables.iter().filter(|table| table.meets(&range)) {
                bytes += table.run.share_in(&range)? * table.weight() as f64;
            }
            end += 1;
        }
        Ok(first..end)
    }

    fn sweep(&self, output: &Output<'_>, work: &Work<'_>) -> Result<(Range<usize>, Vec<Swept>)> {
        let parts = self.parts();
        let span = self.span(&parts)?;
        let directory = &parts.directory;
        let tasks: Vec<Option<usize>> = match span.is_empty() {
            true => vec![None],
            false => span.clone().map(Some).collect(),
        };
        let config = self.tree.config();
        let forecast = self.tree.forecast.lock().complete();
        let swept: Vec<Mutex<Option<Swept>>> = tasks.iter().map(|_| Mutex::default()).collect();
        work.workers.run(tasks.len(), &|index| {
            let node = tasks[index].map(|node| &directory.nodes[node]);
            let range = match tasks[index] {
                Some(at) => directory.nodes[at].first.range_to(directory.upper_of(at)),
                None => KeyRange::all(),
            };
            let range = live_range(&range, &parts.swept_to);
            let sinking = &parts.staged[parts.first_sinking()..];
            let sources: Result<Vec<StagedStream>> =
                sinking.iter().map(|staged| StagedStream::new(staged, &range)).collect();
            let mut done =
                NodeSweep::new(output, config, Arc::clone(&forecast)).run(node, sources?)?;
            if let (None, Some(node)) = (&done.items, node) {
                let (first, entries) = (node.first.to_bytes().into(), node.facts.totals.entries);
                done.met.push(Met { first, entries, inserts: 0 });
            }
            *swept[index].lock() = Some(done);
            Ok(())
        })?;
        let swept: Option<Vec<Swept>> = swept.into_iter().map(Mutex::into_inner).collect();
        let swept = swept.ok_or_else(|| Error::internal("a node was not swept"))?;
        Ok((span, swept))
    }

    fn assemble(
        &self,
        output: &Output<'_>,
        (span, swept): (Range<usize>, Vec<Swept>),
    ) -> Result<NewNodes> {
        let directory = &self.version.parts.directory;
        let mut next = NextNodes::new(output, &self.tree.config());
        let (mut large, mut is_first) = (BTreeMap::new(), span.start == 0);
        let (mut consumed, mut written) = (BTreeSet::new(), Vec::new());
        let mut met = Vec::new();
        for (index, mut done) in (span.start..).zip(swept) {
            for (run, count) in done.counts {
                *large.entry(run).or_default() += count;
            }
            consumed.append(&mut done.consumed);
            written.append(&mut done.written);
            met.append(&mut done.met);
            let node = directory.nodes.get(index);
            match (done.items, node) {
                (Some(mut items), node) => {
                    if is_first && let Some(item) = items.first_mut() {
                        begin_at_least(item);
                        is_first = false;
                    }
                    next.change(node, items);
                }
                (None, Some(node)) if is_first && node.first.len() > 0 => {
                    let mut items = output.node_cache.load_owned(&node.slot)?.items.clone();
                    items.first_mut().into_iter().for_each(begin_at_least);
                    next.change(Some(node), items);
                    is_first = false;
                }
                (None, Some(node)) => {
                    is_first = false;
                    next.keep(node)?;
                }
                (None, None) => {}
            }
        }
        // All groups of the span are gone: what is behind it begins at the least key.
        let mut end = span.end;
        if is_first && let Some(node) = directory.nodes.get(end) {
            let mut items = output.node_cache.load_owned(&node.slot)?.items.clone();
            items.first_mut().into_iter().for_each(begin_at_least);
            next.change(Some(node), items);
            end += 1;
        }
        for large in written {
            consumed.remove(&large);
        }
        output.lose(consumed.iter().map(OwnedExtent::from));
        Ok(NewNodes { replaced: span.start..end, next: next.end()?, large, met })
    }
}

/// Makes the group the first of all.
fn begin_at_least(item: &mut Item) {
    if item.first.len() == 0 {
        return;
    }
    let group = &item.group;
    let count = group.bounds.count();
    let keys: Vec<Vec<u8>> = (0..count).map(|at| group.bounds.key(&item.first, at)).collect();
    let bounds = Bounds::new(&SharedKey::LEAST, &keys);
    item.group = Arc::new(Group { bounds, ..(**group).clone() });
    item.first = SharedKey::LEAST;
}

/// The runs of the memtables that are being swept.
fn sinking_tables(parts: &Parts) -> impl Iterator<Item = &Table> {
    parts.staged[parts.first_sinking()..].iter().flat_map(|staged| &staged.tables)
}

impl Job for SweepJob<'_> {
    fn run(&mut self, work: &Work<'_>) -> Result<()> {
        let output = self.tree.output(work.quota);
        let worked = self.sweep(&output, work).and_then(|swept| {
            let upper = swept.0.end;
            let nodes = self.assemble(&output, swept)?;
            let to = self.version.parts.directory.nodes.get(upper).map(|node| node.first.clone());
            Ok((nodes, to))
        });
        let ledger = output.into_ledger();
        match worked {
            Ok((nodes, to)) => {
                self.done = Some(Done { ledger, nodes, to });
                Ok(())
            }
            Err(error) => {
                // The first error is more useful than one from the roll-back.
                let _ = ledger.roll_back(self.tree.storage());
                if error.kind() != ErrorKind::Corrupt {
                    return Err(error);
                }
                // Updates stay staged; the damage is reported to readers of it.
                self.tree.shared.due.set_stuck();
                events::add(&self.tree.shared.counters.stuck, 1);
                self.tree.note_pending();
                Ok(())
            }
        }
    }

    fn install(mut self: Box<Self>, work: &Work<'_>) -> Result<Option<Absorbed>> {
        let Some(done) = self.done.take() else { return Ok(None) };
        let tree = self.tree;
        let version = tree.newest();
        let output = tree.output(work.quota).after(done.ledger);
        let mut parts = version.parts.clone();
        if parts.sinking == 0 {
            events::add(&tree.shared.counters.sweeps, 1);
            tree.shared.due.note_sweep();
        }
        parts.sinking = self.sinking;
        let first = parts.first_sinking();
        let skipped = |table: &Table| {
            let start = table.run.reference().extent.start;
            table.large_skipped + done.nodes.large.get(&start).copied().unwrap_or(0)
        };
        let before = parts.staged.split_off(first);
        match &done.to {
            None => {
                output.lose(before.iter().flat_map(|staged| &staged.tables).map(Table::owned));
                (parts.sinking, parts.swept_to) = (0, SharedKey::LEAST);
            }
            Some(to) => {
                let gone = before.iter().flat_map(|staged| &staged.tables);
                output.lose(gone.filter(|table| table.last < *to).map(Table::owned));
                let left = before.iter().filter_map(|staged| staged.rest_from(to, skipped));
                let budget = tree.storage().budget();
                parts.staged.extend(left.map(|tables| Staged::new(tables, budget)));
                parts.sinking = parts.staged.len() - first;
                parts.swept_to = if parts.sinking == 0 { SharedKey::LEAST } else { to.clone() };
            }
        }
        let mut nodes = version.parts.directory.nodes.clone();
        nodes.splice(done.nodes.replaced, done.nodes.next);
        parts.set_directory(Directory::new(nodes));
        let absorbed = tree.publish(&version, parts, output)?;
        events::add(&tree.shared.counters.sweep_jobs, 1);
        if tree.config().forecast_rounds > 0 {
            tree.forecast.lock().add(&done.nodes.met, done.to.is_none());
        }
        tree.claimed.store(0, Ordering::SeqCst);
        tree.note_pending();
        Ok(Some(absorbed))
    }
}

impl Drop for SweepJob<'_> {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            // Nothing refers to it: what is not freed is found by the next open.
            let _ = done.ledger.roll_back(self.tree.storage());
        }
        self.tree.claimed.store(0, Ordering::SeqCst);
    }
}

impl Treeline {
    /// Writes the directory of the next version and publishes that version.
    pub(in crate::engines::treeline) fn publish(
        &self,
        version: &TreelineVersion,
        parts: Parts,
        output: Output<'_>,
    ) -> Result<Absorbed> {
        let is_empty = parts.staged.is_empty() && parts.directory.nodes.is_empty();
        let directory = (!is_empty).then(|| parts.encode());
        let place = match output.replace_directory(version.place, directory) {
            Ok(place) => place,
            Err(error) => {
                // The first error is more useful than one from the roll-back.
                let _ = output.into_ledger().roll_back(self.storage());
                return Err(error);
            }
        };
        let (gained, lost) = output.into_ledger().settle(self.storage());
        let disk_blocks = blocks_after(version.disk_blocks, &gained, &lost);
        let shared = Arc::clone(&self.shared);
        let next = Arc::new(TreelineVersion::new(shared, place, parts, disk_blocks));
        *self.newest.write() = Arc::clone(&next);
        Ok(Absorbed { version: next, gained, lost })
    }

    /// Stores how much is pending, for callers without the lock.
    pub(in crate::engines::treeline) fn note_pending(&self) {
        self.shared.due.note(&self.newest().parts);
    }
}
