//! Room on the device for what is accepted.
//!
//! What a memtable holds has to go into the data file one day, and must not fail to for want of
//! room: only what is drained lets the log behind it go. So a commit is accepted if memtables, with
//! it, could be drained now.
//!
//! ```text
//!   free on the device and in the data file
//!   |<- memtables, a few times ->|<------- not needed ------->|<- kept for deletes ->|
//! ```
//!
//! If there is not enough for that, memtables are drained and a checkpoint is made: empty ones need
//! nothing, and a checkpoint frees what was overwritten. If that does not help, puts are refused
//! with `NoSpace` while there is still some room left; deletes, which make room in the end, are
//! accepted as long as the log takes them.
//!
//! Others may use the device too: what was free when this looked may be gone when it is needed.
//! Then the drain waits for room, as it says there (`db/drain.rs`).

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::{BLOCK_BYTES_U64, LARGE_VALUE_BYTES_MIN};
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use crate::db::commit_options::Deadline;
use crate::db::core::Core;
use crate::db::keyspace_core::KeyspaceCore;
use crate::db::writes::Writes;

/// A drain needs about so many times the bytes of its memtable, for the tree makes room in its
/// buffers, until the checkpoint behind it frees what that replaced.
const DRAIN_TIMES: u64 = 3;

/// This part of the used space is kept for deletes, and for the merges that make them worth
/// something.
const KEPT_PART: u64 = 16;

/// At least and at most so many bytes of it.
const KEPT_BYTES_MIN: u64 = 1 << 20;
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// How often something is done to gain room for one commit before it is refused.
const ATTEMPTS: usize = 8;

/// What is known of the room on the device.
#[derive(Default)]
pub struct Room {
    /// Until so many bytes were written, to the log and as large values, nobody has to look. Not
    /// bytes of memtables: those of what was drained go when the last reader lets go of it.
    enough_until: AtomicU64,
    /// Bytes of large values that were let in.
    large_bytes: AtomicU64,
    /// After so many drains, and one, nothing could be gained any more.
    in_vain: AtomicU64,
    /// Writers that may not work for room themselves want the background to.
    wanted: AtomicBool,
    /// How often the background did.
    works: AtomicU64,
    /// Whether it gained something the last time.
    gained: AtomicBool,
    looking: Mutex<()>,
}

impl Room {
    /// True if a writer waits for the background to work for room.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The device may have less room than it had.
    pub fn forget(&self) {
        self.enough_until.store(0, Ordering::Relaxed);
    }
}

impl Core {
    /// Fails with `NoSpace` if what is in memtables and `bytes` more, which `writes` bring, could
    /// not be drained.
    #[inline]
    pub fn check_room(&self, bytes: u64, writes: Writes<'_>, deadline: Deadline) -> Result<()> {
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
    fn look_for_room(
        &self,
        bytes: u64,
        large: u64,
        writes: Writes<'_>,
        deadline: Deadline,
    ) -> Result<()> {
        let deletes = writes.iter().all(|write| write.value.is_none());
        // Work takes longer than a deadline allows: then the background does it.
        let left = if self.stepped { None } else { deadline.left(&self.clock) };
        let _looking = left.is_none().then(|| self.room.looking.lock());
        for _ in 0..ATTEMPTS {
            let Some(room) = self.room_bytes() else {
                self.room.enough_until.store(u64::MAX, Ordering::Relaxed);
                return Ok(());
            };
            // Large values go to the data file at once, and once: `bytes` is without them.
            let updates = self.update_bytes() + bytes;
            let most = room.saturating_sub(self.kept_bytes() + large) / DRAIN_TIMES;
            if updates <= most {
                // The log grows as well, and others may want some: soon somebody looks again.
                let enough_until = self.room_spent() + (most - updates) / 4;
                self.room.enough_until.store(enough_until, Ordering::Relaxed);
                return Ok(());
            }
            if deletes && updates <= room / DRAIN_TIMES {
                break;
            }
            let start = self.clock.now();
            let worked = match left {
                None => self.work_for_room(),
                Some(_) => self.await_work_for_room(deadline),
            };
            self.pacer.delayed(self.clock.now().saturating_sub(start));
            if !worked? {
                break;
            }
        }
        if deletes {
            return Ok(());
        }
        let full = "the device is nearly full, and what is left is kept for deletes; make room";
        Err(Error::new(ErrorKind::NoSpace, full))
    }

    /// Does something that may give more room; false if nothing can be done, or was done in vain
    /// since the last drain.
    fn work_for_room(&self) -> Result<bool> {
        let has_updates = |keyspace: &Arc<KeyspaceCore>| {
            keyspace.current_view().buffers.iter().any(|buffer| buffer.first().is_some())
        };
        if self.all_keyspaces().iter().any(has_updates) {
            match self.checkpoint_all() {
                Ok(()) => return Ok(true),
                Err(error) if error.is_passing() => {}
                Err(error) => return Err(error),
            }
        }
        if self.free_what_was_replaced()? || self.release_log() {
            return Ok(true);
        }
        let drains = self.counters.drains.load(Ordering::Relaxed);
        if self.room.in_vain.load(Ordering::Relaxed) == drains + 1 {
            return Ok(false);
        }
        let gained = self.gain_room()?;
        if !gained {
            self.room.in_vain.store(drains + 1, Ordering::Relaxed);
        }
        Ok(gained)
    }

    /// The same, done by the background; `WouldBlock` if that is not done before the deadline.
    fn await_work_for_room(&self, deadline: Deadline) -> Result<bool> {
        let in_vain = self.room.in_vain.load(Ordering::Relaxed);
        let drains = self.counters.drains.load(Ordering::Relaxed);
        if in_vain == drains + 1 && self.update_bytes() == 0 {
            return Ok(false);
        }
        let before = self.room.works.load(Ordering::Acquire);
        self.room.wanted.store(true, Ordering::Relaxed);
        self.signals.wake_drain();
        let is_full = || self.counters.out_of_space.load(Ordering::Relaxed);
        let is_done = || self.room.works.load(Ordering::Acquire) != before;
        let is_over = || is_done() || is_full() || self.health.check_write().is_err();
        if !self.pacer.wait_until(deadline.left(&self.clock), is_over) {
            return Err(self.pacer.refuse());
        }
        self.health.check_write()?;
        Ok(is_done() && self.room.gained.load(Ordering::Relaxed))
    }

    /// Works for room if somebody wants it who may not do it himself.
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

    /// The bytes of all updates in memtables.
    fn update_bytes(&self) -> u64 {
        let bytes = |keyspace: &Arc<KeyspaceCore>| -> u64 {
            keyspace.current_view().buffers.iter().map(|buffer| buffer.update_bytes()).sum()
        };
        self.all_keyspaces().iter().map(bytes).sum()
    }

    /// What drains could use, in bytes; `None` if nobody knows.
    fn room_bytes(&self) -> Option<u64> {
        let space = self.storage.stats().space;
        let free = (space.free_blocks - space.hole_blocks) * BLOCK_BYTES_U64;
        Some(self.directory.free_bytes()?.saturating_add(free))
    }

    /// What puts leave free, in bytes: for deletes, and for the work that makes room of them.
    fn kept_bytes(&self) -> u64 {
        let used = self.storage.stats().space.used_blocks * BLOCK_BYTES_U64;
        let part = (used / KEPT_PART).clamp(KEPT_BYTES_MIN, KEPT_BYTES_MAX);
        let needed = |keyspace: &Arc<KeyspaceCore>| keyspace.engine.room_needed_bytes();
        part + self.all_keyspaces().iter().map(needed).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::KeyspaceOptions;
    use crate::db::tests::open_faulty;
    use crate::storage::io::memory::MemoryDirectory;

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
