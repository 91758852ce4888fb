//! Maintenance: background work of engines, in jobs.
//!
//! ```text
//!   flush lock       free                     flush lock
//!   plan        ---> run                 ---> install, publish     the version of the plan is held
//!                    absorbs go on            or drop              from the plan to the end
//! ```
//!
//! The helping threads do jobs, several at a time. Some jobs serve reads: an engine wants one once
//! its read cost has been accumulated, until it is done. Others merge what writes left: the engine
//! reports debt (`debt_bytes`), writers are delayed as it grows, and jobs get more threads. Beside
//! a flush jobs get few threads (`state/jobs.rs`). A job is dropped at its install if its keyspace
//! was dropped, or a flush stopped half way: then it must not publish the part that was absorbed.
//!
//! A job that fails for lack of space, or because something cannot be read, leaves everything
//! readable and writable. It is *postponed* (`state/postponed.rs`). On a full disk, small units
//! that free space are tried first, each with its own checkpoint.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::{Absorbed, Work};
use crate::memtable::SortedBatch;
use crate::runtime::sync::Ordering;
use crate::state::core::Core;
use crate::state::keyspace::{KeyspaceCore, Partial};
use crate::state::postponed::{Now, Postponed};
use crate::storage::quota::Quota;

/// Maintenance makes a checkpoint when this many bytes, or 1/`UNDURABLE_DIVISOR` of the data file,
/// wait for one to be freed: a checkpoint after every unit would cost much of the time. (Flushes
/// come in a row and accumulate more.)
const UNDURABLE_BYTES_MAX: u64 = 64 << 20;
const UNDURABLE_DIVISOR: u64 = 32;

/// A full device is tried again for a unit with this much free space, or as much as the debt.
const SPACE_BYTES_MIN: u64 = 1 << 20;
const SPACE_BYTES_MAX: u64 = 64 << 20;

impl Core {
    /// True if `keyspace` may have maintenance that can be done now.
    pub fn wants_maintenance(&self, keyspace: &KeyspaceCore) -> bool {
        keyspace.engine.wants_maintenance() && !self.is_postponed(keyspace)
    }

    fn is_postponed(&self, keyspace: &KeyspaceCore) -> bool {
        let Some(before) = *keyspace.postponed.lock() else { return false };
        let mut postponed = before;
        let lasts = self.with_now(keyspace, |now| postponed.lasts(now));
        // Another thread may have updated it meanwhile.
        let mut current = keyspace.postponed.lock();
        if *current == Some(before) {
            *current = Some(postponed);
        }
        lasts
    }

    fn with_now<T>(&self, keyspace: &KeyspaceCore, ask: impl FnOnce(&Now<'_>) -> T) -> T {
        let bytes = keyspace.engine.debt_bytes().clamp(SPACE_BYTES_MIN, SPACE_BYTES_MAX);
        let absorbed = keyspace.latest.lock().absorbed;
        ask(&Now {
            absorbed,
            free_blocks: self.storage.stats().space.free_blocks,
            time: (!self.stepped).then(|| self.clock.now()),
            has_space: &|| self.may_have_space(bytes),
        })
    }

    /// Does all pending maintenance on this thread while no memtable waits for a flush. If it ran
    /// to the end, the result is durable.
    pub fn maintain_all(&self) -> Result<()> {
        let mut waiting = self.all_keyspaces();
        while !waiting.is_empty() {
            for place in (0..waiting.len()).rev() {
                if self.has_immutable() || self.signals.is_stopping() {
                    // After the flush there is a checkpoint; after a close the jobs are redone.
                    self.signals.wake_flush();
                    return Ok(());
                }
                if !self.maintain_unit(&waiting[place])? {
                    waiting.swap_remove(place);
                }
            }
        }
        self.checkpoint_if_undurable(1)
    }

    /// Does one job of some keyspace that wants one, those after the last one first; false if there
    /// is none, or no worker is free.
    pub fn maintain_next(&self) -> Result<bool> {
        let keyspaces = self.all_keyspaces();
        let from = self.counters.next_job.load(Ordering::Relaxed);
        for place in 0..keyspaces.len() {
            let place = from.wrapping_add(place);
            let keyspace = &keyspaces[place % keyspaces.len()];
            if self.wants_maintenance(keyspace) {
                self.counters.next_job.store(place.wrapping_add(1), Ordering::Relaxed);
                if self.maintain_unit(keyspace)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// True if memtables wait to be flushed.
    pub fn has_immutable(&self) -> bool {
        self.counters.immutable_bytes.load(Ordering::Relaxed) > 0
    }

    /// Does one job of the engine of `keyspace`; false if there is none that can be done now.
    fn maintain_unit(&self, keyspace: &KeyspaceCore) -> Result<bool> {
        if self.is_postponed(keyspace) {
            return Ok(false);
        }
        match self.do_job(keyspace) {
            Ok(true) => {
                *keyspace.postponed.lock() = None;
                self.want_checkpoint(self.maintenance_undurable_max())?;
                Ok(true)
            }
            Ok(false) => {
                if !keyspace.engine.wants_maintenance() {
                    // A pass that freed space did the postponed work.
                    *keyspace.postponed.lock() = None;
                }
                Ok(false)
            }
            Err(error) if error.is_transient() && self.reclaim_in(keyspace)? => Ok(true),
            Err(error) if self.is_harmless_to_maintenance(&error) => {
                let before = *keyspace.postponed.lock();
                let postpone = |now: &Now<'_>| Postponed::new(before, error.is_transient(), now);
                *keyspace.postponed.lock() = Some(self.with_now(keyspace, postpone));
                Ok(false)
            }
            Err(error) => Err(self.health.stop(error)),
        }
    }

    /// True if `error` left everything unchanged: no disk space, or an unreadable block.
    pub fn is_harmless_to_maintenance(&self, error: &Error) -> bool {
        let is_read = error.kind() == ErrorKind::Io && !self.storage.has_failed_write();
        error.is_transient() || error.kind() == ErrorKind::Corrupt || is_read
    }

    /// Bytes of the data file that may wait for the checkpoint after maintenance.
    fn maintenance_undurable_max(&self) -> u64 {
        let in_use = self.storage.stats().space.used_blocks * BLOCK_BYTES_U64;
        (in_use / UNDURABLE_DIVISOR).min(UNDURABLE_BYTES_MAX)
    }

    /// Plans, runs and installs a job of the engine of `keyspace`; false if there is none that can
    /// be done now. A dropped job counts as done: it is planned again.
    fn do_job(&self, keyspace: &KeyspaceCore) -> Result<bool> {
        let has_debt = keyspace.engine.debt_bytes() > 0;
        let Some(share) = self.shares.job(has_debt, self.has_immutable()) else {
            return Ok(false);
        };
        let Some(_running) = keyspace.jobs.begin() else { return Ok(false) };
        // A flush of this keyspace takes long, and its end wakes this thread again.
        let locked =
            if self.stepped { Some(keyspace.flush.lock()) } else { keyspace.flush.try_lock() };
        let Some(partial) = locked.filter(|partial| can_publish(keyspace, partial)) else {
            return Ok(false);
        };
        let quota = self.quota_beside_flushes(self.kept_bytes());
        let dictionary = keyspace.compression.current();
        let values = keyspace.compression.values(dictionary.as_ref());
        let work = Work { workers: &share.workers, progress: &|_| {}, quota: &quota, values };
        // Holds what the job reads, until after its end.
        let _held = keyspace.latest.lock().version.clone();
        let Some(mut job) = keyspace.engine.plan(&work)? else { return Ok(false) };
        self.counters.jobs_planned.fetch_add(1, Ordering::Relaxed);
        let kept = job.keeps_lock().then_some(partial);
        let ran = self.in_background(|| job.run(&work));
        #[cfg(any(test, feature = "internals"))]
        if ran.is_ok() && kept.is_none() {
            self.act_beside_job();
        }
        let installed = ran.and_then(|()| {
            let partial = kept.unwrap_or_else(|| keyspace.flush.lock());
            if !can_publish(keyspace, &partial) {
                return Ok(false);
            }
            match job.install(&work)? {
                Some(absorbed) => self.publish_job(keyspace, absorbed).map(|()| true),
                None => Ok(false),
            }
        });
        let ends = match &installed {
            Ok(true) => &self.counters.jobs_installed,
            Ok(false) | Err(_) => &self.counters.jobs_dropped,
        };
        ends.fetch_add(1, Ordering::Relaxed);
        if has_debt {
            self.refresh_backlog();
            self.pacer.wake();
        }
        installed.map(|_| true)
    }

    /// Calls what a test wants to be done beside a job.
    #[cfg(any(test, feature = "internals"))]
    fn act_beside_job(&self) {
        let act = self.beside_job.lock().take();
        if let Some(act) = act {
            act();
        }
    }

    /// Lets the engine of `keyspace` free some space on a nearly full device, within `quota` as it
    /// is then, while no job is outstanding; false if there was nothing to gain.
    pub fn reclaim_unit<'a>(
        &'a self,
        keyspace: &KeyspaceCore,
        quota: impl FnOnce() -> Quota<'a>,
    ) -> Result<bool> {
        let _barred = keyspace.jobs.bar();
        let partial = keyspace.flush.lock();
        if !can_publish(keyspace, &partial) {
            return Ok(false);
        }
        let quota = quota();
        let dictionary = keyspace.compression.current();
        let values = keyspace.compression.values(dictionary.as_ref());
        let work = Work { workers: &self.workers, progress: &|_| {}, quota: &quota, values };
        let Some(absorbed) = keyspace.engine.reclaim(&work)? else { return Ok(false) };
        self.publish_job(keyspace, absorbed)?;
        self.refresh_backlog();
        Ok(true)
    }

    /// Publishes a version with the same content, under the flush lock.
    fn publish_job(&self, keyspace: &KeyspaceCore, absorbed: Absorbed) -> Result<()> {
        let lost = absorbed.lost.iter().map(|owned| owned.extent.bytes()).sum::<u64>();
        let version = keyspace.lifetimes.hold(absorbed.version, absorbed.lost);
        self.records.refresh::<SortedBatch>(&keyspace.cache_epoch, version.number(), &[]);
        keyspace.republish(version)?;
        // The lost extents are free after the next checkpoint.
        self.counters.undurable_bytes.fetch_add(lost.max(1), Ordering::Relaxed);
        Ok(())
    }
}

/// False if the newest version of the engine must not be published: a flush stopped half way, and
/// its part of the memtable is not published yet; or the keyspace was dropped, and its space is
/// freed.
fn can_publish(keyspace: &KeyspaceCore, partial: &Partial) -> bool {
    partial.versions.is_empty() && keyspace.check_exists().is_ok()
}
