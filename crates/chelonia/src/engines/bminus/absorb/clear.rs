//! Overwriting what failed absorbs and crashes have left, so that the list of dead stamps is short.
//!
//! A pass goes over all nodes, one a job, and overwrites each place whose stamp is dead. At its end
//! the ranges that were dead when it began are dropped.
//!
//! A place that cannot be read is overwritten too. It may be a torn write with a dead stamp, and
//! would become an image if a later write is torn in turn and leaves just the sectors that it
//! lacks: both are of one page, so most of their sectors are equal. But it may also be a damaged
//! image that a version needs. So it has to be certain that there is no version but the newest,
//! and that this one has all its images; otherwise the pass ends, and the ranges stay.

use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Generation};
use crate::engine::{Absorbed, Job, Work};
use crate::engines::bminus::Bminus;
use crate::engines::bminus::node::{Listed, Node};
use crate::engines::bminus::read::pages::NodePages;
use crate::engines::bminus::version::{BminusVersion, Parts};
use crate::pages::homes::clear_dead;
use crate::runtime::sync::Arc;
use crate::structure::events;

/// Number of ranges of dead stamps from which on they are cleared.
const RANGES_MAX: usize = 32;

/// A pass over all nodes.
#[derive(Default)]
pub(in crate::engines::bminus) struct Clearing {
    /// The ranges to be dropped are those before this stamp; `None`: no pass is under way.
    before: Option<Generation>,
    /// The least key of the next node.
    next: Vec<u8>,
    /// The version, by its stamp, in which the last pass met a place that it could not overwrite.
    stuck_at: Option<Generation>,
}

impl Clearing {
    /// Begins the pass again: nodes were joined, so that regions moved to nodes that were passed.
    pub fn restart(&mut self) {
        self.before = None;
        self.next.clear();
    }
}

/// Clears one node. Keeps the lock: homes are written.
struct ClearJob<'t> {
    tree: &'t Bminus,
}

impl Job for ClearJob<'_> {
    fn keeps_lock(&self) -> bool {
        true
    }

    fn run(&mut self, _: &Work<'_>) -> Result<()> {
        Ok(())
    }

    fn install(self: Box<Self>, work: &Work<'_>) -> Result<Option<Absorbed>> {
        self.tree.clear_node(work)
    }
}

impl Bminus {
    /// True if there are many ranges of dead stamps.
    pub(in crate::engines::bminus) fn is_clearing_due(&self) -> bool {
        // A file that only a scratch file continues is not changed.
        let view = &self.newest().parts.view;
        view.dead.ranges() > RANGES_MAX
            && self.clearing.lock().stuck_at != Some(view.stamp)
            && self.storage().is_writable_block(BlockNo(0))
    }

    /// A job that clears the next node.
    pub(in crate::engines::bminus) fn plan_clearing(&self) -> Option<Box<dyn Job + '_>> {
        self.is_clearing_due().then(|| Box::new(ClearJob { tree: self }) as Box<dyn Job>)
    }

    fn clear_node(&self, work: &Work<'_>) -> Result<Option<Absorbed>> {
        let version = self.newest();
        let mut clearing = self.clearing.lock();
        if clearing.before.is_none() {
            clearing.restart();
            clearing.before = Some(version.parts.view.stamp);
        }
        let directory = &version.parts.directory;
        let Some(place) = directory.node_of(&clearing.next) else { return Ok(None) };
        let listed = &directory.nodes[place];
        let node = self.shared.node_cache.load_once(&listed.slot)?;
        let mut unreadable = Vec::new();
        for region in &node.regions {
            unreadable.append(&mut clear_dead(self.storage(), region, &version.parts.view)?);
        }
        if !unreadable.is_empty() {
            if !self.needs_none(&version, listed, &node) {
                clearing.restart();
                clearing.stuck_at = Some(version.parts.view.stamp);
                return Ok(None);
            }
            self.storage().zero_many(&unreadable)?;
        }
        events::add(&self.shared.counters.cleared, 1);
        let mut view = version.parts.view.clone();
        match directory.upper_of(place) {
            Some(upper) => clearing.next = upper.to_bytes().into_owned(),
            None => {
                let before = clearing.before.unwrap_or_default();
                Arc::make_mut(&mut view.dead).drop_before(before);
                clearing.restart();
            }
        }
        drop(clearing);
        self.write_parts(&version, Parts { view, ..version.parts.clone() }, work).map(Some)
    }

    /// True if no place of a node that cannot be read is needed by any version. Damage is reported
    /// by readers of the page, and by checks.
    fn needs_none(&self, version: &BminusVersion, listed: &Listed, node: &Node) -> bool {
        let is_alone = !self.shared.held.any_in(Generation(0)..version.parts.view.stamp);
        let suspect = Error::corrupt("a block of a page does not verify");
        is_alone && NodePages::of(version, node, &listed.facts).settle(suspect).is_ok()
    }
}
