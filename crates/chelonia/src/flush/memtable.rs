//! Flush: the engine absorbs an immutable memtable, whose memory is freed.
//!
//! 1. Wait until every commit that writes to the memtable is visible: then it is complete.
//! 2. Cut it at the seqnos pinned within it. Pins made from now on are newer than all of it, so the
//!    cuts are complete.
//! 3. For each part, oldest first, the engine absorbs the newest update of each key in the part and
//!    returns a version.
//! 4. Publish: in every view that holds the memtable, the version at the view's seqno replaces it.
//!
//! After a failure in step 3 the parts absorbed so far stay in the engine; the next attempt resumes
//! after them. A full device is such a failure: the memtable stays readable, and the flush is
//! retried when space was freed.

use crate::base::error::{Error, Result};
use crate::base::ids::SeqNo;
use crate::base::limits::SLAB_BYTES;
use crate::base::stream::SortedUpdates;
use crate::engine::{OwnedExtent, Version, Work, WriteBudget};
use crate::memtable::{Memtable, SortedBatch};
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, AtomicU64, Ordering};
use crate::runtime::workers::Workers;
use crate::state::core::Core;
use crate::state::keyspace::{KeyspaceCore, Latest, Partial};
use crate::storage::quota::Quota;
use crate::versions::pins::Flushed;
use crate::versions::view::Buffer;
use std::time::Duration;

/// Bytes that may wait for a checkpoint under way, as a multiple of those that request one.
const LAG_TIMES: u64 = 2;

/// Pace of a flush, its threads, the counter of the memtable bytes that it absorbed, and its begin.
type How<'h> = (FlushPace, &'h Workers, &'h AtomicU64, Duration);

/// A keyspace that a background thread has chosen for its next flush.
struct Chosen(Arc<KeyspaceCore>);

impl Chosen {
    fn choose(keyspace: Arc<KeyspaceCore>) -> Option<Self> {
        let is_chosen = keyspace.is_chosen.swap(true, Ordering::AcqRel);
        (!is_chosen).then_some(Self(keyspace))
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.0.is_chosen.store(false, Ordering::Release);
    }
}

/// How much a flush may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushPace {
    /// As much as is best for the shape of the tree.
    Usual,
    /// Hardly more than the memtable: the device is full.
    Minimal,
}

impl Core {
    /// Flushes the oldest immutable memtable of all keyspaces that no other background thread
    /// flushes; false if there is none.
    pub fn flush_oldest(&self, pace: FlushPace) -> Result<bool> {
        let is_chosen = |keyspace: &Arc<KeyspaceCore>| keyspace.is_chosen.load(Ordering::Acquire);
        let oldest = |keyspace: &Arc<KeyspaceCore>| {
            let buffer = keyspace.immutable().pop()?;
            Some((buffer.first().map(|first| first.seqno), Arc::clone(keyspace)))
        };
        let chosen = loop {
            let keyspaces = self.all_keyspaces().into_iter().filter(|one| !is_chosen(one));
            let mut waiting: Vec<_> = keyspaces.filter_map(|one| oldest(&one)).collect();
            waiting.sort_by_key(|(first, _)| *first);
            let others = waiting.len().saturating_sub(1);
            let Some((_, keyspace)) = waiting.into_iter().next() else { return Ok(false) };
            if let Some(chosen) = Chosen::choose(keyspace) {
                if others > 0 {
                    self.signals.wake_flush();
                }
                break chosen;
            }
        };
        let keyspace = Arc::clone(&chosen.0);
        // A keyspace dropped meanwhile is not listed again; others may still have memtables.
        let flushed = self.flush_at(&keyspace, pace)? || keyspace.check_exists().is_err();
        drop(chosen);
        if !keyspace.immutable().is_empty() {
            // Other threads passed over the keyspace while it was chosen, and may have gone to
            // sleep.
            self.signals.wake_flush();
        }
        Ok(flushed)
    }

    /// Flushes the oldest immutable memtable of `keyspace`; false if there is none, or the keyspace
    /// was dropped.
    pub fn flush_keyspace(&self, keyspace: &Arc<KeyspaceCore>) -> Result<bool> {
        self.flush_at(keyspace, FlushPace::Usual)
    }

    /// Like [`Core::flush_keyspace`], at the given pace.
    pub fn flush_at(&self, keyspace: &Arc<KeyspaceCore>, pace: FlushPace) -> Result<bool> {
        let mut partial = keyspace.flush.lock();
        // Taking the lock may have taken long, and the next absorb may take longer.
        self.health.check_write()?;
        if partial.reclaimed {
            return Ok(false);
        }
        let Some(buffer) = keyspace.immutable().pop() else { return Ok(false) };
        self.visibility.wait_until_visible(buffer.last())?;
        let start = self.clock.now();
        let (share, progress) = (self.shares.flush(), AtomicU64::new(0));
        let how = (pace, &share.workers, &progress, start);
        let flushed = self.in_background(|| self.absorb(keyspace, &buffer, &mut partial, how));
        let is_dropped = || keyspace.check_exists().is_err();
        let progress = progress.load(Ordering::Relaxed);
        self.counters.flush_progress_bytes.fetch_sub(progress, Ordering::Relaxed);
        match flushed {
            Ok(()) => {
                self.counters.out_of_space.store(false, Ordering::Relaxed);
                self.headroom.forget();
                self.pacer.flushed(buffer.memtable.bytes(), self.flush_time_since(start));
                self.counters.flushes.fetch_add(1, Ordering::Relaxed);
                self.counters.flushed_bytes.fetch_add(buffer.update_bytes(), Ordering::Relaxed);
                // A memtable without bytes needs a checkpoint too.
                let bytes = buffer.update_bytes().max(1);
                self.counters.undurable_bytes.fetch_add(bytes, Ordering::Relaxed);
                keyspace.flushed.add(buffer.update_bytes());
            }
            // On a full device, or if the tree cannot be read, the memtables that pins of a dropped
            // keyspace see have to stay in memory.
            Err(error) if is_dropped() && self.is_harmless_to_maintenance(&error) => {
                return Ok(false);
            }
            Err(error) => {
                self.pacer.wake();
                return Err(self.health.stop_unless_harmless(error));
            }
        }
        drop((buffer, partial, share));
        self.refresh_backlog();
        self.pacer.wake();
        if !self.stepped && keyspace.engine.wants_maintenance() {
            self.signals.wake_flush();
        }
        Ok(true)
    }

    /// Flushes a memtable beside another thread that flushes, or waits to flush, that of another
    /// keyspace; false if there is none, or the device is full: the flush thread deals with that.
    pub fn flush_beside(&self) -> Result<bool> {
        let is_chosen = |keyspace: &Arc<KeyspaceCore>| keyspace.is_chosen.load(Ordering::Acquire);
        let helps_not = &self.counters.helps_not;
        let is_beside = self.has_immutable()
            && !helps_not.load(Ordering::Relaxed)
            && self.all_keyspaces().iter().any(is_chosen);
        if !is_beside || !self.headroom.has_usual_space(self.pool_bytes().unwrap_or(u64::MAX)) {
            return Ok(false);
        }
        match self.flush_oldest(FlushPace::Usual) {
            Err(error) if error.is_transient() => {
                helps_not.store(true, Ordering::Relaxed);
                self.signals.wake_flush();
                Ok(false)
            }
            flushed => flushed,
        }
    }

    /// Steps 2 to 4, under the flush lock.
    fn absorb(
        &self,
        keyspace: &Arc<KeyspaceCore>,
        buffer: &Arc<Buffer>,
        partial: &mut Partial,
        how: How<'_>,
    ) -> Result<()> {
        let Some(first) = buffer.first() else {
            keyspace.publish(buffer, &[]);
            return Ok(());
        };
        let last = buffer.last();
        // Parts that an earlier attempt absorbed keep their cuts; pins made since are newer than
        // the whole memtable, and pins released since only make fewer versions.
        let done = partial.versions.last().map(|(upto, _)| *upto);
        let mut cuts: Vec<SeqNo> = partial.versions.iter().map(|(upto, _)| *upto).collect();
        let pinned = self.snapshots.cuts(keyspace.id, first.seqno, last);
        cuts.extend(pinned.into_iter().filter(|cut| done.is_none_or(|done| *cut > done)));
        if done.is_some() {
            mark(Mark::FlushResumed);
        }
        if !cuts.is_empty() {
            mark(Mark::FlushCut);
        }
        // Sorting takes one address per entry, and a slab per cut for older updates that pins see.
        let sorted = (buffer.memtable.len_estimate() * size_of::<usize>() as u64)
            .saturating_add((cuts.len() * SLAB_BYTES) as u64);
        self.storage.budget().make_ready(sorted)?;
        let flushed = buffer.memtable.sorted(&cuts);
        let mut superseded = flushed.superseded.iter().map(OwnedExtent::from);
        // An interval without writes has no part and needs no version of its own: its pin sees the
        // version before.
        let mut parts = flushed.batches.iter().peekable();
        while let Some(updates) = parts.next() {
            let upto = updates.upto().min(last);
            if done.is_some_and(|done| upto <= done) {
                continue;
            }
            let (version, mut lost) = self.absorb_part(keyspace, buffer, updates, how)?;
            if parts.peek().is_none() {
                lost.extend(&mut superseded);
            }
            partial.versions.push((upto, keyspace.lifetimes.hold(version, lost)));
        }
        if partial.versions.is_empty() {
            let version = keyspace.engine.version();
            let lost = superseded.collect();
            partial.versions.push((last, keyspace.lifetimes.hold(version, lost)));
        }
        // Never harmless: the whole memtable is absorbed, and must not be absorbed again.
        let root = keyspace.engine.root().map_err(|error| self.health.stop(error))?;
        let versions = std::mem::take(&mut partial.versions);
        let Some((_, newest)) = versions.last() else {
            return Err(Error::internal("a flush made no version"));
        };
        self.records.refresh(&keyspace.cache_epoch, newest.number(), &flushed.batches);
        drop(flushed);
        *keyspace.latest.lock() = Latest { root, absorbed: last, version: newest.clone() };
        let flushed = Flushed {
            keyspace: keyspace.id,
            history: &keyspace.history,
            before: &keyspace.current_view().version,
            versions: &versions,
        };
        self.snapshots.publish(&flushed, || keyspace.publish(buffer, &versions));
        keyspace.history.let_holders_go(buffer);
        keyspace.lifetimes.published();
        Ok(())
    }

    /// Absorbs one part of the memtable; returns the next version and the extents that it lost.
    fn absorb_part(
        &self,
        keyspace: &Arc<KeyspaceCore>,
        buffer: &Arc<Buffer>,
        updates: &SortedBatch,
        (pace, workers, progressed, start): How<'_>,
    ) -> Result<(Arc<dyn Version>, Vec<OwnedExtent>)> {
        let bytes_each = buffer.memtable.bytes() / (updates.len() as u64).max(1);
        let progress = |absorbed: u64| {
            let bytes = absorbed.saturating_mul(bytes_each);
            let so_far = progressed.fetch_add(bytes, Ordering::Relaxed) + bytes;
            self.pacer.absorbing(so_far, self.flush_time_since(start));
            self.counters.flush_progress_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.refresh_backlog();
            self.pacer.rest(workers.threads(), || self.has_time_to_flush(keyspace));
        };
        let quota = match pace {
            FlushPace::Usual => self.quota_beside_flushes(self.needed_bytes()),
            FlushPace::Minimal => Quota::unlimited(),
        };
        let dictionary = keyspace.compression.for_flush(updates, &self.storage)?;
        let values = keyspace.compression.values(dictionary.as_ref());
        let work = Work { workers, progress: &progress, quota: &quota, values };
        let absorbed = match pace {
            FlushPace::Usual => keyspace.engine.absorb(updates, WriteBudget::Usual, &work)?,
            FlushPace::Minimal => keyspace.engine.absorb(updates, WriteBudget::Minimal, &work)?,
        };
        let known = absorbed.gained.iter().all(|owned| self.storage.holds(owned.extent));
        if !known {
            return Err(Error::internal("an engine refers to space beyond the data file"));
        }
        Ok((absorbed.version, absorbed.lost))
    }

    /// The time that a flush took that began at `start`: flushes side by side share it.
    fn flush_time_since(&self, start: Duration) -> Duration {
        let side_by_side = u32::try_from(self.shares.flushes()).unwrap_or(1).max(1);
        self.clock.now().saturating_sub(start) / side_by_side
    }

    /// True if, at the pace of both so far, the immutable memtables will be flushed before the
    /// active memtable of `keyspace` is half full.
    fn has_time_to_flush(&self, keyspace: &KeyspaceCore) -> bool {
        if self.stepped || self.signals.is_stopping() {
            return false;
        }
        let read = |count: &AtomicU64| u128::from(count.load(Ordering::Relaxed));
        let asked = keyspace.distance.load(Ordering::Relaxed);
        let distance = self.governor.memtable_bytes_max();
        let distance = if asked == 0 { distance } else { asked.min(distance) };
        let immutable = read(&self.counters.immutable_bytes);
        let active = u128::from(self.governor.memtable_bytes()).saturating_sub(immutable);
        let absorbed = read(&self.counters.flush_progress_bytes);
        absorbed * u128::from(distance) > 2 * active * immutable
    }

    /// Frees the disk space and memory of `keyspace` after it was dropped durably. Data that pins
    /// still see is flushed to disk: a pin never holds memory.
    pub fn reclaim_dropped(&self, keyspace: &Arc<KeyspaceCore>) -> Result<()> {
        let _hurry = self.pacer.hurry();
        for buffer in &keyspace.current_view().buffers {
            self.visibility.wait_until_visible(buffer.last())?;
        }
        self.dropped.add(&keyspace.lifetimes);
        let mut is_flushed = false;
        let hidden = loop {
            let empty = Buffer::new(Memtable::new(Arc::clone(self.storage.budget())));
            match keyspace.release_all(empty, &self.snapshots, is_flushed) {
                Some(hidden) => break hidden,
                None => mark(Mark::DroppedWhileSeen),
            }
            {
                let _commit = self.commit.lock();
                self.rotate(keyspace);
            }
            while self.flush_keyspace(keyspace)? {}
            is_flushed = true;
        };
        self.counters.orphaned_bytes.fetch_add(hidden, Ordering::Relaxed);
        self.refresh_backlog();
        self.pacer.wake();
        Ok(())
    }

    /// Makes a checkpoint if engines have made or freed `bytes` or more since the last one.
    pub fn checkpoint_if_undurable(&self, bytes: u64) -> Result<()> {
        let undurable = self.counters.undurable_bytes.load(Ordering::Relaxed);
        if undurable >= bytes { self.checkpoint_now() } else { Ok(()) }
    }

    /// Requests a checkpoint from its thread if engines have made or freed `bytes` or more since
    /// the last one. If that thread lags far behind, or there is none, makes it here.
    pub fn want_checkpoint(&self, bytes: u64) -> Result<()> {
        let undurable = self.counters.undurable_bytes.load(Ordering::Relaxed);
        if undurable < bytes {
            return Ok(());
        }
        let most = bytes.max(self.governor.write_share()).saturating_mul(LAG_TIMES);
        if self.stepped || undurable >= most {
            return self.checkpoint_now();
        }
        self.signals.wake_checkpoint();
        Ok(())
    }

    /// Requests a checkpoint of everything if nothing is flushed and no job runs: the last one to
    /// end requests it. During long work checkpoints come by the bytes that wait for them.
    pub fn want_checkpoint_at_rest(&self) -> Result<()> {
        if self.has_immutable() || !self.shares.is_idle() {
            return Ok(());
        }
        self.want_checkpoint(1)
    }

    /// Flushes all immutable memtables on this thread, with the checkpoints that this needs.
    /// Writers may rotate memtables as fast as they are flushed: without checkpoints on the way
    /// neither log nor extents would be freed, and a close must not wait for an end that may never
    /// come.
    pub fn flush_all_immutable(&self) -> Result<()> {
        while !self.signals.is_stopping()
            && self.flush_or_reclaim(|pace| self.flush_oldest(pace))?
        {
            self.checkpoint_if_undurable(self.governor.write_share())?;
        }
        self.checkpoint_if_undurable(1)
    }
}
