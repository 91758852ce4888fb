//! Lifetimes: the held versions, and the extents that become free with them.
//!
//! A version is held by the keyspace's view, by pins, and by the last durable root. An extent that
//! version `d` no longer refers to is needed by an older held version `v < d` only if it existed
//! when `v` was made, which its generation shows: generations are assigned in order, and every
//! version records its *horizon*, the newest generation it can know. So a snapshot held for a week
//! keeps the space that it can see, and none that was allocated and freed since.
//!
//! ```text
//!   version    1        2        3        4
//!   horizon    g=10     g=17     g=23     g=31       generation when the version was complete
//!   extent            [g=15 ------------- lost by 4)
//!   needed by           2        3                   while one of them is held
//! ```
//!
//! Large values are allocated by commits, before any version refers to them, and read through
//! memtables above a version. So a version's horizon for large values is the newest generation when
//! its successor was published: after that no view on it can show a newer one.
//!
//! The durable root's version is held until the next root is durable, so space is reused only after
//! the checkpoint that frees it. But the durable root needs more than its version: the log behind
//! it is replayed over it, and refers to large values of any age, including those that were written
//! and overwritten by updates that several flushes have absorbed since. So a large value lost after
//! a root is not freed while that root is the durable one ([`RootVersion`]).

use crate::base::ids::Generation;
use crate::engine::{OwnedExtent, Version};
use crate::memory::budget::{Budget, Charge, Use};
use crate::memory::epoch::Epochs;
use crate::runtime::sync::{Arc, Mutex};
use crate::storage::Storage;
use std::collections::{BTreeMap, BinaryHeap};

/// The versions of one keyspace and the extents they lost.
pub struct Lifetimes {
    storage: Arc<Storage>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of the next version.
    next: u64,
    /// Held versions by number.
    held: BTreeMap<u64, Keeper>,
    /// Versions of durable roots, and the number of roots of each: during a checkpoint both the old
    /// and the new root are held.
    roots: BTreeMap<u64, usize>,
    /// Large values that no held version shows, by the number of the version that lost them: an
    /// older durable root may still need them.
    behind_roots: BTreeMap<u64, Vec<OwnedExtent>>,
    /// Number of extents that are lost and not free yet, and their bytes.
    lost: usize,
    lost_bytes: u64,
    charge: Option<Charge>,
}

/// A held version: its horizons, and the lost extents that wait for its release.
///
/// Horizons grow with the version numbers. So of all held versions older than the loss of an
/// extent, the newest one decides whether it is needed, and the extent waits only there. When that
/// version is released, the next older one takes over the extents that it sees, and the rest is
/// freed.
struct Keeper {
    structure: Waiting,
    large_values: Waiting,
}

/// The newest generation that a version, or a view on it, can know, and lost extents up to that
/// generation, newest first.
struct Waiting {
    horizon: Generation,
    extents: BinaryHeap<Lost>,
}

/// A lost extent, and the number of the version that lost it. Ordered by generation.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Lost {
    generation: Generation,
    by: u64,
    extent: OwnedExtent,
}

impl Waiting {
    fn new(horizon: Generation) -> Self {
        Self { horizon, extents: BinaryHeap::new() }
    }

    /// Removes an extent that is newer than the horizon, if any.
    fn pop_unseen(&mut self) -> Option<Lost> {
        let unseen = self.extents.peek().is_some_and(|lost| lost.generation > self.horizon);
        if unseen { self.extents.pop() } else { None }
    }

    /// Adds extents of another heap: the smaller heap is merged into the larger one.
    fn add(&mut self, mut others: BinaryHeap<Lost>) {
        if others.len() > self.extents.len() {
            std::mem::swap(&mut self.extents, &mut others);
        }
        self.extents.extend(others);
    }
}

impl Keeper {
    fn waiting(&mut self, large_value: bool) -> &mut Waiting {
        if large_value { &mut self.large_values } else { &mut self.structure }
    }
}

/// Heap memory of one lost extent.
const LOST_BYTES: usize = size_of::<Lost>();

/// The charge for lost extents is adjusted in steps of this many.
const CHARGED_STEP: usize = 64;

impl Lifetimes {
    /// Creates the lifetimes of a keyspace without versions.
    pub fn new(storage: Arc<Storage>) -> Arc<Self> {
        Arc::new(Self { storage, state: Mutex::default() })
    }

    /// The budget of the database.
    pub fn budget(&self) -> &Arc<Budget> {
        self.storage.budget()
    }

    /// The epochs of the database.
    pub fn epochs(&self) -> &Arc<Epochs> {
        self.storage.epochs()
    }

    /// Holds a new, complete version; `lost` are the extents that it lost against the previous one.
    pub fn hold(
        self: &Arc<Self>,
        version: Arc<dyn Version>,
        lost: Vec<OwnedExtent>,
    ) -> HeldVersion {
        let structure = Waiting::new(self.storage.newest_generation());
        let large_values = Waiting::new(Generation(u64::MAX));
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.held.insert(number, Keeper { structure, large_values });
        self.lose_by(&mut state, number, lost);
        drop(state);
        let charge = self.storage.budget().charge(Use::Metadata, HELD_BYTES);
        let version = Some(version);
        let inner = Held { number, lifetimes: Arc::clone(self), version, _charge: charge };
        HeldVersion { inner: Arc::new(inner) }
    }

    /// Records that the newest version was published: no view on an older one can show newer large
    /// values.
    pub fn published(&self) {
        let newest = self.storage.newest_generation();
        let mut state = self.state.lock();
        let last = state.next.saturating_sub(1);
        // Horizons ascend, so the lowered ones are the last ones.
        let lowered: Vec<u64> = state
            .held
            .range_mut(..last)
            .rev()
            .take_while(|(_, keeper)| keeper.large_values.horizon > newest)
            .map(|(number, keeper)| {
                keeper.large_values.horizon = newest;
                *number
            })
            .collect();
        for number in lowered {
            while let Some(lost) =
                state.held.get_mut(&number).and_then(|keeper| keeper.large_values.pop_unseen())
            {
                self.let_go(&mut state, &lost);
            }
        }
        self.note_charge(&mut state);
    }

    /// Records that `version` does not refer to these extents, to which older versions may refer.
    pub fn lose_before(&self, version: &HeldVersion, extents: Vec<OwnedExtent>) {
        let mut state = self.state.lock();
        self.lose_by(&mut state, version.number(), extents);
    }

    /// Bytes of lost extents that are still held.
    pub fn lost_bytes(&self) -> u64 {
        self.state.lock().lost_bytes
    }

    /// Records that version `by` does not refer to these extents any more.
    fn lose_by(&self, state: &mut State, by: u64, extents: impl IntoIterator<Item = OwnedExtent>) {
        for extent in extents {
            state.lost += 1;
            state.lost_bytes += extent.extent.bytes();
            let lost = Lost { generation: extent.generation, by, extent };
            let last = state.held.range_mut(..by).next_back();
            match last.map(|(_, keeper)| keeper.waiting(extent.is_large_value())) {
                // An extent that it does not see also waits for its release, or for that of the
                // durable root: nothing is freed before the new version is in place.
                Some(waiting) => waiting.extents.push(lost),
                None => self.let_go(state, &lost),
            }
        }
        self.note_charge(state);
    }

    /// The number of held versions.
    pub fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    fn release(&self, number: u64) {
        let mut state = self.state.lock();
        let Some(keeper) = state.held.remove(&number) else { return };
        let Keeper { structure, large_values } = keeper;
        for (waiting, large_value) in [(structure, false), (large_values, true)] {
            self.hand_down(&mut state, number, waiting.extents, large_value);
        }
        self.note_charge(&mut state);
    }

    /// Passes the extents that waited for version `number` to the next older one, or frees them.
    fn hand_down(
        &self,
        state: &mut State,
        number: u64,
        extents: BinaryHeap<Lost>,
        large_value: bool,
    ) {
        let older = state.held.range_mut(..number).next_back();
        let Some((older, keeper)) = older else {
            for lost in extents {
                self.let_go(state, &lost);
            }
            return;
        };
        let older = *older;
        keeper.waiting(large_value).add(extents);
        let pop = |state: &mut State| {
            state.held.get_mut(&older).and_then(|keeper| keeper.waiting(large_value).pop_unseen())
        };
        while let Some(lost) = pop(state) {
            self.let_go(state, &lost);
        }
    }

    /// Frees an extent that no held version shows, unless the log behind a durable root may refer
    /// to it.
    fn let_go(&self, state: &mut State, lost: &Lost) {
        let oldest_root = state.roots.keys().next();
        if lost.extent.is_large_value() && oldest_root.is_some_and(|root| *root < lost.by) {
            state.behind_roots.entry(lost.by).or_default().push(lost.extent);
        } else {
            self.free(state, lost.extent);
        }
    }

    fn free(&self, state: &mut State, extent: OwnedExtent) {
        state.lost -= 1;
        state.lost_bytes -= extent.extent.bytes();
        extent.release(&self.storage);
    }

    fn release_root(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some(count) = state.roots.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                state.roots.remove(&number);
            }
        }
        let oldest_root = state.roots.keys().next().copied().unwrap_or(u64::MAX);
        while let Some(first) = state.behind_roots.first_entry() {
            if *first.key() > oldest_root {
                break;
            }
            for extent in first.remove() {
                self.free(&mut state, extent);
            }
        }
        self.note_charge(&mut state);
    }

    fn note_charge(&self, state: &mut State) {
        let bytes = (state.lost.next_multiple_of(CHARGED_STEP) * LOST_BYTES) as u64;
        match &mut state.charge {
            Some(charge) if charge.bytes() != bytes => charge.resize(bytes),
            Some(_) => {}
            None if bytes == 0 => {}
            None => state.charge = Some(self.storage.budget().charge(Use::Metadata, bytes)),
        }
    }
}

/// A version that stays readable while this or a clone of it lives.
#[derive(Clone)]
pub struct HeldVersion {
    inner: Arc<Held>,
}

struct Held {
    number: u64,
    lifetimes: Arc<Lifetimes>,
    /// `None` only during the drop: the version is dropped before its extents are freed.
    version: Option<Arc<dyn Version>>,
    _charge: Charge,
}

/// Memory of a held version beside what its engine counts: itself, its keeper, its map entry.
const HELD_BYTES: u64 = 512;

impl HeldVersion {
    /// The version.
    pub fn version(&self) -> &Arc<dyn Version> {
        self.inner.version.as_ref().expect("only the drop takes it")
    }

    /// Its number among the versions of its keyspace: later ones have greater numbers.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// Holds the version for a durable root that refers to it, or is about to.
    #[must_use]
    pub fn as_root(&self) -> RootVersion {
        let inner = &self.inner;
        *inner.lifetimes.state.lock().roots.entry(inner.number).or_insert(0) += 1;
        RootVersion { version: self.clone() }
    }
}

/// A version that a durable root refers to, with the log that is replayed over it.
pub struct RootVersion {
    version: HeldVersion,
}

impl RootVersion {
    /// The version itself, held.
    pub fn held(&self) -> HeldVersion {
        self.version.clone()
    }
}

impl Drop for RootVersion {
    fn drop(&mut self) {
        let inner = &self.version.inner;
        inner.lifetimes.release_root(inner.number);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.version = None;
        self.lifetimes.release(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::stream::LargeRef;
    use crate::engine::{Engine, ExtentKind, TurtleOptions};
    use crate::engines::{self, EngineContext};
    use crate::run::RunOptions;
    use crate::runtime::rng::Rng;

    fn engine(storage: &Arc<Storage>) -> Arc<dyn Engine> {
        let context = EngineContext {
            storage: Arc::clone(storage),
            options: TurtleOptions::new().leaf_bytes(4 << 10).pivots_max(4).into(),
            run: RunOptions::default(),
            checkpoint_distance: 4 << 10,
        };
        engines::open(&context, None).unwrap()
    }

    /// An extent with the versions that can know it.
    struct Known {
        large: LargeRef,
        owned: OwnedExtent,
        byte: u8,
        /// The first version that can.
        born: u64,
        lost_by: u64,
    }

    /// Random histories against the rule: a lost extent stays while a version is held that was made
    /// after the extent and before its loss, or, for large values, while the root is held.
    #[test]
    fn nothing_that_a_held_version_sees_is_freed_and_all_else_is() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let (storage, _directory) = Storage::testing(48 << 20);
            let engine = engine(&storage);
            let lifetimes = Lifetimes::new(Arc::clone(&storage));
            let used = || storage.stats().space.used_blocks;
            let before = used();
            let (mut alive, mut lost) = (Vec::<Known>::new(), Vec::<Known>::new());
            let mut held: Vec<HeldVersion> = Vec::new();
            let mut root: Option<RootVersion> = None;
            for version in 0..200 {
                for _ in 0..rng.below(3) {
                    let byte = rng.below(256).to_le_bytes()[0];
                    let large = storage.write_large(&[byte; 5_000]).unwrap();
                    let mut owned = OwnedExtent::from(&large);
                    let is_large = rng.below(2) == 0;
                    owned.kind =
                        if is_large { ExtentKind::LargeValue } else { ExtentKind::Structure };
                    alive.push(Known { large, owned, byte, born: version, lost_by: u64::MAX });
                }
                let mut gone = Vec::new();
                while !alive.is_empty() && rng.below(2) == 0 {
                    let index = usize::try_from(rng.below(alive.len() as u64)).unwrap();
                    let mut known = alive.swap_remove(index);
                    known.lost_by = version;
                    gone.push(known.owned);
                    lost.push(known);
                }
                held.push(lifetimes.hold(engine.version(), gone));
                lifetimes.published();
                while held.len() > 1 && rng.below(5) < 2 {
                    let index = rng.below(held.len() as u64 - 1);
                    held.swap_remove(usize::try_from(index).unwrap());
                    held.sort_by_key(HeldVersion::number);
                }
                if rng.below(8) == 0 {
                    root = held.last().map(HeldVersion::as_root);
                }
                let rooted = root.as_ref().map(|root| root.held().number());
                for known in &lost {
                    let seen = held.iter().map(HeldVersion::number).chain(rooted);
                    let mut seen = seen.filter(|number| *number < known.lost_by);
                    if seen.any(|number| number >= known.born) {
                        let value = storage.read_large(&known.large).unwrap();
                        assert!(value.iter().all(|byte| *byte == known.byte), "seed {seed}");
                    }
                }
            }
            drop(root);
            while !held.is_empty() {
                let index = rng.below(held.len() as u64);
                held.swap_remove(usize::try_from(index).unwrap());
            }
            assert_eq!(lifetimes.lost_bytes(), 0, "seed {seed}");
            let each = storage.write_large(&[0; 5_000]).unwrap().extent.blocks;
            let alive = u64::from(each) * (alive.len() as u64 + 1);
            assert_eq!(used() - before, alive, "seed {seed}");
        }
    }

    /// Thousands of versions, each of which sees thousands of extents: each step takes time in
    /// proportion to its own part, whatever the order of releases.
    #[test]
    fn releases_touch_only_what_becomes_free() {
        let (storage, _directory) = Storage::testing(48 << 20);
        let engine = engine(&storage);
        for newest_first in [false, true] {
            let lifetimes = Lifetimes::new(Arc::clone(&storage));
            let old = storage.write_large(&[1; 5_000]).unwrap();
            let mut held: Vec<HeldVersion> = Vec::new();
            for _ in 0..3_000 {
                let large = storage.write_large(&[1; 5_000]).unwrap();
                let lost = vec![OwnedExtent::from(&large)];
                held.push(lifetimes.hold(engine.version(), lost));
                lifetimes.published();
            }
            held.push(lifetimes.hold(engine.version(), vec![OwnedExtent::from(&old)]));
            lifetimes.published();
            assert!(lifetimes.lost_bytes() > 0);
            if newest_first {
                held.reverse();
            }
            held.clear();
            assert_eq!(lifetimes.lost_bytes(), 0);
        }
    }

    #[test]
    fn a_large_value_in_the_log_behind_the_durable_root_stays() {
        let (storage, _directory) = Storage::testing(48 << 20);
        let engine = engine(&storage);
        let lifetimes = Lifetimes::new(Arc::clone(&storage));
        let used = || storage.stats().space.used_blocks;
        let root = lifetimes.hold(engine.version(), Vec::new()).as_root();
        let second = lifetimes.hold(engine.version(), Vec::new());
        lifetimes.published();
        // Written and overwritten after the first flush behind the root, absorbed by the second.
        let before = used();
        let large = storage.write_large(&[7; 50_000]).unwrap();
        let third = lifetimes.hold(engine.version(), vec![OwnedExtent::from(&large)]);
        lifetimes.published();
        drop(second);
        assert!(used() > before, "the log still names the value, and replay begins at the root");
        let next_root = third.as_root();
        drop(root);
        assert_eq!(used(), before);
        drop((next_root, third));
    }
}
