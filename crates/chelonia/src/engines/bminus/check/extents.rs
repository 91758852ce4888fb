//! The walk over all extents of a version.

use crate::base::error::Result;
use crate::base::stream::LargeRef;
use crate::engine::OwnedExtent;
use crate::engines::bminus::node::{Listed, Node};
use crate::engines::bminus::read::pages::{NodePages, Reading};
use crate::engines::bminus::version::BminusVersion;
use crate::pages::homes::{Page, PageBytes};
use crate::structure::NodeRef;
use std::collections::BTreeSet;

/// Number of pages that are read together.
const READ_PAGES: usize = 8;

/// Visits every extent that `version` refers to; fails at the end if a node, or a page with
/// references to large values, cannot be read.
pub(in crate::engines::bminus) fn walk_extents(
    version: &BminusVersion,
    visit: &mut dyn FnMut(OwnedExtent) -> Result<()>,
) -> Result<()> {
    let mut unread = Ok(());
    version.place.map(NodeRef::owned).map_or(Ok(()), &mut *visit)?;
    for listed in &version.parts.directory.nodes {
        listed.slot.reference().map(NodeRef::owned).map_or(Ok(()), &mut *visit)?;
        let node = match version.shared.node_cache.load_once(&listed.slot) {
            Ok(node) => node,
            Err(error) => {
                unread = unread.and(Err(error));
                continue;
            }
        };
        node.regions.iter().try_for_each(|region| visit(region.owned()))?;
        let mut large = BTreeSet::new();
        if listed.facts.large > 0 {
            unread = unread.and(large_of(version, listed, &node, &mut large));
        }
        large.iter().map(OwnedExtent::from).try_for_each(&mut *visit)?;
    }
    unread
}

/// Collects the large values that the pages of a node refer to, as far as they can be read.
fn large_of(
    version: &BminusVersion,
    listed: &Listed,
    node: &Node,
    large: &mut BTreeSet<LargeRef>,
) -> Result<()> {
    let pages = NodePages::of(version, node, &listed.facts);
    let all: Vec<usize> = (0..node.pages.len()).collect();
    let mut unread = Ok(());
    for chunk in all.chunks(READ_PAGES) {
        for loaded in pages.load(chunk, Reading::Merge) {
            let collected = loaded.and_then(|loaded| {
                let page = Page::parse(PageBytes::Whole(&loaded.page))?;
                (0..page.count()).try_for_each(|index| {
                    large.extend(page.large(index)?);
                    Ok(())
                })
            });
            unread = unread.and(collected);
        }
    }
    unread
}
