//! Homes from the device.
//!
//! If it is known where the image of a version is, its slot and its delta are read, else the whole
//! home: one read for each page, and those of several pages together.

use super::places::{Content, FoundPlaces, Image, Places, base_in};
use super::region::{Region, region_of, stamp_of};
use super::slotted::{Page, PageBytes};
use super::stamps::View;
use super::{PART_BYTES, PART_START, PLACES, segments};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::storage::Storage;
use crate::storage::block::{BlockKind, DATA_FILE};
use crate::storage::data_file::BlockRead;
use crate::storage::io::AlignedBuffer;
use std::ops::Range;

/// The page of a home in a version.
#[derive(Clone, Copy)]
pub struct Wanted<'w> {
    /// The region.
    pub region: &'w Region,
    /// The home in it.
    pub home: u8,
    /// The view of the version.
    pub view: &'w View,
    /// The image, if it is known ([`Region::image`]); otherwise the whole home is read.
    pub image: Option<Image>,
}

/// A page from the device.
pub struct HomeRead {
    /// Base and delta, merged.
    pub page: Vec<u8>,
    /// The stamp of the image.
    pub stamp: Generation,
    /// The stamps of all places, if the whole home was read.
    pub places: Option<Places>,
    /// A place of the home cannot be read: if the stamps of the node do not have the sum that the
    /// directory says, this is what is wrong. Nothing was learned then.
    pub suspect: Option<Error>,
}

/// The blocks of a home that are read, relative to its first.
fn span_of(wanted: &Wanted<'_>) -> Range<u32> {
    let layout = wanted.region.layout();
    let Some(image) = wanted.image else { return 0..layout.home_blocks() };
    let mut span = layout.blocks_of(image.slot);
    if let Some(delta) = image.delta {
        let delta = layout.blocks_of(delta);
        span = span.start.min(delta.start)..span.end.max(delta.end);
    }
    span
}

/// Bytes that the read of a page takes at most.
#[must_use]
pub fn read_bytes(wanted: &Wanted<'_>) -> usize {
    span_of(wanted).len() * BLOCK_BYTES
}

/// Reads the pages of `wanted`, in this order; `buffer` has space for all of their homes (aligned
/// for direct reads). The inner errors are of single pages.
pub fn read_homes(
    storage: &Storage,
    wanted: &[Wanted<'_>],
    buffer: &mut [u8],
) -> Result<Vec<Result<HomeRead>>> {
    let spans: Vec<_> = wanted.iter().map(span_of).collect();
    let mut reads = Vec::with_capacity(wanted.len());
    let mut rest = &mut *buffer;
    for (wanted, span) in wanted.iter().zip(&spans) {
        let bytes = span.len() * BLOCK_BYTES;
        let (own, behind) = rest
            .split_at_mut_checked(bytes)
            .ok_or_else(|| Error::internal("the buffer of reads is too small"))?;
        let first = BlockNo(wanted.region.number_of(wanted.home).0 + u64::from(span.start));
        reads.push(BlockRead { first, generation: Generation(0), buffer: own });
        rest = behind;
    }
    storage.read_unverified(&mut reads)?;
    let found = wanted.iter().zip(&spans).zip(&reads).map(|((wanted, span), read)| {
        let home = Home { storage, wanted, first: span.start, blocks: &*read.buffer };
        match wanted.image {
            Some(image) => home.known(image),
            None => home.unknown(),
        }
    });
    Ok(found.collect())
}

/// Overwrites the places of all homes of a region whose stamps are dead for `newest`, the view of
/// the newest version: no version believes them. Returns the places that cannot be read.
pub fn clear_dead(storage: &Storage, region: &Region, newest: &View) -> Result<Vec<Extent>> {
    let mut unreadable = Vec::new();
    let layout = region.layout();
    let mut buffer = AlignedBuffer::new(layout.home_blocks() as usize * BLOCK_BYTES);
    for home in 0..u8::try_from(region.homes()).unwrap_or(u8::MAX) {
        let first = region.number_of(home);
        let mut reads = [BlockRead { first, generation: Generation(0), buffer: &mut buffer }];
        storage.read_unverified(&mut reads)?;
        let wanted = Wanted { region, home, view: newest, image: None };
        for place in 0..u8::try_from(PLACES).unwrap_or(u8::MAX) {
            let blocks = layout.blocks_of(place);
            let found = Home { storage, wanted: &wanted, first: 0, blocks: &buffer };
            let content = if blocks.is_empty() { Content::Empty } else { found.content(place) };
            match content {
                Content::Written(stamp) if newest.dead.contains(stamp) => {
                    storage.zero_many(&[region.place_of(home, place)])?;
                }
                Content::Unreadable(_) => unreadable.push(region.place_of(home, place)),
                Content::Written(_) | Content::Empty => {}
            }
        }
    }
    Ok(unreadable)
}

/// Blocks of a home in memory.
struct Home<'h> {
    storage: &'h Storage,
    wanted: &'h Wanted<'h>,
    /// The first of them.
    first: u32,
    blocks: &'h [u8],
}

impl Home<'_> {
    fn block(&self, index: u32) -> &[u8] {
        let at = (index - self.first) as usize * BLOCK_BYTES;
        &self.blocks[at..at + BLOCK_BYTES]
    }

    fn number(&self, index: u32) -> BlockNo {
        BlockNo(self.wanted.region.number_of(self.wanted.home).0 + u64::from(index))
    }

    fn offset_of(&self, block: u32) -> u64 {
        self.number(block).0.saturating_mul(BLOCK_BYTES_U64)
    }

    /// True if the block is one that was written to it with this stamp.
    fn is_of(&self, index: u32, stamp: Generation, kind: BlockKind) -> bool {
        let block = self.block(index);
        block[8] == kind as u8
            && stamp_of(block) == stamp
            && region_of(block) == self.wanted.region.generation()
            && self.storage.verify_block(self.number(index), stamp, block).is_ok()
    }

    fn content(&self, place: u8) -> Content {
        let blocks = self.wanted.region.layout().blocks_of(place);
        let mut each = blocks.clone().map(|index| self.block(index));
        if each.all(|block| block.iter().all(|byte| *byte == 0)) {
            return Content::Empty;
        }
        let kind = if matches!(place, 0 | 3) { BlockKind::Page } else { BlockKind::Delta };
        let stamp = stamp_of(self.block(blocks.start));
        let Some(wrong) = blocks.clone().find(|index| !self.is_of(*index, stamp, kind)) else {
            return Content::Written(stamp);
        };
        // Blocks of another use of the space verify, but do not name this region.
        let is_foreign = |index: u32| {
            let block = self.block(index);
            region_of(block) != self.wanted.region.generation()
                && self.storage.verify_block(self.number(index), stamp_of(block), block).is_ok()
        };
        match blocks.clone().all(is_foreign) {
            true => Content::Empty,
            false => Content::Unreadable(wrong),
        }
    }

    /// The page of an image whose place is known: what is there must be just that.
    fn known(&self, image: Image) -> Result<HomeRead> {
        let layout = self.wanted.region.layout();
        for index in layout.blocks_of(image.slot) {
            if !self.is_of(index, image.base, BlockKind::Page) {
                return Err(self.missing(index));
            }
        }
        let delta = image.delta.map(|delta| layout.blocks_of(delta).start);
        if let Some(index) = delta
            && !self.is_of(index, image.stamp, BlockKind::Delta)
        {
            return Err(self.missing(index));
        }
        let page = self.merge(image)?;
        Ok(HomeRead { page, stamp: image.stamp, places: None, suspect: None })
    }

    fn missing(&self, block: u32) -> Error {
        let text = "a page is damaged, or not the one that was last written";
        Error::corrupt(text).at(DATA_FILE, self.offset_of(block))
    }

    /// The page of a home that is read wholly.
    fn unknown(&self) -> Result<HomeRead> {
        let contents: [Content; PLACES] =
            [0, 1, 2, 3].map(|place| match self.wanted.region.layout().blocks_of(place).len() {
                0 => Content::Empty,
                _ => self.content(place),
            });
        let bases = [1, 2].map(|place| {
            let blocks = self.wanted.region.layout().blocks_of(place);
            match blocks.len() {
                0 => Generation(0),
                _ => base_in(&self.block(blocks.start)[PART_START..]),
            }
        });
        let found = FoundPlaces::new(contents, bases);
        let unreadable = found.unreadable.map(|block| ("a block of a page does not verify", block));
        let suspect = unreadable.or_else(|| {
            let delta = found.lost_base(self.wanted.view)?;
            Some(("a page is lost: its delta shows that it was here", self.slot_of(delta)))
        });
        let suspect =
            suspect.map(|(text, block)| Error::corrupt(text).at(DATA_FILE, self.offset_of(block)));
        let Some(image) = found.places.image(self.wanted.view) else {
            return Err(suspect.unwrap_or_else(|| {
                let text = "a page has no image that belongs to this version";
                Error::corrupt(text).at(DATA_FILE, self.offset_of(0))
            }));
        };
        let page = self.merge(image)?;
        if suspect.is_none() {
            self.wanted.region.learn(self.wanted.home, found.places, self.wanted.view);
        }
        Ok(HomeRead { page, stamp: image.stamp, places: Some(found.places), suspect })
    }

    /// The first block of the slot that a delta names.
    fn slot_of(&self, delta: u8) -> u32 {
        let layout = self.wanted.region.layout();
        let part = &self.block(layout.blocks_of(delta).start)[PART_START..];
        layout.blocks_of(segments::slot_of(part)).start
    }

    /// Base and delta of an image, which were verified, as one page.
    fn merge(&self, image: Image) -> Result<Vec<u8>> {
        let layout = self.wanted.region.layout();
        let mut page = Vec::with_capacity(layout.page_blocks as usize * PART_BYTES);
        for index in layout.blocks_of(image.slot) {
            page.extend_from_slice(&self.block(index)[PART_START..]);
        }
        let merged = match image.delta {
            Some(delta) => {
                let part = &self.block(layout.blocks_of(delta).start)[PART_START..];
                segments::apply(&mut page, part)
            }
            None => Ok(()),
        };
        let checked = merged.and_then(|()| Page::parse(PageBytes::Whole(&page)).map(|_| ()));
        let start = layout.blocks_of(image.slot).start;
        checked.map_err(|error| error.at(DATA_FILE, self.offset_of(start)))?;
        Ok(page)
    }
}
