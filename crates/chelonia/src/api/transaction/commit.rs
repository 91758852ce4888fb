//! The commit of a transaction: whether what it has read still holds, and how often to try again.
//!
//! ```text
//!   snapshot                     checked so far              commit
//!   ----|--------------------------------|----------------------|------> writes of all commits
//!       [ by keys: full chunks of recent ][ under the commit    ]
//!       [ writes; or by reading again    ][ lock: the rest      ]
//! ```
//!
//! The transaction takes its place in the order of commits at the end of the last part. Nothing
//! that it has read was written before that place and after its snapshot; so it is as if all its
//! reads had happened there, at once. That makes transactions serializable, in the order of their
//! commits.

use crate::api::handle::Handle;
use crate::api::keyspace::Keyspace;
use crate::api::snapshot::Snapshot;
use crate::api::transaction::reads::ReadSet;
use crate::api::transaction::updates::Updates;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{KeyspaceId, SeqNo};
use crate::options::commit::CommitOptions;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::Arc;
use crate::versions::recent_writes::{Checked, Watch};
use crate::write::commit::Condition;
use std::cell::Cell;

/// How often a commit is tried because too many keys were written just before it.
const ROUNDS_MAX: u32 = 4;

/// Commits `updates`, if nothing in `reads` was written since `snapshot`.
pub fn commit(
    handle: &Arc<Handle>,
    snapshot: &Snapshot,
    watch: &Watch,
    reads: &mut ReadSet,
    updates: &Updates,
    options: CommitOptions,
) -> Result<()> {
    // Before any lock is taken: this may be a forked child.
    handle.reads().check()?;
    if updates.is_empty() {
        // As of the snapshot.
        return handle.commit_nothing(options);
    }
    let keyspaces = updates.keyspaces();
    if reads.is_empty() {
        // As of the commit.
        return handle.commit(&keyspaces, updates, options);
    }
    reads.seal();
    let (checked, is_unknown) = (Cell::new(SeqNo(snapshot.seqno())), Cell::new(false));
    let unchanged = Unchanged { handle, snapshot, watch, reads, checked, is_unknown };
    for _ in 0..ROUNDS_MAX {
        unchanged.is_unknown.set(false);
        let committed = handle.commit_if(&keyspaces, updates, options, &unchanged);
        if !unchanged.is_unknown.get() {
            return committed;
        }
    }
    Err(overtaken(handle))
}

/// The condition of a transaction: nothing that it has read was written since its snapshot.
struct Unchanged<'t> {
    handle: &'t Arc<Handle>,
    snapshot: &'t Snapshot,
    watch: &'t Watch,
    reads: &'t ReadSet,
    /// Writes up to this one are known to have changed nothing.
    checked: Cell<SeqNo>,
    /// Too many keys were written after the early check.
    is_unknown: Cell<bool>,
}

impl Unchanged<'_> {
    fn is_read(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.reads.has(keyspace, key)
    }

    fn conflict(&self, keyspace: KeyspaceId) -> Error {
        conflict(self.handle, self.reads.name(keyspace))
    }
}

impl Condition for Unchanged<'_> {
    fn check_early(&self) -> Result<()> {
        let is_read = |keyspace: KeyspaceId, key: &[u8]| self.is_read(keyspace, key);
        match self.watch.recent().check_full(self.checked.get(), is_read) {
            Checked::Unchanged(upto) => self.checked.set(upto),
            Checked::Changed(keyspace) => return Err(self.conflict(keyspace)),
            Checked::Unknown => {
                self.checked.set(read_again(self.handle, self.snapshot, self.reads)?);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.reads.check_keyspaces()?;
        let is_read = |keyspace: KeyspaceId, key: &[u8]| self.is_read(keyspace, key);
        match self.watch.recent().check_rest(self.checked.get(), is_read) {
            Checked::Unchanged(_) => Ok(()),
            Checked::Changed(keyspace) => Err(self.conflict(keyspace)),
            Checked::Unknown => {
                self.is_unknown.set(true);
                Err(overtaken(self.handle))
            }
        }
    }
}

/// Compares all that was read at the snapshot with what is there now; returns as of when. Needed
/// if more keys were written meanwhile than are remembered.
#[cold]
fn read_again(handle: &Arc<Handle>, before: &Snapshot, reads: &ReadSet) -> Result<SeqNo> {
    mark(Mark::TransactionReadAgain);
    let now = Snapshot::new(Arc::clone(handle));
    for (core, keys, ranges) in reads.iter() {
        core.check_exists()?;
        let keyspace = Keyspace { handle: Arc::clone(handle), core: Arc::clone(core) };
        for key in keys {
            if before.get(&keyspace, key)? != now.get(&keyspace, key)? {
                return Err(conflict(handle, &core.name));
            }
        }
        for range in ranges {
            let mut then = before.iter_over(&keyspace, range.clone());
            let mut now = now.iter_over(&keyspace, range.clone());
            loop {
                match (then.next().transpose()?, now.next().transpose()?) {
                    (None, None) => break,
                    (then, now) if then == now => {}
                    _ => return Err(conflict(handle, &core.name)),
                }
            }
        }
    }
    Ok(SeqNo(now.seqno()))
}

/// The error of a commit after which what it relied on in this keyspace was written.
pub fn conflict(handle: &Handle, keyspace: &str) -> Error {
    handle.count_conflict();
    let text = format!(
        "conflict: another commit changed what this transaction had read in keyspace {keyspace:?}; \
         nothing was written, run the transaction again"
    );
    Error::new(ErrorKind::Conflict, text)
}

/// The error of a commit whose reads could not be checked because writes went on too fast.
fn overtaken(handle: &Handle) -> Error {
    handle.count_conflict();
    let text = "conflict: more was written during the transaction than it could be compared with; \
                nothing was written, run the transaction again";
    Error::new(ErrorKind::Conflict, text)
}
