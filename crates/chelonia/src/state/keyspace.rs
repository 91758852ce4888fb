//! The shared state of one keyspace: its engine, its view, and how the view changes.
//!
//! ```text
//!              rotate (commit lock)                   flush (flush lock)
//!   [active] ----------------------> [active', immutable] ----------------> [active'] over the
//!                                                                           next version
//! ```
//!
//! Locks, in order: the commit lock, `change`; the flush lock, the registry of
//! [`crate::versions::pins`], `change`. The flush lock is held for a whole absorb, so no thread
//! takes it while holding the commit lock or `change`.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{KeyspaceId, SeqNo};
use crate::base::stream::SortedUpdates;
use crate::compress::ValueCompression;
use crate::engine::{Engine, EngineOptions, LiveOptions, OwnedExtent};
use crate::memory::budget::{Charge, Use};
use crate::memory::epoch::EpochCell;
use crate::memtable::SortedBatch;
use crate::options::compression::Compression;
use crate::options::keyspace::{StoredOptions, check_compression};
use crate::records::CacheEpoch;
use crate::runtime::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use crate::state::jobs::Jobs;
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
    /// Older views that pins need.
    pub history: Arc<History>,
    /// The requested checkpoint distance; 0 if it follows the budget.
    pub distance: AtomicU64,
    /// Memtables flushed since the open.
    pub flushed: Flushed,
    /// Of the last memtable rotated with [`SAMPLE_BYTES_MIN`] or more: bytes of updates, and of
    /// memory.
    density: Mutex<(u64, u64)>,
    /// The current options of its engine.
    pub engine_options: Mutex<EngineOptions>,
    /// How the values of new runs are stored.
    pub compression: ValueCompression,
    pub dropped: AtomicBool,
    /// Known ranges without live entries.
    pub empty_ranges: EmptyRanges,
    /// The version that cached records belong to.
    pub cache_epoch: CacheEpoch,
    /// Serializes changes of the view.
    change: Mutex<()>,
    /// The flush lock: held while the engine absorbs or reclaims space, and while a job is planned
    /// or installed; not while it runs.
    pub flush: Mutex<Partial>,
    /// A background thread has chosen it for its next flush, or flushes it.
    pub is_chosen: AtomicBool,
    /// Outstanding jobs of its engine.
    pub jobs: Jobs,
    /// The state that the next checkpoint makes durable.
    pub latest: Mutex<Latest>,
    /// The last failed maintenance, until one succeeds.
    pub postponed: Mutex<Option<Postponed>>,
    _charge: Charge,
}

/// The memory of a keyspace that is not counted elsewhere: the struct, its engine with a few runs,
/// an empty memtable and version, its entries in lists. Measured, and rounded up.
const KEYSPACE_BYTES: u64 = 8 << 10;

/// The memory of updates in memtables is measured in memtables of this size.
const SAMPLE_BYTES_MIN: u64 = 1 << 20;

/// Bytes of updates in a number of bytes of memtable, until it was measured: records of about 128
/// bytes.
const DENSITY_USUAL: (u64, u64) = (3, 4);

/// Totals of flushed memtables.
#[derive(Default)]
pub struct Flushed {
    memtables: AtomicU64,
    bytes: AtomicU64,
}

impl Flushed {
    /// Adds a memtable with `bytes` bytes of updates.
    pub fn add(&self, bytes: u64) {
        self.memtables.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Their number.
    pub fn memtables(&self) -> u64 {
        self.memtables.load(Ordering::Relaxed)
    }

    /// Bytes of updates in them.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// How far a failed flush absorbed the oldest immutable memtable.
#[derive(Default)]
pub struct Partial {
    /// The versions made so far, each with the seqno up to which it contains the memtable.
    pub versions: Vec<(SeqNo, HeldVersion)>,
    /// The keyspace was dropped and its space released: there is nothing to flush.
    pub reclaimed: bool,
}

/// The newest complete state of the engine.
pub struct Latest {
    /// The root blob, with which the engine finds it again.
    pub root: Vec<u8>,
    /// All writes of the keyspace up to this seqno are in it.
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
            flushed: Flushed::default(),
            density: Mutex::new(DENSITY_USUAL),
            engine_options: Mutex::new(stored.engine),
            compression: ValueCompression::new(stored.compression),
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
            is_chosen: AtomicBool::new(false),
            jobs: Jobs::default(),
            latest: Mutex::new(Latest { root, absorbed, version }),
            postponed: Mutex::default(),
            _charge: charge,
        }))
    }

    /// The current view.
    pub fn current_view(&self) -> Arc<View> {
        Arc::clone(self.view.load(&self.view.epochs().pin()))
    }

    /// The view that a pin at `seqno` reads.
    pub fn view_at(&self, seqno: SeqNo) -> Arc<View> {
        // Loaded first: a flush adds to the history before it changes the view.
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

    /// Makes the active memtable immutable and puts `fresh` before it. Called under the commit
    /// lock.
    pub fn rotate(&self, fresh: Arc<Buffer>) {
        let _order = self.change.lock();
        let mut next = View::clone(&self.current_view());
        let full = &next.buffers[0];
        if full.memtable.bytes() >= SAMPLE_BYTES_MIN {
            *self.density.lock() = (full.update_bytes(), full.memtable.bytes());
        }
        next.buffers.insert(0, fresh);
        self.view.replace(Arc::new(next));
    }

    /// Bytes of updates, and the bytes of memtable that they take.
    pub fn density(&self) -> (u64, u64) {
        *self.density.lock()
    }

    /// The immutable memtables, newest first.
    pub fn immutable(&self) -> Vec<Arc<Buffer>> {
        self.current_view().buffers[1..].to_vec()
    }

    /// Replaces a flushed memtable by the newest of `versions`.
    pub fn publish(&self, buffer: &Arc<Buffer>, versions: &[(SeqNo, HeldVersion)]) {
        let _order = self.change.lock();
        let newest = versions.last().map(|(_, newest)| newest);
        if let Some(next) = self.current_view().without(buffer, newest) {
            self.view.replace(Arc::new(next));
        }
    }

    /// Replaces the newest version by one with the same content. Called under the flush lock.
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

    /// Releases all space of a dropped keyspace, once no view shows it. Called when its last commit
    /// is visible and no durable root names it. Its own view is empty afterwards, so handles hold
    /// nothing. Returns the bytes on disk that damage hides, which the next open frees. `None`, and
    /// nothing is done, if pins need updates in memtables, unless `may_keep_updates`.
    pub fn release_all(
        &self,
        empty: Arc<Buffer>,
        snapshots: &Snapshots,
        may_keep_updates: bool,
    ) -> Option<u64> {
        let mut partial = self.flush.lock();
        // Keeps the extents until all of them are known.
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
        // The part that a failed flush absorbed is in the engine's newest version; the same cuts
        // give the rest of that memtable.
        let absorbed = std::mem::take(&mut partial.versions);
        let mut cuts: Vec<SeqNo> = absorbed.iter().map(|(upto, _)| *upto).collect();
        let mut done = cuts.last().copied();
        let mut extents = Vec::new();
        // The keyspace is dropped even if it cannot be read completely.
        let _ = self.engine.version().extents(&mut |owned| {
            // Pages go with their groups.
            extents.extend(Some(owned).filter(OwnedExtent::is_allocated));
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
            // Only the flush of the oldest memtable had begun.
            cuts.clear();
            done = None;
        }
        self.lifetimes.lose_before(&version, extents);
        drop((absorbed, newest, view));
        Some(hidden)
    }

    /// The options for the catalog, with current values of options that can change.
    pub fn stored_options(&self) -> StoredOptions {
        let distance = self.distance.load(Ordering::Relaxed);
        let checkpoint_distance = Some(distance).filter(|distance| *distance != 0);
        let engine = *self.engine_options.lock();
        let compression = self.compression.mode();
        StoredOptions { checkpoint_distance, engine, compression, ..self.stored.clone() }
    }

    /// Changes how the values of new runs are stored.
    pub fn set_compression(&self, compression: Compression) -> Result<()> {
        check_compression(self.stored.engine.kind(), compression)?;
        self.compression.set(compression);
        Ok(())
    }

    /// Changes options of its engine.
    pub fn set_live_options(&self, live: LiveOptions) -> Result<()> {
        let mut current = self.engine_options.lock();
        *current = current.with_live(live)?;
        self.engine.set_live_options(live);
        Ok(())
    }

    /// The bytes of the active memtable, and of the immutable ones.
    pub fn memtable_bytes(&self) -> (u64, u64) {
        let view = self.current_view();
        let mut bytes = view.buffers.iter().map(|buffer| buffer.memtable.bytes());
        let active = bytes.next().unwrap_or(0);
        (active, bytes.sum())
    }
}
