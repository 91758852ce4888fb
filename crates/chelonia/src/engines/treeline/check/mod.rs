//! Checking: the walk over extents, verification, salvage, dumps.

pub mod describe;
pub mod extents;
pub mod salvage;
pub mod verify;

use super::node::Item;
use crate::base::keys::KeyRange;
use crate::structure::SharedKey;

/// The keys that belong to page `page` of a group, which ends before `upper`.
fn page_range(item: &Item, page: usize, upper: Option<&SharedKey>) -> KeyRange {
    let bounds = &item.group.bounds;
    let lower = match page.checked_sub(1) {
        Some(before) => bounds.key(&item.first, before),
        None => item.first.to_bytes().into_owned(),
    };
    if page < bounds.count() {
        return KeyRange::half_open(&lower, Some(&bounds.key(&item.first, page)));
    }
    let upper = upper.map(SharedKey::to_bytes);
    KeyRange::half_open(&lower, upper.as_deref())
}
