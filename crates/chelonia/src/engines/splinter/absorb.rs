//! Incorporation: a memtable becomes a branch of the root [2.3].
//!
//! The branch is written over the pivots of the root, as their newest level, and flushes by
//! reference follow. No older entry is merged, unless merges are so far behind that the root can
//! take no further level: then its newest levels, as far as no job merges them, become one with the
//! memtable.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::stream::SortedUpdates;
use crate::buffer_tree::check::damage::Damage;
use crate::buffer_tree::codec::LEVEL_MAX;
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Node, Part, Pivot};
use crate::buffer_tree::output::Output;
use crate::buffer_tree::source::Incoming;
use crate::engine::{Absorbed, Work, WriteBudget};
use crate::engines::splinter::edit::{Draft, Edit};
use crate::engines::splinter::merge::LevelsMerge;
use crate::engines::splinter::sizes::Sizes;
use crate::engines::splinter::{Splinter, Writer};
use crate::runtime::sync::{AtomicU64, Ordering};
use std::collections::BTreeMap;

/// Number of levels that the root keeps free.
const ROOT_LEVELS_FREE: usize = 8;

/// The same on a nearly full device, where an absorb should write little besides the updates.
const ROOT_LEVELS_FREE_LEAST: usize = 1;

impl Splinter {
    /// Makes the next version of the newest one and `updates`, under the lock.
    pub(super) fn incorporate(
        &self,
        writer: &mut Writer,
        updates: &dyn SortedUpdates,
        budget: WriteBudget,
        work: &Work<'_>,
    ) -> Result<Absorbed> {
        let version = self.newest();
        self.learn(writer, writer.overlap.after(&self.shared, &version, updates));
        self.count(writer, &version)?;
        // An absorb needs no survey: if a node cannot be read now, the next plan surveys.
        let _ = self.survey_if_due(writer, &version);
        let sizes = self.sizes(&version, writer.overlap);
        let root = self.shared.node_cache.load_owned(&version.root)?;
        let output = self.output(work);
        let free = match budget {
            WriteBudget::Usual => ROOT_LEVELS_FREE,
            WriteBudget::Minimal => ROOT_LEVELS_FREE_LEAST,
        };
        let (gathered, parts) =
            match self.write_branch(writer, (&root, free), updates, sizes, &output, work) {
                Ok(written) => written,
                Err(error) => {
                    // The first error is more useful than one from the roll-back.
                    let _ = output.into_ledger().roll_back(self.shared.node_cache.storage());
                    return Err(error);
                }
            };
        let change = |edit: &Edit<'_>, draft: &mut Draft| {
            for index in 0..draft.pivots.len() {
                let older = draft.pivots[index].parts.iter();
                let older = older.filter(|part| usize::from(part.level) >= gathered);
                let older = older.map(|part| part.at_level(part.level + 1)).collect();
                let newer = parts.get(&index).cloned().unwrap_or_default();
                edit.put_on(draft, index, newer, older);
            }
            Ok(true)
        };
        let absorbed = self.change(writer, &version, output, sizes, &change)?;
        self.shared.events.add(Event::Absorbs, 1);
        absorbed.ok_or_else(|| Error::internal("an absorb changed nothing"))
    }

    /// Writes `updates` as a branch over the pivots of `root`, together with its newest levels if
    /// fewer than `free` are free; returns the number of these and the new parts by pivot.
    fn write_branch(
        &self,
        writer: &mut Writer,
        (root, free): (&Node, usize),
        updates: &dyn SortedUpdates,
        sizes: Sizes,
        output: &Output<'_>,
        work: &Work<'_>,
    ) -> Result<(usize, BTreeMap<usize, Vec<Part>>)> {
        let pivots: Vec<usize> = (0..root.pivots.len()).collect();
        let workers = self.shared.workers_for(*work.workers, sizes.run);
        let reported = AtomicU64::new(0);
        loop {
            let gathered = self.gathered(writer, root, free)?;
            let done = AtomicU64::new(0);
            // A merge that is repeated does not report the same progress again.
            let progress = |ranks: u64| {
                let now = done.fetch_add(ranks, Ordering::Relaxed) + ranks;
                let before = reported.fetch_max(now, Ordering::Relaxed);
                (work.progress)(now.saturating_sub(before));
            };
            let merge = LevelsMerge {
                node: root,
                upper: None,
                pivots: &pivots,
                levels: gathered,
                whole: false,
                incoming: Incoming { updates, ranks: 0..updates.len(), older: Vec::new() },
                sizes,
            };
            let work = Work { workers: &workers, progress: &progress, ..*work };
            match merge.run(output, &work) {
                Ok(parts) => return Ok((gathered, parts)),
                Err(error) => {
                    let mut damage = Damage::default();
                    let error = damage.meet(error)?;
                    damage.learn();
                    let known = writer.damage.count();
                    writer.damage.adopt(&mut damage);
                    if writer.damage.count() == known {
                        return Err(error);
                    }
                    self.shared.events.add(Event::PassesRepeated, 1);
                }
            }
        }
    }

    /// Returns the number of levels of the root that are merged with a memtable: none, unless fewer
    /// than `levels_free` are free.
    fn gathered(&self, writer: &Writer, root: &Node, levels_free: usize) -> Result<usize> {
        let most = root.pivots.iter().map(Pivot::levels).max().unwrap_or(0);
        if most + levels_free <= usize::from(LEVEL_MAX) {
            return Ok(0);
        }
        let (mut readable, mut unclaimed) = (most, most);
        for (index, pivot) in root.pivots.iter().enumerate() {
            let claimed = pivot.parts.iter().find(|part| self.claims.has(part));
            let unread = writer.damage.first_level(pivot, root.span_of(index, None))?;
            readable = unread.map_or(readable, |level| readable.min(level.into()));
            unclaimed = claimed.map_or(unclaimed, |part| unclaimed.min(part.level.into()));
        }
        let is_full = most > usize::from(LEVEL_MAX);
        if is_full && readable == 0 {
            return Err(Error::corrupt("too many levels of the root are unreadable"));
        }
        if is_full && unclaimed == 0 {
            // Only a nearly full device lets levels become as many.
            let text = "the device is nearly full and all levels of the root are being merged: \
                        free space and retry";
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        Ok(readable.min(unclaimed))
    }
}
