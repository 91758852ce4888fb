//! The pool of disk space: its size, and the part of it that is reserved.

use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::WriteBudget;
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::storage::io::ScratchPlace;
use crate::storage::quota::Quota;

/// Most space that a minimal flush needs for each keyspace, besides that for its updates: a few
/// blocks.
const MINIMAL_BYTES: u64 = 64 << 10;

/// Fraction of the used space kept for deletes, and for the merges that turn deletes into free
/// space.
const KEPT_PART: u64 = 16;

/// Bounds of that reserve in bytes.
const KEPT_BYTES_MIN: u64 = 1 << 20;
const KEPT_BYTES_MAX: u64 = 64 << 20;

impl Core {
    /// Size of the pool in bytes: the space that flushes and the log could use; `None` if unknown.
    /// If file lengths are limited, at most what the data file may still grow: a flush that hits
    /// the limit fails as on a full disk.
    pub fn pool_bytes(&self) -> Option<u64> {
        let on_disk = self.directory.free_bytes()?.saturating_add(self.solid_bytes());
        let Some(most) = self.directory.file_bytes_max() else { return Some(on_disk) };
        let space = self.storage.stats().space;
        let within_limit = most.saturating_sub(space.used_blocks * BLOCK_BYTES_U64);
        Some(on_disk.min(within_limit))
    }

    /// Free bytes of the data file that have blocks of the device.
    pub fn solid_bytes(&self) -> u64 {
        let stats = self.storage.stats();
        stats.space.solid_blocks(stats.allocated_bytes) * BLOCK_BYTES_U64
    }

    /// Bytes of all updates in memtables, and of large commits on their way there.
    pub fn update_bytes(&self) -> u64 {
        let admitted = self.governor.admitted_bytes();
        admitted + self.all_keyspaces().iter().map(|one| update_bytes_of(one)).sum::<u64>()
    }

    /// Estimated upper bound of the space to flush the updates of [`Core::update_bytes`], and
    /// `more` bytes of any keyspace.
    pub fn flush_bytes(&self, budget: WriteBudget, more: u64) -> u64 {
        let elsewhere = self.governor.admitted_bytes() + more;
        let bytes = |keyspace: &Arc<KeyspaceCore>| {
            update_bytes_of(keyspace) * keyspace.engine.space_times(budget)
        };
        let in_memtables: u64 = self.all_keyspaces().iter().map(bytes).sum();
        let largest = match budget {
            WriteBudget::Usual => self.headroom.factors.usual(),
            WriteBudget::Minimal => self.headroom.factors.minimal(),
        };
        in_memtables + elsewhere * largest
    }

    /// Like [`Core::flush_bytes`], for a minimal flush.
    pub fn minimal_flush_bytes(&self, more: u64) -> u64 {
        let updates = self.flush_bytes(WriteBudget::Minimal, more);
        let has_updates = |keyspace: &Arc<KeyspaceCore>| keyspace.memtable_bytes() != (0, 0);
        let keyspaces = self.all_keyspaces();
        let count = keyspaces.iter().filter(|keyspace| has_updates(keyspace)).count().max(1);
        updates + count as u64 * MINIMAL_BYTES
    }

    /// Sets the space factors to the largest ones among all keyspaces, and `new`, which is not in
    /// the list yet. Called by the open, and under the lock `keyspaces_change`.
    pub fn set_space_factors(&self, new: Option<&Arc<KeyspaceCore>>) {
        let keyspaces = self.all_keyspaces();
        let largest = |budget| {
            let times = keyspaces.iter().chain(new).map(|one| one.engine.space_times(budget));
            times.max().unwrap_or(1)
        };
        let (usual, minimal) = (largest(WriteBudget::Usual), largest(WriteBudget::Minimal));
        if self.headroom.factors.set(usual, minimal, self.logged_bytes()) {
            // Space that suffices for updates of the others may be too little for those of `new`. A
            // check under way may still use the smaller factor: it accepts a quarter of what fits.
            self.headroom.forget();
        }
    }

    /// Bytes that engines need to free something.
    pub fn needed_bytes(&self) -> u64 {
        let needed = |keyspace: &Arc<KeyspaceCore>| keyspace.engine.reclaim_needs_bytes();
        self.all_keyspaces().iter().map(needed).max().unwrap_or(0)
    }

    /// Bytes that puts leave free for deletes and for the work that turns deletes into space.
    pub fn kept_bytes(&self) -> u64 {
        let used = self.storage.stats().space.used_blocks * BLOCK_BYTES_U64;
        (used / KEPT_PART).clamp(KEPT_BYTES_MIN, KEPT_BYTES_MAX) + self.needed_bytes()
    }

    /// A quota for flushes and merges that are not urgent: they leave `more` bytes and the space
    /// for a minimal flush of all memtables, and of what is accepted meanwhile. No limit if the
    /// pool is unknown.
    pub fn quota_beside_flushes(&self, more: u64) -> Quota<'_> {
        if self.read_only {
            return Quota::unlimited();
        }
        // In this order no commit is missed: one that is not counted below looks for space, and
        // claims it.
        let quota = self.storage.begin_quota(self.claimed());
        self.headroom.forget();
        let pending = self.headroom.pending_large_bytes();
        let flush = self.minimal_flush_bytes(0);
        let Some(pool) = self.pool_bytes() else { return Quota::unlimited() };
        let kept = flush + pending + more;
        quota.limited(pool.saturating_sub(kept))
    }

    /// True if the device has `bytes` free, or its free space is unknown.
    pub fn may_have_space(&self, bytes: u64) -> bool {
        let probe = || self.directory.scratch(ScratchPlace::Here)?.allocate(0, bytes);
        !probe().is_err_and(|error| error.is_transient())
    }

    /// True if a flush that met a full device may succeed now: space was freed in the data file,
    /// which had `free_blocks` then, or the device has space for all pending memtables.
    pub fn may_flush(&self, free_blocks: u64) -> bool {
        self.storage.stats().space.free_blocks > free_blocks
            || self.may_have_space(self.counters.immutable_bytes.load(Ordering::Relaxed))
    }
}

/// Bytes of the updates in the memtables of a keyspace.
fn update_bytes_of(keyspace: &KeyspaceCore) -> u64 {
    keyspace.current_view().buffers.iter().map(|buffer| buffer.update_bytes()).sum()
}
