//! Pages of a group, read together.
//!
//! Cached pages are copied, missing ones are read by one batch, in which neighboring slots of one
//! generation are one read. Pages read for a merge are not cached: the merge writes them again.

use super::group::Group;
use crate::base::error::{Error, Result};
use crate::base::ids::Generation;
use crate::base::limits::BLOCK_BYTES;
use crate::memory::budget::{Charge, Use};
use crate::memory::slab::OwnedPages;
use crate::run::block::join_in_place;
use crate::storage::Storage;
use crate::storage::block::DATA_FILE;
use crate::storage::cache::{Heat, Presence, Priority};
use crate::storage::data_file::BlockRead;
use crate::storage::io::AlignedBuffer;

/// How pages are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// For a merge: cached pages are verified again, and nothing is counted as a use.
    Merge,
    /// For a scan: pages that were read are cached, for a short time.
    Scan,
    /// For lookups to come: pages that were read are cached.
    Ahead,
    /// To check what is on the device: around the cache.
    Device,
}

/// Pages of a group in memory, verified and joined.
pub struct LoadedPages {
    memory: Memory,
    page_bytes: usize,
    /// For each: the offset of the page in the data file, and the heat it had.
    places: Vec<(u64, Option<Heat>)>,
    bytes_read: u64,
}

/// Where loaded pages are.
enum Memory {
    /// For scans, which are short.
    Heap(AlignedBuffer, #[expect(dead_code, reason = "counts the buffer")] Charge),
    /// For merges: an allocator would keep buffers of that size among smaller allocations.
    Mapped(OwnedPages),
}

impl Memory {
    fn take(storage: &Storage, reading: Reading, bytes: usize) -> Result<Self> {
        let budget = storage.budget();
        if matches!(reading, Reading::Scan | Reading::Ahead) {
            let charge = budget.charge(Use::Scans, bytes as u64);
            return Ok(Self::Heap(AlignedBuffer::new(bytes), charge));
        }
        let pages = OwnedPages::take(bytes.max(BLOCK_BYTES), budget, Use::Work);
        pages.map(Self::Mapped).ok_or_else(Error::out_of_memory)
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(buffer, _) => buffer,
            Self::Mapped(pages) => pages.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(buffer, _) => buffer,
            Self::Mapped(pages) => pages.bytes_mut(),
        }
    }
}

impl LoadedPages {
    /// Reads `pages` of `group`, in the order given.
    pub fn read(
        storage: &Storage,
        group: &Group,
        pages: impl Iterator<Item = usize> + Clone,
        reading: Reading,
    ) -> Result<Self> {
        let blocks = group.place.page_blocks() as usize;
        let page_bytes = blocks * BLOCK_BYTES;
        let count = pages.clone().count();
        let mut memory = Memory::take(storage, reading, count * page_bytes)?;
        let bytes = memory.bytes_mut();
        let mut places = Vec::with_capacity(count);
        let mut missing: Vec<Missing> = Vec::new();
        for (at, page) in pages.enumerate() {
            let slot = group.slots[page];
            let heat = group.heat(page);
            places.push((group.owned_page(page).extent.offset(), heat));
            let target = &mut bytes[at * page_bytes..(at + 1) * page_bytes];
            if reading != Reading::Device && copy_cached(storage, group, slot, target, reading) {
                continue;
            }
            let generation = group.place.cached().generation_of(group.place.block_of(slot));
            match missing.last_mut() {
                Some(last) if last.continues(at, slot, generation) => last.count += 1,
                _ => missing.push(Missing { at, slot, generation, count: 1 }),
            }
        }
        let bytes_read = read_missing(storage, group, &missing, bytes)?;
        match reading {
            Reading::Scan => cache(storage, group, &missing, bytes, Priority::Scan),
            Reading::Ahead => cache(storage, group, &missing, bytes, Priority::Data),
            Reading::Merge | Reading::Device => {}
        }
        let mut loaded = Self { memory, page_bytes, places, bytes_read };
        if blocks > 1 {
            for page in 0..count {
                let joined = join_in_place(
                    &mut loaded.memory.bytes_mut()[page * page_bytes..][..page_bytes],
                );
                joined.map_err(|error| loaded.blame(page, error))?;
            }
        }
        Ok(loaded)
    }

    /// While memory is ample, caches all pages of a group of which `page` is wanted and not cached:
    /// a large read takes little longer than a small one.
    pub fn read_ahead(storage: &Storage, group: &Group, page: usize) {
        if storage.budget().is_ample() && group.presence(page) == Presence::Absent {
            for (cached, block) in group.wanted(page) {
                cached.count_miss(block);
            }
            // Damage is reported to the readers of the damaged page.
            let _ = Self::read(storage, group, 0..group.slots.len(), Reading::Ahead);
        }
    }

    /// Number of pages.
    #[must_use]
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The joined bytes of a page.
    #[inline]
    #[must_use]
    pub fn bytes(&self, page: usize) -> &[u8] {
        &self.memory.bytes()[page * self.page_bytes..(page + 1) * self.page_bytes]
    }

    /// The heat that a page had in the cache.
    #[must_use]
    pub fn heat(&self, page: usize) -> Option<Heat> {
        self.places[page].1
    }

    /// Bytes read from the device.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Adds the location of a page to an error.
    #[must_use]
    pub fn blame(&self, page: usize, error: Error) -> Error {
        error.at(DATA_FILE, self.places[page].0)
    }
}

/// Consecutive slots to read, for consecutive pages of a batch.
struct Missing {
    at: usize,
    slot: u8,
    generation: Generation,
    count: usize,
}

impl Missing {
    fn continues(&self, at: usize, slot: u8, generation: Generation) -> bool {
        self.at + self.count == at
            && usize::from(self.slot) + self.count == usize::from(slot)
            && self.generation == generation
    }
}

fn copy_cached(
    storage: &Storage,
    group: &Group,
    slot: u8,
    target: &mut [u8],
    reading: Reading,
) -> bool {
    let guard = storage.epochs().pin();
    let first = group.place.block_of(slot);
    let cached = group.place.cached();
    target.chunks_exact_mut(BLOCK_BYTES).zip(first..).all(|(target, block)| {
        let found = match reading {
            Reading::Scan => cached.cached(block, &guard),
            _ => cached.peek(block, &guard),
        };
        found.map(|bytes| target.copy_from_slice(&bytes)).is_some()
    })
}

fn read_missing(
    storage: &Storage,
    group: &Group,
    missing: &[Missing],
    bytes: &mut [u8],
) -> Result<u64> {
    let page_bytes = group.place.page_blocks() as usize * BLOCK_BYTES;
    let mut reads = Vec::with_capacity(missing.len());
    let (mut rest, mut at, mut sum) = (bytes, 0, 0);
    for part in missing {
        let (_, from) = rest.split_at_mut((part.at - at) * page_bytes);
        let (buffer, behind) = from.split_at_mut(part.count * page_bytes);
        sum += buffer.len() as u64;
        let first = group.place.number_of(part.slot);
        reads.push(BlockRead { first, generation: part.generation, buffer });
        (rest, at) = (behind, part.at + part.count);
    }
    if !reads.is_empty() {
        storage.read_many(&mut reads)?;
    }
    Ok(sum)
}

fn cache(storage: &Storage, group: &Group, missing: &[Missing], bytes: &[u8], priority: Priority) {
    let guard = storage.epochs().pin();
    let blocks = group.place.page_blocks() as usize;
    for part in missing {
        let first = group.place.block_of(part.slot);
        let start = part.at * blocks * BLOCK_BYTES;
        let read = bytes[start..].chunks_exact(BLOCK_BYTES).take(part.count * blocks);
        for (block, bytes) in (first..).zip(read) {
            if priority == Priority::Scan {
                group.place.cached().count_miss(block);
            }
            group.place.cached().insert(block, bytes, priority, &guard);
        }
    }
}
