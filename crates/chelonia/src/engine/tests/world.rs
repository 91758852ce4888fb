//! An engine beside a model map with the expected content, with the duties of the database around
//! it: space is freed when no held version can reach it.

use super::COMMON;
use crate::base::check::CheckReport;
use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{
    Codec, Dictionary, LargeRef, NewValues, SortedStream, SortedUpdates, Update,
};
use crate::engine::{
    Absorbed, Engine, ExtentKind, Found, OwnedExtent, Version, Work, WriteBudget, do_job,
};
use crate::memory::budget::Budget;
use crate::runtime::rng::Rng;
use crate::runtime::sync::{Arc, AtomicU64, Ordering};
use crate::runtime::workers::Workers;
use crate::storage::Storage;
use crate::storage::block::BlockKind;
use crate::storage::io::fault::{FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::quota::UNLIMITED;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The model's entry of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    Value(Vec<u8>),
    Large(LargeRef),
    Deleted,
}

impl Item {
    pub fn update(&self) -> Update<'_> {
        match self {
            Item::Value(value) => Update::Put(value),
            Item::Large(large) => Update::PutLarge(*large),
            Item::Deleted => Update::Delete,
        }
    }

    pub fn of(update: Update<'_>) -> Self {
        match update {
            Update::Put(value) => Item::Value(value.to_vec()),
            Update::PutCompressed(value) => Item::Value(value.to_value().unwrap().to_vec()),
            Update::PutLarge(large) => Item::Large(large),
            Update::Delete => Item::Deleted,
        }
    }
}

pub type Model = BTreeMap<Vec<u8>, Item>;

/// A memtable as a sorted list.
pub struct Updates {
    entries: Vec<(Vec<u8>, Item)>,
    before: Vec<u64>,
}

impl Updates {
    pub fn new(batch: Model) -> Self {
        let entries: Vec<_> = batch.into_iter().collect();
        let mut before = vec![0];
        for (key, item) in &entries {
            let bytes = (key.len() + item.update().inline_bytes()) as u64;
            before.push(before[before.len() - 1] + bytes);
        }
        Self { entries, before }
    }
}

impl SortedUpdates for Updates {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn key(&self, index: usize) -> &[u8] {
        &self.entries[index].0
    }

    fn update(&self, index: usize) -> Update<'_> {
        self.entries[index].1.update()
    }

    fn bytes_before(&self, index: usize) -> u64 {
        self.before[index]
    }

    fn lower_bound(&self, key: &[u8]) -> usize {
        self.entries.partition_point(|(other, _)| other.as_slice() < key)
    }

    fn prefetch(&self, _index: usize) {}

    fn prefetch_rest(&self, _index: usize) {}
}

/// Collects findings.
#[derive(Default)]
pub struct Report {
    pub entries: u64,
    pub findings: Vec<Error>,
}

impl CheckReport for Report {
    fn blocks(&mut self, _count: u64) {}

    fn entries(&mut self, count: u64) {
        self.entries += count;
    }

    fn finding(&mut self, error: Error) {
        self.findings.push(error);
    }
}

/// An engine under test.
pub trait Tried: Engine + Sized {
    /// Its options.
    type Options: Copy;

    /// True if updates wait somewhere before they are in their final place.
    const HAS_BUFFERS: bool = true;

    /// The kind of the blocks with entries.
    const ENTRIES: BlockKind = BlockKind::Data;

    /// Opens it, empty or from `root`.
    fn open_tried(
        storage: &Arc<Storage>,
        options: Self::Options,
        root: Option<&[u8]>,
    ) -> Result<Self>;
}

/// See the module documentation.
pub struct World<E: Tried> {
    pub storage: Arc<Storage>,
    pub dir: MemoryDirectory,
    pub faults: FaultPlan,
    pub options: E::Options,
    pub tree: E,
    pub model: Model,
    pub workers: Workers,
    /// Extents that the newest version refers to.
    pub owned: BTreeSet<OwnedExtent>,
    /// Lost extents that held versions may still reach, with the number of the absorb.
    waiting: Vec<(u64, OwnedExtent)>,
    /// Old versions with their expected content, and the number of the absorb that made them.
    pub held: Vec<(u64, Arc<dyn Version>, Model)>,
    pub absorbs: u64,
    /// True if values are compressed, with one dictionary or another, or not, in turn.
    pub compresses: bool,
    dictionaries: [Dictionary; 2],
    /// True if not everything can be read: reported extents are then not checked.
    pub is_damaged: bool,
}

impl<E: Tried> World<E> {
    pub fn new(options: E::Options, threads: usize) -> Self {
        Self::with_memory(options, threads, 64 << 20)
    }

    pub fn with_memory(options: E::Options, threads: usize, memory: u64) -> Self {
        let (dir, faults) = (MemoryDirectory::new(), FaultPlan::new());
        let faulty = FaultDirectory::new(Arc::new(dir.clone()), faults.clone()).unwrap();
        let storage = Storage::create(&faulty, &Budget::new(memory), 7).unwrap().storage;
        let tree = E::open_tried(&storage, options, None).unwrap();
        Self {
            storage,
            dir,
            faults,
            options,
            tree,
            model: Model::new(),
            workers: Workers::new(threads),
            owned: BTreeSet::new(),
            waiting: Vec::new(),
            held: Vec::new(),
            absorbs: 0,
            compresses: false,
            dictionaries: Codec::ALL.map(|codec| Dictionary::new(codec, COMMON.to_vec()).unwrap()),
            is_damaged: false,
        }
    }

    pub fn event(&self, name: &str) -> u64 {
        let events = self.tree.stats().events;
        events.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count)
    }

    /// Absorbs without updating model or space.
    pub fn try_absorb(&self, batch: &Model) -> Result<Absorbed> {
        absorb_storing(&self.tree, batch.clone(), &self.workers, self.values())
    }

    /// How new runs store values now.
    fn values(&self) -> NewValues<'_> {
        let [one, other] = &self.dictionaries;
        match self.absorbs / 5 % 6 {
            _ if !self.compresses => NewValues::Plain,
            0..3 => NewValues::Compressed(Some(one)),
            3 => NewValues::Compressed(None),
            4 => NewValues::Compressed(Some(other)),
            _ => NewValues::Plain,
        }
    }

    /// Absorbs and checks that gained and lost extents are the difference of the versions.
    #[expect(clippy::needless_pass_by_value, reason = "a batch is made for one absorb")]
    pub fn absorb(&mut self, batch: Model) {
        let absorbed = self.try_absorb(&batch).unwrap();
        self.note(&batch, absorbed);
    }

    /// Does all due maintenance; returns the number of units.
    pub fn maintain(&mut self) -> u64 {
        let mut units = 0;
        loop {
            let work = Work {
                workers: &self.workers,
                progress: &|_| {},
                quota: &UNLIMITED,
                values: self.values(),
            };
            let Some(absorbed) = do_job(&self.tree, &work).unwrap() else { return units };
            self.note(&Model::new(), absorbed);
            units += 1;
            assert!(units < 10_000, "maintenance comes to an end");
        }
    }

    /// Does the work of the database after an absorb, and checks it.
    pub fn note(&mut self, batch: &Model, absorbed: Absorbed) {
        self.absorbs += 1;
        for (key, item) in batch {
            match item {
                Item::Deleted => self.model.remove(key),
                item => self.model.insert(key.clone(), item.clone()),
            };
        }
        let large_came = |owned: &OwnedExtent| {
            let large = |item: &Item| match item {
                Item::Large(large) => large.extent == owned.extent,
                _ => false,
            };
            batch.values().any(large)
        };
        let is_allocated = |owned: &&OwnedExtent| owned.is_allocated();
        let mut expected: BTreeSet<_> = self.owned.iter().filter(is_allocated).copied().collect();
        for owned in &absorbed.gained {
            assert!(owned.is_allocated() && expected.insert(*owned), "gained twice: {owned:?}");
        }
        for owned in absorbed.lost.iter().filter(is_allocated) {
            assert!(expected.remove(owned), "lost twice or not known: {owned:?}");
        }
        let is_damaged = self.is_damaged;
        let next = if is_damaged { expected.clone() } else { extents_of(&*absorbed.version) };
        let allocated: BTreeSet<_> = next.iter().filter(is_allocated).copied().collect();
        assert_eq!(expected, allocated, "gained and lost are the difference");
        if !is_damaged {
            let pages: Vec<_> = absorbed.lost.iter().filter(|owned| !is_allocated(owned)).collect();
            let lost: BTreeSet<_> = pages.iter().map(|page| **page).collect();
            assert_eq!(lost.len(), pages.len(), "a page is lost twice");
            assert_eq!(lost, lost_pages(&self.owned, &next), "pages of groups that stay");
        }
        for owned in absorbed.gained.iter().filter(|owned| owned.is_large_value()) {
            assert!(large_came(owned), "large values come with updates");
        }
        self.owned = next;
        let number = self.absorbs;
        self.waiting.extend(absorbed.lost.into_iter().map(|owned| (number, owned)));
        self.free_unreachable();
    }

    pub fn hold(&mut self) {
        self.held.push((self.absorbs, self.tree.version(), self.model.clone()));
    }

    pub fn release(&mut self, index: usize) {
        self.held.remove(index);
        self.free_unreachable();
    }

    fn free_unreachable(&mut self) {
        let oldest = self.held.iter().map(|(number, ..)| *number).min().unwrap_or(u64::MAX);
        let storage = Arc::clone(&self.storage);
        self.waiting.retain(|(number, owned)| {
            if *number <= oldest {
                match owned.is_allocated() {
                    true => storage.free(owned.extent).unwrap(),
                    false => owned.release(&storage),
                }
                return false;
            }
            true
        });
    }

    /// Reopens the tree from its root blob.
    pub fn reopen(&mut self) {
        let blob = self.tree.root().unwrap();
        self.held.clear();
        self.free_unreachable();
        self.tree = E::open_tried(&self.storage, self.options, Some(&blob)).unwrap();
    }

    /// Checks everything: scans in both directions, verification, statistics.
    pub fn check(&self, rng: &mut Rng) {
        let version = self.tree.version();
        check_scans(&version, &self.model);
        self.check_reads(&version, &self.model, rng, 30);
        for (_, version, model) in &self.held {
            self.check_reads(version, model, rng, 5);
        }
        let mut report = Report::default();
        version.verify(&mut report).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let stats = self.tree.stats();
        let allocated = self.owned.iter().filter(|owned| owned.is_allocated());
        let blocks: u64 = allocated.map(|owned| u64::from(owned.extent.blocks)).sum();
        assert_eq!(stats.disk_bytes, blocks * 4096);
        assert_eq!(self.owned, extents_of(&*version));
    }

    /// Random gets, multi_gets and ranges.
    pub fn check_reads(
        &self,
        version: &Arc<dyn Version>,
        model: &Model,
        rng: &mut Rng,
        count: u64,
    ) {
        let keys: Vec<Vec<u8>> = (0..count).map(|_| pick_key(model, rng)).collect();
        let asked: Vec<_> =
            keys.iter().map(|key| (key.as_slice(), self.storage.key_hash(key))).collect();
        let expected: Vec<_> = keys.iter().map(|key| model.get(key).map(found)).collect();
        for ((key, hash), expected) in asked.iter().zip(&expected) {
            assert_eq!(version.get(key, *hash).unwrap().found, *expected, "get {key:?}");
        }
        let answers = version.multi_get(&asked).unwrap().into_iter();
        assert_eq!(answers.map(|answer| answer.found).collect::<Vec<_>>(), expected);
        for _ in 0..count / 8 + 1 {
            let mut bound = |key| match rng.below(3) {
                0 => Bound::Included(key),
                1 => Bound::Excluded(key),
                _ => Bound::Unbounded,
            };
            let (a, b) = (keys[0].clone(), keys[keys.len() - 1].clone());
            let range = KeyRange { lower: bound(a.clone().min(b.clone())), upper: bound(a.max(b)) };
            let limit = 1 + rng.below(40) as usize;
            for direction in [Direction::Ascending, Direction::Descending] {
                check_range(version, model, &range, direction, limit);
            }
        }
    }
}

/// Absorbs `batch` and checks the reported progress.
pub fn absorb_into(tree: &dyn Engine, batch: Model, workers: &Workers) -> Result<Absorbed> {
    absorb_storing(tree, batch, workers, NewValues::Plain)
}

fn absorb_storing(
    tree: &dyn Engine,
    batch: Model,
    workers: &Workers,
    values: NewValues<'_>,
) -> Result<Absorbed> {
    let count = batch.len() as u64;
    let updates = Updates::new(batch);
    let progressed = AtomicU64::new(0);
    let progress = |ranks| {
        progressed.fetch_add(ranks, Ordering::Relaxed);
    };
    let absorbed = tree.absorb(
        &updates,
        WriteBudget::Usual,
        &Work { workers, progress: &progress, quota: &UNLIMITED, values },
    )?;
    assert_eq!(progressed.into_inner(), count, "progress of every rank");
    Ok(absorbed)
}

/// The entries of a version.
pub fn count(version: &Arc<dyn Version>) -> usize {
    let mut cursor = Arc::clone(version).cursor(KeyRange::all(), Direction::Ascending).unwrap();
    let mut count = 0;
    while cursor.key().is_some() {
        count += 1;
        cursor.advance().unwrap();
    }
    count
}

pub fn found(item: &Item) -> Found {
    match item {
        Item::Value(value) => Found::Value(value.clone().into()),
        Item::Large(large) => Found::Large(*large),
        Item::Deleted => unreachable!("models hold no tombstones"),
    }
}

/// A key of the model, or one near it.
fn pick_key(model: &Model, rng: &mut Rng) -> Vec<u8> {
    let mut probe = vec![0; 8];
    rng.fill(&mut probe);
    let near = model.range(probe.clone()..).next().or_else(|| model.iter().next());
    match (near, rng.below(4)) {
        (None, _) | (_, 0) => probe,
        (Some((key, _)), 1) => [key.as_slice(), b"\0"].concat(),
        (Some((key, _)), _) => key.clone(),
    }
}

/// Pages of groups that are in `before` and `after`, which only the first has.
fn lost_pages(
    before: &BTreeSet<OwnedExtent>,
    after: &BTreeSet<OwnedExtent>,
) -> BTreeSet<OwnedExtent> {
    let groups: BTreeMap<_, _> = after
        .iter()
        .filter(|owned| owned.kind == ExtentKind::PageGroup)
        .map(|owned| (owned.extent.start, owned.extent.end()))
        .collect();
    let stays = |page: &&OwnedExtent| {
        let group = groups.range(..=page.extent.start).next_back();
        group.is_some_and(|(_, end)| page.extent.start < *end)
    };
    let gone = before.difference(after).filter(|owned| !owned.is_allocated());
    gone.filter(stays).copied().collect()
}

pub fn extents_of(version: &dyn Version) -> BTreeSet<OwnedExtent> {
    let mut extents = BTreeSet::new();
    version
        .extents(&mut |owned| {
            assert!(extents.insert(owned), "visited twice: {owned:?}");
            Ok(())
        })
        .unwrap();
    extents
}

fn check_range(
    version: &Arc<dyn Version>,
    model: &Model,
    range: &KeyRange,
    direction: Direction,
    limit: usize,
) {
    let mut cursor = Arc::clone(version).cursor(range.clone(), direction).unwrap();
    let mut given = Vec::new();
    while let Some(key) = cursor.key().filter(|_| given.len() < limit) {
        given.push((key.to_vec(), Item::of(cursor.update())));
        cursor.advance().unwrap();
    }
    let within: Vec<(Vec<u8>, Item)> = if range.is_empty() {
        Vec::new()
    } else {
        let own = model.range::<Vec<u8>, _>((range.lower.as_ref(), range.upper.as_ref()));
        own.map(|(key, item)| (key.clone(), item.clone())).collect()
    };
    let expected: Vec<_> = match direction {
        Direction::Ascending => within.into_iter().take(limit).collect(),
        Direction::Descending => within.into_iter().rev().take(limit).collect(),
    };
    assert!(given == expected, "{range:?} {direction:?}: {} {}", given.len(), expected.len());
}

/// Both full scans.
pub fn check_scans(version: &Arc<dyn Version>, model: &Model) {
    for direction in [Direction::Ascending, Direction::Descending] {
        check_range(version, model, &KeyRange::all(), direction, usize::MAX);
    }
}
