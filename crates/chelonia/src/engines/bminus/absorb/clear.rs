//! Overwriting what failed absorbs and crashes have left, so that the list of dead stamps is short.
//!
//! A pass goes over all nodes, one a job, and overwrites each place whose stamp is dead. At its end
//! the ranges that were dead when it began are dropped. A place that cannot be read is left: it is
//! no image, and never becomes one.

use crate::base::error::Result;
use crate::base::ids::{BlockNo, Generation};
use crate::engine::{Absorbed, Job, Work};
use crate::engines::bminus::Bminus;
use crate::engines::bminus::version::Parts;
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
        self.newest().parts.view.dead.ranges() > RANGES_MAX
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
            *clearing = Clearing { before: Some(version.parts.view.stamp), next: Vec::new() };
        }
        let directory = &version.parts.directory;
        let Some(place) = directory.node_of(&clearing.next) else { return Ok(None) };
        let node = self.shared.node_cache.load_once(&directory.nodes[place].slot)?;
        for region in &node.regions {
            clear_dead(self.storage(), region, &version.parts.view)?;
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
}
