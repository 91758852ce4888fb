//! One keyspace inside: its engine, its view, and how the view changes.
//!
//! ```text
//!              rotate (commit lock)                   drain (drain lock)
//!   [active] ----------------------> [active', finalized] ----------------> [active'] over the
//!                                                                           next version
//! ```
//!
//! Locks, in order: the commit lock, `change`; the drain lock, the registry of
//! [`crate::versions::pins`], `change`. The drain lock is held for a whole absorb, so nobody takes
//! it while holding the commit lock or `change`.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{KeyspaceId, SeqNo};
use crate::base::stream::SortedUpdates;
use crate::engine::{Engine, EngineOptions, LiveOptions, OwnedExtent};
use crate::memory::budget::{Charge, Use};
use crate::memory::epoch::EpochCell;
use crate::memtable::SortedBatch;
use crate::options::keyspace::StoredOptions;
use crate::records::CacheEpoch;
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use crate::state::postponed::Postponed;
use crate::versions::dropped::Empty;
use crate::versions::empty_ranges::EmptyRanges;
use crate::versions::history::History;
use crate::versions::lifetimes::{HeldVersion, Lifetimes};
use crate::versions::pins::Snapshots;
use crate::versions::view::{Buffer, View};

/// A keyspace, shared by its handles and the background.
pub struct KeyspaceCore {
    // Constant after open.
    pub id: KeyspaceId,
    pub name: String,
    pub stored: StoredOptions,
    pub engine: Arc<dyn Engine>,
    pub lifetimes: Arc<Lifetimes>,
    // With their own synchronisation.
    pub view: EpochCell<Arc<View>>,
    /// What pins need that the view does not show any more.
    pub history: Arc<History>,
    /// The checkpoint distance that was asked for; 0 for the budget's.
    pub distance: AtomicU64,
    /// The options of its engine, as they were set last.
    pub engine_options: Mutex<EngineOptions>,
    pub dropped: AtomicBool,
    /// Where nothing is alive.
    pub empty_ranges: EmptyRanges,
    /// Which version's records are cached.
    pub cache_epoch: CacheEpoch,
    /// Orders changes of the view.
    change: Mutex<()>,
    /// Held while the engine absorbs or maintains.
    pub flush: Mutex<Partial>,
    /// What a checkpoint may make durable.
    pub latest: Mutex<Latest>,
    /// The maintenance that failed last, until some succeeds.
    pub postponed: Mutex<Option<Postponed>>,
    _charge: Charge,
}

/// The memory of a keyspace besides what is counted where it is: itself, its engine with a few
/// runs, its first memtable and version before anything is in them, its places in the lists of the
/// database. Measured, and rounded up.
const KEYSPACE_BYTES: u64 = 8 << 10;

/// How far the oldest finalized memtable was absorbed by a drain that failed in the middle.
#[derive(Default)]
pub struct Partial {
    /// The versions made so far, with the seqno each contains the memtable up to.
    pub versions: Vec<(SeqNo, HeldVersion)>,
    /// The keyspace was dropped and everything it had is lost: there is nothing to drain.
    pub reclaimed: bool,
}

/// The newest whole state of the engine.
pub struct Latest {
    /// What the engine needs to find it again.
    pub root: Vec<u8>,
    /// Everything of the keyspace up to this seqno is in it.
    pub absorbed: SeqNo,
    /// The version itself, held.
    pub version: HeldVersion,
}

impl KeyspaceCore {
    /// A keyspace over an open engine that has absorbed everything up to `absorbed`.
    pub fn new(
        id: KeyspaceId,
        name: String,
        stored: StoredOptions,
        engine: Arc<dyn Engine>,
        lifetimes: Arc<Lifetimes>,
        absorbed: SeqNo,
        active: Arc<Buffer>,
    ) -> Result<Arc<Self>> {
        let charge = lifetimes.budget().charge(Use::Metadata, KEYSPACE_BYTES);
        let version = lifetimes.hold(engine.version(), Vec::new());
        let root = engine.root()?;
        let number = version.number();
        let view = View { buffers: vec![active], version: version.clone() };
        let view = EpochCell::new(Arc::new(view), lifetimes.epochs());
        Ok(Arc::new(Self {
            id,
            name,
            distance: AtomicU64::new(stored.checkpoint_distance.unwrap_or(0)),
            engine_options: Mutex::new(stored.engine),
            stored,
            engine,
            lifetimes,
            view,
            history: History::new(),
            dropped: AtomicBool::new(false),
            empty_ranges: EmptyRanges::default(),
            cache_epoch: CacheEpoch::new(id, number),
            change: Mutex::new(()),
            flush: Mutex::default(),
            latest: Mutex::new(Latest { root, absorbed, version }),
            postponed: Mutex::default(),
            _charge: charge,
        }))
    }

    /// The view of this moment.
    pub fn current_view(&self) -> Arc<View> {
        Arc::clone(self.view.load(&self.view.epochs().pin()))
    }

    /// What a pin at `seqno` reads from.
    pub fn view_at(&self, seqno: SeqNo) -> Arc<View> {
        // Loaded first: what a flush takes from it is in the history before it does.
        let view = self.current_view();
        self.history.at(seqno).unwrap_or(view)
    }

    /// Fails once the keyspace was dropped.
    pub fn check_exists(&self) -> Result<()> {
        if !self.dropped.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotFound, format!("keyspace {:?} was dropped", self.name)))
    }

    /// Finalizes the active memtable and puts `fresh` before it. Called under the commit lock.
    pub fn rotate(&self, fresh: Arc<Buffer>) {
        let _order = self.change.lock();
        let mut next = View::clone(&self.current_view());
        next.buffers.insert(0, fresh);
        self.view.replace(Arc::new(next));
    }

    /// The finalized memtables, newest first.
    pub fn immutable(&self) -> Vec<Arc<Buffer>> {
        self.current_view().buffers[1..].to_vec()
    }

    /// Replaces a drained memtable by the newest of `versions`.
    pub fn publish(&self, buffer: &Arc<Buffer>, versions: &[(SeqNo, HeldVersion)]) {
        let _order = self.change.lock();
        let newest = versions.last().map(|(_, newest)| newest);
        if let Some(next) = self.current_view().without(buffer, newest) {
            self.view.replace(Arc::new(next));
        }
    }

    /// Puts a version with the same content in place of the newest one. Called under the drain
    /// lock.
    pub fn republish(&self, version: HeldVersion) -> Result<()> {
        let root = self.engine.root()?;
        {
            let mut latest = self.latest.lock();
            latest.root = root;
            latest.version = version.clone();
        }
        {
            let _order = self.change.lock();
            let mut next = View::clone(&self.current_view());
            next.version = version;
            self.view.replace(Arc::new(next));
        }
        self.lifetimes.published();
        Ok(())
    }

    /// After the keyspace was dropped, its last commit is visible, and no durable root names it:
    /// everything it has is free once no view shows it. Its own view is empty from then on: handles
    /// hold nothing of it. Gives the bytes on disk that damage hides: nobody knows where they are
    /// before the next open. `None`, and nothing is done, if pins need what is in memtables, unless
    /// `may_keep_updates`.
    pub fn release_all(
        &self,
        empty: Arc<Buffer>,
        snapshots: &Snapshots,
        may_keep_updates: bool,
    ) -> Option<u64> {
        let mut partial = self.flush.lock();
        // It keeps what is released until all of that is known.
        let view = self.current_view();
        let seen = (self.id, &self.history);
        let (version, newest) = snapshots.publish_drop(seen, &view, may_keep_updates, || {
            let version = self.lifetimes.hold(Arc::new(Empty), Vec::new());
            let newest = std::mem::replace(&mut self.latest.lock().version, version.clone());
            let _order = self.change.lock();
            self.view.replace(Arc::new(View { buffers: vec![empty], version: version.clone() }));
            (version, newest)
        })?;
        partial.reclaimed = true;
        // What a drain that stopped half way absorbed is in the engine's newest version; the rest
        // of that memtable is what the same cuts leave.
        let absorbed = std::mem::take(&mut partial.versions);
        let mut cuts: Vec<SeqNo> = absorbed.iter().map(|(upto, _)| *upto).collect();
        let mut done = cuts.last().copied();
        let mut extents = Vec::new();
        // The keyspace is gone whatever of it can be read.
        let _ = self.engine.version().extents(&mut |owned| {
            extents.push(owned);
            Ok(())
        });
        let found = extents.iter().map(|owned| owned.extent.bytes()).sum();
        let hidden = self.engine.stats().disk_bytes.saturating_sub(found);
        for buffer in view.buffers.iter().rev() {
            let flushed = buffer.memtable.sorted(&cuts);
            extents.extend(flushed.superseded.iter().map(OwnedExtent::from));
            let is_left = |batch: &&SortedBatch| done.is_none_or(|done| batch.upto() > done);
            for batch in flushed.batches.iter().filter(is_left) {
                let large = (0..batch.len()).filter_map(|rank| batch.update(rank).large());
                extents.extend(large.map(|large| OwnedExtent::from(&large)));
            }
            // Only the oldest was begun.
            cuts.clear();
            done = None;
        }
        self.lifetimes.lose_before(&version, extents);
        drop((absorbed, newest, view));
        Some(hidden)
    }

    /// The options as the catalog keeps them, with what may change as it is at this moment.
    pub fn stored_options(&self) -> StoredOptions {
        let distance = self.distance.load(Ordering::Relaxed);
        let checkpoint_distance = Some(distance).filter(|distance| *distance != 0);
        let engine = *self.engine_options.lock();
        StoredOptions { checkpoint_distance, engine, ..self.stored.clone() }
    }

    /// Changes options of its engine.
    pub fn set_live_options(&self, live: LiveOptions) -> Result<()> {
        let mut current = self.engine_options.lock();
        *current = current.with_live(live)?;
        self.engine.set_live_options(live);
        Ok(())
    }

    /// The bytes of the active memtable and of the finalized ones.
    pub fn memtable_bytes(&self) -> (u64, u64) {
        let view = self.current_view();
        let mut bytes = view.buffers.iter().map(|buffer| buffer.memtable.bytes());
        let active = bytes.next().unwrap_or(0);
        (active, bytes.sum())
    }
}
