//! Verification of a tree. Checks every block, count and order that the other modules guarantee.
//!
//! Nodes and pages are read from the data file again, so that the check covers the disk and not
//! memory. The walk continues after a finding unless it hides the structure below.

use super::page_range;
use crate::base::check::{CheckReport, Relay};
use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{LargeRef, SortedStream};
use crate::engines::treeline::node::{Item, Listed};
use crate::engines::treeline::staged::{Staged, Table};
use crate::engines::treeline::version::TreelineVersion;
use crate::pages::{LoadedPages, PageStream, Reading};
use crate::run::{RunStream, Totals};
use crate::runtime::sync::Arc;
use crate::structure::{self, SharedKey};
use std::collections::BTreeSet;

/// Verifies `version`.
pub(in crate::engines::treeline) fn verify(
    version: &TreelineVersion,
    report: &mut dyn CheckReport,
) -> Result<()> {
    let mut check = Check::new(version, version.shared.node_cache.storage(), report);
    check.directory(version.place, || version.parts.encode());
    for (staged, from) in version.parts.live() {
        check.staged(staged, from)?;
    }
    let directory = &version.parts.directory;
    for (index, listed) in directory.nodes.iter().enumerate() {
        check.node(listed, directory.upper_of(index));
    }
    check.finish(version.disk_blocks);
    Ok(())
}

type Check<'a> = structure::Check<'a, TreelineVersion>;

impl Check<'_> {
    fn staged(&mut self, staged: &Staged, from: &SharedKey) -> Result<()> {
        for table in &staged.tables {
            self.table(table, from)?;
        }
        Ok(())
    }

    /// Checks a staged run, and the large values of its live entries.
    fn table(&mut self, table: &Table, from: &SharedKey) -> Result<()> {
        self.offset = table.owned().extent.offset();
        let mut relay = Relay::to(&mut *self.report);
        table.run.verify(&mut relay)?;
        let is_complete = relay.is_complete();
        self.blocks += u64::from(table.owned().extent.blocks);
        self.is_complete &= is_complete;
        let mut large = BTreeSet::new();
        let listed = table.visit_large(from, &mut |reference| {
            large.insert(reference);
            Ok(())
        });
        // An unreadable block has already been reported.
        if let Err(error) = listed
            && is_complete
        {
            self.fail(error);
        }
        self.large_values(&large);
        if !is_complete {
            return Ok(());
        }
        match keys_of(table, from) {
            Ok((first, last, skipped)) => {
                if table.first != first[..] || table.last != last[..] {
                    self.finding(
                        "the first or last key of a staged run differs from the directory",
                    );
                }
                if skipped != table.large_skipped {
                    self.finding(
                        "the swept large values of a staged run differ from the directory",
                    );
                }
            }
            Err(error) => self.fail(error),
        }
        Ok(())
    }

    fn node(&mut self, listed: &Listed, upper: Option<&SharedKey>) {
        let node_cache = &self.version.shared.node_cache;
        let Some(node) = self.read_node(node_cache, &listed.slot) else { return };
        let pages: usize = node.items.iter().map(|item| item.group.slots.len()).sum();
        let facts = listed.facts;
        if node.items[0].first != listed.first || node.totals() != facts.totals {
            self.finding("the first key or the totals of a node differ from the directory");
        }
        if node.items.len() != facts.groups as usize || pages != facts.pages as usize {
            self.finding("the number of groups or pages of a node differs from the directory");
        }
        if let (Some(last), Some(upper)) = (node.items.last(), upper)
            && last.first >= *upper
        {
            self.finding("a node has groups beyond the first key of the next one");
        }
        for (index, item) in node.items.iter().enumerate() {
            let upper = node.items.get(index + 1).map(|next| &next.first).or(upper);
            self.group(item, upper);
        }
    }

    fn group(&mut self, item: &Item, upper: Option<&SharedKey>) {
        let group = &item.group;
        self.offset = group.owned().extent.offset();
        self.blocks += u64::from(group.owned().extent.blocks);
        let (mut totals, mut large, mut is_read) = (Totals::default(), BTreeSet::new(), true);
        for page in 0..group.slots.len() {
            match self.page(item, page, upper, &mut large) {
                Ok(of_page) => {
                    self.report.blocks(u64::from(group.place.page_blocks()));
                    self.report.entries(of_page.entries);
                    totals += of_page;
                }
                Err(error) => {
                    self.fail(error);
                    is_read = false;
                }
            }
        }
        let count = large.len();
        self.large_values(&large);
        if is_read && (totals != group.totals || count != group.large as usize) {
            self.finding("the totals of a group differ from its pages");
        }
    }

    /// Reads a page; returns its totals.
    fn page(
        &self,
        item: &Item,
        page: usize,
        upper: Option<&SharedKey>,
        large: &mut BTreeSet<LargeRef>,
    ) -> Result<Totals> {
        let range = page_range(item, page, upper);
        let pages = page..page + 1;
        let loaded = LoadedPages::read(self.storage, &item.group, pages, Reading::Device)?;
        let loaded = Arc::new(loaded);
        let all = Arc::new(KeyRange::all());
        let mut stream = PageStream::new(&loaded, 0..1, &all, Direction::Ascending)?;
        let mut totals = Totals::default();
        while let Some(key) = stream.key() {
            let update = stream.update();
            if !range.contains(key) {
                let error = Error::corrupt("a key is in a page that does not have its range");
                return Err(item.group.blame(page, error));
            }
            if update.is_delete() {
                let error = Error::corrupt("a page has a tombstone");
                return Err(item.group.blame(page, error));
            }
            totals.add_entry(key, &update);
            large.extend(update.large());
            stream.advance()?;
        }
        Ok(totals)
    }
}

/// The first and the last key of a staged run, and the number of large values below `from`.
fn keys_of(table: &Table, from: &SharedKey) -> Result<(Vec<u8>, Vec<u8>, u64)> {
    let mut stream = RunStream::of_device(&table.run, KeyRange::all())?;
    let first = stream.key().unwrap_or_default().to_vec();
    let (mut last, mut skipped) = (Vec::new(), 0);
    while let Some(key) = stream.key() {
        last.clear();
        last.extend_from_slice(key);
        skipped += u64::from(*from > *key && stream.update().large().is_some());
        stream.advance()?;
    }
    Ok((first, last, skipped))
}
