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
use std::cell::Cell;

/// How often reads are repeated because too many keys were written meanwhile to remember them.
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
    let reads = &*reads;
    let is_read = |keyspace: KeyspaceId, key: &[u8]| reads.has(keyspace, key);
    let mut checked = SeqNo(snapshot.seqno());
    for _ in 0..ROUNDS_MAX {
        match watch.recent().check_full(checked, is_read) {
            Checked::Unchanged(upto) => checked = upto,
            Checked::Changed(keyspace) => return Err(conflict(handle, reads.name(keyspace))),
            Checked::Unknown => checked = read_again(handle, snapshot, reads)?,
        }
        let is_unknown = Cell::new(false);
        let still_holds = || {
            reads.check_keyspaces()?;
            match watch.recent().check_rest(checked, is_read) {
                Checked::Unchanged(_) => Ok(()),
                Checked::Changed(keyspace) => Err(conflict(handle, reads.name(keyspace))),
                Checked::Unknown => {
                    is_unknown.set(true);
                    Err(overtaken(handle))
                }
            }
        };
        let committed = handle.commit_if(&keyspaces, updates, options, &still_holds);
        if !is_unknown.get() {
            return committed;
        }
    }
    Err(overtaken(handle))
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
