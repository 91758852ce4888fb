//! A version of an autumn tree: its sequences. Reads of it: `contract.rs`.

use super::Shared;
use super::table::Sequence;
use crate::memory::budget::{Charge, Use};
use crate::runtime::sync::{Arc, Ordering};
use crate::structure::NodeRef;

/// An immutable version of a tree.
pub struct AutumnVersion {
    pub(super) shared: Arc<Shared>,
    /// Location of the list of all nodes; `None` for an empty tree that was never written.
    pub(super) directory: Option<NodeRef>,
    /// The sequences of level 0, newest first.
    pub(super) level0: Vec<Arc<Sequence>>,
    /// Number of level-0 sequences, the oldest ones, that are being merged into level 1.
    pub(super) sinking: usize,
    /// The levels, from level 1 on.
    pub(super) levels: Vec<Arc<Sequence>>,
    /// Number of blocks of everything the version refers to.
    pub(super) disk_blocks: u64,
    /// Memory charge of the node lists.
    _charge: Charge,
}

/// Contents of the next version.
pub(super) struct Next {
    pub(super) level0: Vec<Arc<Sequence>>,
    pub(super) sinking: usize,
    pub(super) levels: Vec<Arc<Sequence>>,
}

impl Next {
    /// Returns the contents of `version`.
    pub fn of(version: &AutumnVersion) -> Self {
        Self {
            level0: version.level0.clone(),
            sinking: version.sinking,
            levels: version.levels.clone(),
        }
    }

    /// Removes sequences that were merged into level 1 completely.
    pub fn settle(&mut self) {
        let first = self.level0.len() - self.sinking;
        let mut place = 0;
        self.level0.retain(|sequence| {
            place += 1;
            place <= first || !sequence.is_empty()
        });
        self.sinking = self.level0.len() - first;
    }
}

impl AutumnVersion {
    pub(super) fn new(
        shared: Arc<Shared>,
        directory: Option<NodeRef>,
        next: Next,
        disk_blocks: u64,
    ) -> Self {
        let Next { level0, sinking, levels } = next;
        let lists = level0.iter().chain(&levels).map(|sequence| sequence.heap_bytes()).sum();
        let charge = shared.node_cache.storage().budget().charge(Use::Metadata, lists);
        Self { shared, directory, level0, sinking, levels, disk_blocks, _charge: charge }
    }

    /// Records a read that was slowed down by level 0.
    pub(super) fn note_read(&self) {
        let is_read = &self.shared.is_read;
        if !self.level0.is_empty() && !is_read.load(Ordering::Relaxed) {
            is_read.store(true, Ordering::Relaxed);
        }
    }
}
