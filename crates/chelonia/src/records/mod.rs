//! The record cache: caches hot records instead of blocks.
//!
//! Where hot keys are scattered, a block of 4 KiB is cached for one record in it; the record alone
//! takes a thirtieth of that [TreeLine 3.1]. This cache holds copies of records that had to be read
//! from the device, or that were in cached blocks about to be evicted, and of some that were found
//! in other blocks ([`RecordCache::offer`]). It is consulted after the memtables and before the
//! version, for every engine.
//!
//! ```text
//!   get:     table (no lock) -> record                  heat + 1
//!   fill:    append to the newest slab, link            under the lock
//!   walk:    oldest slab: hot -> copied to the end, heat - 1; cold -> unlinked
//!   refresh: cached keys of a flushed memtable get their new values, or are removed
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | `record` | the bytes of one record |
//! | `queue` | slabs in the order they were filled |
//! | `table` | the lock-free hash table of records |
//!
//! Consistency: all cached records of a keyspace belong to its newest version, whose number is in
//! [`CacheEpoch`]. A flush first raises that number, then refreshes every key that it absorbed,
//! then publishes the view. So:
//! 1. A slow reader of an older version cannot insert stale data: its offer is refused, because its
//!    number is too small by then ([`RecordCache::offer`]).
//! 2. A reader of the newest state may use a cached record at any time: a key that changed since is
//!    still in a memtable of its view, which it checks first.
//! 3. A reader of an older state, or of several keys of one state, uses a record only if the number
//!    is that of its own version before and after ([`RecordCache::get_of_version`]).
//!
//! Safety: readers pin an epoch; a slab returns to the budget by a function deferred after its last
//! record was unlinked. Guards belong to the epochs of this cache: the table checks that before a
//! slot is read, and functions that write or release slabs check it once at their beginning.
//!
//! Locks: `writer`, then those of the budget and, through it, of the block cache. The budget may
//! request a slab from this cache at any time: the cache refuses if its lock is held.
//!
//! Thread-safety: everything may be called from any thread.

mod queue;
mod record;
mod table;

use crate::base::bytes::Value;
use crate::base::checksum::KeyHash;
use crate::base::ids::KeyspaceId;
use crate::base::stream::{SortedUpdates, Update};
use crate::memory::budget::{Budget, Reclaim, Reclaimed, Refused, Use};
use crate::memory::epoch::{Epochs, Guard};
use crate::memory::split::{Presence, Side};
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, Weak, thread_local};
use queue::Queue;
use record::{Record, bytes_of};
use std::cell::Cell;
use table::{Linked, Place, Sizes, Slot, Table};

/// Maximum size of a cached record: a walk may have to copy one, and few larger ones would fill a
/// slab.
pub const RECORD_BYTES_MAX: usize = 8 << 10;

/// Number of records that one fill walks past when there is no free space: more than it needs
/// itself, so that the hand keeps ahead although some are copied.
const WALK_STEPS: usize = 8;

/// Number of keys refreshed under one hold of the lock, and prefetched together.
const REFRESH_KEYS: usize = 32;

/// Maximum number of slabs that wait for earlier readers: one delayed slab delays the others.
const LEAVING_MAX: u64 = 4;

/// One in this many records found in blocks is cached.
const TRIED: u32 = 16;

/// Number of attempts of [`RecordCache::reclaim_slab`] to advance the epochs.
const RECLAIM_TRIES: usize = 4;

/// True once per [`TRIED`] calls, on each thread.
#[inline]
fn is_tried() -> bool {
    thread_local! {
        static TIMES: Cell<u32> = const { Cell::new(0) };
    }
    TIMES.with(|counted| {
        let times = counted.get().wrapping_add(1);
        counted.set(times);
        times.is_multiple_of(TRIED)
    })
}

/// The version that the cached records of a keyspace belong to.
pub struct CacheEpoch {
    keyspace: KeyspaceId,
    version: AtomicU64,
}

impl CacheEpoch {
    /// Creates the epoch of `keyspace`, whose newest version has this number, with no cached
    /// records.
    #[must_use]
    pub fn new(keyspace: KeyspaceId, version: u64) -> Self {
        Self { keyspace, version: AtomicU64::new(version) }
    }

    fn is(&self, version: u64) -> bool {
        self.version.load(Ordering::Acquire) == version
    }
}

/// The name of a record in the cache: keyspace and key.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    /// The epoch of its keyspace.
    pub of: &'a CacheEpoch,
    /// The key.
    pub key: &'a [u8],
    /// Its hash under the database's salt.
    pub hash: KeyHash,
}

impl Name<'_> {
    fn place(&self) -> Place {
        Place::new(mixed(self.of.keyspace, self.hash))
    }

    fn is_of(&self, record: Record<'_>) -> bool {
        record.keyspace() == self.of.keyspace && record.key() == self.key
    }
}

/// The hash of a key, different for each keyspace.
fn mixed(keyspace: KeyspaceId, hash: KeyHash) -> u64 {
    hash.0 ^ u64::from(keyspace.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Statistics of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RecordStats {
    /// Records in the cache.
    pub records: u64,
    /// Records added.
    pub fills: u64,
    /// Records evicted to free space.
    pub evictions: u64,
    /// Records whose key was absorbed; they were updated or removed.
    pub refreshed: u64,
}

/// The record cache of one database.
pub struct RecordCache {
    // Constant after construction.
    budget: Arc<Budget>,
    epochs: Arc<Epochs>,
    salt: u64,
    // Synchronised internally.
    table: Table,
    /// True if there may be a record: a cheap check while the cache is empty.
    occupied: AtomicBool,
    /// Slabs that were released, counted when they are freed.
    gone: Arc<AtomicU64>,
    writer: Mutex<Writer>,
}

/// State guarded by the lock.
struct Writer {
    queue: Queue,
    sizes: Sizes,
    stats: RecordStats,
    /// Slabs that were removed and have been or will be freed after their epochs.
    leaving: u64,
}

impl RecordCache {
    /// Creates an empty cache of a database with this salt. It takes slabs from `budget` as it is
    /// filled and returns them when the budget asks.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, epochs: &Arc<Epochs>, salt: u64) -> Arc<Self> {
        let (table, sizes) = Table::new(budget, epochs);
        let writer =
            Writer { queue: Queue::default(), sizes, stats: RecordStats::default(), leaving: 0 };
        let cache = Arc::new(Self {
            budget: Arc::clone(budget),
            epochs: Arc::clone(epochs),
            salt,
            table,
            occupied: AtomicBool::new(false),
            gone: Arc::default(),
            writer: Mutex::new(writer),
        });
        let reclaim: Weak<dyn Reclaim> = Arc::downgrade(&cache) as _;
        budget.set_reclaim(Side::Records, reclaim);
        cache
    }

    /// Prefetches the memory that a lookup of `name` touches first.
    #[inline]
    pub fn prefetch(&self, name: Name<'_>, guard: &Guard) {
        if self.occupied.load(Ordering::Relaxed) {
            self.table.prefetch(name.place(), guard);
        }
    }

    /// The value of `name` in the newest state, if it is cached. The caller must have checked the
    /// memtables of the newest view, or of one that was the newest when it began.
    #[inline]
    pub fn get<'g>(&'g self, name: Name<'_>, guard: &'g Guard) -> Option<&'g [u8]> {
        if !self.occupied.load(Ordering::Relaxed) {
            return None;
        }
        let mut candidates = self.table.candidates(name.place(), guard);
        let (_, record) = candidates.find(|(_, record)| {
            // The tag matched, so it is nearly always the record: prefetch all its lines.
            record.prefetch();
            name.is_of(*record)
        })?;
        record.warm();
        Some(record.value())
    }

    /// A copy of the value of `name` in the version with this number, if that is the newest one and
    /// the value is cached.
    pub fn get_of_version(&self, name: Name<'_>, version: u64, guard: &Guard) -> Option<Value> {
        if !name.of.is(version) {
            return None;
        }
        // A record of a newer version is linked after the number was raised: a reader that follows
        // the link sees the raised number.
        let value = self.get(name, guard)?;
        name.of.is(version).then(|| Value::copy_from(value))
    }

    /// Offers a value that was found in the version with this number, in a block that was where
    /// `presence` says. It is cached if it had to be read from the device, or if the block is about
    /// to be evicted: it is the one wanted record of the block. Of values in blocks that stay, or
    /// while blocks are worth more, only one in [`TRIED`] is cached: a frequently read key is soon
    /// cached, and found faster here.
    #[inline]
    pub fn offer(
        &self,
        name: Name<'_>,
        version: u64,
        value: &[u8],
        presence: Presence,
        guard: &Guard,
    ) {
        if presence == Presence::Absent {
            self.budget.split().missed(Side::Records, mixed(name.of.keyspace, name.hash));
        }
        let sure = presence != Presence::Settled && !self.budget.split().prefers_blocks();
        if sure || is_tried() {
            self.fill(name, version, value, guard);
        }
    }

    /// Caches a value that was found in the version with this number, unless there is a newer
    /// version.
    fn fill(&self, name: Name<'_>, version: u64, value: &[u8], guard: &Guard) {
        if bytes_of(name.key, value) > RECORD_BYTES_MAX {
            return;
        }
        guard.check(self.epochs.id());
        let mut writer = self.writer.lock();
        if !name.of.is(version) {
            return;
        }
        self.make_room(&mut writer, bytes_of(name.key, value), guard);
        let mut candidates = self.table.candidates(name.place(), guard);
        if candidates.any(|(_, record)| name.is_of(record)) {
            // Another reader cached it first.
            return;
        }
        let writer = &mut *writer;
        let appended = writer.queue.append(name.of.keyspace, name.key, value, 0, guard);
        let Some(record) = appended else { return };
        self.occupied.store(true, Ordering::Relaxed);
        let hash_of = |record: Record<'_>| self.hash_of(record);
        let linked = self.table.link(name.place(), record, &mut writer.sizes, &hash_of, guard);
        writer.stats.fills += 1;
        writer.stats.evictions += u64::from(matches!(linked, Linked::Instead));
    }

    /// Prepares the publication of the version with this number; `batches` are its new updates, the
    /// oldest batch first. From now on only values read in this version are cached.
    pub fn refresh<U: SortedUpdates>(&self, of: &CacheEpoch, version: u64, batches: &[U]) {
        {
            // Under the lock, so that no fill is between its check of the number and its link.
            let _writer = self.writer.lock();
            of.version.store(version, Ordering::Release);
        }
        if !self.occupied.load(Ordering::Relaxed) {
            return;
        }
        for batch in batches {
            for first in (0..batch.len()).step_by(REFRESH_KEYS) {
                self.refresh_some(of, batch, first..batch.len().min(first + REFRESH_KEYS));
            }
        }
    }

    fn refresh_some(
        &self,
        of: &CacheEpoch,
        batch: &impl SortedUpdates,
        ranks: std::ops::Range<usize>,
    ) {
        let guard = self.epochs.pin();
        let mut hashes = [KeyHash(0); REFRESH_KEYS];
        for (rank, hash) in ranks.clone().zip(&mut hashes) {
            batch.prefetch(rank + REFRESH_KEYS);
            *hash = KeyHash::new(batch.key(rank), self.salt);
            self.table.prefetch(Place::new(mixed(of.keyspace, *hash)), &guard);
        }
        for hash in hashes.iter().take(ranks.len()) {
            let place = Place::new(mixed(of.keyspace, *hash));
            self.table.candidates(place, &guard).for_each(|(_, record)| record.prefetch());
        }
        let mut writer = self.writer.lock();
        for (rank, hash) in ranks.zip(hashes) {
            let name = Name { of, key: batch.key(rank), hash };
            self.renew(&mut writer, name, batch.update(rank), &guard);
        }
    }

    /// Updates a cached record to its new value, or removes it.
    fn renew(&self, writer: &mut Writer, name: Name<'_>, update: Update<'_>, guard: &Guard) {
        let find = || {
            let mut candidates = self.table.candidates(name.place(), guard);
            candidates.find(|(_, record)| name.is_of(*record))
        };
        if find().is_none() {
            self.budget.split().flushed(mixed(name.of.keyspace, name.hash));
            return;
        }
        let value = match update {
            Update::Put(value) if bytes_of(name.key, value) <= RECORD_BYTES_MAX => Some(value),
            Update::Put(_) | Update::PutCompressed(_) | Update::PutLarge(_) | Update::Delete => {
                None
            }
        };
        if let Some(value) = value {
            self.make_room(writer, bytes_of(name.key, value), guard);
        }
        // The walk that freed space may have evicted this very record.
        let Some((slot, old)) = find() else { return mark(Mark::RecordEvictedARecord) };
        mark(Mark::RecordRefreshed);
        writer.stats.refreshed += 1;
        let renewed = value.and_then(|value| {
            writer.queue.append(name.of.keyspace, name.key, value, old.heat(), guard)
        });
        match renewed {
            Some(record) => Table::relink(slot, name.place(), record),
            None => self.unlink(writer, slot, name.place(), guard),
        }
    }

    /// Frees space for `bytes` if that is quick: takes another slab if the budget has one for this
    /// cache, now or soon; otherwise the hand advances a little.
    fn make_room(&self, writer: &mut Writer, bytes: usize, guard: &Guard) {
        if writer.queue.room() < bytes {
            writer.queue.begin_slab();
        }
        if !writer.queue.has_reserve() {
            match self.budget.take_slab(Use::Records) {
                Ok(slab) => writer.queue.set_reserve(slab),
                Err(Refused::Yet) => {}
                Err(Refused::Full) => {
                    self.walk(writer, WALK_STEPS, false, guard);
                }
            }
        }
        if writer.queue.room() < bytes {
            writer.queue.begin_slab();
        }
    }

    /// Advances the hand past at most `steps` records. True if it passed the end of a slab, which
    /// is freed after the current epochs.
    fn walk(&self, writer: &mut Writer, steps: usize, even_newest: bool, guard: &Guard) -> bool {
        for _ in 0..steps {
            match writer.queue.walk(even_newest, guard) {
                Some(record) => self.judge(writer, record, !even_newest, guard),
                None => break,
            }
        }
        let Some(slab) = writer.queue.take_walked() else { return false };
        writer.leaving += 1;
        let gone = Arc::clone(&self.gone);
        guard.defer(move || {
            drop(slab);
            gone.fetch_add(1, Ordering::Relaxed);
        });
        guard.flush();
        true
    }

    /// Decides on a record under the hand: if it is hot, and `may_stay`, it is copied to the end.
    fn judge(&self, writer: &mut Writer, record: Record<'_>, may_stay: bool, guard: &Guard) {
        let name = self.hash_of(record);
        let place = Place::new(name);
        let Some(slot) = self.table.slot_of(place, record.address(), guard) else { return };
        let (keyspace, heat) = (record.keyspace(), record.heat());
        if heat > 0
            && may_stay
            && let Some(copy) =
                writer.queue.append(keyspace, record.key(), record.value(), heat - 1, guard)
        {
            return Table::relink(slot, place, copy);
        }
        self.budget.split().evicted(Side::Records, name, record.slab_bytes() as u64);
        writer.stats.evictions += 1;
        self.unlink(writer, slot, place, guard);
    }

    fn unlink(&self, writer: &mut Writer, slot: &Slot, place: Place, guard: &Guard) {
        let hash_of = |record: Record<'_>| self.hash_of(record);
        self.table.unlink(slot, place, &mut writer.sizes, &hash_of, guard);
    }

    /// The hash of a record's name.
    fn hash_of(&self, record: Record<'_>) -> u64 {
        mixed(record.keyspace(), KeyHash::new(record.key(), self.salt))
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> RecordStats {
        let writer = self.writer.lock();
        RecordStats { records: writer.sizes.linked(), ..writer.stats }
    }
}

impl Reclaim for RecordCache {
    fn reclaim_slab(&self) -> Reclaimed {
        // The budget may ask on behalf of any thread, including the one that holds the lock.
        let Some(mut writer) = self.writer.try_lock() else { return Reclaimed::Nothing };
        if writer.queue.take_reserve().is_some() {
            return Reclaimed::Now;
        }
        let before = self.gone.load(Ordering::Relaxed);
        let guard = self.epochs.pin();
        if writer.leaving - before >= LEAVING_MAX {
            drop(writer);
            guard.flush();
            return Reclaimed::Soon;
        }
        let last = writer.queue.slabs() == 1;
        let passed = self.walk(&mut writer, usize::MAX, last, &guard);
        if writer.queue.slabs() == 0 {
            self.occupied.store(false, Ordering::Relaxed);
        }
        drop(writer);
        drop(guard);
        if !passed {
            return Reclaimed::Nothing;
        }
        for _ in 0..RECLAIM_TRIES {
            if self.gone.load(Ordering::Relaxed) > before {
                return Reclaimed::Now;
            }
            self.epochs.pin().flush();
        }
        Reclaimed::Soon
    }
}

#[cfg(test)]
mod tests;
