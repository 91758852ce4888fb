//! The pool of space: how large it is, and which part of it is spoken for.

use crate::base::limits::BLOCK_BYTES_U64;
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::storage::allowance::Limited;
use crate::storage::io::ScratchPlace;

/// A tight flush needs at most this multiple of its memtable's bytes, and a few blocks for each
/// keyspace.
const MINIMAL_TIMES: u64 = 2;
const MINIMAL_BYTES: u64 = 64 << 10;

/// This part of the used space is kept for deletes, and for the merges that make them worth
/// something.
const KEPT_PART: u64 = 16;

/// At least and at most so many bytes of it.
const KEPT_BYTES_MIN: u64 = 1 << 20;
const KEPT_BYTES_MAX: u64 = 64 << 20;

impl Core {
    /// The pool: what flushes and the log could use, in bytes; `None` if it is unknown. If the
    /// length of files is limited, no more than the data file may still take: a flush that hits its
    /// limit fails as on a full disk.
    pub fn pool_bytes(&self) -> Option<u64> {
        let on_disk = self.directory.free_bytes()?.saturating_add(self.solid_bytes());
        let Some(most) = self.directory.file_bytes_max() else { return Some(on_disk) };
        let space = self.storage.stats().space;
        let within_limit = most.saturating_sub(space.used_blocks * BLOCK_BYTES_U64);
        Some(on_disk.min(within_limit))
    }

    /// Free space of the data file that has blocks of the device. What was free at open may have
    /// some: the file system knows.
    pub fn solid_bytes(&self) -> u64 {
        let stats = self.storage.stats();
        let (used, free) = (stats.space.used_blocks, stats.space.free_blocks);
        let known = (free - stats.space.hole_blocks) * BLOCK_BYTES_U64;
        let allocated = stats.allocated_bytes.saturating_sub(used * BLOCK_BYTES_U64);
        known.max(allocated.min(free * BLOCK_BYTES_U64))
    }

    /// The bytes of all updates in memtables.
    pub fn update_bytes(&self) -> u64 {
        let bytes = |keyspace: &Arc<KeyspaceCore>| -> u64 {
            keyspace.current_view().buffers.iter().map(|buffer| buffer.update_bytes()).sum()
        };
        self.all_keyspaces().iter().map(bytes).sum()
    }

    /// What a tight flush of `updates` bytes takes at most, about.
    pub fn minimal_flush_bytes(&self, updates: u64) -> u64 {
        let has_updates = |keyspace: &Arc<KeyspaceCore>| keyspace.memtable_bytes() != (0, 0);
        let keyspaces = self.all_keyspaces();
        let count = keyspaces.iter().filter(|keyspace| has_updates(keyspace)).count().max(1);
        updates * MINIMAL_TIMES + count as u64 * MINIMAL_BYTES
    }

    /// What engines need to free something, in bytes.
    pub fn needed_bytes(&self) -> u64 {
        let needed = |keyspace: &Arc<KeyspaceCore>| keyspace.engine.reclaim_needs_bytes();
        self.all_keyspaces().iter().map(needed).max().unwrap_or(0)
    }

    /// What puts leave free, in bytes: for deletes, and for the work that makes space of them.
    pub fn kept_bytes(&self) -> u64 {
        let used = self.storage.stats().space.used_blocks * BLOCK_BYTES_U64;
        (used / KEPT_PART).clamp(KEPT_BYTES_MIN, KEPT_BYTES_MAX) + self.needed_bytes()
    }

    /// Limits what engines allocate, so that flushes and merges that are not urgent leave what a
    /// tight flush of all memtables takes, and `more` bytes. No limit where the pool is unknown.
    pub fn keep_for_flush(&self, more: u64) -> Option<Limited<'_>> {
        if self.read_only {
            return None;
        }
        let kept = self.minimal_flush_bytes(self.update_bytes()) + more;
        Some(self.storage.limit(self.pool_bytes()?.saturating_sub(kept)))
    }

    /// Whether the device has room for `bytes`. Where that cannot be asked, it may.
    pub fn may_have_space(&self, bytes: u64) -> bool {
        let probe = || self.directory.scratch(ScratchPlace::Here)?.allocate(0, bytes);
        !probe().is_err_and(|error| error.is_transient())
    }

    /// Whether a drain that met a full device may do better now: something came free in the data
    /// file, which had `free_blocks` then, or the device has room for all that waits.
    pub fn may_flush(&self, free_blocks: u64) -> bool {
        self.storage.stats().space.free_blocks > free_blocks
            || self.may_have_space(self.counters.immutable_bytes.load(Ordering::Relaxed))
    }
}
