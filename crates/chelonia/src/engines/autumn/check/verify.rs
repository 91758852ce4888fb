//! Verification of a tree, and the walk over its extents. Checks every block, count and order that
//! the other modules guarantee.
//!
//! Nodes are read from the data file again, so that the check covers the disk and not memory. The
//! walk continues after a finding unless it hides the structure below. The description of a run in
//! a node is compared with the run only if the run is complete.

use crate::base::check::{CheckReport, Relay};
use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::base::stream::{LargeRef, SortedStream};
use crate::engine::OwnedExtent;
use crate::engines::autumn::codec::Directory;
use crate::engines::autumn::table::{Sequence, Table};
use crate::engines::autumn::version::AutumnVersion;
use crate::run::{RunStream, Totals};
use crate::structure::{self, NodeRef, SharedKey};
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
    let mut check = Check::new(version, version.shared.node_cache.storage(), report);
    check.directory(version.directory, || {
        let level0 = version.level0.iter().map(|sequence| &**sequence);
        let levels = version.levels.iter().map(|sequence| &**sequence);
        Directory::encode(level0, version.sinking, levels)
    });
    for sequence in version.sequences() {
        check.sequence(sequence)?;
    }
    check.finish(version.disk_blocks);
    Ok(())
}

type Check<'a> = structure::Check<'a, AutumnVersion>;

impl Check<'_> {
    fn sequence(&mut self, sequence: &Sequence) -> Result<()> {
        let mut before: Option<SharedKey> = None;
        for listed in &sequence.nodes {
            let Some(node) = self.read_node(&self.version.shared.node_cache, &listed.slot) else {
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
        self.large_values(&large);
        if !is_complete {
            return Ok(());
        }
        match live(table) {
            Ok(true) => {}
            Ok(false) => self.finding("the live totals of a table differ from its run"),
            Err(error) => self.fail(error),
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
