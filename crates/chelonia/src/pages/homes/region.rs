//! A region: what is known of the homes of an extent, and their pages in the cache.
//!
//! Nothing of this is stored. A home is unknown until it was read; then the stamps of its places
//! are remembered, with the time for which that is complete:
//!
//! ```text
//!   known as of 40     [ 20 | 23 | 27 | 31 ]
//!   valid for          versions up to 40, and later ones in which the node was last changed
//!                      at 40 or before
//! ```
//!
//! A node that was evicted and is loaded again has another `Region` for the same extent. If an
//! absorb writes homes meanwhile through the first one, the second one does not learn of it; but
//! the new version says that the node was changed, so what the second one knows is too old for it.
//!
//! Cached pages are merged: base and delta in one. A home has two sets of frames, so that the image
//! before stays while the next one is put into the cache. Each frame has the stamp of its image;
//! frames of two images are never taken for one page.

use super::places::{Image, Places};
use super::slotted::PageBytes;
use super::stamps::{HeldStamps, View};
use super::{HomeLayout, PART_BYTES, PART_START};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::BLOCK_BYTES;
use crate::engine::{ExtentKind, OwnedExtent};
use crate::memory::epoch::Guard;
use crate::runtime::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::storage::Storage;
use crate::storage::block::{BlockKind, seal};
use crate::storage::cache::{CachedBlock, CachedExtent, Heat, Presence};
use std::ops::Range;

/// Maximum number of homes of a region.
pub const HOMES_MAX: usize = 16;

/// Pages of at most this many blocks are read in the cache without a copy.
const PARTS_MAX: usize = 4;

/// The newest image of a home, for lookups without a lock. Changed under the lock of the places.
#[derive(Default)]
struct Head {
    /// The stamp of the version for which the home is known; 0: it is not known, or just changes.
    as_of: AtomicU64,
    /// The stamp of the image; 0 if there is none.
    stamp: AtomicU64,
}

/// An extent of homes.
pub struct Region {
    extent: Extent,
    generation: Generation,
    /// The stamp of the absorb that allocated it: versions before do not know it.
    born: Generation,
    layout: HomeLayout,
    cached: CachedExtent,
    heads: Box<[Head]>,
    places: Mutex<Box<[Places]>>,
}

impl Region {
    /// Opens a region that the absorb with stamp `born` allocated with `generation`. Does no I/O.
    #[must_use]
    pub fn open(
        storage: &Storage,
        extent: Extent,
        (generation, born): (Generation, Generation),
        layout: HomeLayout,
    ) -> Arc<Self> {
        let homes = (extent.blocks / layout.home_blocks().max(1)) as usize;
        let sets = if layout.shadow { 2 } else { 1 };
        // Frames have numbers of their own, from the first block of the extent on.
        let frames = u32::try_from(homes).unwrap_or(0) * sets * layout.page_blocks;
        let cached = storage.cached(Extent::new(extent.start.0, frames), generation, 0);
        Arc::new(Self {
            extent,
            generation,
            born,
            layout,
            cached,
            heads: (0..homes).map(|_| Head::default()).collect(),
            places: Mutex::new(vec![Places::default(); homes].into()),
        })
    }

    /// The extent, for the walk over what a version refers to.
    #[must_use]
    pub fn owned(&self) -> OwnedExtent {
        let Self { extent, generation, .. } = *self;
        OwnedExtent { extent, generation, kind: ExtentKind::PageGroup }
    }

    /// The generation with which it was allocated.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The stamp of the absorb that allocated it.
    #[must_use]
    pub fn born(&self) -> Generation {
        self.born
    }

    /// The sizes of its homes.
    #[must_use]
    pub fn layout(&self) -> HomeLayout {
        self.layout
    }

    /// Number of homes.
    #[must_use]
    pub fn homes(&self) -> usize {
        self.heads.len()
    }

    /// The first block of a home.
    #[must_use]
    pub fn number_of(&self, home: u8) -> BlockNo {
        BlockNo(self.extent.start.0 + u64::from(home) * u64::from(self.layout.home_blocks()))
    }

    /// The blocks of a place of a home.
    #[must_use]
    pub fn place_of(&self, home: u8, place: u8) -> Extent {
        let blocks = self.layout.blocks_of(place);
        let first = self.number_of(home).0 + u64::from(blocks.start);
        Extent::new(first, blocks.end - blocks.start)
    }

    /// The place of a home in the data file, in bytes.
    #[must_use]
    pub fn offset_of(&self, home: u8) -> u64 {
        Extent::new(self.number_of(home).0, 1).offset()
    }

    /// Memory in bytes, without that of the cache, which charges it itself.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        /// Of the reference counts and two lists.
        const COUNTS_BYTES: usize = 48;
        let own = size_of::<Self>() - size_of::<CachedExtent>() + COUNTS_BYTES;
        (own + self.homes() * (size_of::<Head>() + size_of::<Places>())) as u64
    }

    /// Memory that the cache charges for it, without cached blocks, in bytes.
    #[must_use]
    pub fn cache_bytes(&self) -> u64 {
        self.cached.charged_bytes()
    }

    /// The stamp of the newest image of `home`, if that is known for a version in which the node
    /// was last changed at `changed`.
    #[inline]
    fn newest(&self, home: u8, changed: Generation) -> Option<Generation> {
        let head = self.heads.get(usize::from(home))?;
        let as_of = head.as_of.load(Ordering::SeqCst);
        let stamp = head.stamp.load(Ordering::SeqCst);
        let is_known = as_of != 0 && as_of >= changed.0;
        (is_known && head.as_of.load(Ordering::SeqCst) == as_of).then_some(Generation(stamp))
    }

    /// The image of `home` in the version with this view, in which the node was last changed at
    /// `changed`. `None`: not known, the home must be read.
    #[must_use]
    pub fn image(&self, home: u8, view: &View, changed: Generation) -> Option<Image> {
        self.places(home, changed)?.image(view)
    }

    /// The places of `home`, if they are known for that version.
    #[must_use]
    pub fn places(&self, home: u8, changed: Generation) -> Option<Places> {
        let places = self.places.lock();
        let as_of = self.as_of(home);
        (as_of.0 != 0 && as_of >= changed).then(|| places.get(usize::from(home)).copied())?
    }

    fn as_of(&self, home: u8) -> Generation {
        let head = self.heads.get(usize::from(home));
        Generation(head.map_or(0, |head| head.as_of.load(Ordering::SeqCst)))
    }

    /// Remembers the places of `home`, found by a reader of the version with this view: the images
    /// that it believes. Others are dead, or belong to versions for which this is not enough to
    /// know.
    pub fn learn(&self, home: u8, places: Places, view: &View) {
        let places = places.believed(view);
        let mut all = self.places.lock();
        let Some(own) = all.get_mut(usize::from(home)) else { return };
        let newest = |places: &Places| places.image(view).map(|image| image.stamp);
        // An image that is known but was not found is lost: what is known shows it to its readers.
        if self.as_of(home) < view.stamp && newest(own) <= newest(&places) {
            *own = places;
            self.set_head(home, newest(&places).unwrap_or_default(), view.stamp);
        }
    }

    fn set_head(&self, home: u8, stamp: Generation, as_of: Generation) {
        let head = &self.heads[usize::from(home)];
        head.as_of.store(0, Ordering::SeqCst);
        head.stamp.store(stamp.0, Ordering::SeqCst);
        head.as_of.store(as_of.0, Ordering::SeqCst);
    }

    /// Notes that `place` is about to be written: whatever happens, nobody needs what it had.
    pub fn begin_write(&self, home: u8, place: u8) {
        if let Some(own) = self.places.lock().get_mut(usize::from(home)) {
            own.set(place, Generation(0));
        }
    }

    /// Notes that a home that no version needs is about to get its first image: the places of an
    /// older use of it do not matter.
    pub fn begin_use(&self, home: u8, newest: &View) {
        let mut all = self.places.lock();
        let Some(own) = all.get_mut(usize::from(home)) else { return };
        *own = Places::default();
        self.set_head(home, Generation(0), newest.stamp.max(self.as_of(home)));
    }

    /// Records the new image in `place`, written by the absorb with this stamp, which succeeded.
    pub fn record(&self, home: u8, place: u8, stamp: Generation) {
        let mut all = self.places.lock();
        let Some(own) = all.get_mut(usize::from(home)) else { return };
        own.set(place, stamp);
        self.set_head(home, stamp, stamp);
    }

    /// Records for all homes that are known for a version in which the node was last changed at
    /// `changed` that the absorb with this stamp has left the others as they are.
    pub fn carry_over(&self, changed: Generation, stamp: Generation) {
        let _places = self.places.lock();
        for head in &self.heads {
            let as_of = head.as_of.load(Ordering::SeqCst);
            if as_of != 0 && as_of >= changed.0 && as_of < stamp.0 {
                head.as_of.store(stamp.0, Ordering::SeqCst);
            }
        }
    }

    /// True if `home`, in which the newest version has no page since `since`, may be used.
    #[must_use]
    pub fn is_free(&self, since: Generation, held: &HeldStamps, storage: &Storage) -> bool {
        self.is_writable(storage) && !held.any_in(self.born..since)
    }

    /// False if it is in a file that only a scratch file continues.
    #[must_use]
    pub fn is_writable(&self, storage: &Storage) -> bool {
        storage.is_writable_block(self.extent.start)
    }

    fn frames(&self, home: u8, set: u32) -> Range<u32> {
        let sets = if self.layout.shadow { 2 } else { 1 };
        let first = (u32::from(home) * sets + set % sets) * self.layout.page_blocks;
        first..first + self.layout.page_blocks
    }

    /// The set of frames that has the image with this stamp, going by its first frame.
    fn set_with(&self, home: u8, stamp: Generation, guard: &Guard) -> Option<u32> {
        let has = |set: &u32| {
            // No use of the block: the first one would otherwise stay longer than the others.
            let first = self.cached.cached_uncounted(self.frames(home, *set).start, guard);
            first.is_some_and(|block| stamp_of(&block) == stamp)
        };
        (0..if self.layout.shadow { 2 } else { 1 }).find(has)
    }

    /// Whether the newest page of `home` is in memory, and for how long.
    #[must_use]
    pub fn presence(&self, home: u8, guard: &Guard) -> Presence {
        let stamp = self.heads.get(usize::from(home)).map(|head| head.stamp.load(Ordering::SeqCst));
        let set = stamp.and_then(|stamp| self.set_with(home, Generation(stamp), guard));
        set.map_or_else(Presence::default, |set| {
            let blocks = self.frames(home, set).map(|block| self.cached.presence(block));
            blocks.min().unwrap_or_default()
        })
    }

    /// Reads the cached page of `home` in a version. `None` if it is not cached, or not known to be
    /// that of the version.
    #[inline]
    pub fn with_cached<R>(
        &self,
        home: u8,
        view: &View,
        changed: Generation,
        guard: &Guard,
        read: impl FnOnce(PageBytes<'_>) -> R,
    ) -> Option<R> {
        let stamp = match self.newest(home, changed) {
            Some(stamp) if view.believes(stamp) => stamp,
            // An older version may find its image in the other set.
            Some(_) => self.image(home, view, changed)?.stamp,
            None => return None,
        };
        let frames = self.frames(home, self.set_with(home, stamp, guard)?);
        let count = frames.len();
        if count <= PARTS_MAX {
            let mut blocks: [Option<CachedBlock<'_>>; PARTS_MAX] = [const { None }; PARTS_MAX];
            for (block, frame) in blocks.iter_mut().zip(frames) {
                *block = Some(self.frame(frame, stamp, guard)?);
            }
            let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
            for (part, block) in parts.iter_mut().zip(&blocks) {
                *part = block.as_ref().map_or(&[], |block| &block[PART_START..]);
            }
            return Some(read(PageBytes::Parts(&parts[..count])));
        }
        let mut page = Vec::with_capacity(count * PART_BYTES);
        for frame in frames {
            page.extend_from_slice(&self.frame(frame, stamp, guard)?[PART_START..]);
        }
        Some(read(PageBytes::Whole(&page)))
    }

    #[inline]
    fn frame<'g>(
        &'g self,
        frame: u32,
        stamp: Generation,
        guard: &'g Guard,
    ) -> Option<CachedBlock<'g>> {
        self.cached.cached(frame, guard).filter(|block| stamp_of(block) == stamp)
    }

    /// Copies the cached page with this stamp, verified again, for a caller that changes it; with
    /// its heat.
    pub fn copy_cached(
        &self,
        home: u8,
        stamp: Generation,
        page: &mut Vec<u8>,
        guard: &Guard,
    ) -> Option<Heat> {
        let frames = self.frames(home, self.set_with(home, stamp, guard)?);
        let heat = self.cached.heat(frames.start)?;
        page.clear();
        for frame in frames {
            let block = self.cached.peek_sealed(frame, stamp, guard)?;
            if stamp_of(&block) != stamp {
                return None;
            }
            page.extend_from_slice(&block[PART_START..]);
        }
        Some(heat)
    }

    /// Puts the merged page with this stamp into the cache, beside that of the newest image.
    pub fn cache(
        &self,
        storage: &Storage,
        (home, stamp): (u8, Generation),
        page: &[u8],
        heat: impl Into<Heat>,
    ) {
        let heat = heat.into();
        let guard = storage.epochs().pin();
        // One thread at a time: frames of two images are not mixed.
        let _places = self.places.lock();
        let newest = Generation(self.heads[usize::from(home)].stamp.load(Ordering::SeqCst));
        let set = match self.set_with(home, stamp, &guard) {
            Some(set) => set,
            None if self.set_with(home, newest, &guard) == Some(0) => 1,
            None => 0,
        };
        for (frame, part) in self.frames(home, set).zip(page.chunks(PART_BYTES)) {
            // The cache may have kept some blocks of the page.
            let kept = self.cached.cached_uncounted(frame, &guard);
            if kept.is_some_and(|block| stamp_of(&block) == stamp) {
                continue;
            }
            let mut block = [0; BLOCK_BYTES];
            head_block(&mut block, BlockKind::Page, stamp, self.generation);
            block[PART_START..PART_START + part.len()].copy_from_slice(part);
            let number = BlockNo(self.extent.start.0 + u64::from(frame));
            seal(&mut block, storage.salt(), stamp, number);
            self.cached.forget(frame);
            self.cached.insert(frame, &block, heat, &guard);
        }
    }

    /// Counts a read of the page of `home` that a larger cache might have saved.
    pub fn count_miss(&self, home: u8) {
        self.cached.count_miss(self.frames(home, 0).start);
    }

    /// Fails if it is not within the file.
    pub fn check_within(&self, storage: &Storage) -> Result<()> {
        if storage.holds(self.extent) {
            return Ok(());
        }
        Err(Error::corrupt("a region of pages lies beyond the data file"))
    }
}

/// The stamp of a block of a page.
pub(super) fn stamp_of(block: &[u8]) -> Generation {
    let stamp = block.get(16..24).and_then(|stamp| stamp.first_chunk());
    Generation(stamp.map_or(0, |stamp| u64::from_le_bytes(*stamp)))
}

/// The generation of the region in a block of a page.
pub(super) fn region_of(block: &[u8]) -> Generation {
    let region = block.get(24..32).and_then(|region| region.first_chunk());
    Generation(region.map_or(0, |region| u64::from_le_bytes(*region)))
}

/// Writes the head of a block of a page.
pub(super) fn head_block(block: &mut [u8], kind: BlockKind, stamp: Generation, region: Generation) {
    block[..PART_START].fill(0);
    block[8] = kind as u8;
    block[16..24].copy_from_slice(&stamp.0.to_le_bytes());
    block[24..32].copy_from_slice(&region.0.to_le_bytes());
}
