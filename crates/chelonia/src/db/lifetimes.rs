//! Which versions are held, and which extents nobody can reach any more.
//!
//! A version is held by the keyspace's view, by pins, and by the last durable root. An extent that
//! version `d` no longer refers to is needed by an older held version `v < d` only if it existed
//! when `v` was made, which its generation tells: generations are handed out in order, and every
//! version remembers its *horizon*, the newest generation it can know. So a snapshot held for a
//! week keeps the space of what it can see, and nothing of what came and went since.
//!
//! ```text
//!   version    1        2        3        4
//!   horizon    g=10     g=17     g=23     g=31       generation when the version was complete
//!   extent            [g=15 ------------- lost by 4)
//!   needed by           2        3                   while one of them is held
//! ```
//!
//! Large values are allocated by commits, before any version refers to them, and read through
//! memtables that stand above a version. So a version's horizon for large values is the newest
//! generation when its successor was published: after that no view on it can show a newer one.
//!
//! Rule R7 follows: the durable root's version is held until the next root is durable, so space is
//! reused only after the checkpoint that frees it. The durable root is more than a view, though:
//! the log behind it is replayed over it, and so names large values of any age, those included that
//! were written and overwritten by updates that several drains have absorbed since. So no large
//! value that was lost after a root is free while it is the durable one ([`RootVersion`]).

use crate::base::ids::Generation;
use crate::base::sync::{Arc, Mutex};
use crate::engine::{OwnedExtent, Version};
use crate::storage::Storage;
use std::collections::BTreeMap;

/// The versions of one keyspace and the extents they lost.
pub struct Lifetimes {
    storage: Arc<Storage>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the next version.
    next: u64,
    /// Held versions by number.
    held: BTreeMap<u64, Horizon>,
    /// Versions of durable roots, and how often each is one: during a checkpoint the old root and
    /// the new one.
    roots: BTreeMap<u64, usize>,
    /// Extents lost, with the number of the version that lost them.
    lost: Vec<(OwnedExtent, u64)>,
}

/// The newest generations that a version, or a view on it, can know.
struct Horizon {
    structure: Generation,
    large_values: Generation,
}

impl Horizon {
    fn sees(&self, extent: &OwnedExtent) -> bool {
        let horizon = if extent.large_value { self.large_values } else { self.structure };
        extent.generation <= horizon
    }
}

impl Lifetimes {
    /// No version yet.
    pub fn new(storage: Arc<Storage>) -> Arc<Self> {
        Arc::new(Self { storage, state: Mutex::default() })
    }

    /// Holds a new version that was just completed and lost these extents against the one before.
    pub fn hold(
        self: &Arc<Self>,
        version: Arc<dyn Version>,
        lost: Vec<OwnedExtent>,
    ) -> HeldVersion {
        let structure = self.storage.newest_generation();
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let horizon = Horizon { structure, large_values: Generation(u64::MAX) };
        state.held.insert(number, horizon);
        state.lost.extend(lost.into_iter().map(|extent| (extent, number)));
        drop(state);
        let inner = Held { number, lifetimes: Arc::clone(self), version: Some(version) };
        HeldVersion { inner: Arc::new(inner) }
    }

    /// The newest version was published: no view on an older one can show newer large values.
    pub fn published(&self) {
        let newest = self.storage.newest_generation();
        let mut state = self.state.lock();
        let last = state.next.saturating_sub(1);
        for (_, horizon) in state.held.range_mut(..last) {
            horizon.large_values = horizon.large_values.min(newest);
        }
    }

    /// These large values belong to updates that the next version will not show.
    pub fn lose(&self, extents: impl IntoIterator<Item = OwnedExtent>) {
        let mut state = self.state.lock();
        let number = state.next;
        state.lost.extend(extents.into_iter().map(|extent| (extent, number)));
    }

    /// Bytes that are lost and still held for somebody.
    pub fn lost_bytes(&self) -> u64 {
        self.state.lock().lost.iter().map(|(extent, _)| extent.extent.bytes()).sum()
    }

    /// How many versions are held.
    pub fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    fn release(&self, number: u64) {
        let mut state = self.state.lock();
        state.held.remove(&number);
        self.free_unneeded(&mut state);
    }

    fn release_root(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some(count) = state.roots.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                state.roots.remove(&number);
            }
        }
        self.free_unneeded(&mut state);
    }

    fn free_unneeded(&self, state: &mut State) {
        let State { held, lost, roots, .. } = state;
        let oldest_root = roots.keys().next().copied().unwrap_or(u64::MAX);
        lost.retain(|(extent, lost_by)| {
            let needed = (extent.large_value && oldest_root < *lost_by)
                || held.range(..lost_by).any(|(_, horizon)| horizon.sees(extent));
            if !needed {
                self.storage.free_unreachable(extent.extent);
            }
            needed
        });
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
    /// `None` only while dropping: the version goes before its extents do.
    version: Option<Arc<dyn Version>>,
}

impl HeldVersion {
    /// The version.
    pub fn version(&self) -> &Arc<dyn Version> {
        self.inner.version.as_ref().expect("only the drop takes it")
    }

    /// Its number among the versions of its keyspace: later ones have greater numbers.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// The version as what a durable root refers to, or is about to.
    #[must_use]
    pub fn as_root(&self) -> RootVersion {
        let inner = &self.inner;
        *inner.lifetimes.state.lock().roots.entry(inner.number).or_insert(0) += 1;
        RootVersion { version: self.clone() }
    }
}

/// A version that a durable root refers to: with the log that is replayed over it.
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
    use crate::engine::LevelOptions;
    use crate::engines::{self, EngineContext, EngineKind, EngineOptions};
    use crate::filters::FilterKind;

    #[test]
    fn a_large_value_in_the_log_behind_the_durable_root_stays() {
        let (storage, _directory) = Storage::testing(48 << 20);
        let options = EngineOptions {
            filter: FilterKind::Bloom,
            bits_per_key: 10,
            leaf_bytes: 4 << 10,
            pivots_max: 4,
            levels: LevelOptions::default(),
            checkpoint_distance: 4 << 10,
        };
        let context = EngineContext { storage: Arc::clone(&storage), options };
        let engine = engines::open(EngineKind::Turtle, &context, None).unwrap();
        let lifetimes = Lifetimes::new(Arc::clone(&storage));
        let used = || storage.stats().space.used_blocks;
        let root = lifetimes.hold(engine.version(), Vec::new()).as_root();
        let second = lifetimes.hold(engine.version(), Vec::new());
        lifetimes.published();
        // Written and overwritten after the first drain behind the root, absorbed by the second.
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
