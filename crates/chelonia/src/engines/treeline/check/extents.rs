//! The walk over all extents of a version.

use crate::base::error::Result;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{LargeRef, SortedStream};
use crate::engine::OwnedExtent;
use crate::engines::treeline::node::{Listed, NodeCache};
use crate::engines::treeline::version::TreelineVersion;
use crate::pages::{Group, LoadedPages, PageStream, Reading};
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::structure::NodeRef;
use std::collections::BTreeSet;

/// Visits every extent that `version` refers to; fails at the end if a node, a list of large values
/// or a page with references to large values cannot be read.
pub(in crate::engines::treeline) fn walk_extents(
    version: &TreelineVersion,
    visit: &mut dyn FnMut(OwnedExtent) -> Result<()>,
) -> Result<()> {
    let mut unread = None;
    version.place.map(NodeRef::owned).map_or(Ok(()), &mut *visit)?;
    for (staged, from) in version.parts.live() {
        for table in &staged.tables {
            visit(table.owned())?;
            let mut large = BTreeSet::new();
            let listed = table.visit_large(from, &mut |reference| {
                large.insert(reference);
                Ok(())
            });
            unread = unread.or(listed.err());
            large.iter().map(OwnedExtent::from).try_for_each(&mut *visit)?;
        }
    }
    for listed in &version.parts.directory.nodes {
        let read = walk_node(&version.shared.node_cache, listed, visit)?;
        unread = unread.or(read.err());
    }
    unread.map_or(Ok(()), Err)
}

/// Visits the extents of a node; the inner error says what cannot be read.
fn walk_node(
    node_cache: &NodeCache,
    listed: &Listed,
    visit: &mut dyn FnMut(OwnedExtent) -> Result<()>,
) -> Result<Result<()>> {
    listed.slot.reference().map(NodeRef::owned).map_or(Ok(()), &mut *visit)?;
    let node = match node_cache.load_owned(&listed.slot) {
        Ok(node) => node,
        Err(error) => return Ok(Err(error)),
    };
    let mut unread = Ok(());
    for item in &node.items {
        item.group.all_owned().try_for_each(&mut *visit)?;
        let (large, read) = large_of(node_cache.storage(), &item.group);
        large.iter().map(OwnedExtent::from).try_for_each(&mut *visit)?;
        unread = unread.and(read);
    }
    Ok(unread)
}

/// The large values that the pages of a group refer to, and whether all pages could be read.
fn large_of(storage: &Storage, group: &Group) -> (BTreeSet<LargeRef>, Result<()>) {
    let mut large = BTreeSet::new();
    if group.large == 0 {
        return (large, Ok(()));
    }
    let mut unread = Ok(());
    for page in 0..group.slots.len() {
        let read = LoadedPages::read(storage, group, page..page + 1, Reading::Merge);
        unread = unread.and(read.and_then(|loaded| collect(&Arc::new(loaded), &mut large)));
    }
    (large, unread)
}

fn collect(loaded: &Arc<LoadedPages>, large: &mut BTreeSet<LargeRef>) -> Result<()> {
    let all = Arc::new(KeyRange::all());
    let mut stream = PageStream::new(loaded, 0..loaded.count(), &all, Direction::Ascending)?;
    while stream.key().is_some() {
        large.extend(stream.update().large());
        stream.advance()?;
    }
    Ok(())
}
