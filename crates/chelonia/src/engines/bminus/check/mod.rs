//! Checking: the walk over extents, verification, salvage, dumps.

pub mod describe;
pub mod extents;
pub mod salvage;
pub mod verify;

use super::node::Node;
use crate::base::keys::KeyRange;
use crate::structure::SharedKey;

/// The keys that belong to page `page` of a node from `first` to before `upper`.
fn page_range(node: &Node, page: usize, first: &SharedKey, upper: Option<&SharedKey>) -> KeyRange {
    let lower = if page == 0 { first } else { &node.pages[page].first };
    lower.range_to(node.pages.get(page + 1).map(|next| &next.first).or(upper))
}
