//! The commit pipeline: from entries to an acknowledgement.
//!
//! ```text
//!   1 admit        back-pressure; wait for memory                         any thread
//!   2 encode       large values to extents of their own; record; hash     any thread
//!   3 order        take seqnos and a ticket, append to the log            commit lock, ~50 ns
//!   4 insert       entries into the memtables                             any thread
//!   5 see          complete the ticket; wait until visible                any thread
//!   6 sync         only at level Sync: group commit of the log            any thread
//! ```
//!
//! Failures: in 1 and 2 nothing was changed (large values are freed); in 3 a lack of space leaves
//! everything unchanged, any other failure stops all writes, and whether the commit survives is
//! known after the reopen; 4 and 5 fail only by a panic, which stops all writes; a failure in 6
//! stops all writes, the commit is visible, and its durability is known after the reopen.

use crate::admission::governor::Admission;
use crate::base::codec::Sink;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Lsn, SeqNo};
use crate::base::limits::{BATCH_BYTES_MAX, LARGE_VALUE_BYTES_MIN, SLAB_BYTES};
use crate::base::stream::LargeRef;
use crate::memory::budget::{Budget, Charge, Use};
use crate::memory::epoch::Guard;
use crate::memory::pages::PageBuffer;
use crate::memtable::Memtable;
use crate::options::commit::{CommitOptions, Deadline};
use crate::options::keyspace::Durability;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, Ordering, thread_local};
use crate::state::core::{CommitState, Core};
use crate::state::health::Health;
use crate::state::keyspace::KeyspaceCore;
use crate::versions::view::{Buffer, View};
use crate::write::record;
use crate::write::writes::{Writes, counted_bytes, large_bytes};
use std::cell::Cell;

thread_local! {
    /// The record under construction, reused so that a commit allocates nothing.
    static RECORD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A commit that counts more bytes than this has a record buffer of its own, which is charged to
/// the budget while it exists.
const RECORD_BYTES_KEPT: u64 = 64 << 10;

/// The log record of a commit.
enum Payload {
    Small(Vec<u8>),
    /// In pages of its own.
    Large {
        bytes: PageBuffer,
        _charge: Charge,
    },
}

impl Payload {
    /// Encodes a record of at most about [`RECORD_BYTES_KEPT`] into this thread's buffer.
    fn small(encode: impl FnOnce(&mut Vec<u8>)) -> Self {
        // Thread-local memory is gone when destructors of an ending thread commit something.
        let mut bytes = RECORD.try_with(Cell::take).unwrap_or_default();
        bytes.clear();
        encode(&mut bytes);
        Payload::Small(bytes)
    }

    /// Encodes a larger record.
    fn large(budget: &Arc<Budget>, encode: impl FnOnce(&mut PageBuffer)) -> Self {
        let mut bytes = PageBuffer::new();
        encode(&mut bytes);
        let _charge = budget.charge(Use::Log, bytes.capacity() as u64);
        Payload::Large { bytes, _charge }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Payload::Small(bytes) => bytes,
            Payload::Large { bytes, .. } => bytes.as_slice(),
        }
    }

    /// Frees a large record, which is not needed any more.
    fn shrink(&mut self) {
        if matches!(self, Payload::Large { .. }) {
            *self = Payload::Small(Vec::new());
        }
    }

    /// Keeps the buffer of a small record for this thread's next commit.
    fn done(self) {
        if let Payload::Small(bytes) = self
            && bytes.capacity() > 0
        {
            let _ = RECORD.try_with(|record| record.set(bytes));
        }
    }
}

/// The place of a commit in the order of all commits.
struct Placed<'guard> {
    ticket: u64,
    first: SeqNo,
    last: SeqNo,
    /// End of its record in the log.
    end: Lsn,
    /// For each keyspace of the commit, the view whose active memtable takes its entries.
    views: Views<'guard>,
}

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

/// A commit between its place in the order and its completion. Dropped only by a panic: later
/// writes could never become visible, so the database stops instead of waiting.
struct Unfinished<'a> {
    core: &'a Core,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.core.health.stop(Error::internal("a commit was aborted by a panic"));
        self.core.visibility.abandon();
    }
}

impl Core {
    /// Commits `writes` as one atomic unit; returns when it is visible and as durable as `options`
    /// demand. `WouldBlock` if it would have to wait for longer than they allow.
    pub fn commit<'a>(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        options: CommitOptions,
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
        self.check_disk(bytes, large_bytes(writes), is_deletes, deadline)?;
        let growth = self.growth(keyspaces, writes, bytes);
        let admission = self.admit(bytes, growth, deadline)?;
        self.storage.budget().make_ready(bytes)?;
        let large = self.write_large_values(writes)?;
        let guard;
        let mut payload = if bytes <= RECORD_BYTES_KEPT {
            guard = self.storage.epochs().pin();
            if let [keyspace] = keyspaces
                && let Some(write) = writes.iter().next()
            {
                // The prefetch overlaps with encoding the record and appending it to the log.
                keyspace.view.load(&guard).buffers[0].memtable.prefetch(write.key);
            }
            Payload::small(|bytes| encode(bytes, keyspaces, writes, &large))
        } else {
            let budget = self.storage.budget();
            let payload = Payload::large(budget, |bytes| encode(bytes, keyspaces, writes, &large));
            // Caches give up nothing while this thread has a guard.
            budget.make_room_for(growth);
            guard = self.storage.epochs().pin();
            payload
        };
        let end =
            self.commit_with_space(keyspaces, writes, (&mut payload, &large), guard, deadline);
        payload.done();
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
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        (payload, large): (&mut Payload, &[LargeRef]),
        mut guard: Guard,
        deadline: Deadline,
    ) -> Result<Lsn> {
        let mut attempt = 0;
        let error = loop {
            let placed = self.commit_record(keyspaces, writes, payload, large, &guard);
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
            || matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WouldBlock);
        if is_refused {
            large.iter().for_each(|large| self.storage.free_unreachable(large.extent));
        }
        Err(error)
    }

    /// Steps 3 to 5.
    fn commit_record<'a>(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        payload: &mut Payload,
        large: &[LargeRef],
        guard: &Guard,
    ) -> Result<Lsn> {
        let Some(log) = self.log.get() else {
            return Err(Error::internal("a writable database has no log"));
        };
        let hash = log.payload_hash(payload.bytes());
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
        let placed = self.place(keyspaces, bytes, payload.bytes(), (hash, writes.len()), guard)?;
        let unfinished = Unfinished { core: self };
        // The log has it, and the memtables are about to take as much again.
        payload.shrink();
        let mut seqno = placed.first;
        let mut large = large.iter();
        for write in writes.iter() {
            let update = write.update(&mut large);
            if !update.is_delete() {
                keyspaces[write.keyspace].empty_ranges.cut(write.key);
            }
            let active = placed.views.active(write.keyspace);
            active.memtable.insert(write.key, update, seqno, &*self.snapshots);
            seqno = seqno.next();
        }
        std::mem::forget(unfinished);
        self.visibility.complete(placed.ticket, placed.last)?;
        Ok(placed.end)
    }

    /// Step 3: takes the commit's place in the order and appends its record to the log. `bytes`
    /// counts keys and values of each keyspace.
    fn place<'guard>(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        bytes: &[u64],
        payload: &[u8],
        (hash, entries): (u64, usize),
        guard: &'guard Guard,
    ) -> Result<Placed<'guard>> {
        let mut commit = self.commit.lock();
        self.check_write()?;
        for keyspace in keyspaces {
            keyspace.check_exists()?;
            self.rotate_if_full(keyspace, guard);
        }
        let CommitState { tail, next_seqno, next_ticket, totals, .. } = &mut *commit;
        // Only a close takes the tail.
        let Some(tail) = tail else { return Err(Health::closed()) };
        self.visibility.wait_for_slot(*next_ticket)?;
        let start = tail.position();
        let end =
            tail.append(payload, hash).map_err(|error| self.health.stop_unless_harmless(error))?;
        if self.log.get().is_some_and(|log| log.wants_segment()) {
            self.signals.wake_log();
        }
        let (first, last) = (*next_seqno, SeqNo(next_seqno.0 + entries as u64 - 1));
        let views = match keyspaces {
            [keyspace] => Views::One(keyspace.view.load(guard)),
            _ => Views::Many(keyspaces.iter().map(|one| one.view.load(guard)).collect()),
        };
        for (index, bytes) in bytes.iter().enumerate() {
            views.active(index).touch(start, first, last, *bytes);
        }
        let ticket = *next_ticket;
        *next_ticket += 1;
        *next_seqno = last.next();
        totals.commits += 1;
        totals.entries += entries as u64;
        totals.user_bytes += bytes.iter().sum::<u64>();
        Ok(Placed { ticket, first, last, end: end.lsn, views })
    }

    /// Rotates the keyspace's memtable if its updates reach the checkpoint distance, or its memory
    /// reaches the maximum. Called under the commit lock.
    fn rotate_if_full(&self, keyspace: &Arc<KeyspaceCore>, guard: &Guard) {
        let view = keyspace.view.load(guard);
        let active = &view.buffers[0];
        let distance = self.governor.checkpoint_distance(keyspace.distance.load(Ordering::Relaxed));
        let full = active.update_bytes() >= distance
            || active.memtable.bytes() >= self.governor.memtable_bytes_max();
        if full {
            self.rotate_if_allowed(keyspace);
        }
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

    /// Rotates the memtables of seldom written keyspaces, so that a single old record does not keep
    /// the whole log from being recycled. Called under the commit lock.
    fn rotate_laggards(&self) {
        let Some(log) = self.log.get() else { return };
        let (written, limit) =
            (log.written(), LOG_SHARES_MAX.saturating_mul(self.governor.write_share()));
        for keyspace in self.all_keyspaces() {
            let view = keyspace.current_view();
            let first = view.buffers[0].first();
            let lags =
                first.is_some_and(|first| written.0.saturating_sub(first.position.lsn.0) > limit);
            if lags && view.buffers.len() <= IMMUTABLE_MAX {
                mark(Mark::LaggardRotated);
                self.rotate(&keyspace);
            }
        }
    }

    /// Step 1: delays the commit as the debt demands; fails if the device is full and nothing can
    /// be flushed. `bytes` is the size of the commit, `growth` the memory that its memtables take
    /// for it.
    fn admit(&self, bytes: u64, growth: u64, deadline: Deadline) -> Result<Admission<'_>> {
        let debt = self.debt();
        match self.governor.admit(growth, growth + HEADROOM_BYTES) {
            Some(admission) => {
                let is_paced = debt.backlog_bytes > 0;
                if is_paced && !self.pacer.admit(bytes, debt, deadline.left(&self.clock)) {
                    return Err(self.pacer.refuse());
                }
                Ok(admission)
            }
            None => self.wait_for_memory(growth, deadline),
        }
    }

    /// The memory that a commit takes: its bytes; or, if it writes to several keyspaces, the growth
    /// of their memtables, because each grows by a chunk.
    fn growth<'a>(
        &self,
        keyspaces: &[&Arc<KeyspaceCore>],
        writes: impl Writes<'a>,
        bytes: u64,
    ) -> u64 {
        if keyspaces.len() < 2 {
            return bytes;
        }
        let mut each = vec![0; keyspaces.len()];
        for write in writes.iter() {
            each[write.keyspace] += counted_bytes(write.key, write.value);
        }
        let guard = self.storage.epochs().pin();
        let grown = keyspaces.iter().zip(each).map(|(keyspace, bytes)| {
            keyspace.view.load(&guard).buffers[0].memtable.growth_bytes(bytes)
        });
        bytes.max(grown.sum())
    }

    /// Waits for memtable memory, after making sure that something is being flushed.
    fn wait_for_memory(&self, growth: u64, deadline: Deadline) -> Result<Admission<'_>> {
        mark(Mark::CommitWaitedForMemory);
        let half = self.governor.memtable_bytes_max();
        // A commit to many keyspaces may need more than half: then less may stay in memtables.
        let rest_max = self.governor.write_share().saturating_sub(growth + HEADROOM_BYTES);
        let rest_max = rest_max.clamp(half / 4, half);
        let wanted = (growth + HEADROOM_BYTES).min(self.governor.write_share() - rest_max);
        let refused = || self.counters.out_of_space.load(Ordering::Relaxed);
        let idle = || self.counters.immutable_bytes.load(Ordering::Relaxed) == 0;
        let mut admitted = None;
        let mut is_over = false;
        self.try_again_if_full();
        while !is_over {
            if idle() {
                let _commit = self.commit.lock();
                self.rotate_largest(rest_max);
            }
            if self.stepped {
                self.flush_all_immutable()?;
                return Ok(self.governor.admit_forced(growth));
            }
            let _hurry = self.pacer.hurry();
            let in_time = self.pacer.wait_until(deadline.left(&self.clock), || {
                // What readers retain of flushed memtables may leave no more than half.
                let is_all = || idle() && self.active_bytes() <= rest_max;
                let wanted = if wanted > half && is_all() { half } else { wanted };
                admitted = self.governor.admit(growth, wanted);
                is_over = admitted.is_some() || self.health.check_write().is_err() || refused();
                // Flushed, and still no free memory: rotate more memtables.
                is_over || (idle() && self.active_bytes() > 0)
            });
            if !in_time {
                return Err(self.pacer.refuse());
            }
        }
        self.health.check_write()?;
        let full = "disk full: memtables cannot be flushed; free space and retry";
        admitted.ok_or_else(|| Error::new(ErrorKind::NoSpace, full))
    }

    /// Bytes of all active memtables.
    fn active_bytes(&self) -> u64 {
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
    fn sync_through(&self, lsn: Lsn) -> Result<()> {
        let Some(log) = self.log.get() else { return Ok(()) };
        log.expect_syncs();
        let synced = log.sync_through_after(lsn, || self.sync_large_values());
        synced.map_err(|error| self.health.stop(error))
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

/// Memory that a commit may take beyond its own bytes: a slab for the memtable.
const HEADROOM_BYTES: u64 = SLAB_BYTES as u64;

/// Most immutable memtables of a keyspace for a rotation because the active one is full. Rotations
/// that free memory or serve a checkpoint may exceed it.
const IMMUTABLE_MAX: usize = 2;

/// A memtable whose first record lies further back in the log than this many write shares is
/// rotated, however small it is: this bounds what recovery replays, beside memtables in flushes.
const LOG_SHARES_MAX: u64 = 2;

fn encode<'a>(
    payload: &mut impl Sink,
    keyspaces: &[&Arc<KeyspaceCore>],
    writes: impl Writes<'a>,
    large: &[LargeRef],
) {
    record::begin(payload, writes.len());
    let mut large = large.iter();
    for write in writes.iter() {
        let update = write.update(&mut large);
        record::push(payload, keyspaces[write.keyspace].id, write.key, update);
    }
}
