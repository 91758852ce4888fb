//! Output of work on a tree: extents written, and extents that the next version does not refer to.
//!
//! Every allocated extent is recorded at once, so that a failure frees all of them. Workers share
//! the output.

use super::NodeRef;
use super::events;
use super::node_cache::{NodeCache, Structure};
use crate::base::error::Result;
use crate::engine::{ExtentKind, OwnedExtent};
use crate::runtime::sync::{Arc, AtomicU64, Mutex};
use crate::storage::Storage;
use crate::storage::quota::Quota;

/// Output of one absorb or one job of an engine with nodes `N` and event counters `C`. Thread-safe.
pub struct Output<'t, N: Structure, C> {
    /// The nodes of the tree.
    pub node_cache: &'t NodeCache<N>,
    /// Counters of the engine.
    pub counters: &'t C,
    /// Limit of the space that is allocated.
    pub quota: &'t Quota<'t>,
    node_bytes: &'t AtomicU64,
    ledger: Mutex<Ledger>,
}

/// Gained and lost extents.
#[derive(Default)]
pub struct Ledger {
    /// Extents that the next version refers to, and the newest one does not.
    pub gained: Vec<OwnedExtent>,
    /// Extents that the next version does not refer to.
    pub lost: Vec<OwnedExtent>,
}

impl Ledger {
    /// Frees everything that failed work allocated. Continues after an error.
    pub fn roll_back(self, storage: &Storage) -> Result<()> {
        let own = self.gained.into_iter().filter(|owned| !owned.is_large_value());
        own.map(|owned| storage.free(owned.extent)).fold(Ok(()), Result::and)
    }

    /// Returns the gained and the lost extents of successful work. The slots of pages that are lost
    /// by groups that stay are held from now on, to the end of their lifetime.
    pub fn settle(self, storage: &Storage) -> (Vec<OwnedExtent>, Vec<OwnedExtent>) {
        let pages = self.lost.iter().filter(|owned| owned.kind == ExtentKind::Page);
        storage.hold_slots(pages.map(|owned| (owned.extent.start, owned.generation)));
        (self.gained, self.lost)
    }
}

impl<'t, N: Structure, C> Output<'t, N, C> {
    /// Creates an empty output; the bytes of nodes are added to `node_bytes`.
    pub fn new(
        node_cache: &'t NodeCache<N>,
        (counters, node_bytes): (&'t C, &'t AtomicU64),
        quota: &'t Quota<'t>,
    ) -> Self {
        Self { node_cache, counters, quota, node_bytes, ledger: Mutex::default() }
    }

    /// Creates an output that continues after another one, whose records are `ledger`.
    #[must_use]
    pub fn after(self, ledger: Ledger) -> Self {
        Self { ledger: Mutex::new(ledger), ..self }
    }

    /// The storage.
    pub fn storage(&self) -> &Arc<Storage> {
        self.node_cache.storage()
    }

    /// Records extents that the next version refers to.
    pub fn gain(&self, extents: impl IntoIterator<Item = OwnedExtent>) {
        self.ledger.lock().gained.extend(extents);
    }

    /// Records extents that the next version does not refer to.
    pub fn lose(&self, extents: impl IntoIterator<Item = OwnedExtent>) {
        self.ledger.lock().lost.extend(extents);
    }

    /// Writes the bytes of a node.
    pub fn write(&self, bytes: &[u8]) -> Result<NodeRef> {
        let reference = NodeRef::write(self.storage(), self.quota, bytes, |reference| {
            self.gain([reference.owned()]);
        })?;
        events::add(self.node_bytes, reference.extent.bytes());
        Ok(reference)
    }

    /// Writes the bytes of the next directory, and loses the one `before`. An empty tree has none.
    pub fn replace_directory(
        &self,
        before: Option<NodeRef>,
        next: Option<Vec<u8>>,
    ) -> Result<Option<NodeRef>> {
        self.lose(before.map(NodeRef::owned));
        next.map(|bytes| self.write(&bytes)).transpose()
    }

    /// Returns the records of the work.
    pub fn into_ledger(self) -> Ledger {
        self.ledger.into_inner()
    }
}
