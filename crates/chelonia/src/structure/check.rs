//! Verification of the parts that all trees with a directory have.
//!
//! The directory and nodes are read from the data file again, so that the check covers the disk and
//! not memory.

use super::NodeRef;
use super::node_cache::{NodeCache, Slot, Structure};
use crate::base::check::CheckReport;
use crate::base::error::{Error, Result};
use crate::base::stream::LargeRef;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::block::DATA_FILE;
use std::collections::BTreeSet;

/// A verification of a version `V` that is under way.
pub struct Check<'a, V> {
    /// The version.
    pub version: &'a V,
    /// The storage that it is in.
    pub storage: &'a Arc<Storage>,
    /// Receives progress and findings.
    pub report: &'a mut dyn CheckReport,
    /// Offset of the structure that is being checked.
    pub offset: u64,
    /// Blocks of everything that was met.
    pub blocks: u64,
    /// No finding so far.
    pub is_complete: bool,
}

impl<'a, V> Check<'a, V> {
    /// Begins a verification.
    pub fn new(version: &'a V, storage: &'a Arc<Storage>, report: &'a mut dyn CheckReport) -> Self {
        Self { version, storage, report, offset: 0, blocks: 0, is_complete: true }
    }

    /// Reports that the structure at the current offset is corrupt.
    pub fn finding(&mut self, what: &str) {
        self.fail(Error::corrupt(what).at(DATA_FILE, self.offset));
    }

    /// Reports an error.
    pub fn fail(&mut self, error: Error) {
        self.is_complete = false;
        self.report.finding(error);
    }

    /// Reads a node or a directory at `place`; `None` after a finding.
    fn read<T>(&mut self, place: NodeRef, read: impl FnOnce() -> Result<T>) -> Option<T> {
        self.offset = place.extent.offset();
        match read() {
            Ok(found) => {
                let blocks = u64::from(place.extent.blocks);
                self.report.blocks(blocks);
                self.blocks += blocks;
                Some(found)
            }
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// Reads the directory again and compares it with its bytes in memory.
    pub fn directory(&mut self, place: Option<NodeRef>, expected: impl FnOnce() -> Vec<u8>) {
        let Some(place) = place else { return };
        let storage = self.storage;
        if let Some(bytes) = self.read(place, || place.read(storage))
            && bytes != expected()
        {
            self.finding("the directory on disk differs from the tree in memory");
        }
    }

    /// Reads a node again; `None` if it is not on disk, or after a finding.
    pub fn read_node<N>(&mut self, node_cache: &NodeCache<N>, slot: &Slot<N>) -> Option<N>
    where
        N: Structure<About = ()>,
    {
        let place = slot.reference()?;
        self.read(place, || node_cache.read(place, ()))
    }

    /// Verifies large values.
    pub fn large_values(&mut self, large: &BTreeSet<LargeRef>) {
        for large in large {
            self.blocks += u64::from(large.extent.blocks);
            match self.storage.verify_large(large) {
                Ok(blocks) => self.report.blocks(blocks),
                Err(error) => self.fail(error),
            }
        }
    }

    /// Ends the verification of a complete version, which should have `disk_blocks` blocks.
    pub fn finish(mut self, disk_blocks: u64) {
        if self.is_complete && self.blocks != disk_blocks {
            self.finding("the block count in the root blob differs from the tree");
        }
    }
}
