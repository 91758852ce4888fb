//! The record cache: hot records, not blocks.
//!
//! Where hot keys are scattered, a block of 4 KiB is kept for the sake of one record in it; the
//! record alone takes a thirtieth [TreeLine 3.1]. This cache holds copies of records that had to be
//! read from the device, or that were in cached blocks about to go, and of some that were found in
//! other blocks ([`RecordCache::offer`]). It stands between memtables and versions, for every
//! engine.
//!
//! ```text
//!   get:     table (no lock) -> record                  heat + 1
//!   fill:    append to the newest slab, link            under the lock
//!   walk:    oldest slab: hot -> copied to the end, colder by one; cold -> unlinked
//!   refresh: a drained memtable's keys that are here get their new values, or go
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | `record` | the bytes of one record |
//! | `queue` | slabs in the order they were filled |
//! | `table` | the hash table that readers look into |
//!
//! Which state a record is of: all of a keyspace's records belong to its newest version,
//! whose number is in [`CacheEpoch`]. A flush first raises that number, then refreshes every key
//! that it absorbed, then publishes the view. So:
//! 1. A reader of an older version may be slow: what it read is refused, for its number is too
//!    small by then ([`RecordCache::offer`]).
//! 2. Who reads the newest state may use what it finds at any time: a key that changed since is
//!    still in a memtable of its view, which it asks first.
//! 3. Who reads an older state, or several keys of one, uses a record only if the number is that of
//!    its own version before and after ([`RecordCache::get_of_version`]).
//!
//! Safety: readers pin an epoch; a slab goes back to the budget by a function deferred after its
//! last record was unlinked. Guards are of the epochs of this cache: the table checks that before a
//! slot is read, and what writes to slabs or lets them go checks it once at its beginning.
//!
//! Locks: `writer`, then those of the budget and, through it, of the block cache. The budget may
//! ask this cache for a slab at any time: it gives none if its lock is held.
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
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, Weak};
use queue::Queue;
use record::{Record, bytes_of};
use std::cell::Cell;
use table::{Linked, Place, Sizes, Slot, Table};

/// Records of more bytes than this are not kept: a walk may have to copy one, and few would fill a
/// slab.
pub const RECORD_BYTES_MAX: usize = 8 << 10;

/// Records that one fill walks past when there is no room: more than it needs for itself, so that
/// the hand keeps ahead although some are copied.
const WALK_STEPS: usize = 8;

/// Keys that are refreshed under one hold of the lock, and whose lines are asked for together.
const REFRESH_KEYS: usize = 32;

/// At most so many slabs wait for readers of the time before: what delays one delays the others.
const LEAVING_MAX: u64 = 4;

/// One of so many records that are in blocks is kept.
const TRIED: u32 = 16;

/// How often [`RecordCache::reclaim_slab`] tries to move epochs on.
const RECLAIM_TRIES: usize = 4;

/// True once in [`TRIED`] times, on each thread.
#[inline]
fn is_tried() -> bool {
    thread_local! {
        static TIMES: Cell<u32> = const { Cell::new(0) };
    }
    let times = TIMES.get().wrapping_add(1);
    TIMES.set(times);
    times.is_multiple_of(TRIED)
}

/// The version that the cached records of a keyspace belong to.
pub struct CacheEpoch {
    keyspace: KeyspaceId,
    version: AtomicU64,
}

impl CacheEpoch {
    /// Nothing is cached of `keyspace`, whose newest version has this number.
    #[must_use]
    pub fn new(keyspace: KeyspaceId, version: u64) -> Self {
        Self { keyspace, version: AtomicU64::new(version) }
    }

    fn is(&self, version: u64) -> bool {
        self.version.load(Ordering::Acquire) == version
    }
}

/// A key as the cache knows it.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    /// Whose it is.
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

/// The hash of a key, other for each keyspace.
fn mixed(keyspace: KeyspaceId, hash: KeyHash) -> u64 {
    hash.0 ^ u64::from(keyspace.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Figures of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RecordStats {
    /// Records in the cache.
    pub records: u64,
    /// Records that came.
    pub fills: u64,
    /// Records that went to make room.
    pub evictions: u64,
    /// Records whose key was absorbed, and got its new value or went.
    pub refreshed: u64,
}

/// The record cache of one database.
pub struct RecordCache {
    // Constant after construction.
    budget: Arc<Budget>,
    epochs: Arc<Epochs>,
    salt: u64,
    // Their own synchronisation.
    table: Table,
    /// There may be a record: a look that costs nothing while there is none.
    occupied: AtomicBool,
    /// Slabs that went back, counted when they are gone.
    gone: Arc<AtomicU64>,
    writer: Mutex<Writer>,
}

/// What the lock guards.
struct Writer {
    queue: Queue,
    sizes: Sizes,
    stats: RecordStats,
    /// Slabs that went, or will when the epochs of their time are over.
    leaving: u64,
}

impl RecordCache {
    /// An empty cache of a database with this salt. It takes slabs from `budget` as it is filled
    /// and gives them back when the budget asks.
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

    /// Asks for the memory that a look for `name` will touch first.
    #[inline]
    pub fn prefetch(&self, name: Name<'_>, guard: &Guard) {
        if self.occupied.load(Ordering::Relaxed) {
            self.table.prefetch(name.place(), guard);
        }
    }

    /// The value of `name` in the newest state, if it is here. For who looked into the memtables of
    /// the newest view, or one that was when it began.
    #[inline]
    pub fn get<'g>(&'g self, name: Name<'_>, guard: &'g Guard) -> Option<&'g [u8]> {
        if !self.occupied.load(Ordering::Relaxed) {
            return None;
        }
        let mut candidates = self.table.candidates(name.place(), guard);
        let (_, record) = candidates.find(|(_, record)| {
            // The tag matched: it is the record, nearly always. Its lines come together.
            record.prefetch();
            name.is_of(*record)
        })?;
        record.warm();
        Some(record.value())
    }

    /// A copy of the value of `name` in the version with this number, if that is the newest one and
    /// it is here.
    pub fn get_of_version(&self, name: Name<'_>, version: u64, guard: &Guard) -> Option<Value> {
        if !name.of.is(version) {
            return None;
        }
        // A record of a newer version is linked after the number was raised: whoever follows the
        // link sees that.
        let value = self.get(name, guard)?;
        name.of.is(version).then(|| Value::copy_from(value))
    }

    /// A value was found below in the version with this number, in a block that was where
    /// `presence` says. It is kept if it had to be read from the device, or the block is about to
    /// go: it is the one record in it that is wanted. Of what is in blocks that stay, or while
    /// these are worth more, only one of so many is kept: so what is wanted again and again comes
    /// here soon, where it is found faster.
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

    /// Keeps a value that was found below in the version with this number, unless there is a newer
    /// one by now.
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
            // Another reader was first.
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

    /// The version with this number is about to be published; these updates are what is new in it,
    /// the oldest batch first. From now on only what is read in it is kept.
    pub fn refresh<U: SortedUpdates>(&self, of: &CacheEpoch, version: u64, batches: &[U]) {
        {
            // Under the lock, so that no fill is between its look at the number and its link.
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

    /// Gives a record that is here its new value, or lets it go.
    fn renew(&self, writer: &mut Writer, name: Name<'_>, update: Update<'_>, guard: &Guard) {
        let find = || {
            let mut candidates = self.table.candidates(name.place(), guard);
            candidates.find(|(_, record)| name.is_of(*record))
        };
        if find().is_none() {
            return;
        }
        let value = match update {
            Update::Put(value) if bytes_of(name.key, value) <= RECORD_BYTES_MAX => Some(value),
            Update::Put(_) | Update::PutLarge(_) | Update::Delete => None,
        };
        if let Some(value) = value {
            self.make_room(writer, bytes_of(name.key, value), guard);
        }
        // Room may have been made of this very record.
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

    /// Makes room for `bytes`, if that does not take long: a slab more if the budget has one for
    /// this cache, now or soon; else the hand moves on a little.
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

    /// Moves the hand past at most `steps` records. True if it passed the end of a slab, which goes
    /// when the epochs of now are over.
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

    /// What becomes of a record under the hand: if it is hot, and `may_stay`, a copy at the end.
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

    /// What a record is called.
    fn hash_of(&self, record: Record<'_>) -> u64 {
        mixed(record.keyspace(), KeyHash::new(record.key(), self.salt))
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> RecordStats {
        let writer = self.writer.lock();
        RecordStats { records: writer.sizes.linked(), ..writer.stats }
    }
}

impl Reclaim for RecordCache {
    fn reclaim_slab(&self) -> Reclaimed {
        // The budget asks on behalf of anybody, perhaps of who holds the lock.
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
