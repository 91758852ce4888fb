//! Verification of a tree. Checks every block, count and order that the other modules guarantee.
//!
//! Nodes and homes are read from the data file again, so that the check covers the disk and not
//! memory. The walk continues after a finding unless it hides the structure below. The stamps of a
//! node's pages have the sum that the directory says, or the device has lost a write.

use super::page_range;
use crate::base::check::CheckReport;
use crate::base::error::{Error, Result};
use crate::base::keys::KeyRange;
use crate::base::stream::{LargeRef, Update};
use crate::engines::bminus::node::{Listed, Node};
use crate::engines::bminus::read::pages::{Loaded, NodePages, Reading};
use crate::engines::bminus::version::BminusVersion;
use crate::pages::homes::slotted::taken_bytes;
use crate::pages::homes::{Page, PageBytes, sum_of};
use crate::run::Totals;
use crate::storage::block::DATA_FILE;
use crate::structure::{self, SharedKey};
use std::collections::BTreeSet;

/// Number of pages that are read together.
const READ_PAGES: usize = 4;

/// Verifies `version`.
pub(in crate::engines::bminus) fn verify(
    version: &BminusVersion,
    report: &mut dyn CheckReport,
) -> Result<()> {
    let mut check = Check::new(version, version.storage(), report);
    check.directory(version.place, || version.parts.encode());
    let directory = &version.parts.directory;
    for (index, listed) in directory.nodes.iter().enumerate() {
        check.node(listed, directory.upper_of(index));
    }
    check.finish(version.disk_blocks);
    Ok(())
}

/// Verifies the node that has the keys around `from`; returns the first key of the next one.
pub(in crate::engines::bminus) fn check_pages(
    version: &BminusVersion,
    from: &[u8],
    report: &mut dyn CheckReport,
) -> Result<Option<Vec<u8>>> {
    let directory = &version.parts.directory;
    let Some(index) = directory.node_of(from) else { return Ok(None) };
    let mut check = Check::new(version, version.storage(), report);
    check.node(&directory.nodes[index], directory.upper_of(index));
    Ok(directory.upper_of(index).map(|upper| upper.to_bytes().into_owned()))
}

type Check<'a> = structure::Check<'a, BminusVersion>;

impl Check<'_> {
    fn node(&mut self, listed: &Listed, upper: Option<&SharedKey>) {
        let node_cache = &self.version.shared.node_cache;
        let Some(node) = self.read_node(node_cache, &listed.slot) else { return };
        let facts = listed.facts;
        if node.pages.len() != facts.pages as usize || node.homes() != facts.homes as usize {
            self.finding("the number of pages or homes of a node differs from the directory");
        }
        let second = node.pages.get(1).map(|page| &page.first);
        let last = node.pages.last().map(|page| &page.first);
        if second.is_some_and(|second| *second <= listed.first)
            || last.zip(upper).is_some_and(|(last, upper)| *last >= *upper)
        {
            self.finding("a node has pages beyond its bounds");
        }
        self.blocks +=
            node.regions.iter().map(|region| u64::from(region.owned().extent.blocks)).sum::<u64>();
        self.pages(listed, &node, upper);
    }

    fn pages(&mut self, listed: &Listed, node: &Node, upper: Option<&SharedKey>) {
        let of_node = NodePages::of(self.version, node, &listed.facts);
        let (mut totals, mut sum, mut is_read) = (Totals::default(), 0_u64, true);
        let mut large = BTreeSet::new();
        let all: Vec<usize> = (0..node.pages.len()).collect();
        for chunk in all.chunks(READ_PAGES) {
            for (page, loaded) in chunk.iter().zip(of_node.load(chunk, Reading::Device)) {
                let (region, home) = node.home_of(*page);
                self.offset = region.offset_of(home);
                let range = page_range(node, *page, &listed.first, upper);
                let checked = loaded.and_then(|loaded| {
                    sum = sum.wrapping_add(sum_of(region.number_of(home), loaded.stamp));
                    entries(&loaded, &range, &mut large)
                });
                match checked {
                    Ok(own) => {
                        self.report.blocks(u64::from(region.layout().home_blocks()));
                        self.report.entries(own.entries);
                        totals += own;
                    }
                    Err(error) => {
                        self.fail(error.at(DATA_FILE, self.offset));
                        is_read = false;
                    }
                }
            }
        }
        let count = large.len();
        self.large_values(&large);
        if !is_read {
            return;
        }
        self.offset = listed.slot.reference().map_or(0, |place| place.extent.offset());
        if sum != listed.facts.sum {
            self.finding("the stamps of a node's pages differ from the directory: a write is lost");
        } else if totals != listed.facts.totals || count != listed.facts.large as usize {
            self.finding("the totals of a node differ from its pages");
        }
    }
}

/// Checks the records of a page; returns their totals.
fn entries(loaded: &Loaded, range: &KeyRange, large: &mut BTreeSet<LargeRef>) -> Result<Totals> {
    let bytes = &loaded.page;
    let page = Page::parse(PageBytes::Whole(bytes))?;
    let mut totals = Totals::default();
    let (mut count, mut taken) = (0, 0);
    let mut before: Option<&[u8]> = None;
    for index in 0..page.count() {
        let spans = page.spans(index)?;
        let key = &bytes[spans.key.clone()];
        if !range.contains(key) {
            return Err(Error::corrupt(
                "a key is beyond the bounds of its page: a write is lost, or a page forged",
            ));
        }
        if before.is_some_and(|before| before >= key) {
            return Err(Error::corrupt(
                "the keys of pages are out of order: a write is lost, or a page forged",
            ));
        }
        before = Some(key);
        taken += taken_bytes(key.len(), spans.payload.len());
        let update = match page.large(index)? {
            Some(reference) => {
                count += 1;
                large.insert(reference);
                Update::PutLarge(reference)
            }
            None => Update::Put(&bytes[spans.payload]),
        };
        totals.add_entry(key, &update);
    }
    if (totals, count) != page.totals() || taken != page.live_bytes() {
        return Err(Error::corrupt("the totals of a page differ from its records"));
    }
    Ok(totals)
}
