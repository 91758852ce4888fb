//! Disk space for the log's next segment: the log shares the pool with the data file.

use crate::base::error::Result;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::disk_full::accept::ATTEMPTS;
use crate::options::commit::Deadline;
use crate::state::core::Core;

/// A log segment prepared in advance takes at most this fraction of the pool.
const SEGMENT_PART: u64 = 32;

impl Core {
    /// Gains space after the log found none for its next segment; false if that did not help, or
    /// did not the last time. `attempt` counts from 0 for one commit.
    #[cold]
    pub fn make_log_space(&self, attempt: usize, deadline: Deadline) -> Result<bool> {
        let Some(pool) = self.pool_bytes() else { return Ok(false) };
        let left = if self.stepped { None } else { deadline.left(&self.clock) };
        let _looking = left.is_none().then(|| self.headroom.looking.lock());
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
        if let Some(pool) = self.pool_bytes()
            && self.limit_log(pool)
        {
            self.give_space_to_log()?;
        }
        Ok(true)
    }

    /// Returns free space of the data file to the device; false if there is none.
    fn give_space_to_log(&self) -> Result<bool> {
        let before = self.solid_bytes();
        if before == 0 {
            return Ok(false);
        }
        match self.storage.give_all_back() {
            Ok(()) => Ok(self.solid_bytes() < before),
            Err(error) if error.is_transient() => Ok(false),
            Err(error) => Err(self.health.stop(error)),
        }
    }

    /// Lets the log grow as `pool` allows; false if it may not grow at all.
    pub fn limit_log(&self, pool: u64) -> bool {
        let Some(log) = self.log.get() else { return false };
        let most = pool / SEGMENT_PART / BLOCK_BYTES_U64 * BLOCK_BYTES_U64;
        log.set_segment_bytes_max(most.min(self.governor.log_segment_bytes()));
        let is_affordable = self.is_log_affordable(pool);
        log.hold_growth(!is_affordable);
        is_affordable
    }

    /// True if the log may have another segment of `pool`: the rest suffices to flush the memtables
    /// with the segment's updates, and, while snapshots keep deleted data, to free some of it when
    /// they are released.
    pub fn is_log_affordable(&self, pool: u64) -> bool {
        let segment = pool / SEGMENT_PART;
        let needed = if self.snapshots.count() > 0 { self.needed_bytes() } else { 0 };
        pool >= segment + self.minimal_flush_bytes(segment) + needed
    }

    /// Removes recycled log segments; false if there are none.
    pub fn release_log(&self) -> bool {
        let Some(log) = self.log.get() else { return false };
        let before = log.stats().file_bytes;
        log.release_idle();
        log.stats().file_bytes < before
    }
}
