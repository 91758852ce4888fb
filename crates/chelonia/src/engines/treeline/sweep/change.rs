//! The next images of pages of a group that is updated in place.

use crate::base::error::{Error, Result};
use crate::base::keys::separator;
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::LargeRef;
use crate::engines::treeline::node::Item;
use crate::memory::budget::Use;
use crate::memory::slab::OwnedPages;
use crate::pages::{Bounds, Group, PageBuilder};
use crate::run::Totals;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::cache::Heat;
use std::collections::BTreeSet;
use std::ops::Range;

/// New images of pages of a group.
pub(super) struct Change {
    pub page_blocks: usize,
    /// Their bytes, one after the other.
    pub bytes: OwnedPages,
    pub images: Vec<Image>,
    pub lost_totals: Totals,
    pub lost_large: u32,
    pub new_totals: Totals,
    pub new_large: u32,
    pub consumed: BTreeSet<LargeRef>,
    pub written: Vec<LargeRef>,
    pub splits: u64,
}

pub(super) struct Image {
    /// The page that it comes from.
    pub page: usize,
    pub heat: Option<Heat>,
    /// First and last key.
    pub first: Vec<u8>,
    pub last: Vec<u8>,
}

impl Change {
    /// Creates a change of up to `images_max` images, at least one.
    pub fn new(storage: &Storage, group: &Group, images_max: usize) -> Result<Self> {
        let page_bytes = group.place.page_blocks() as usize * BLOCK_BYTES;
        let bytes = OwnedPages::take(images_max * page_bytes, storage.budget(), Use::Work);
        Ok(Self {
            page_blocks: group.place.page_blocks() as usize,
            bytes: bytes.ok_or_else(Error::out_of_memory)?,
            images: Vec::new(),
            lost_totals: Totals::default(),
            lost_large: 0,
            new_totals: Totals::default(),
            new_large: 0,
            consumed: BTreeSet::new(),
            written: Vec::new(),
            splits: 0,
        })
    }

    /// Lays out `page`, a result of page `from`; false if there is no slot for it.
    pub fn close(
        &mut self,
        page: &mut PageBuilder,
        from: usize,
        heat: Option<Heat>,
    ) -> Result<bool> {
        let bytes = self.page_blocks * BLOCK_BYTES;
        let start = self.images.len() * bytes;
        let Some(target) = self.bytes.bytes_mut().get_mut(start..start + bytes) else {
            return Ok(false);
        };
        let first = page.first_key().unwrap_or_default().to_vec();
        let last = page.last_key().unwrap_or_default().to_vec();
        let (totals, large) = page.totals();
        page.lay_out(target)?;
        self.new_totals += totals;
        self.new_large += large;
        self.images.push(Image { page: from, heat, first, last });
        Ok(true)
    }

    /// Number of entries that came, less those that went.
    pub fn inserts(&self) -> u64 {
        self.new_totals.entries.saturating_sub(self.lost_totals.entries)
    }

    /// The totals of the group after the change.
    pub fn totals_of(&self, group: &Group) -> Totals {
        let mut totals = group.totals;
        totals -= self.lost_totals;
        totals += self.new_totals;
        totals
    }

    /// The group after the change: its images are in the first of the `free` slots.
    pub fn group(&self, item: &Item, touched: &[(usize, Range<usize>)], free: &[u8]) -> Group {
        let group = &*item.group;
        let mut is_same = self.images.len() == touched.len();
        let (mut slots, mut bounds) = (Vec::new(), Vec::new());
        let mut images = self.images.iter().zip(free).peekable();
        for (page, slot) in group.slots.iter().enumerate() {
            let mut bound = page.checked_sub(1).map(|at| group.bounds.key(&item.first, at));
            if !touched.iter().any(|(other, _)| *other == page) {
                bounds.extend(bound.filter(|_| !slots.is_empty()));
                slots.push(*slot);
                continue;
            }
            is_same &= images.peek().is_some_and(|(image, _)| image.page == page);
            let mut last: Option<&Image> = None;
            while let Some((image, slot)) = images.next_if(|(image, _)| image.page == page) {
                if let Some(last) = last {
                    bound = Some(separator(&last.last, &image.first));
                }
                bounds.extend(bound.take().filter(|_| !slots.is_empty()));
                slots.push(*slot);
                last = Some(image);
            }
        }
        Group {
            place: Arc::clone(&group.place),
            slots: slots.into(),
            // Unless a page was divided or emptied, bounds stay, a line in particular.
            bounds: match is_same {
                true => group.bounds.clone(),
                false => Bounds::new(&item.first, &bounds),
            },
            totals: self.totals_of(group),
            large: (group.large + self.new_large).saturating_sub(self.lost_large),
        }
    }
}
