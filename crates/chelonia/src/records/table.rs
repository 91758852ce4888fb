//! The index of cached records: a hash table that is read without a lock.
//!
//! ```text
//!   hash   | 16 bits: tag | ... shard ... | ... set ... |
//!
//!   shard  [set][set][set] ...                 grows and shrinks by itself, by doubling; an
//!                                              empty one has no sets
//!   set    16 slots of 8 bytes, two lines      slot: 0, or tag << 48 | address of a record
//! ```
//!
//! A record is in its set or nowhere: a full set drops one for a new one. So a search never leaves
//! a set, and an emptied slot hides nothing.
//!
//! Writers hold the lock of the cache; readers pin an epoch. A record is read only after the tag of
//! its slot matched. While a shard is resized, readers may find it empty for a moment, which a
//! cache allows.
//!
//! Invariants:
//! 1. The record at a slot's address has the tag, shard and set of that slot, and is linked by no
//!    other slot.
//! 2. An unlinked record is unchanged until all epochs of the time are over.

#![expect(unsafe_code, reason = "an island: slots lead to the raw memory of slabs")]

use super::record::Record;
use crate::kernels::prefetch::prefetch_read;
use crate::memory::budget::{Budget, Charge, Use};
use crate::memory::epoch::{EpochSlots, Epochs, Guard};
use crate::memory::pages::{PAGE_BYTES, Pages};
use crate::runtime::sync::{Arc, AtomicPtr, Ordering};
use std::ptr::{NonNull, null_mut};

/// Slots of a set.
const SLOTS: usize = 16;

const TAG_SHIFT: u32 = 48;
const ADDRESS_MASK: usize = (1 << TAG_SHIFT) - 1;

/// Number of shards: a power of two, at most 2^16. Large enough that doubling one causes no pause,
/// whatever the budget becomes; an empty shard takes twelve bytes.
const SHARDS: usize = 1 << 12;

/// A shard doubles when more of its slots than this are in use, in percent.
const FULL_PERCENT: usize = 75;

/// A shard halves when fewer of its slots than this are in use, in percent.
const EMPTY_PERCENT: usize = 20;

/// The address of a record, or null.
pub(super) type Slot = AtomicPtr<u8>;

/// Slots that share their two lines.
#[derive(Default)]
#[repr(align(128))]
struct Set([Slot; SLOTS]);

/// The sets of a shard, a power of two.
enum Sets {
    /// Less than a page.
    Few(Box<[Set]>),
    /// Separate pages, which return to the system when it is dropped.
    Many(Pages),
}

impl Sets {
    /// Allocates empty sets; `None` if the system refuses the memory.
    fn new(count: usize) -> Option<Self> {
        if count * size_of::<Set>() < PAGE_BYTES {
            return Some(Self::Few((0..count).map(|_| Set::default()).collect()));
        }
        Pages::map(count * size_of::<Set>()).map(Self::Many)
    }
}

impl std::ops::Deref for Sets {
    type Target = [Set];

    #[inline]
    fn deref(&self) -> &[Set] {
        let pages = match self {
            Self::Few(sets) => return sets,
            Self::Many(pages) => pages,
        };
        let count = pages.len() / size_of::<Set>();
        // SAFETY: the pages hold this many sets, are aligned to more than one, and were zeros
        // first, which are empty slots; they are written through slots only, as long as `self`.
        unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), count) }
    }
}

/// The position of a name in the table.
#[derive(Clone, Copy)]
pub(super) struct Place {
    hash: u64,
}

impl Place {
    pub fn new(hash: u64) -> Self {
        Self { hash }
    }

    fn tag(self) -> usize {
        (self.hash >> TAG_SHIFT) as usize
    }

    fn shard<'g>(self, table: &'g Table, guard: &'g Guard) -> Option<&'g Sets> {
        table.shards.get(self.shard_index(table), guard)
    }

    fn shard_index(self, table: &Table) -> usize {
        (self.hash >> 32) as usize & (table.shards.count() - 1)
    }

    fn set(self, sets: &[Set]) -> &Set {
        &sets[(self.hash & 0xffff_ffff) as usize & (sets.len() - 1)]
    }
}

/// All shards.
pub(super) struct Table {
    shards: EpochSlots<Sets>,
}

/// State of the table used by writers only.
pub(super) struct Sizes {
    used: Box<[u32]>,
    charge: Charge,
}

/// Result of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Linked {
    /// The number of records grew by one.
    Added,
    /// The set was full: another record was dropped.
    Instead,
}

impl Table {
    /// Creates an empty table and its writer state.
    pub fn new(budget: &Arc<Budget>, epochs: &Epochs) -> (Self, Sizes) {
        let shards = EpochSlots::empty(SHARDS, epochs);
        let bytes = (SHARDS * (EpochSlots::<Sets>::SLOT_BYTES + size_of::<u32>())) as u64;
        let charge = budget.charge(Use::Records, bytes);
        (Self { shards }, Sizes { used: vec![0; SHARDS].into(), charge })
    }

    /// Prefetches the lines of the set of `place`.
    #[inline]
    pub fn prefetch(&self, place: Place, guard: &Guard) {
        if let Some(sets) = place.shard(self, guard) {
            let set: *const Set = place.set(sets);
            prefetch_read(set.cast());
            prefetch_read(set.cast::<u8>().wrapping_add(64));
        }
    }

    /// The records that may have the name of `place`, each with its slot.
    #[inline]
    pub fn candidates<'g>(
        &'g self,
        place: Place,
        guard: &'g Guard,
    ) -> impl Iterator<Item = (&'g Slot, Record<'g>)> {
        let set = place.shard(self, guard).map(|sets| place.set(sets));
        set.into_iter().flat_map(|set| &set.0).filter_map(move |slot| {
            // Acquire: the record was written before it was linked.
            let linked = slot.load(Ordering::Acquire);
            let matches = !linked.is_null() && linked.addr() >> TAG_SHIFT == place.tag();
            // SAFETY: what is linked was written before, and stays as long as `guard`
            // (invariant 2).
            let record = |address| unsafe { Record::at(address) };
            if matches { address_of(linked).map(|address| (slot, record(address))) } else { None }
        })
    }

    /// The slot that links the record at `address`, whose name belongs to `place`.
    pub fn slot_of<'g>(
        &'g self,
        place: Place,
        address: NonNull<u8>,
        guard: &'g Guard,
    ) -> Option<&'g Slot> {
        let mut candidates = self.candidates(place, guard);
        candidates.find(|(_, record)| record.address() == address).map(|(slot, _)| slot)
    }

    /// Links `record` at `place`, where no other record has its name. A full set drops the record
    /// in the slot chosen by the hash. Under the cache's lock; `hash_of` returns the hash of linked
    /// records.
    pub fn link(
        &self,
        place: Place,
        record: Record<'_>,
        sizes: &mut Sizes,
        hash_of: &dyn Fn(Record<'_>) -> u64,
        guard: &Guard,
    ) -> Linked {
        let shard = place.shard_index(self);
        let mut sets = match self.shards.get(shard, guard) {
            Some(sets) => sets,
            None => {
                let one = Self::make(1, sizes).expect("less than a page comes from the heap");
                self.shards.put(shard, one, guard).0
            }
        };
        if (sizes.used[shard] as usize + 1) * 100 > sets.len() * SLOTS * FULL_PERCENT {
            sets = self.resize(shard, 2 * sets.len(), sizes, hash_of, guard).unwrap_or(sets);
        }
        let slots = &place.set(sets).0;
        let free = slots.iter().find(|slot| slot.load(Ordering::Relaxed).is_null());
        let victim = &slots[(place.hash >> 28) as usize % SLOTS];
        Self::relink(free.unwrap_or(victim), place, record);
        sizes.used[shard] += u32::from(free.is_some());
        if free.is_some() { Linked::Added } else { Linked::Instead }
    }

    /// Points `slot`, which is at `place`, to `record`. Under the cache's lock.
    pub fn relink(slot: &Slot, place: Place, record: Record<'_>) {
        // Release: a reader that follows the slot sees the record.
        slot.store(tagged(place, record.address()), Ordering::Release);
    }

    /// Empties `slot`, which is at `place`. Under the cache's lock.
    pub fn unlink(
        &self,
        slot: &Slot,
        place: Place,
        sizes: &mut Sizes,
        hash_of: &dyn Fn(Record<'_>) -> u64,
        guard: &Guard,
    ) {
        slot.store(null_mut(), Ordering::Release);
        let shard = place.shard_index(self);
        sizes.used[shard] -= 1;
        let Some(sets) = self.shards.get(shard, guard) else { return };
        let used = sizes.used[shard] as usize;
        if used == 0 {
            let bytes = size_of_val(&sets[..]) as u64;
            self.shards.clear(shard, guard);
            sizes.charge.resize(sizes.charge.bytes() - bytes);
        } else if sets.len() > 1 && used * 100 < sets.len() * SLOTS * EMPTY_PERCENT {
            self.resize(shard, sets.len() / 2, sizes, hash_of, guard);
        }
    }

    fn make(count: usize, sizes: &mut Sizes) -> Option<Sets> {
        let sets = Sets::new(count)?;
        sizes.charge.resize(sizes.charge.bytes() + (count * size_of::<Set>()) as u64);
        Some(sets)
    }

    /// Resizes a shard. Records that find no free slot are dropped. `None`, and no change, if the
    /// system refuses the memory.
    fn resize<'g>(
        &'g self,
        shard: usize,
        count: usize,
        sizes: &mut Sizes,
        hash_of: &dyn Fn(Record<'_>) -> u64,
        guard: &'g Guard,
    ) -> Option<&'g Sets> {
        let next = Self::make(count, sizes)?;
        let old = self.shards.get(shard, guard).map_or(&[][..], |sets| &sets[..]);
        let linked = || old.iter().flat_map(|set| &set.0).map(|slot| slot.load(Ordering::Relaxed));
        sizes.used[shard] = 0;
        // Later records are prefetched: otherwise each is a cache miss.
        let mut ahead = linked().skip(8);
        for slot in linked() {
            if let Some(later) = ahead.next() {
                prefetch_read(later.map_addr(|address| address & ADDRESS_MASK));
            }
            let Some(address) = address_of(slot) else { continue };
            // SAFETY: it is linked, and the cache's lock is held: it stays (invariant 2).
            let place = Place::new(hash_of(unsafe { Record::at(address) }));
            let mut slots = place.set(&next).0.iter();
            if let Some(free) = slots.find(|slot| slot.load(Ordering::Relaxed).is_null()) {
                free.store(slot, Ordering::Relaxed);
                sizes.used[shard] += 1;
            }
        }
        let before = size_of_val(old) as u64;
        self.shards.clear(shard, guard);
        let next = self.shards.put(shard, next, guard).0;
        sizes.charge.resize(sizes.charge.bytes() - before);
        Some(next)
    }
}

impl Sizes {
    /// Number of linked records.
    pub fn linked(&self) -> u64 {
        self.used.iter().map(|used| u64::from(*used)).sum()
    }
}

/// True if a slot can store `address` beside a tag. All addresses that the system returns by
/// default can be stored.
pub(super) fn fits_a_slot(address: NonNull<u8>) -> bool {
    address.addr().get() <= ADDRESS_MASK
}

fn tagged(place: Place, address: NonNull<u8>) -> *mut u8 {
    address.as_ptr().map_addr(|address| address | (place.tag() << TAG_SHIFT))
}

fn address_of(linked: *mut u8) -> Option<NonNull<u8>> {
    NonNull::new(linked.map_addr(|address| address & ADDRESS_MASK))
}
