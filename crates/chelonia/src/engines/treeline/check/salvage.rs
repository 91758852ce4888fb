//! Salvage: extracts all readable data of a damaged tree.
//!
//! Pages are visited first, then the staged memtables from the oldest on: applied in this order,
//! the newest entry of each key comes last. An unreadable page loses its range, an unreadable node
//! that of its groups.

use super::page_range;
use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::SortedStream;
use crate::engine::Salvaged;
use crate::engines::treeline::node::Node;
use crate::engines::treeline::staged::from_key;
use crate::engines::treeline::version::TreelineVersion;
use crate::pages::{LoadedPages, PageStream, Reading};
use crate::run::RunPart;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::structure::SharedKey;
use std::ops::Bound;

/// Passes all readable data of `version` to `found`.
pub(in crate::engines::treeline) fn salvage(
    version: &TreelineVersion,
    found: &mut dyn Salvaged,
) -> Result<()> {
    let directory = &version.parts.directory;
    for (index, listed) in directory.nodes.iter().enumerate() {
        let Some(place) = listed.slot.reference() else { continue };
        let upper = directory.upper_of(index);
        match version.shared.node_cache.read(place, ()) {
            Ok(node) => groups(version.shared.node_cache.storage(), &node, upper, found)?,
            Err(error) => found.lost(listed.first.range_to(upper), error)?,
        }
    }
    for (staged, from) in version.parts.live().rev() {
        for table in &staged.tables {
            let bounds = KeyRange {
                lower: Bound::Included(table.first.to_bytes().into_owned()),
                upper: Bound::Included(table.last.to_bytes().into_owned()),
            };
            let range = from_key(&bounds, from);
            if range.is_empty() {
                continue;
            }
            table.run.salvage(&range, &mut |part| match part {
                RunPart::Entry(key, update) => found.update(key, update),
                RunPart::Gap(keys, cause) => found.lost(keys, cause),
            })?;
        }
    }
    Ok(())
}

fn groups(
    storage: &Storage,
    node: &Node,
    upper: Option<&SharedKey>,
    found: &mut dyn Salvaged,
) -> Result<()> {
    for (index, item) in node.items.iter().enumerate() {
        let upper = node.items.get(index + 1).map(|next| &next.first).or(upper);
        for page in 0..item.group.slots.len() {
            let range = Arc::new(page_range(item, page, upper));
            let read = LoadedPages::read(storage, &item.group, page..page + 1, Reading::Device);
            let read = read.map(Arc::new);
            let stream = read
                .and_then(|loaded| PageStream::new(&loaded, 0..1, &range, Direction::Ascending));
            match stream {
                Ok(stream) => entries(stream, &range, found)?,
                Err(error) => found.lost((*range).clone(), error)?,
            }
        }
    }
    Ok(())
}

fn entries(mut stream: PageStream, range: &KeyRange, found: &mut dyn Salvaged) -> Result<()> {
    while let Some(key) = stream.key() {
        found.update(key, stream.update())?;
        let last = key.to_vec();
        if let Err(error) = stream.advance() {
            return lose_rest(range, last, error, found);
        }
    }
    Ok(())
}

/// Reports the keys of a page after the last readable one.
fn lose_rest(
    range: &KeyRange,
    last: Vec<u8>,
    error: Error,
    found: &mut dyn Salvaged,
) -> Result<()> {
    found.lost(KeyRange { lower: Bound::Excluded(last), upper: range.upper.clone() }, error)
}
