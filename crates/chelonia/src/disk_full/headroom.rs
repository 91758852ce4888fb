//! Space of the device for what is accepted.
//!
//! What a memtable holds goes into the data file one day, and that must not fail for want of space:
//! only a flush lets the log behind it go. So a commit is accepted if all memtables, with it, could
//! be flushed now.
//!
//! ```text
//!   the pool: free on the device, free in the data file, log segments that wait
//!   |<- memtables, a few times ->|<------- not needed ------->|<- kept for deletes ->|
//! ```
//!
//! If there is not enough for that, memtables are flushed and a checkpoint is made: empty ones need
//! nothing, and a checkpoint frees what was overwritten. If that does not help, puts are refused
//! with `NoSpace` while there is still some space left.
//!
//! Why deletes get through, as long as the store has the device to itself:
//!
//! 1. The three parts of the pool are one. The data file takes blocks of the device; free space of
//!    the data file is given back to the device when the log needs a segment
//!    ([`Core::make_log_room`]); segments that wait are removed.
//! 2. Puts leave in the pool what a flush of all memtables takes, what the engine that needs most
//!    takes to free something ([`crate::engine::Engine::room_needed_bytes`]), and a part of what is
//!    in use ([`KEPT_PART`]).
//! 3. Deletes are accepted as long as the log has segments. It makes no further one unless the pool
//!    has, beside it, what the flush of all memtables takes, and while snapshots are held what an
//!    engine needs to free something afterwards ([`Core::is_log_affordable`]). A small segment
//!    suffices. They start work for space while what an engine needs for that is still left.
//! 4. Nothing else takes the space for the flush: what flushes at the usual pace, merges and passes
//!    that free something allocate is limited ([`crate::storage::Storage::limit`]), for a snapshot
//!    may keep what they replace. The tight flush is not limited, and takes little more than the
//!    memtable.
//! 5. So a flush and a checkpoint, which takes no space of its own, always trim the log, whose
//!    segments go back to the pool; then engines free what deletes hid.
//! 6. What snapshots and iterators keep comes back when they are dropped, with the next checkpoint
//!    at the latest. While they keep it, deletes free nothing, and may be refused by 3.
//!
//! Others may use the device too: what was free when this looked may be gone when it is needed.
//! Then the flush waits for space (`flush/memtable.rs`), and deletes are refused when the log has no
//! segment left, until somebody frees some.
//!
//! Work that did not help is not repeated by every commit, but when the pool, the memtables or the
//! snapshots changed, else after a time that doubles ([`Failed`]).

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::{BLOCK_BYTES_U64, LARGE_VALUE_BYTES_MIN};
use crate::flush::background::{RETRY_INTERVAL, RETRY_INTERVAL_MAX};
use crate::options::commit::Deadline;
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::storage::allowance::Limited;
use crate::write::writes::Writes;
use std::time::Duration;

/// A flush needs about this many times the bytes of its memtable, for the tree makes space in its
/// buffers, until the checkpoint behind it frees what that replaced.
const DRAIN_TIMES: u64 = 3;

/// A tight flush needs at most this multiple of its memtable's bytes, and a few blocks for each
/// keyspace.
const TIGHT_TIMES: u64 = 2;
const TIGHT_BYTES: u64 = 64 << 10;

/// This part of the used space is kept for deletes, and for the merges that make them worth
/// something.
const KEPT_PART: u64 = 16;

/// At least and at most so many bytes of it.
const KEPT_BYTES_MIN: u64 = 1 << 20;
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// How often something is done to gain space for one commit before it is refused. What was deleted
/// may lie below much that has to go down first.
const ATTEMPTS: usize = 64;

/// A log segment that is made ahead takes at most this part of the pool.
const SEGMENT_PART: u64 = 32;

/// So much more in the pool is a reason to try again what failed.
const POOL_GREW_BYTES: u64 = 64 << 10;

/// The same of updates in memtables: twice as many, and these.
const UPDATES_GREW_BYTES: u64 = 4 << 10;

/// In a stepped database, where no time passes, at least one commit in this many tries again.
const SKIPPED_MAX: u32 = 1 << 10;

/// The flushes in a row that are tight after one at the usual pace found too little space.
const USUAL_SKIPPED_MAX: u32 = 16;

/// What is known of the space on the device.
#[derive(Default)]
pub struct Room {
    /// Until so many bytes were written, to the log and as large values, nobody has to look. Not
    /// bytes of memtables: those of what was flushed go when the last reader lets go of it.
    enough_until: AtomicU64,
    /// Bytes of large values that were let in.
    large_bytes: AtomicU64,
    /// Writers that may not work for space themselves want the background to.
    wanted: AtomicBool,
    /// How often the background did.
    works: AtomicU64,
    /// Whether it gained something the last time.
    gained: AtomicBool,
    looking: Mutex<()>,
    failed: Mutex<Option<Failed>>,
    /// The pool when memtables could not be flushed the last time.
    full_pool: AtomicU64,
    usual: Mutex<Usual>,
}

/// Flushes at the usual pace that found too little space.
#[derive(Clone, Copy, Default)]
struct Usual {
    /// The pool at the last one; 0 if it found enough.
    failed_pool: u64,
    /// Tight ones since.
    skipped: u32,
}

/// Work for space that did not help, and how things were afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Failed {
    state: DeviceState,
    /// How often in a row.
    times: u32,
    /// Commits that did not try again since.
    skipped: u32,
    /// When to try again, whatever changed.
    until: Duration,
}

/// What work for space depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DeviceState {
    pool_bytes: u64,
    update_bytes: u64,
    /// Where the log ends: what was committed.
    written: u64,
    flushes: u64,
    checkpoints: u64,
    snapshots: usize,
}

impl DeviceState {
    /// Whether work that did not help `before` may help now.
    fn is_better_than(&self, before: &Self, deletes: bool) -> bool {
        // A put is refused if nothing is done: whatever was deleted before it counts. Of deletes in
        // a row each would flush in vain.
        let grown = before.update_bytes.saturating_mul(2) + UPDATES_GREW_BYTES;
        let has_more =
            if deletes { self.update_bytes >= grown } else { self.written != before.written };
        has_more
            || self.pool_bytes >= before.pool_bytes.saturating_add(POOL_GREW_BYTES)
            || (self.flushes, self.checkpoints) != (before.flushes, before.checkpoints)
            || self.snapshots < before.snapshots
    }
}

impl Room {
    /// True if a writer waits for the background to work for space.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The device may have less space than it had.
    pub fn forget(&self) {
        self.enough_until.store(0, Ordering::Relaxed);
    }
}

impl Core {
    /// Fails with `NoSpace` if what is in memtables and `bytes` more, which `writes` bring, could
    /// not be flushed.
    #[inline]
    pub fn check_room<'a>(
        &self,
        bytes: u64,
        writes: impl Writes<'a>,
        deadline: Deadline,
    ) -> Result<()> {
        let large =
            |value: &[u8]| if value.len() < LARGE_VALUE_BYTES_MIN { 0 } else { value.len() };
        let large: usize = writes.iter().filter_map(|write| write.value).map(large).sum();
        let large = large as u64;
        if self.room_spent() + bytes + large > self.room.enough_until.load(Ordering::Relaxed) {
            self.look_for_room(bytes, large, writes, deadline)?;
        }
        if large > 0 {
            self.room.large_bytes.fetch_add(large, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What `enough_until` is compared with: it never falls.
    #[inline]
    fn room_spent(&self) -> u64 {
        let logged = self.log.get().map_or(0, |log| log.written().0);
        logged + self.room.large_bytes.load(Ordering::Relaxed)
    }

    #[cold]
    fn look_for_room<'a>(
        &self,
        bytes: u64,
        large: u64,
        writes: impl Writes<'a>,
        deadline: Deadline,
    ) -> Result<()> {
        let deletes = is_deletes(writes);
        // Work takes longer than a deadline allows: then the background does it.
        let left = if self.stepped { None } else { deadline.left(&self.clock) };
        let _looking = left.is_none().then(|| self.room.looking.lock());
        let (mut is_tried, mut has_failed) = (false, false);
        for _ in 0..ATTEMPTS {
            let Some(pool) = self.room_bytes() else {
                self.room.enough_until.store(u64::MAX, Ordering::Relaxed);
                return Ok(());
            };
            self.limit_log(pool);
            // Large values go to the data file at once, and once: `bytes` is without them.
            let updates = self.update_bytes() + bytes;
            let most = pool.saturating_sub(self.kept_bytes() + large) / DRAIN_TIMES;
            if updates <= most {
                // The log grows as well, and others may want some: soon somebody looks again.
                let enough_until = self.room_spent() + (most - updates) / 4;
                self.room.enough_until.store(enough_until, Ordering::Relaxed);
                *self.room.failed.lock() = None;
                return Ok(());
            }
            // Deletes use what puts leave, but for what engines need to free what they hide.
            if deletes && updates <= pool.saturating_sub(self.needed_bytes()) / DRAIN_TIMES {
                break;
            }
            if !is_tried && !self.may_work_help(pool, deletes) {
                break;
            }
            is_tried = true;
            if !self.work_or_await(deadline, left)? {
                has_failed = true;
                break;
            }
        }
        if has_failed {
            self.note_failed_work();
        }
        if deletes {
            return Ok(());
        }
        let full = "the device is nearly full, and what is left is kept for deletes: delete \
                    something, or free space";
        Err(Error::new(ErrorKind::NoSpace, full))
    }

    /// After the log found no space for its next segment: gains some; false if that did not help,
    /// or did not the last time. `attempt` counts from 0 for one commit.
    #[cold]
    pub fn make_log_room(&self, attempt: usize, deadline: Deadline) -> Result<bool> {
        let Some(pool) = self.room_bytes() else { return Ok(false) };
        let left = if self.stepped { None } else { deadline.left(&self.clock) };
        let _looking = left.is_none().then(|| self.room.looking.lock());
        let is_affordable = self.limit_log(pool);
        if is_affordable && self.give_space_to_log()? {
            return Ok(true);
        }
        if attempt == 0 && !self.may_work_help(pool, false) {
            return Ok(false);
        }
        if attempt + 1 == ATTEMPTS || !self.work_or_await(deadline, left)? {
            self.note_failed_work();
            return Ok(false);
        }
        if let Some(pool) = self.room_bytes()
            && self.limit_log(pool)
        {
            self.give_space_to_log()?;
        }
        Ok(true)
    }

    /// Gives free space of the data file to the device; false if there is none.
    fn give_space_to_log(&self) -> Result<bool> {
        let before = self.solid_bytes();
        if before == 0 {
            return Ok(false);
        }
        match self.storage.give_all_back() {
            Ok(()) => Ok(self.solid_bytes() < before),
            Err(error) if error.is_passing() => Ok(false),
            Err(error) => Err(self.health.stop(error)),
        }
    }

    /// Lets the log grow as `pool` allows; false if it may not at all.
    fn limit_log(&self, pool: u64) -> bool {
        let Some(log) = self.log.get() else { return false };
        let most = pool / SEGMENT_PART / BLOCK_BYTES_U64 * BLOCK_BYTES_U64;
        log.set_segment_bytes_max(most.min(self.governor.log_segment_bytes()));
        let is_affordable = self.is_log_affordable(pool);
        log.hold_growth(!is_affordable);
        is_affordable
    }

    /// Whether the log may have another segment of `pool`: what is left beside it suffices to flush
    /// memtables, with what the segment brings; and while snapshots keep what is deleted, to free
    /// something when they are gone.
    fn is_log_affordable(&self, pool: u64) -> bool {
        let segment = pool / SEGMENT_PART;
        let updates = self.update_bytes() + segment;
        let needed = if self.snapshots.count() > 0 { self.needed_bytes() } else { 0 };
        pool >= segment + self.tight_bytes(updates) + needed
    }

    /// Works for space, or waits until the background has, if the commit has a deadline. False if
    /// nothing was gained.
    fn work_or_await(&self, deadline: Deadline, left: Option<Duration>) -> Result<bool> {
        let start = self.clock.now();
        let worked = match left {
            None => self.work_for_room(),
            Some(_) => self.await_work_for_room(deadline),
        };
        self.pacer.delayed(self.clock.now().saturating_sub(start));
        worked
    }

    /// False if work for space failed, and nothing has changed since.
    fn may_work_help(&self, pool: u64, deletes: bool) -> bool {
        let now = self.device_state(pool);
        let mut failed = self.room.failed.lock();
        let Some(before) = &mut *failed else { return true };
        if now.is_better_than(&before.state, deletes) {
            return true;
        }
        if !self.stepped {
            return self.clock.now() >= before.until;
        }
        before.skipped += 1;
        before.skipped >= 1_u32.checked_shl(before.times).unwrap_or(SKIPPED_MAX).min(SKIPPED_MAX)
    }

    /// Remembers that work for space did not help.
    fn note_failed_work(&self) {
        let Some(pool) = self.room_bytes() else { return };
        let state = self.device_state(pool);
        let mut failed = self.room.failed.lock();
        let times = failed.map_or(0, |before| before.times.saturating_add(1));
        let wait = RETRY_INTERVAL.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX));
        let until = self.clock.now() + wait.min(RETRY_INTERVAL_MAX);
        *failed = Some(Failed { state, times, skipped: 0, until });
    }

    fn device_state(&self, pool_bytes: u64) -> DeviceState {
        DeviceState {
            pool_bytes,
            update_bytes: self.update_bytes(),
            written: self.log.get().map_or(0, |log| log.written().0),
            flushes: self.counters.drains.load(Ordering::Relaxed),
            checkpoints: self.counters.checkpoints.load(Ordering::Relaxed),
            snapshots: self.snapshots.count(),
        }
    }

    /// Does something that may give more space; false if nothing can be done.
    fn work_for_room(&self) -> Result<bool> {
        if self.all_keyspaces().iter().any(|keyspace| keyspace.current_view().has_updates()) {
            match self.checkpoint_all() {
                Ok(()) => return Ok(true),
                Err(error) if error.is_passing() => {}
                Err(error) => return Err(error),
            }
        }
        if self.free_what_was_replaced()? || self.release_log() {
            return Ok(true);
        }
        self.gain_room()
    }

    /// The same, done by the background; `WouldBlock` if that is not done before the deadline.
    fn await_work_for_room(&self, deadline: Deadline) -> Result<bool> {
        let before = self.room.works.load(Ordering::Acquire);
        self.want_work();
        let is_full = || self.counters.out_of_space.load(Ordering::Relaxed);
        let is_done = || self.room.works.load(Ordering::Acquire) != before;
        let is_over = || is_done() || is_full() || self.health.check_write().is_err();
        if !self.pacer.wait_until(deadline.left(&self.clock), is_over) {
            return Err(self.pacer.refuse());
        }
        self.health.check_write()?;
        Ok(is_done() && self.room.gained.load(Ordering::Relaxed))
    }

    /// Memtables cannot be flushed for want of space: writers that wait for memory are refused.
    pub fn note_full(&self) {
        self.room.full_pool.store(self.room_bytes().unwrap_or(0), Ordering::Relaxed);
        self.counters.out_of_space.store(true, Ordering::Relaxed);
        self.pacer.wake();
    }

    /// True if a flush at the usual pace may find space: the last one did, or there is much more
    /// now, or many were tight since.
    pub fn may_flush_as_usual(&self) -> bool {
        let pool = self.room_bytes().unwrap_or(u64::MAX);
        let mut usual = self.room.usual.lock();
        usual.skipped += 1;
        usual.skipped > USUAL_SKIPPED_MAX
            || usual.failed_pool == 0
            || pool >= usual.failed_pool.saturating_add(usual.failed_pool / 4)
    }

    /// Remembers whether a flush at the usual pace found too little space.
    pub fn note_usual_flush(&self, has_failed: bool) {
        let failed_pool = if has_failed { self.room_bytes().unwrap_or(0) } else { 0 };
        *self.room.usual.lock() = Usual { failed_pool, skipped: 0 };
    }

    /// Has the background try at once if that is so and there is more space by now.
    pub fn try_again_if_full(&self) {
        let is_full = &self.counters.out_of_space;
        if self.stepped || !is_full.load(Ordering::Relaxed) {
            return;
        }
        let before = self.room.full_pool.load(Ordering::Relaxed);
        let has_more = |pool: u64| pool >= before.saturating_add(POOL_GREW_BYTES);
        if self.room_bytes().is_some_and(has_more) {
            is_full.store(false, Ordering::Relaxed);
            self.want_work();
        }
    }

    /// Asks the background to work for space.
    fn want_work(&self) {
        self.room.wanted.store(true, Ordering::Relaxed);
        self.signals.wake_drain();
    }

    /// Works for space if somebody wants it who may not do it himself.
    pub fn work_for_wanted_room(&self) -> Result<()> {
        if self.room.wanted.swap(false, Ordering::Relaxed) {
            let worked = self.work_for_room();
            let gained =
                worked.or_else(|error| if error.is_passing() { Ok(false) } else { Err(error) })?;
            self.room.gained.store(gained, Ordering::Relaxed);
            self.room.works.fetch_add(1, Ordering::Release);
            self.pacer.wake();
        }
        Ok(())
    }

    /// Gives log segments back that wait to be used again; false if there are none.
    pub fn release_log(&self) -> bool {
        let Some(log) = self.log.get() else { return false };
        let before = log.stats().file_bytes;
        log.release_idle();
        log.stats().file_bytes < before
    }

    /// Limits what engines allocate, so that flushes and merges that are not urgent leave what a
    /// tight flush of all memtables takes, and `more` bytes. No limit where the pool is unknown.
    pub fn keep_for_flush(&self, more: u64) -> Option<Limited<'_>> {
        if self.read_only {
            return None;
        }
        let kept = self.tight_bytes(self.update_bytes()) + more;
        Some(self.storage.limit(self.room_bytes()?.saturating_sub(kept)))
    }

    /// What a tight flush of `updates` bytes takes at most, about.
    fn tight_bytes(&self, updates: u64) -> u64 {
        let has_updates = |keyspace: &Arc<KeyspaceCore>| keyspace.memtable_bytes() != (0, 0);
        let keyspaces = self.all_keyspaces();
        let count = keyspaces.iter().filter(|keyspace| has_updates(keyspace)).count().max(1);
        updates * TIGHT_TIMES + count as u64 * TIGHT_BYTES
    }

    /// The bytes of all updates in memtables.
    fn update_bytes(&self) -> u64 {
        let bytes = |keyspace: &Arc<KeyspaceCore>| -> u64 {
            keyspace.current_view().buffers.iter().map(|buffer| buffer.update_bytes()).sum()
        };
        self.all_keyspaces().iter().map(bytes).sum()
    }

    /// The pool: what flushes and the log could use, in bytes; `None` if nobody knows.
    pub fn room_bytes(&self) -> Option<u64> {
        Some(self.directory.free_bytes()?.saturating_add(self.solid_bytes()))
    }

    /// Free space of the data file that has blocks of the device. What was free at open may have
    /// some: the file system knows.
    fn solid_bytes(&self) -> u64 {
        let stats = self.storage.stats();
        let (used, free) = (stats.space.used_blocks, stats.space.free_blocks);
        let known = (free - stats.space.hole_blocks) * BLOCK_BYTES_U64;
        let allocated = stats.allocated_bytes.saturating_sub(used * BLOCK_BYTES_U64);
        known.max(allocated.min(free * BLOCK_BYTES_U64))
    }

    /// What engines need to free something, in bytes.
    pub fn needed_bytes(&self) -> u64 {
        let needed = |keyspace: &Arc<KeyspaceCore>| keyspace.engine.room_needed_bytes();
        self.all_keyspaces().iter().map(needed).max().unwrap_or(0)
    }

    /// What puts leave free, in bytes: for deletes, and for the work that makes space of them.
    pub fn kept_bytes(&self) -> u64 {
        let used = self.storage.stats().space.used_blocks * BLOCK_BYTES_U64;
        (used / KEPT_PART).clamp(KEPT_BYTES_MIN, KEPT_BYTES_MAX) + self.needed_bytes()
    }
}

/// True if nothing is put.
fn is_deletes<'a>(writes: impl Writes<'a>) -> bool {
    writes.iter().all(|write| write.value.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyspaceOptions;
    use crate::storage::io::memory::MemoryDirectory;
    use crate::tests::open_faulty;

    #[test]
    fn what_was_drained_and_is_still_read_hides_no_want_of_room() {
        let (database, plan) = open_faulty(&MemoryDirectory::new());
        plan.set_capacity(Some(22 << 20));
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        let insert = |number: u64| {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            keyspace.insert(key, [7; 1000])
        };
        let reader = database.handle.storage.epochs().pin();
        (0..4_000).for_each(|number| insert(number).unwrap());
        database.checkpoint().unwrap();
        // It looks, and sees more memtables than those that are to be drained.
        insert(4_000).unwrap();
        drop(reader);
        database.handle.storage.epochs().settle();
        let core = &database.handle;
        let accepted = (4_001..).take_while(|number| insert(*number).is_ok()).inspect(|number| {
            let (updates, room) = (core.update_bytes(), core.room_bytes().unwrap());
            assert!(updates * DRAIN_TIMES <= room, "after {number}: {updates} in {room}");
        });
        assert!(accepted.count() > 500);
        database.checkpoint().unwrap();
    }

    #[test]
    fn large_values_take_room_that_is_looked_for() {
        let (database, plan) = open_faulty(&MemoryDirectory::new());
        plan.set_capacity(Some(40 << 20));
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        (0..2_000_u32).for_each(|key| keyspace.insert(key.to_be_bytes(), [7; 1000]).unwrap());
        let core = &database.handle;
        let mut count = 0_u32;
        while keyspace.insert(count.to_le_bytes(), vec![7; 100_000]).is_ok() {
            count += 1;
            let (updates, room) = (core.update_bytes(), core.room_bytes().unwrap());
            assert!(updates * DRAIN_TIMES <= room, "after {count}: {updates} in {room}");
        }
        assert!(count > 100);
        database.checkpoint().unwrap();
    }
}
