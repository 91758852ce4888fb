//! A version of a treeline tree. Reads of it: `contract.rs`.

use super::Shared;
use super::node::Directory;
use super::staged::Staged;
use crate::memory::budget::{Charge, Use};
use crate::run::Totals;
use crate::runtime::sync::Arc;
use crate::structure::{NodeRef, SharedKey};

/// The parts of a version.
#[derive(Clone)]
pub(super) struct Parts {
    /// Staged memtables, newest first.
    pub staged: Vec<Arc<Staged>>,
    /// Number of them, the oldest, that are being swept into pages.
    pub sinking: usize,
    /// Keys below are swept; the least key if nothing is sinking.
    pub swept_to: SharedKey,
    /// The groups of pages.
    pub directory: Arc<Directory>,
    /// Number of all pages.
    pub pages: u64,
}

impl Default for Parts {
    fn default() -> Self {
        let (staged, directory) = (Vec::new(), Arc::default());
        Self { staged, sinking: 0, swept_to: SharedKey::LEAST, directory, pages: 0 }
    }
}

impl Parts {
    /// Replaces the directory.
    pub fn set_directory(&mut self, directory: Directory) {
        // A forged directory may contain any number.
        let pages = directory.nodes.iter().map(|node| u64::from(node.facts.pages));
        self.pages = pages.fold(0, u64::saturating_add);
        self.directory = Arc::new(directory);
    }

    /// The totals of all entries in pages.
    pub fn totals(&self) -> Totals {
        Totals::sum(self.directory.nodes.iter().map(|node| node.facts.totals))
    }

    /// The first of the sinking memtables.
    pub fn first_sinking(&self) -> usize {
        self.staged.len() - self.sinking
    }

    /// Each memtable, newest first, with the least of its keys that is live.
    pub fn live(&self) -> impl DoubleEndedIterator<Item = (&Arc<Staged>, &SharedKey)> {
        let first = self.first_sinking();
        self.staged.iter().enumerate().map(move |(place, staged)| {
            (staged, if place < first { &SharedKey::LEAST } else { &self.swept_to })
        })
    }

    /// Number of staged updates.
    pub fn staged_entries(&self) -> u64 {
        let tables = self.staged.iter().flat_map(|staged| &staged.tables);
        tables.map(|table| table.run.reference().entries).sum()
    }

    /// The weight of all staged updates.
    pub fn staged_weight(&self) -> u64 {
        self.staged.iter().map(|staged| staged.weight()).sum()
    }
}

/// An immutable version of a tree.
pub struct TreelineVersion {
    pub(super) shared: Arc<Shared>,
    /// Location of the directory; `None` for an empty tree that was never written.
    pub(super) place: Option<NodeRef>,
    pub(super) parts: Parts,
    /// Number of blocks of everything the version refers to.
    pub(super) disk_blocks: u64,
    _charge: Charge,
}

impl TreelineVersion {
    pub(super) fn new(
        shared: Arc<Shared>,
        place: Option<NodeRef>,
        parts: Parts,
        disk_blocks: u64,
    ) -> Self {
        let bytes = (8 * parts.staged.len()) as u64 + parts.directory.heap_bytes();
        let charge = shared.node_cache.storage().budget().charge(Use::Metadata, bytes);
        Self { shared, place, parts, disk_blocks, _charge: charge }
    }
}
