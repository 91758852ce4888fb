//! Admission of writes by disk space: a put only if everything in memory can still be flushed.

use crate::admission::headroom::{Known, POOL_GREW_BYTES, PendingLarge};
use crate::base::error::{Error, ErrorKind, Result};
use crate::engine::WriteBudget;
use crate::options::commit::Deadline;
use crate::state::core::Core;

/// Most attempts to gain space for one commit before it is refused. Deleted data may lie below many
/// updates that have to be flushed down first.
pub const ATTEMPTS: usize = 64;

/// Disk space that a commit needs.
#[derive(Clone, Copy, Debug)]
pub struct SpaceNeeds {
    /// Bytes of its updates.
    pub update_bytes: u64,
    /// Those of them that [`Core::update_bytes`] counts already.
    pub counted_bytes: u64,
    /// Bytes of its large values.
    pub large_bytes: u64,
}

impl Core {
    /// Fails with `NoSpace` if the memtables, and `needs` of one more commit, could not be flushed.
    /// A commit of only deletes passes while the log has segments. Returns the state of disk space
    /// that this is based on.
    #[inline]
    pub fn check_disk(
        &self,
        needs: SpaceNeeds,
        is_deletes: impl FnOnce() -> bool,
        deadline: Deadline,
    ) -> Result<Known> {
        let spent = self.space_spent() + needs.update_bytes + needs.large_bytes;
        let mut known = self.headroom.known();
        if spent > known.enough_until {
            self.look_for_space(needs, is_deletes(), deadline)?;
            // The count stays that of before: whatever is forgotten meanwhile is noticed.
            known.enough_until = self.headroom.known().enough_until;
        }
        Ok(known)
    }

    /// Checks the disk again for a commit that may have waited since `known`, and accepts it. The
    /// returned value lives until its large values are written.
    #[inline]
    pub fn accept_on_disk(
        &self,
        known: Known,
        needs: SpaceNeeds,
        is_deletes: impl FnOnce() -> bool,
        deadline: Deadline,
    ) -> Result<PendingLarge<'_>> {
        // Counted before the check: a quota that begins now misses it nowhere.
        let pending = self.headroom.pending_large(needs.large_bytes);
        // A quota that began meanwhile, and a flush that ended, change it.
        if self.headroom.known() != known {
            self.check_disk(needs, is_deletes, deadline)?;
        }
        if needs.large_bytes > 0 {
            self.headroom.accepted_large(needs.large_bytes);
        }
        Ok(pending)
    }

    /// Bytes written to the log and as large values, compared with what is known to suffice: never
    /// decreases.
    #[inline]
    fn space_spent(&self) -> u64 {
        self.logged_bytes() + self.headroom.large_bytes()
    }

    /// Bytes written to the log.
    #[inline]
    pub fn logged_bytes(&self) -> u64 {
        self.log.get().map_or(0, |log| log.written_bytes())
    }

    /// The claim of all accepted writes on the space of the disk ([`crate::storage::quota`]), in
    /// bytes.
    pub fn claimed(&self) -> u64 {
        self.headroom.factors.claim(self.logged_bytes()) + self.headroom.large_bytes()
    }

    /// Claims space for `needs` and `more` bytes of updates after it.
    fn claim(&self, needs: SpaceNeeds, more: u64) {
        let large = self.headroom.large_bytes() + needs.large_bytes;
        let log = self.headroom.factors.claim(self.logged_bytes() + needs.update_bytes + more);
        self.storage.claim(log.saturating_add(large));
    }

    #[cold]
    fn look_for_space(&self, needs: SpaceNeeds, deletes: bool, deadline: Deadline) -> Result<()> {
        // Work for space can exceed a deadline: then the background does it.
        let left = if self.stepped { None } else { deadline.left(&self.clock) };
        let _looking = left.is_none().then(|| self.headroom.looking.lock());
        let uncounted = needs.update_bytes - needs.counted_bytes;
        let large = || self.headroom.pending_large_bytes().max(needs.large_bytes);
        let (mut is_tried, mut has_failed) = (false, false);
        for _ in 0..ATTEMPTS {
            let Some(pool) = self.pool_bytes() else {
                self.headroom.note_enough(u64::MAX);
                return Ok(());
            };
            self.limit_log(pool);
            // Large values go to the data file at once, and only once.
            let flush = self.flush_bytes(WriteBudget::Usual, uncounted);
            let most = pool.saturating_sub(self.kept_bytes() + large());
            if flush <= most {
                // The log grows too, and others may use the disk: the check is repeated soon.
                let updates = (most - flush) / self.headroom.factors.usual();
                let more = (updates / 4).min(self.governor.write_share());
                self.headroom.note_enough(self.space_spent() + more);
                // Last: a quota begun before counts it, and one begun later revokes `more`.
                self.claim(needs, more);
                return Ok(());
            }
            // Deletes use the space that puts leave, except what engines need to free deleted data.
            if deletes && flush <= pool.saturating_sub(self.needed_bytes()) {
                break;
            }
            if !is_tried && !self.may_work_help(pool, deletes) {
                break;
            }
            is_tried = true;
            if !self.work_or_await(deadline, left)? {
                // The background may have gained space meanwhile.
                let is_same = self.pool_bytes().is_some_and(|now| now < pool + POOL_GREW_BYTES);
                if is_same && self.flush_bytes(WriteBudget::Usual, uncounted) >= flush {
                    has_failed = true;
                    break;
                }
            }
        }
        if has_failed {
            self.note_failed_work();
        }
        if deletes {
            self.claim(needs, 0);
            return Ok(());
        }
        let full = "the disk, or the limit on file sizes, is nearly full, and the rest is kept for \
                    deletes: delete something, or free space";
        Err(Error::new(ErrorKind::NoSpace, full))
    }
}
