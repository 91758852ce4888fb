//! Backups: copies of a database as of one moment, made while reads and writes go on.
//!
//! ```text
//!   pin a moment --> flush the memtables that it sees --> copy what each keyspace's version of
//!   that moment refers to --> catalog --> superblock
//! ```
//!
//! The pin makes the flushes keep the versions of its moment, as for a snapshot, so the copy is
//! exactly the state that a snapshot would show, and its log is empty. The copy is a database like
//! any other: a restore opens it, or a copy of it.

use crate::base::error::{Error, Result};
use crate::base::ids::SeqNo;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::logs::LogMark;
use crate::log::{LogIdentity, LogOptions, Logs};
use crate::runtime::sync::Arc;
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::state::reads::Reads;
use crate::storage::data_file::catalog::{Catalog, CatalogEntry};
use crate::storage::io::Directory;
use crate::versions::lifetimes::HeldVersion;

/// The progress of a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Bytes copied so far.
    pub bytes_done: u64,
    /// Bytes to copy. The copy is read again at the end and verified, which is not counted here.
    pub bytes_total: u64,
}

/// The result of [`crate::Database::backup`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct BackupReport {
    /// The sequence number of the last write that the backup has: it contains exactly the commits
    /// that a [`crate::Snapshot`] of this moment shows.
    pub seqno: u64,
    /// The number of keyspaces.
    pub keyspaces: usize,
    /// Bytes of data copied.
    pub bytes: u64,
    /// Entries found by the verification; every stored value of a key and every tombstone counts,
    /// as in [`crate::VerifyReport::entries`].
    pub entries: u64,
}

/// Bytes of an empty log: a header and a block.
const LOG_BYTES: u64 = 2 * BLOCK_BYTES_U64;

/// A keyspace in a backup.
struct Part {
    keyspace: Arc<KeyspaceCore>,
    version: HeldVersion,
}

impl Core {
    /// Copies the state of this moment to an empty directory. The report has no entries yet.
    pub fn backup(
        &self,
        target: &Arc<dyn Directory>,
        on_progress: &mut dyn FnMut(BackupProgress),
    ) -> Result<BackupReport> {
        self.check_write()?;
        let _lock = target.lock(true, true)?;
        if !target.list()?.is_empty() {
            return Err(Error::invalid("the directory for a backup has files: use an empty one"));
        }
        let (seqno, next_keyspace, parts) = {
            // No keyspace comes or goes until the versions are held.
            let _change = self.keyspaces_change.lock();
            let pin = Reads::new(self).pin_all()?;
            self.checkpoint_all()?;
            let part = |keyspace| part_of(keyspace, pin.seqno());
            let parts = self.all_keyspaces().into_iter().map(part);
            let mut parts = parts.collect::<Result<Vec<_>>>()?;
            parts.sort_by_key(|part| part.keyspace.id);
            (pin.seqno(), self.checkpoint.lock().next_keyspace, parts)
        };
        let copied = self.copy_parts(target, &parts, (seqno, next_keyspace), on_progress);
        if copied.is_err() {
            // It cannot be opened, and is in the way of the next attempt.
            clear(&**target);
        }
        copied
    }

    fn copy_parts(
        &self,
        target: &Arc<dyn Directory>,
        parts: &[Part],
        (seqno, next_keyspace): (SeqNo, u32),
        on_progress: &mut dyn FnMut(BackupProgress),
    ) -> Result<BackupReport> {
        let mut progress = BackupProgress::default();
        for part in parts {
            part.version.version().extents(&mut |owned| {
                progress.bytes_total += if owned.is_allocated() { owned.extent.bytes() } else { 0 };
                Ok(())
            })?;
        }
        on_progress(progress);
        let mut copy = self.storage.begin_copy(&**target)?;
        // From here on no open takes the files for a database, or for one being created.
        target.sync()?;
        let mark = self.begin_logs_of_copy(target, seqno)?;
        let mut catalog = Catalog { next_keyspace, keyspaces: Vec::new() };
        for Part { keyspace, version } in parts {
            version.version().extents(&mut |owned| {
                if !owned.is_allocated() {
                    return Ok(());
                }
                copy.copy(owned.extent, &mut |bytes| {
                    progress.bytes_done += bytes;
                    on_progress(progress);
                    self.health.check_read()
                })
            })?;
            catalog.keyspaces.push(CatalogEntry {
                id: keyspace.id,
                name: keyspace.name.clone(),
                engine: keyspace.stored.engine.kind().number(),
                options: keyspace.stored_options().encode(),
                root: version.version().root()?,
                absorbed: seqno,
            });
        }
        copy.finish(&catalog, mark)?;
        target.sync()?;
        let (keyspaces, bytes) = (parts.len(), progress.bytes_done);
        Ok(BackupReport { seqno: seqno.0, keyspaces, bytes, entries: 0 })
    }

    /// Makes as many empty logs as the database has, and returns where they begin.
    fn begin_logs_of_copy(&self, target: &Arc<dyn Directory>, seqno: SeqNo) -> Result<LogMark> {
        let options = LogOptions {
            identity: LogIdentity::new(0, self.storage.salt()),
            segment_bytes_first: LOG_BYTES,
            segment_bytes_max: LOG_BYTES,
            budget: Arc::clone(self.storage.budget()),
        };
        let count = self.storage.superblock().log.begin.len();
        let (tail, logs) = Logs::create(target, &options, count)?;
        drop((tail, logs));
        Ok(LogMark { seqno, ..LogMark::new(count) })
    }
}

/// Removes the files of a copy that did not get complete, as far as possible.
pub fn clear(target: &dyn Directory) {
    for name in target.list().unwrap_or_default() {
        let _ = target.remove(&name);
    }
}

/// The version of `keyspace` that has the writes up to `seqno`, and no later ones.
fn part_of(keyspace: Arc<KeyspaceCore>, seqno: SeqNo) -> Result<Part> {
    let view = keyspace.view_at(seqno);
    let is_newer = |first: SeqNo| first > seqno;
    let firsts = view.buffers.iter().filter_map(|buffer| buffer.first());
    if !firsts.map(|first| first.seqno).all(is_newer) {
        return Err(Error::internal("a memtable of a backup's moment was not flushed"));
    }
    let version = view.version.clone();
    Ok(Part { keyspace, version })
}
