//! Rotation of memtables: the active one of a keyspace becomes immutable, to be flushed.
//!
//! ```text
//!   cause                                               which            called by
//!   updates reach the checkpoint distance, or           the keyspace's   a commit
//!     the memory its maximum
//!   all active ones together reach that maximum         the largest      a commit, `set_memory`
//!   its first record is far back in the log             the keyspace's   any of these
//!   a write-idle period, a checkpoint, a full budget    the keyspace's   the background
//! ```
//!
//! All of this is called under the commit lock, or takes it: no commit may insert into a memtable
//! that a rotation just made immutable.

use crate::admission::pacing::Debt;
use crate::memory::epoch::Guard;
use crate::memtable::Memtable;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::versions::view::Buffer;

/// Most immutable memtables of a keyspace for a rotation because the active one is full. Rotations
/// that free memory or serve a checkpoint may exceed it.
const IMMUTABLE_MAX: usize = 2;

/// A memtable whose first record lies further back in the log than this many write shares is
/// rotated, however small it is: this bounds what recovery replays, beside memtables in flushes.
const LOG_SHARES_MAX: u64 = 2;

impl Core {
    /// Rotates the keyspace's memtable if its updates reach the checkpoint distance, or its memory
    /// reaches the maximum. Called under the commit lock.
    pub fn rotate_if_full(&self, keyspace: &Arc<KeyspaceCore>, guard: &Guard) {
        let active = &keyspace.view.load(guard).buffers[0];
        let asked = keyspace.distance.load(Ordering::Relaxed);
        let is_full = (asked != 0 && active.update_bytes() >= asked)
            || active.memtable.bytes() >= self.governor.memtable_bytes_max();
        if is_full {
            self.rotate_if_allowed(keyspace);
        }
    }

    /// The debt of `keyspace` against the checkpoint distance that a user set: bytes that may still
    /// be written before it is reached and no memtable may be rotated, and bytes of its immutable
    /// memtables. `None` if no distance was set.
    pub fn distance_debt(&self, keyspace: &KeyspaceCore, guard: &Guard) -> Option<Debt> {
        let asked = keyspace.distance.load(Ordering::Relaxed);
        if asked == 0 {
            return None;
        }
        let buffers = &keyspace.view.load(guard).buffers;
        let free = (1 + IMMUTABLE_MAX).saturating_sub(buffers.len()) as u64;
        let left = asked.saturating_sub(buffers[0].update_bytes());
        Some(Debt {
            headroom_bytes: left.saturating_add(asked.saturating_mul(free)),
            backlog_bytes: buffers[1..].iter().map(|buffer| buffer.memtable.bytes()).sum(),
        })
    }

    /// Rotates the keyspace's memtable unless too many are immutable already: no thread waits for
    /// it. Called under the commit lock.
    pub fn rotate_if_allowed(&self, keyspace: &Arc<KeyspaceCore>) {
        if keyspace.current_view().buffers.len() <= IMMUTABLE_MAX {
            self.rotate(keyspace);
            self.rotate_laggards();
        }
    }

    /// Rotates the memtable of `keyspace`: the active one becomes immutable. Called under the
    /// commit lock.
    pub fn rotate(&self, keyspace: &Arc<KeyspaceCore>) {
        keyspace.rotate(Buffer::new(Memtable::new(Arc::clone(self.storage.budget()))));
        self.counters.rotations.fetch_add(1, Ordering::Relaxed);
        self.refresh_backlog();
        self.signals.wake_flush();
    }

    /// Rotates memtables whose oldest record is too far back in the log, so that a single old
    /// record does not keep the whole log from being recycled. Called under the commit lock.
    pub fn rotate_laggards(&self) {
        let Some(log) = self.log.get() else { return };
        let (written, limit) =
            (log.written_bytes(), LOG_SHARES_MAX.saturating_mul(self.governor.write_share()));
        for keyspace in self.all_keyspaces() {
            let view = keyspace.current_view();
            let first = view.buffers[0].first();
            let lags =
                first.is_some_and(|first| written.saturating_sub(first.positions.bytes()) > limit);
            if lags && view.buffers.len() <= IMMUTABLE_MAX {
                mark(Mark::LaggardRotated);
                self.rotate(&keyspace);
            }
        }
    }

    /// Bytes of all active memtables.
    pub fn active_bytes(&self) -> u64 {
        self.all_keyspaces().iter().map(|keyspace| keyspace.memtable_bytes().0).sum()
    }

    /// Rotates the largest active memtable, and more until the rest take less than `rest_max`
    /// bytes. Called under the commit lock.
    pub fn rotate_largest(&self, rest_max: u64) {
        let sized = |keyspace: Arc<KeyspaceCore>| (keyspace.memtable_bytes().0, keyspace);
        let mut active: Vec<_> = self.all_keyspaces().into_iter().map(sized).collect();
        active.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let mut rest: u64 = active.iter().map(|(bytes, _)| bytes).sum();
        for (index, (bytes, keyspace)) in active.into_iter().enumerate() {
            if bytes == 0 || (index > 0 && rest < rest_max) {
                break;
            }
            self.rotate(&keyspace);
            rest -= bytes;
        }
        self.rotate_laggards();
    }

    /// Rotates memtables while all active ones together exceed their maximum: after the budget was
    /// lowered, when no commit may come to do it.
    pub fn fit_memtables(&self) {
        let half = self.governor.memtable_bytes_max();
        let _commit = self.commit.lock();
        if self.active_bytes() >= half {
            self.rotate_largest(half);
        }
    }
}
