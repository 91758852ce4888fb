//! A commit: from entries to an acknowledgement.
//!
//! ```text
//!   1 admit    `admit`       disk space (`disk_full/accept.rs`), then      any thread
//!                            back-pressure; wait for memory; the disk again;
//!                            the early check of a `Condition`
//!   2 encode   here          large values to their extents                 any thread
//!              `payload`     the record
//!   3 order    `pipeline`    take seqnos and a ticket, append to the log   commit lock, ~50 ns
//!   4 insert   `pipeline`    entries into the memtables                    any thread
//!   5 see      `pipeline`    complete the ticket; wait until visible       any thread
//!   6 sync     here          only at level Sync: group commit of the log   any thread
//! ```
//!
//! Failures: in 1 and 2 nothing was changed (large values are freed); in 3 a lack of space leaves
//! everything unchanged, any other failure stops all writes, and whether the commit survives is
//! known after the reopen; 4 and 5 fail only by a panic, which stops all writes; a failure in 6
//! stops all writes, the commit is visible, and its durability is known after the reopen.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::SeqNo;
use crate::base::limits::{BATCH_BYTES_MAX, LARGE_VALUE_BYTES_MIN};
use crate::base::stream::LargeRef;
use crate::disk_full::accept::SpaceNeeds;
use crate::memory::epoch::Guard;
use crate::options::commit::{CommitOptions, Deadline};
use crate::options::keyspace::Durability;
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::{Core, LogEnd};
use crate::state::keyspace::KeyspaceCore;
use crate::versions::view::{Buffer, View};
use crate::write::payload::{Front, Payload, RECORD_BYTES_KEPT};
use crate::write::pipeline::{Entries, Pipeline, Place};
use crate::write::writes::{Write, Writes, counted_bytes, large_bytes};

/// The views of a commit. Nearly every commit has one keyspace and needs no allocation.
enum Views<'guard> {
    One(&'guard Arc<View>),
    Many(Vec<&'guard Arc<View>>),
}

impl<'guard> Views<'guard> {
    fn active(&self, index: usize) -> &'guard Arc<Buffer> {
        let view = match self {
            Views::One(view) => view,
            Views::Many(views) => views[index],
        };
        &view.buffers[0]
    }
}

/// A condition of a commit: that what it depends on has not been written.
pub trait Condition {
    /// Checks what was written so far. Called without a lock once the commit has waited for memory
    /// and space, so that hardly anything is left for [`Condition::check`]; may read.
    fn check_early(&self) -> Result<()>;

    /// Checks the rest; fails if the commit may not take the next place in the order of commits.
    /// Called under the commit lock.
    fn check(&self) -> Result<()>;
}

/// The entries of a commit over its keyspaces, on their way through the pipeline.
struct CommitEntries<'c, W> {
    core: &'c Core,
    keyspaces: &'c [&'c Arc<KeyspaceCore>],
    writes: W,
    payload: &'c mut Payload,
    hash: u64,
    large: &'c [LargeRef],
    /// Bytes of keys and values of each keyspace.
    bytes: &'c [u64],
    guard: &'c Guard,
    /// Must hold under the commit lock.
    condition: Option<&'c dyn Condition>,
    first: SeqNo,
    /// Of each keyspace, the view whose active memtable takes its entries.
    views: Views<'c>,
}

impl<'a, W: Writes<'a>> Entries for CommitEntries<'_, W> {
    #[inline]
    fn count(&self) -> usize {
        self.writes.len()
    }

    #[inline]
    fn bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    #[inline]
    fn record(&self) -> (&[u8], u64) {
        (self.payload.bytes(), self.hash)
    }

    #[inline]
    fn numbered(&mut self, first: SeqNo) -> &[u8] {
        self.payload.number(first);
        self.payload.bytes()
    }

    #[inline]
    fn prepare(&mut self) -> Result<()> {
        self.core.check_write()?;
        for keyspace in self.keyspaces {
            keyspace.check_exists()?;
            self.core.rotate_if_full(keyspace, self.guard);
        }
        self.condition.map_or(Ok(()), Condition::check)
    }

    #[inline(always)]
    fn placed(&mut self, place: Place<'_>) {
        if self.core.log.get().is_some_and(|log| log.wants_segment()) {
            self.core.signals.wake_log();
        }
        self.first = place.first;
        self.views = match self.keyspaces {
            [keyspace] => Views::One(keyspace.view.load(self.guard)),
            all => Views::Many(all.iter().map(|one| one.view.load(self.guard)).collect()),
        };
        for (index, bytes) in self.bytes.iter().enumerate() {
            self.views.active(index).touch(place.starts, place.first, place.last, *bytes);
        }
        if self.core.recent_writes.is_watched() {
            let key = |write: Write<'a>| (self.keyspaces[write.keyspace].id, write.key);
            self.core.recent_writes.push(place.last, || self.writes.iter().map(key));
        }
    }

    #[inline(always)]
    fn apply(&mut self) {
        // The log has the record, and the memtables are about to take as much memory again.
        self.payload.free_large();
        let mut seqno = self.first;
        let mut large = self.large.iter();
        for write in self.writes.iter() {
            let update = write.update(&mut large);
            if !update.is_delete() {
                self.keyspaces[write.keyspace].empty_ranges.cut(write.key);
            }
            let active = self.views.active(write.keyspace);
            active.memtable.insert(write.key, update, seqno, &*self.core.snapshots);
            seqno = seqno.next();
        }
    }
}

impl Core {
    /// Commits `writes` as one atomic unit; returns when it is visible and as durable as `options`
    /// demand. `WouldBlock` if it would have to wait for longer than they allow.
    #[inline]
    pub fn commit<'a>(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        options: CommitOptions,
    ) -> Result<()> {
        self.commit_if(keyspaces, writes, options, None)
    }

    /// Commits `writes` like [`Core::commit`], if `condition` holds when they take their place in
    /// the order of commits; otherwise fails with its error, and has changed nothing.
    pub fn commit_if<'a>(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        options: CommitOptions,
        condition: Option<&dyn Condition>,
    ) -> Result<()> {
        self.check_write()?;
        let level = options.durability.unwrap_or(self.durability);
        let deadline = Deadline::after(options.timeout, &self.clock);
        if writes.len() == 0 {
            return if level == Durability::Sync { self.sync() } else { Ok(()) };
        }
        let bytes: usize = writes.iter().map(|write| counted_bytes(write.key, write.value)).sum();
        if bytes > BATCH_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a batch of {bytes} bytes is over the limit of {BATCH_BYTES_MAX} (BATCH_BYTES_MAX)"
            )));
        }
        let bytes = bytes as u64;
        let is_deletes = || writes.iter().all(|write| write.value.is_none());
        let large_bytes = large_bytes(writes);
        let mut needs = SpaceNeeds { update_bytes: bytes, counted_bytes: 0, large_bytes };
        let known = self.check_disk(needs, is_deletes, deadline)?;
        let growth = self.growth(keyspaces, writes, bytes);
        let admission = self.admit(keyspaces, bytes, growth, deadline)?;
        // It may have waited, and others may have begun to use the space.
        needs.counted_bytes = bytes.min(admission.bytes());
        let pending_large = self.accept_on_disk(known, needs, is_deletes, deadline)?;
        self.storage.budget().make_ready(bytes)?;
        condition.map_or(Ok(()), Condition::check_early)?;
        let large = self.write_large_values(writes)?;
        drop(pending_large);
        let front = match self.log.get() {
            Some(logs) if !logs.is_single() => Front::Seqno,
            _ => Front::Empty,
        };
        let guard;
        let mut payload = if bytes <= RECORD_BYTES_KEPT {
            guard = self.storage.epochs().pin();
            if let [keyspace] = keyspaces
                && let Some(write) = writes.iter().next()
            {
                // The prefetch overlaps with encoding the record and appending it to the log.
                keyspace.view.load(&guard).buffers[0].memtable.prefetch(write.key);
            }
            Payload::small(keyspaces, writes, &large, front)
        } else {
            let budget = self.storage.budget();
            let payload = Payload::large(keyspaces, writes, &large, front, budget);
            // Caches give up nothing while this thread has a guard.
            budget.make_room_for(growth);
            guard = self.storage.epochs().pin();
            payload
        };
        let entries = (keyspaces, writes, condition);
        let end = self.commit_with_space(entries, (&mut payload, &large), guard, deadline);
        payload.finish();
        let end = end?;
        drop(admission);
        if level == Durability::Sync {
            self.sync_through(end)?;
        }
        self.after_commit()
    }

    /// Steps 3 to 5; retried after space was gained if the log finds none for its next segment.
    fn commit_with_space<'a>(
        &self,
        entries: (&[&Arc<KeyspaceCore>], impl Writes<'a>, Option<&dyn Condition>),
        (payload, large): (&mut Payload, &[LargeRef]),
        mut guard: Guard,
        deadline: Deadline,
    ) -> Result<LogEnd> {
        let mut attempt = 0;
        let error = loop {
            let placed = self.commit_record(entries, payload, large, &guard);
            // A guard would retain freed memory during the work for space.
            drop(guard);
            match placed {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    match self.make_log_space(attempt, deadline) {
                        Ok(true) => attempt += 1,
                        Ok(false) => break error,
                        // The commit may not wait any longer, or writes were stopped.
                        Err(other) => break other,
                    }
                }
                Err(error) => break error,
                end => return end,
            }
            guard = self.storage.epochs().pin();
        };
        // Only a refusal that left the log unchanged frees the extents: after any other failure the
        // record may be in the log.
        let is_refused = error.is_transient()
            || matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::WouldBlock | ErrorKind::Conflict
            );
        if is_refused {
            large.iter().for_each(|large| self.storage.free_unreachable(large.extent));
        }
        Err(error)
    }

    /// Steps 3 to 5.
    fn commit_record<'a>(
        &self,
        (keyspaces, writes, condition): (
            &[&Arc<KeyspaceCore>],
            impl Writes<'a>,
            Option<&dyn Condition>,
        ),
        payload: &mut Payload,
        large: &[LargeRef],
        guard: &Guard,
    ) -> Result<LogEnd> {
        let Some(logs) = self.log.get() else {
            return Err(Error::internal("a writable database has no log"));
        };
        // In one of several logs the record is not complete yet.
        let is_single = logs.is_single();
        let hash = if is_single { logs.first().payload_hash(payload.bytes()) } else { 0 };
        // Bytes per keyspace. Nearly every commit has one: no allocation for it.
        let (mut one, mut many) = ([0], Vec::new());
        let bytes: &mut [u64] = if keyspaces.len() == 1 {
            &mut one
        } else {
            many.resize(keyspaces.len(), 0);
            &mut many
        };
        for write in writes.iter() {
            bytes[write.keyspace] += (write.key.len() + write.value.map_or(0, <[u8]>::len)) as u64;
        }
        let pipeline =
            Pipeline { order: &self.commit, visibility: &self.visibility, health: &self.health };
        let core = self;
        let entries = move || {
            let (payload, bytes) = (payload, bytes);
            let (views, first) = (Views::Many(Vec::new()), SeqNo(0));
            CommitEntries {
                core,
                keyspaces,
                writes,
                payload,
                hash,
                large,
                bytes,
                guard,
                condition,
                first,
                views,
            }
        };
        // A value for each: one whose address the second call takes would be kept in memory.
        if is_single {
            return pipeline.commit(&mut entries()).map(LogEnd::Position);
        }
        pipeline.commit_to(logs.own_tail(), &mut entries()).map(LogEnd::Write)
    }

    /// Writes the large values of a commit to extents of their own, in order; all or none.
    fn write_large_values<'a>(&self, writes: impl Writes<'a>) -> Result<Vec<LargeRef>> {
        let mut written = Vec::new();
        for value in writes.iter().filter_map(|write| write.value) {
            if value.len() < LARGE_VALUE_BYTES_MIN {
                continue;
            }
            match self.storage.write_large(value) {
                Ok(large) => written.push(large),
                Err(error) => {
                    let extents = written.iter().map(|large: &LargeRef| large.extent);
                    extents.for_each(|extent| self.storage.free_unreachable(extent));
                    return Err(self.health.stop_unless_harmless(error));
                }
            }
        }
        if !written.is_empty() {
            self.large_unsynced.store(true, Ordering::SeqCst);
        }
        Ok(written)
    }

    /// Step 6.
    fn sync_through(&self, end: LogEnd) -> Result<()> {
        let Some(logs) = self.log.get() else { return Ok(()) };
        logs.expect_syncs();
        self.sync_logs(Some(end)).map_err(|error| self.health.stop(error))
    }

    /// Does or requests the background work that is due after a commit.
    fn after_commit(&self) -> Result<()> {
        let immutable = self.counters.immutable_bytes.load(Ordering::Relaxed);
        let half = self.governor.memtable_bytes_max();
        if self.governor.memtable_bytes().saturating_sub(immutable) >= half {
            let _commit = self.commit.lock();
            if self.active_bytes() >= half {
                self.rotate_largest(half);
            }
        }
        if self.stepped && self.counters.immutable_bytes.load(Ordering::Relaxed) > 0 {
            let flushed = self.flush_all_immutable().and_then(|()| self.maintain_all());
            // The commit succeeded: the next one handles the full device.
            return flushed.or_else(|error| if error.is_transient() { Ok(()) } else { Err(error) });
        }
        Ok(())
    }
}
