//! Admission of writes by disk space: a put only if everything in memory can still be flushed.

use crate::admission::headroom::POOL_GREW_BYTES;
use crate::base::error::{Error, ErrorKind, Result};
use crate::options::commit::Deadline;
use crate::runtime::sync::Ordering;
use crate::state::core::Core;

/// Space that a flush needs as a multiple of its memtable's bytes: the tree makes free space in its
/// buffers, and the next checkpoint frees what it replaced.
pub const FLUSH_TIMES: u64 = 3;

/// Most attempts to gain space for one commit before it is refused. Deleted data may lie below many
/// updates that have to be flushed down first.
pub const ATTEMPTS: usize = 64;

impl Core {
    /// Fails with `NoSpace` if the memtables, `bytes` more of a commit, and its large values of
    /// `large` bytes could not be flushed. A commit of only deletes passes while the log has
    /// segments.
    #[inline]
    pub fn check_disk(
        &self,
        bytes: u64,
        large: u64,
        is_deletes: impl FnOnce() -> bool,
        deadline: Deadline,
    ) -> Result<()> {
        if self.space_spent() + bytes + large > self.headroom.enough_until.load(Ordering::Relaxed) {
            self.look_for_space(bytes, large, is_deletes(), deadline)?;
        }
        if large > 0 {
            self.headroom.large_bytes.fetch_add(large, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Bytes written to the log and as large values, compared with `enough_until`: never decreases.
    #[inline]
    fn space_spent(&self) -> u64 {
        let logged = self.log.get().map_or(0, |log| log.written().0);
        logged + self.headroom.large_bytes.load(Ordering::Relaxed)
    }

    #[cold]
    fn look_for_space(
        &self,
        bytes: u64,
        large: u64,
        deletes: bool,
        deadline: Deadline,
    ) -> Result<()> {
        // Work for space can exceed a deadline: then the background does it.
        let left = if self.stepped { None } else { deadline.left(&self.clock) };
        let _looking = left.is_none().then(|| self.headroom.looking.lock());
        let (mut is_tried, mut has_failed) = (false, false);
        for _ in 0..ATTEMPTS {
            let Some(pool) = self.pool_bytes() else {
                self.headroom.enough_until.store(u64::MAX, Ordering::Relaxed);
                return Ok(());
            };
            self.limit_log(pool);
            // Large values go to the data file at once, and only once: `bytes` excludes them.
            let updates = self.update_bytes() + bytes;
            let most = pool.saturating_sub(self.kept_bytes() + large) / FLUSH_TIMES;
            if updates <= most {
                // The log grows too, and others may use the disk: the check is repeated soon.
                let more = (most - updates) / 4;
                self.headroom.note_enough(self.space_spent() + more);
                // Last: a quota granted before counts it, and one granted later revokes `more`.
                self.storage.reserve(FLUSH_TIMES * (bytes + more) + large);
                return Ok(());
            }
            // Deletes use the space that puts leave, except what engines need to free deleted data.
            if deletes && updates <= pool.saturating_sub(self.needed_bytes()) / FLUSH_TIMES {
                break;
            }
            if !is_tried && !self.may_work_help(pool, deletes) {
                break;
            }
            is_tried = true;
            if !self.work_or_await(deadline, left)? {
                // The background may have gained space meanwhile.
                let is_same = self.pool_bytes().is_some_and(|now| now < pool + POOL_GREW_BYTES);
                if is_same && self.update_bytes() + bytes >= updates {
                    has_failed = true;
                    break;
                }
            }
        }
        if has_failed {
            self.note_failed_work();
        }
        if deletes {
            self.storage.reserve(FLUSH_TIMES * bytes);
            return Ok(());
        }
        let full = "the disk, or the limit on file sizes, is nearly full, and the rest is kept for \
                    deletes: delete something, or free space";
        Err(Error::new(ErrorKind::NoSpace, full))
    }
}
