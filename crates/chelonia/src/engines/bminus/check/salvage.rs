//! Salvage: extracts all readable data of a damaged tree.
//!
//! An unreadable page loses its range, an unreadable node that of its pages.

use super::page_range;
use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::base::stream::Update;
use crate::engine::Salvaged;
use crate::engines::bminus::node::{Listed, Node};
use crate::engines::bminus::read::pages::{Loaded, NodePages, Reading};
use crate::engines::bminus::version::BminusVersion;
use crate::pages::homes::slotted::large_of;
use crate::pages::homes::{Page, PageBytes};
use crate::structure::SharedKey;
use std::ops::Bound;

/// Passes all readable data of `version` to `found`.
pub(in crate::engines::bminus) fn salvage(
    version: &BminusVersion,
    found: &mut dyn Salvaged,
) -> Result<()> {
    let directory = &version.parts.directory;
    for (index, listed) in directory.nodes.iter().enumerate() {
        let Some(place) = listed.slot.reference() else { continue };
        let upper = directory.upper_of(index);
        match version.shared.node_cache.read(place, ()) {
            Ok(node) => pages(version, listed, &node, upper, found)?,
            Err(error) => found.lost(listed.first.range_to(upper), error)?,
        }
    }
    Ok(())
}

fn pages(
    version: &BminusVersion,
    listed: &Listed,
    node: &Node,
    upper: Option<&SharedKey>,
    found: &mut dyn Salvaged,
) -> Result<()> {
    let of_node = NodePages::of(version, node, &listed.facts);
    for page in 0..node.pages.len() {
        let range = page_range(node, page, &listed.first, upper);
        match of_node.load_one(page, Reading::Device) {
            Ok(loaded) => entries(&loaded, &range, found)?,
            Err(error) => found.lost(range, error)?,
        }
    }
    Ok(())
}

/// Passes the entries of a page on; those behind one that cannot be read are lost.
fn entries(loaded: &Loaded, range: &KeyRange, found: &mut dyn Salvaged) -> Result<()> {
    let bytes = &loaded.page;
    let mut last: Option<Vec<u8>> = None;
    let count = Page::parse(PageBytes::Whole(bytes)).map_or(0, |page| page.count());
    for index in 0..count {
        let entry = Page::parse(PageBytes::Whole(bytes)).and_then(|page| {
            let spans = page.spans(index)?;
            let large = match spans.is_large {
                true => Some(large_of(&bytes[spans.payload.clone()])?),
                false => None,
            };
            Ok((spans, large))
        });
        match entry {
            Ok((spans, large)) => {
                let key = &bytes[spans.key.clone()];
                let update = large.map_or(Update::Put(&bytes[spans.payload]), Update::PutLarge);
                found.update(key, update)?;
                last = Some(key.to_vec());
            }
            Err(error) => {
                let lower = last.map_or_else(|| range.lower.clone(), Bound::Excluded);
                return found.lost(KeyRange { lower, upper: range.upper.clone() }, error);
            }
        }
    }
    Ok(())
}
