//! Views: the layers a read searches, memtables newest first, then the engine's version.
//!
//! A view is immutable; rotations and flushes replace the keyspace's view. Within a view the first
//! layer that has the key decides.

use crate::base::bytes::Value;
use crate::base::error::{Error, Result};
use crate::base::ids::SeqNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::logs::{LogPosition, PerLog, Starts};
use crate::base::stream::{LargeRef, SortedStream, Update};
use crate::engine::{self, Answer, Found, Progress};
use crate::memory::epoch::Guard;
use crate::memtable::{Lookup, Memtable};
use crate::merge::{Merge, Tombstones};
use crate::records::{CacheEpoch, Name, RecordCache};
use crate::runtime::sync::{Arc, AtomicU64, CachePadded, OnceLock, Ordering};
use crate::storage::Storage;
use crate::versions::lifetimes::HeldVersion;

/// A memtable, and the log position from which it can be rebuilt.
pub struct Buffer {
    /// The entries.
    pub memtable: Arc<Memtable>,
    commits: CachePadded<Commits>,
}

/// The commits that write to a memtable; set under the commit lock.
#[derive(Default)]
struct Commits {
    first: OnceLock<FirstCommit>,
    /// The last seqno assigned to one of them.
    last: AtomicU64,
    /// Bytes of their updates.
    update_bytes: AtomicU64,
}

/// The first commit of a memtable.
#[derive(Clone, Copy, Debug)]
pub struct FirstCommit {
    /// Where replay of it and all later ones begins.
    pub positions: PerLog<LogPosition>,
    /// The seqno of the record's first entry.
    pub seqno: SeqNo,
}

impl Buffer {
    /// Wraps an empty memtable.
    pub fn new(memtable: Arc<Memtable>) -> Arc<Self> {
        Arc::new(Self { memtable, commits: CachePadded::default() })
    }

    /// Bytes of the updates in the memtable, compared with the checkpoint distance. Large values
    /// count in full, because recovery has to verify those that no checkpoint covers.
    pub fn update_bytes(&self) -> u64 {
        self.commits.update_bytes.load(Ordering::Relaxed)
    }

    /// Records that a commit will write `bytes` bytes of keys and values here. Called under the
    /// commit lock.
    pub fn touch(&self, starts: Starts<'_>, first: SeqNo, last: SeqNo, bytes: u64) {
        let commits = &*self.commits;
        commits.first.get_or_init(|| FirstCommit { positions: starts.positions(), seqno: first });
        commits.last.store(last.0, Ordering::Relaxed);
        let bytes = commits.update_bytes.load(Ordering::Relaxed) + bytes;
        commits.update_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The first commit, if any.
    pub fn first(&self) -> Option<FirstCommit> {
        self.commits.first.get().copied()
    }

    /// The last seqno of all commits here.
    pub fn last(&self) -> SeqNo {
        SeqNo(self.commits.last.load(Ordering::Relaxed))
    }
}

/// A consistent stack of layers.
#[derive(Clone)]
pub struct View {
    /// The memtables, newest first. The keyspace's own view begins with the active one.
    pub buffers: Vec<Arc<Buffer>>,
    /// The engine's version below the memtables.
    pub version: HeldVersion,
}

/// The result of a lookup in a view.
pub enum Looked {
    /// A value.
    Value(Value),
    /// A large value. The caller reads it holding the view, but no guard: a guard would keep all
    /// memory freed meanwhile.
    Large(LargeRef),
    /// No value.
    Absent,
    /// The version has to be read from the device: [`View::read`].
    OnDevice(Progress),
    /// The requested version was overwritten and unlinked; retry with a newer seqno. Never returned
    /// for a pinned seqno.
    Overwritten,
}

/// Distance, in keys, of the prefetch for record lookups.
const AHEAD: usize = 8;

/// The sources of reads outside of a view.
#[derive(Clone, Copy)]
pub struct ReadSources<'a> {
    /// Large values, and hashes of keys.
    pub storage: &'a Storage,
    /// Cached records.
    pub records: &'a RecordCache,
    /// Cache epoch of the keyspace.
    pub epoch: &'a CacheEpoch,
}

impl View {
    /// The newest value of `key`, as of `at` or later, if it is in memory. For the keyspace's
    /// current view, or the one that was current when the reader began.
    pub fn get_newest(
        &self,
        key: &[u8],
        at: SeqNo,
        sources: ReadSources<'_>,
        guard: &Guard,
    ) -> Result<Looked> {
        self.get_by(key, at, sources, guard, |name, guard| {
            sources.records.get(name, guard).map(Value::copy_from)
        })
    }

    /// The value of `key` as of the pinned seqno `at`.
    pub fn get(&self, key: &[u8], at: SeqNo, sources: ReadSources<'_>) -> Result<Looked> {
        let version = self.version.number();
        let guard = sources.storage.epochs().pin();
        let looked = self.get_by(key, at, sources, &guard, |name, guard| {
            sources.records.get_of_version(name, version, guard)
        })?;
        drop(guard);
        match looked {
            Looked::OnDevice(from) => self.read(key, from, sources),
            looked => Ok(looked),
        }
    }

    /// Reads the value of `key`, which memtables and records of this view do not have, from the
    /// device. The caller holds the view, but no guard: a guard would keep all memory freed
    /// meanwhile.
    pub fn read(&self, key: &[u8], from: Progress, sources: ReadSources<'_>) -> Result<Looked> {
        let ReadSources { storage, records, epoch } = sources;
        let name = Name { of: epoch, key, hash: storage.key_hash(key) };
        let answer = self.version.version().read(key, name.hash, from)?;
        self.keep(name, &answer, records, &storage.epochs().pin());
        Ok(answer.found.map_or(Looked::Absent, Looked::from))
    }

    /// The value of `key`, if it is in memory: from a memtable, else from `cached`, else from the
    /// version.
    #[inline]
    fn get_by(
        &self,
        key: &[u8],
        at: SeqNo,
        sources: ReadSources<'_>,
        guard: &Guard,
        cached: impl FnOnce(Name<'_>, &Guard) -> Option<Value>,
    ) -> Result<Looked> {
        let ReadSources { storage, records, epoch } = sources;
        let name = Name { of: epoch, key, hash: storage.key_hash(key) };
        records.prefetch(name, guard);
        match self.look_in_buffers(key, at) {
            Some(Lookup::Found(update, _)) => return own(update),
            Some(Lookup::Pruned) => return Ok(Looked::Overwritten),
            Some(Lookup::Absent) | None => {}
        }
        if let Some(value) = cached(name, guard) {
            return Ok(Looked::Value(value));
        }
        match self.version.version().look(key, name.hash, guard)? {
            engine::Looked::Answer(answer) => {
                self.keep(name, &answer, records, guard);
                Ok(answer.found.map_or(Looked::Absent, Looked::from))
            }
            engine::Looked::OnDevice(from) => Ok(Looked::OnDevice(from)),
        }
    }

    /// Caches a result from below the memtables as a record, if allowed.
    #[inline]
    fn keep(&self, name: Name<'_>, answer: &Answer, records: &RecordCache, guard: &Guard) {
        if let Answer { found: Some(Found::Value(value)), presence } = answer {
            records.offer(name, self.version.number(), value, *presence, guard);
        }
    }

    /// The first memtable entry for `key`.
    fn look_in_buffers(&self, key: &[u8], at: SeqNo) -> Option<Lookup<'_>> {
        self.buffers
            .iter()
            .map(|buffer| buffer.memtable.get(key, at))
            .find(|lookup| !matches!(lookup, Lookup::Absent))
    }

    /// The values of `keys` as of the pinned seqno `at`.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        at: SeqNo,
        sources: ReadSources<'_>,
    ) -> Result<Vec<Option<Value>>> {
        let ReadSources { storage, records, epoch } = sources;
        let version = self.version.number();
        // `as_ref` is called once per key: the cached record depends on the hash of the key, and a
        // type may return other bytes at each call.
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let hashes: Vec<_> = keys.iter().map(|key| storage.key_hash(key)).collect();
        let mut values: Vec<Option<Value>> = vec![None; keys.len()];
        let guard = storage.epochs().pin();
        let (mut below, mut places, mut large) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (key, hash)) in keys.iter().zip(&hashes).enumerate() {
            if let (Some(key), Some(hash)) = (keys.get(index + AHEAD), hashes.get(index + AHEAD)) {
                records.prefetch(Name { of: epoch, key, hash: *hash }, &guard);
            }
            let name = Name { of: epoch, key, hash: *hash };
            match self.look_in_buffers(name.key, at) {
                Some(Lookup::Found(update, _)) => match own(update)? {
                    Looked::Value(value) => values[index] = Some(value),
                    Looked::Large(reference) => large.push((index, reference)),
                    Looked::Absent | Looked::Overwritten | Looked::OnDevice(_) => {}
                },
                Some(Lookup::Pruned) => {
                    return Err(Error::internal("a write that a pin needs was unlinked"));
                }
                Some(Lookup::Absent) | None => {
                    values[index] = records.get_of_version(name, version, &guard);
                    if values[index].is_none() {
                        below.push((name.key, name.hash));
                        places.push(index);
                    }
                }
            }
        }
        // Nothing is pinned while the device is read.
        drop(guard);
        let answers = self.version.version().multi_get(&below)?;
        for ((index, (key, hash)), answer) in places.into_iter().zip(below).zip(answers) {
            self.keep(Name { of: epoch, key, hash }, &answer, records, &storage.epochs().pin());
            match answer.found {
                Some(Found::Value(value)) => values[index] = Some(value),
                Some(Found::Large(reference)) => large.push((index, reference)),
                None => {}
            }
        }
        for (index, reference) in large {
            values[index] = Some(storage.read_large(&reference)?);
        }
        Ok(values)
    }

    /// The entries within `range` as of the pinned seqno `at`, in `direction`, tombstones included.
    pub fn cursor(
        &self,
        range: &KeyRange,
        direction: Direction,
        at: SeqNo,
    ) -> Result<Merge<Box<dyn SortedStream + Send>>> {
        let mut layers: Vec<Box<dyn SortedStream + Send>> = Vec::new();
        for buffer in &self.buffers {
            layers.push(Box::new(buffer.memtable.cursor(range.clone(), direction, at)?));
        }
        let version = Arc::clone(self.version.version());
        layers.push(version.cursor(range.clone(), direction)?);
        Merge::new(layers, direction, Tombstones::Keep)
    }

    /// A view without memtables.
    pub fn of_version(version: HeldVersion) -> Self {
        Self { buffers: Vec::new(), version }
    }

    /// True if its memtables have any updates.
    pub fn has_updates(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.first().is_some())
    }

    /// True if the view contains `buffer`.
    pub fn has(&self, buffer: &Arc<Buffer>) -> bool {
        self.buffers.iter().any(|own| Arc::ptr_eq(own, buffer))
    }

    /// This view after `buffer` was flushed: without it, over the version that absorbed it, if it
    /// had updates. `None` if the view does not contain it.
    pub fn without(&self, buffer: &Arc<Buffer>, flushed: Option<&HeldVersion>) -> Option<View> {
        let place = self.buffers.iter().position(|own| Arc::ptr_eq(own, buffer))?;
        let mut buffers = self.buffers.clone();
        buffers.remove(place);
        Some(View { buffers, version: flushed.unwrap_or(&self.version).clone() })
    }
}

/// Copies the value of an update for the reader.
fn own(update: Update<'_>) -> Result<Looked> {
    Ok(match update {
        Update::Put(value) => Looked::Value(Value::copy_from(value)),
        Update::PutCompressed(value) => Looked::Value(value.to_value()?),
        Update::PutLarge(large) => Looked::Large(large),
        Update::Delete => Looked::Absent,
    })
}

impl From<Found> for Looked {
    fn from(found: Found) -> Self {
        match found {
            Found::Value(value) => Looked::Value(value),
            Found::Large(large) => Looked::Large(large),
        }
    }
}
