//! Absorbing: each page with updates is read, changed, and written to a place that no version
//! needs.
//!
//! Nodes are absorbed side by side. Then small neighbors are joined, the directory is written, and
//! what was written becomes known in the regions. Nothing that fails before changes a version: the
//! stamp is dead for all later ones.
//!
//! | module | content |
//! | --- | --- |
//! | `node` | the pages of a node |
//! | `open` | pages that are being changed |
//! | `merged` | the records of a page and updates, in order |
//! | `write` | pages to their homes |
//! | `homes` | homes of a node that are used and free |
//! | `learned` | knowledge of homes that takes effect at the end |
//! | `parts` | what a node becomes, and the nodes of the next version |
//! | `reclaim` | freeing space on a nearly full device |
//! | `clear` | overwriting what failed absorbs have left |

pub mod clear;
mod homes;
mod learned;
mod merged;
mod node;
mod open;
mod parts;
pub mod reclaim;
mod write;

use self::learned::Learned;
use self::node::NodeAbsorb;
use self::parts::{Finished, NextNodes};
use super::config::BminusConfig;
use super::node::{Directory, Listed, Node};
use super::output::Output;
use super::read::pages::{Loaded, NodePages};
use super::version::{BminusVersion, Parts};
use super::{Bminus, Shared};
use crate::base::error::{Error, Result};
use crate::base::ids::Generation;
use crate::base::stream::SortedUpdates;
use crate::engine::{Absorbed, Work, WriteBudget, blocks_after};
use crate::pages::homes::{
    HeldStamps, Image, Region, View, Wanted, Writes, read_bytes, read_homes, sum_of,
};
use crate::run::even_ranges;
use crate::runtime::sync::{Arc, Mutex, Ordering};
use crate::storage::io::AlignedBuffer;
use crate::structure::{Ledger, NodeRef, SharedKey, events};
use std::ops::Range;

/// Percentage to which pages are filled that were divided.
const PACKED_PERCENT: usize = 90;

/// Bytes of updates for each thread that builds the first nodes.
const FIRST_BYTES: u64 = 4 << 20;

/// The things that all parts of an absorb know.
struct Context<'a> {
    output: &'a Output<'a>,
    config: BminusConfig,
    /// The view of the newest version.
    newest: &'a View,
    held: &'a HeldStamps,
    /// The stamp of this absorb.
    stamp: Generation,
    budget: WriteBudget,
    /// True if pages are filled as far as possible.
    is_packing: bool,
    progress: &'a (dyn Fn(u64) + Sync),
    /// Buffers of nodes that are finished.
    spare: Mutex<Vec<Writes>>,
}

impl<'a> Context<'a> {
    /// A buffer for writes, perhaps one that another node has used.
    fn writes(&self) -> Result<Writes> {
        let spare = self.spare.lock().pop();
        spare.map_or_else(|| Writes::new(self.output.storage()), Ok)
    }

    /// True if a node of the newest version is in memory, for readers.
    fn is_hot(&self, listed: &Listed) -> bool {
        listed.slot.peek(&self.output.storage().epochs().pin()).is_some()
    }

    /// The pages of a node of the newest version.
    fn pages_of(&self, listed: &'a Listed, node: &'a Node) -> NodePages<'a> {
        NodePages {
            storage: self.output.node_cache.storage(),
            counters: self.output.counters,
            held: self.held,
            view: self.newest,
            node,
            facts: &listed.facts,
        }
    }

    /// Reads a page that this absorb has written.
    fn read_written(&self, region: &Arc<Region>, home: u8, image: Image) -> Result<Loaded> {
        let storage = self.output.storage();
        let mut page = Vec::new();
        let guard = storage.epochs().pin();
        if let Some(heat) = region.copy_cached(home, image.stamp, &mut page, &guard) {
            return Ok(Loaded { page, stamp: image.stamp, heat: Some(heat) });
        }
        drop(guard);
        let wanted = Wanted { region, home, view: self.newest, image: Some(image) };
        let mut buffer = AlignedBuffer::new(read_bytes(&wanted));
        let mut read = read_homes(storage, &[wanted], &mut buffer)?;
        let read = read.pop().unwrap_or_else(|| Err(Error::internal("a page was not read")))?;
        Ok(Loaded { page: read.page, stamp: read.stamp, heat: None })
    }
}

/// The term of the page in a home in the sum of its node.
fn sum_of_home(region: &Region, home: u8, stamp: Generation) -> u64 {
    sum_of(region.number_of(home), stamp)
}

/// Changes nodes: returns what has become of each, with its place in the directory.
type Change<'c> = dyn FnMut(&Context<'_>) -> Result<Vec<(Option<usize>, Finished)>> + 'c;

/// The updates of one node.
struct Task {
    /// The place of the node in the directory; `None` for a part of the first nodes.
    node: Option<usize>,
    first: SharedKey,
    ranks: Range<usize>,
}

impl Bminus {
    /// Makes the next version of the newest one and `updates`.
    pub(super) fn absorb_updates(
        &self,
        updates: &dyn SortedUpdates,
        budget: WriteBudget,
        work: &Work<'_>,
    ) -> Result<Absorbed> {
        let version = self.newest();
        let tasks = self.tasks(&version, updates);
        let absorbed = self.write_version(&version, work, budget, &mut |context| {
            let finished: Vec<Mutex<Option<Finished>>> =
                tasks.iter().map(|_| Mutex::default()).collect();
            work.workers.run(tasks.len(), &|index| {
                let Task { node, first, ranks } = &tasks[index];
                let listed = node.map(|place| &version.parts.directory.nodes[place]);
                // Before it is loaded.
                let is_hot = listed.is_some_and(|listed| context.is_hot(listed));
                let node = match listed {
                    Some(listed) => Some(context.output.node_cache.load_once(&listed.slot)?),
                    None => None,
                };
                let before = listed.zip(node.as_deref());
                let mut absorb = NodeAbsorb::new(context, first.clone(), before, is_hot)?;
                absorb.run(updates, ranks.clone())?;
                *finished[index].lock() = Some(absorb.finish(false)?);
                Ok(())
            })?;
            let finished: Option<Vec<Finished>> =
                finished.into_iter().map(Mutex::into_inner).collect();
            let finished = finished.ok_or_else(|| Error::internal("a node was not absorbed"))?;
            Ok(tasks.iter().map(|task| task.node).zip(finished).collect())
        })?;
        events::add(&self.shared.counters.absorbs, 1);
        absorbed.ok_or_else(|| Error::internal("an absorb made no version"))
    }

    /// Divides the updates among nodes.
    fn tasks(&self, version: &BminusVersion, updates: &dyn SortedUpdates) -> Vec<Task> {
        let directory = &version.parts.directory;
        if directory.nodes.is_empty() {
            let ranges = even_ranges(updates, FIRST_BYTES);
            let task = |ranks: Range<usize>| {
                let first = match ranks.start {
                    0 => SharedKey::LEAST,
                    rank => SharedKey::whole(updates.key(rank)),
                };
                Task { node: None, first, ranks }
            };
            return ranges.into_iter().map(task).collect();
        }
        let mut tasks = Vec::new();
        let mut rank = 0;
        while rank < updates.len() {
            let place = directory.node_of(updates.key(rank)).unwrap_or(0);
            let end = directory
                .upper_of(place)
                .map_or(updates.len(), |upper| updates.lower_bound(&upper.to_bytes()));
            let end = end.max(rank + 1);
            let first = directory.nodes[place].first.clone();
            tasks.push(Task { node: Some(place), first, ranks: rank..end });
            rank = end;
        }
        tasks
    }

    /// Makes a version with a new stamp of what `change` makes of some nodes, in key order. No
    /// version if it changes nothing.
    fn write_version(
        &self,
        version: &BminusVersion,
        work: &Work<'_>,
        budget: WriteBudget,
        change: &mut Change<'_>,
    ) -> Result<Option<Absorbed>> {
        let stamp = self.storage().new_generation()?;
        let Shared { node_cache, counters, held, .. } = &*self.shared;
        let output = Output::new(node_cache, (counters, &counters.node_bytes), work.quota);
        let context = Context {
            output: &output,
            config: *node_cache.context(),
            newest: &version.parts.view,
            held,
            stamp,
            budget,
            is_packing: budget == WriteBudget::Minimal,
            progress: work.progress,
            spare: Mutex::default(),
        };
        // If anything fails from here on, the stamp of all that was written is dead.
        let was_tainted = self.tainted.swap(true, Ordering::SeqCst);
        let next = change(&context).and_then(|finished| match finished.is_empty() {
            true => Ok(None),
            false => self.next(version, &context, finished, was_tainted).map(Some),
        });
        let next = match next {
            Ok(Some(next)) => next,
            nothing => {
                // The first error is more useful than one from the roll-back.
                let _ = output.into_ledger().roll_back(self.storage());
                return nothing.map(|_| None);
            }
        };
        // All that was left before is older than the new stamp, and dead. A version that only drops
        // dead stamps keeps the one before, and is not enough.
        self.tainted.store(false, Ordering::SeqCst);
        Ok(Some(self.publish(version, next, output.into_ledger())))
    }

    /// Makes the next version the newest one.
    fn publish(&self, version: &BminusVersion, next: NextVersion, ledger: Ledger) -> Absorbed {
        let NextVersion { parts, place, learned } = next;
        let Ledger { gained, lost } = ledger;
        let stamp = parts.view.stamp;
        learned.record(stamp);
        let disk_blocks = blocks_after(version.disk_blocks, &gained, &lost);
        let shared = Arc::clone(&self.shared);
        let next = Arc::new(BminusVersion::new(shared, place, parts, disk_blocks));
        *self.newest.write() = Arc::clone(&next);
        Absorbed { version: next, gained, lost }
    }

    /// Writes the nodes and the directory of the next version.
    fn next(
        &self,
        version: &BminusVersion,
        context: &Context<'_>,
        finished: Vec<(Option<usize>, Finished)>,
        was_tainted: bool,
    ) -> Result<NextVersion> {
        let mut next = NextNodes::new(context);
        let nodes = &version.parts.directory.nodes;
        let mut learned = Learned::default();
        let mut done = 0;
        for (place, finished) in finished {
            if let Some(place) = place {
                nodes[done..place].iter().try_for_each(|listed| next.keep(listed))?;
                done = place + 1;
            }
            next.change(place.map(|place| &nodes[place]), finished.after)?;
            learned.append(finished.learned);
        }
        nodes[done..].iter().try_for_each(|listed| next.keep(listed))?;
        learned.append(std::mem::take(&mut next.learned));
        if next.has_joined {
            self.clearing.lock().restart();
        }
        let directory = Arc::new(Directory::new(next.end()?));
        let mut view = version.parts.view.clone();
        if directory.nodes.is_empty() {
            view.dead = Arc::default();
        } else if was_tainted {
            // An absorb has failed, or perhaps a crash has cut one off.
            Arc::make_mut(&mut view.dead).add_between(view.stamp, context.stamp);
        }
        view.stamp = context.stamp;
        let parts = Parts { view, directory };
        let place = self.write_directory(version, context.output, &parts)?;
        Ok(NextVersion { parts, place, learned })
    }

    /// Publishes a version with these parts, of which only the dead stamps differ.
    fn write_parts(
        &self,
        version: &BminusVersion,
        parts: Parts,
        work: &Work<'_>,
    ) -> Result<Absorbed> {
        let Shared { node_cache, counters, .. } = &*self.shared;
        let output = Output::new(node_cache, (counters, &counters.node_bytes), work.quota);
        match self.write_directory(version, &output, &parts) {
            Ok(place) => {
                let next = NextVersion { parts, place, learned: Learned::default() };
                Ok(self.publish(version, next, output.into_ledger()))
            }
            Err(error) => {
                // The first error is more useful than one from the roll-back.
                let _ = output.into_ledger().roll_back(self.storage());
                Err(error)
            }
        }
    }

    fn write_directory(
        &self,
        version: &BminusVersion,
        output: &Output<'_>,
        parts: &Parts,
    ) -> Result<Option<NodeRef>> {
        let next = (!parts.directory.nodes.is_empty()).then(|| parts.encode());
        output.replace_directory(version.place, next)
    }
}

/// A version that is written and not published yet.
struct NextVersion {
    parts: Parts,
    place: Option<NodeRef>,
    learned: Learned,
}
