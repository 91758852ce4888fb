//! Whether a write is accepted: a put only if all that is in memory can still be flushed.

use crate::base::error::{Error, ErrorKind, Result};
use crate::options::commit::Deadline;
use crate::runtime::sync::Ordering;
use crate::state::core::Core;

/// A flush needs about this many times the bytes of its memtable, for the tree makes space in its
/// buffers, until the checkpoint behind it frees what that replaced.
pub const FLUSH_TIMES: u64 = 3;

/// How often something is done to gain space for one commit before it is refused. What was deleted
/// may lie below much that has to go down first.
pub const ATTEMPTS: usize = 64;

impl Core {
    /// Fails with `NoSpace` if what is in memtables, `bytes` more of a commit, and its large values
    /// of `large` bytes could not be flushed. A commit of deletes alone passes while the log has
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

    /// What `enough_until` is compared with: it never falls.
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
        // Work takes longer than a deadline allows: then the background does it.
        let left = if self.stepped { None } else { deadline.left(&self.clock) };
        let _looking = left.is_none().then(|| self.headroom.looking.lock());
        let (mut is_tried, mut has_failed) = (false, false);
        for _ in 0..ATTEMPTS {
            let Some(pool) = self.pool_bytes() else {
                self.headroom.enough_until.store(u64::MAX, Ordering::Relaxed);
                return Ok(());
            };
            self.limit_log(pool);
            // Large values go to the data file at once, and once: `bytes` is without them.
            let updates = self.update_bytes() + bytes;
            let most = pool.saturating_sub(self.kept_bytes() + large) / FLUSH_TIMES;
            if updates <= most {
                // The log grows as well, and others may want some: soon somebody looks again.
                self.headroom.note_enough(self.space_spent() + (most - updates) / 4);
                return Ok(());
            }
            // Deletes use what puts leave, but for what engines need to free what they hide.
            if deletes && updates <= pool.saturating_sub(self.needed_bytes()) / FLUSH_TIMES {
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
        let full = "the disk, or the limit on file sizes, is nearly full, and the rest is kept for \
                    deletes: delete something, or free space";
        Err(Error::new(ErrorKind::NoSpace, full))
    }
}
