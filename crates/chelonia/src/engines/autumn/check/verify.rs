//! Verification of a tree, and the walk over its extents. Checks every block, count and order that
//! the other modules guarantee.
//!
//! Nodes are read from the data file again, so that the check covers the disk and not memory. The
//! walk continues after a finding unless it hides the structure below. The description of a run in
//! a node is compared with the run only if the run is complete.

use crate::base::check::{CheckReport, Relay};
use crate::base::error::{Error, Result};
use crate::base::keys::KeyRange;
use crate::base::stream::{LargeRef, SortedStream};
use crate::engine::OwnedExtent;
use crate::engines::autumn::codec::Directory;
use crate::engines::autumn::table::{Listed, Node, Sequence, Table};
use crate::engines::autumn::version::AutumnVersion;
use crate::run::{RunStream, Totals};
use crate::storage::block::DATA_FILE;
use crate::structure::{NodeRef, SharedKey};
use std::collections::BTreeSet;

/// Visits every extent that `version` refers to; fails at the end if a node or a list of large
/// values cannot be read.
pub(in crate::engines::autumn) fn walk_extents(
    version: &AutumnVersion,
    visit: &mut dyn FnMut(OwnedExtent) -> Result<()>,
) -> Result<()> {
    let node_cache = &version.shared.node_cache;
    let mut unread = None;
    version.directory.map(NodeRef::owned).map_or(Ok(()), &mut *visit)?;
    for listed in version.sequences().flat_map(|sequence| &sequence.nodes) {
        listed.slot.reference().map(NodeRef::owned).map_or(Ok(()), &mut *visit)?;
        let node = match node_cache.load_owned(&listed.slot) {
            Ok(node) => node,
            Err(error) => {
                unread.get_or_insert(error);
                continue;
            }
        };
        for table in &node.tables {
            visit(table.owned())?;
            let (large, listed) = large_of(table);
            unread = unread.or(listed.err());
            large.iter().map(OwnedExtent::from).try_for_each(&mut *visit)?;
        }
    }
    unread.map_or(Ok(()), Err)
}

/// Returns the listed large values of a table, each once, and whether the list is complete.
fn large_of(table: &Table) -> (BTreeSet<LargeRef>, Result<()>) {
    let mut large = BTreeSet::new();
    let listed = table.visit_large(&mut |reference| {
        large.insert(reference);
        Ok(())
    });
    (large, listed)
}

/// Verifies `version`.
pub(in crate::engines::autumn) fn verify(
    version: &AutumnVersion,
    report: &mut dyn CheckReport,
) -> Result<()> {
    let mut check = Check { version, report, offset: 0, blocks: 0, is_complete: true };
    if let Some(directory) = version.directory {
        check.directory(directory);
    }
    for sequence in version.sequences() {
        check.sequence(sequence)?;
    }
    if check.is_complete && check.blocks != version.disk_blocks {
        check.finding("the block count in the root blob differs from the tree");
    }
    Ok(())
}

struct Check<'a> {
    version: &'a AutumnVersion,
    report: &'a mut dyn CheckReport,
    /// Offset of the node that is being checked.
    offset: u64,
    /// Blocks of nodes, runs and large values.
    blocks: u64,
    /// No finding so far.
    is_complete: bool,
}

impl Check<'_> {
    fn finding(&mut self, what: &str) {
        self.is_complete = false;
        self.report.finding(Error::corrupt(what).at(DATA_FILE, self.offset));
    }

    /// Reads the directory again and compares it with memory.
    fn directory(&mut self, place: NodeRef) {
        self.offset = place.extent.offset();
        let node_cache = &self.version.shared.node_cache;
        let level0 = self.version.level0.iter().map(|sequence| &**sequence);
        let levels = self.version.levels.iter().map(|sequence| &**sequence);
        let expected = Directory::encode(level0, self.version.sinking, levels);
        match place.read(node_cache.storage()) {
            Ok(bytes) => {
                let blocks = u64::from(place.extent.blocks);
                self.report.blocks(blocks);
                self.blocks += blocks;
                if bytes != expected {
                    self.finding("the directory on disk differs from the tree in memory");
                }
            }
            Err(error) => {
                self.is_complete = false;
                self.report.finding(error);
            }
        }
    }

    fn sequence(&mut self, sequence: &Sequence) -> Result<()> {
        let mut before: Option<SharedKey> = None;
        for listed in &sequence.nodes {
            let Some(node) = self.node(listed) else {
                before = None;
                continue;
            };
            let first = &node.tables[0].first;
            if *first != listed.first || before.is_some_and(|before| before >= *first) {
                self.finding("the first key of a node differs from the directory");
            }
            if node.totals() != listed.totals || node.tables.len() != listed.tables as usize {
                self.finding("the totals of a node differ from the directory");
            }
            for table in &node.tables {
                self.table(table)?;
            }
            before = node.tables.last().map(|table| table.last.clone());
        }
        Ok(())
    }

    fn node(&mut self, listed: &Listed) -> Option<Node> {
        let place = listed.slot.reference()?;
        self.offset = place.extent.offset();
        match self.version.shared.node_cache.read(place, ()) {
            Ok(node) => {
                let blocks = u64::from(place.extent.blocks);
                self.report.blocks(blocks);
                self.blocks += blocks;
                Some(node)
            }
            Err(error) => {
                self.is_complete = false;
                self.report.finding(error);
                None
            }
        }
    }

    /// Checks a table, its run, and the large values of its live entries.
    fn table(&mut self, table: &Table) -> Result<()> {
        let mut relay = Relay::to(&mut *self.report);
        table.run.verify(&mut relay)?;
        self.blocks += u64::from(table.run.reference().extent.blocks);
        let (large, listed) = large_of(table);
        // An unreadable block has already been reported.
        if let Err(error) = listed
            && relay.is_complete()
        {
            relay.finding(error);
        }
        let is_complete = relay.is_complete();
        self.is_complete &= is_complete;
        for large in large {
            self.blocks += u64::from(large.extent.blocks);
            match self.version.shared.node_cache.storage().verify_large(&large) {
                Ok(blocks) => self.report.blocks(blocks),
                Err(error) => {
                    self.is_complete = false;
                    self.report.finding(error);
                }
            }
        }
        if !is_complete {
            return Ok(());
        }
        match live(table) {
            Ok(true) => {}
            Ok(false) => self.finding("the live totals of a table differ from its run"),
            Err(error) => {
                self.is_complete = false;
                self.report.finding(error);
            }
        }
        Ok(())
    }
}

/// Returns true if the live entries of a table, and the number of large values before them, are as
/// recorded.
fn live(table: &Table) -> Result<bool> {
    let mut stream = RunStream::of_device(&table.run, KeyRange::all())?;
    let (mut totals, mut large_before) = (Totals::default(), 0);
    let mut is_within = true;
    while let Some(key) = stream.key() {
        let update = stream.update();
        if table.first > *key && !table.is_complete() {
            large_before += u64::from(update.large().is_some());
        } else {
            totals.add_entry(key, &update);
            is_within &= table.covers(key);
        }
        stream.advance()?;
    }
    Ok(is_within && totals == table.live && large_before == table.large_skipped)
}
