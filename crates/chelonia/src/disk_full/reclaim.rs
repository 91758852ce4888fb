//! Work for disk space: flushes, checkpoints, returned log segments, small units of engines.

use crate::admission::headroom::{DiskState, POOL_GREW_BYTES};
use crate::base::error::{Error, Result};
use crate::flush::memtable::FlushPace;
use crate::options::commit::Deadline;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use std::time::Duration;

/// Most units in a row to gain space on a nearly full device, each with a checkpoint.
const GAINS_MAX: usize = 8;

impl Core {
    /// Works for space, or waits for the background to do so if the commit has a deadline. False if
    /// nothing was gained.
    pub fn work_or_await(&self, deadline: Deadline, left: Option<Duration>) -> Result<bool> {
        let start = self.clock.now();
        let worked = match left {
            None => self.reclaim(),
            Some(_) => self.await_reclaim(deadline),
        };
        self.pacer.delayed(self.clock.now().saturating_sub(start));
        worked
    }

    /// False if work for space failed, and nothing has changed since.
    pub fn may_work_help(&self, pool: u64, deletes: bool) -> bool {
        let time = (!self.stepped).then(|| self.clock.now());
        self.headroom.may_help(&self.disk_state(pool), deletes, time)
    }

    /// Records that work for space did not help.
    pub fn note_failed_work(&self) {
        let Some(pool) = self.pool_bytes() else { return };
        self.headroom.note_failure(self.disk_state(pool), self.clock.now());
    }

    pub fn disk_state(&self, pool_bytes: u64) -> DiskState {
        DiskState {
            pool_bytes,
            update_bytes: self.update_bytes(),
            written: self.log.get().map_or(0, |log| log.written_bytes()),
            flushes: self.counters.flushes.load(Ordering::Relaxed),
            checkpoints: self.counters.checkpoints.load(Ordering::Relaxed),
            snapshots: self.snapshots.count(),
        }
    }

    /// Takes one action that may free space; false if nothing can be done.
    pub fn reclaim(&self) -> Result<bool> {
        if self.all_keyspaces().iter().any(|keyspace| keyspace.current_view().has_updates()) {
            match self.checkpoint_all() {
                Ok(()) => return Ok(true),
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
        }
        if self.free_what_was_replaced()? || self.release_log() {
            return Ok(true);
        }
        self.reclaim_in_engines()
    }

    /// Waits for the background to reclaim space; `WouldBlock` if the deadline comes first.
    fn await_reclaim(&self, deadline: Deadline) -> Result<bool> {
        let before = self.headroom.works.load(Ordering::Acquire);
        self.want_work();
        let is_full = || self.counters.out_of_space.load(Ordering::Relaxed);
        let is_done = || self.headroom.works.load(Ordering::Acquire) != before;
        let is_over = || is_done() || is_full() || self.health.check_write().is_err();
        if !self.pacer.wait_until(deadline.left(&self.clock), is_over) {
            return Err(self.pacer.refuse());
        }
        self.health.check_write()?;
        Ok(is_done() && self.headroom.gained.load(Ordering::Relaxed))
    }

    /// Requests work for space from the background.
    fn want_work(&self) {
        self.headroom.wanted.store(true, Ordering::Relaxed);
        self.signals.wake_flush();
    }

    /// Works for space if a writer that must not do it itself requested it.
    pub fn reclaim_if_wanted(&self) -> Result<()> {
        if self.headroom.wanted.swap(false, Ordering::Relaxed) {
            let worked = self.reclaim();
            let gained = worked
                .or_else(|error| if error.is_transient() { Ok(false) } else { Err(error) })?;
            self.headroom.gained.store(gained, Ordering::Relaxed);
            self.headroom.works.fetch_add(1, Ordering::Release);
            self.pacer.wake();
        }
        Ok(())
    }

    /// Makes the background retry at once if the device was full and has more space now.
    pub fn try_again_if_full(&self) {
        let is_full = &self.counters.out_of_space;
        if self.stepped || !is_full.load(Ordering::Relaxed) {
            return;
        }
        let before = self.headroom.full_pool.load(Ordering::Relaxed);
        let has_more = |pool: u64| pool >= before.saturating_add(POOL_GREW_BYTES);
        if self.pool_bytes().is_some_and(has_more) {
            is_full.store(false, Ordering::Relaxed);
            self.want_work();
        }
    }

    /// Records that memtables cannot be flushed for lack of space: writers that wait for memory are
    /// refused.
    pub fn note_full(&self) {
        self.headroom.full_pool.store(self.pool_bytes().unwrap_or(0), Ordering::Relaxed);
        self.counters.out_of_space.store(true, Ordering::Relaxed);
        self.pacer.wake();
    }

    /// Runs `drain`. If the device is full, retries after a checkpoint, which frees what previous
    /// versions had, then with a minimal flush, then after engines freed space. Waiting writers are
    /// refused if none of that helps.
    pub fn flush_or_reclaim(&self, drain: impl Fn(FlushPace) -> Result<bool>) -> Result<bool> {
        let is_full = |flushed: &Result<bool>| flushed.as_ref().is_err_and(Error::is_transient);
        // A failed flush may have written much: it is not retried for every small memtable.
        let pool = || self.pool_bytes().unwrap_or(u64::MAX);
        let is_tried = self.headroom.may_flush_as_usual(pool());
        let mut flushed = drain(if is_tried { FlushPace::Usual } else { FlushPace::Minimal });
        if is_full(&flushed) && (self.free_what_was_replaced()? | self.release_log()) {
            flushed = drain(FlushPace::Usual);
        }
        if is_tried {
            let failed_pool = || self.pool_bytes().unwrap_or(0);
            self.headroom.note_usual_flush(is_full(&flushed).then(failed_pool));
        }
        if is_full(&flushed) {
            flushed = drain(FlushPace::Minimal);
        }
        if is_full(&flushed) && self.reclaim_in_engines()? {
            flushed = drain(FlushPace::Minimal);
        }
        if is_full(&flushed) {
            self.note_full();
        }
        flushed
    }

    /// Frees unreferenced space on a full device: waits for what a checkpoint freed, and makes a
    /// checkpoint if that would free more. False if there is nothing.
    pub fn free_what_was_replaced(&self) -> Result<bool> {
        let free_blocks = || self.storage.stats().space.free_blocks;
        let before = free_blocks();
        if self.counters.undurable_bytes.load(Ordering::Relaxed) == 0 {
            // A checkpoint under way frees what it was made for when it ends.
            drop(self.checkpoint.lock());
            self.storage.epochs().settle();
            return Ok(free_blocks() > before);
        }
        match self.checkpoint_now() {
            Ok(()) => {
                mark(Mark::FlushFreedSpace);
                // Freed extents are reusable when no reader passes through them any more.
                self.storage.epochs().settle();
                Ok(true)
            }
            Err(error) if error.is_transient() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets all engines free some space on a nearly full device; false if none could.
    pub fn reclaim_in_engines(&self) -> Result<bool> {
        let gain = |gained, keyspace: Arc<KeyspaceCore>| Ok(self.reclaim_in(&keyspace)? | gained);
        self.all_keyspaces().into_iter().try_fold(false, gain)
    }

    /// Lets the engine of `keyspace` free some space on a nearly full device, and makes that
    /// durable; false if there is nothing to gain, or not enough space to do it. It leaves enough
    /// to flush the memtables: a snapshot may keep what it replaces.
    pub fn reclaim_in(&self, keyspace: &KeyspaceCore) -> Result<bool> {
        let quota = || self.quota_beside_flushes(0);
        let gained = (0..GAINS_MAX).try_fold(false, |before, _| {
            match self.reclaim_unit(keyspace, quota) {
                Ok(false) => Err(Ok(before)),
                Err(error) if self.is_harmless_to_maintenance(&error) => Err(Ok(before)),
                Err(error) => Err(Err(self.health.stop(error))),
                Ok(true) => match self.checkpoint_now() {
                    Err(error) if error.is_transient() => Err(Ok(before)),
                    Err(error) => Err(Err(error)),
                    Ok(()) => {
                        // Freed extents are reusable when no reader passes through them any more.
                        self.storage.epochs().settle();
                        Ok(true)
                    }
                },
            }
        });
        gained.or_else(|ended| ended)
    }
}
