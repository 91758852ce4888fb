//! Pins: the seqnos that snapshots and iterators read at.
//!
//! A *pin* is a seqno with a reader: a user's snapshot over all keyspaces, or an iterator over one.
//! It holds neither views nor memtable memory. A flush cuts a memtable at the pinned seqnos within
//! it, the engine makes a version at each cut, and views that pins need after the keyspace's own
//! view has moved on are kept by its [`History`], once for all pins that see the same. So a pin
//! costs some hundred bytes, and one to two kilobytes for each keyspace that was written between it
//! and the previous pin, however many keyspaces or pins there are; all of that is charged to the
//! budget. The cost of making a pin does not depend on the number of keyspaces, and releasing one
//! visits only the views kept for it alone.
//!
//! Lock order: the registry (taken while a pin is made or released and while a flush is published,
//! so that these are atomic with respect to each other), then the locks of a history.

use crate::base::ids::{KeyspaceId, SeqNo};
use crate::memory::budget::{Budget, Charge, Use};
use crate::memory::fork::ForkMark;
use crate::memtable::Pins;
use crate::runtime::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::versions::history::{History, Kept};
use crate::versions::lifetimes::HeldVersion;
use crate::versions::view::View;
use crate::versions::visibility::Visibility;
use std::collections::BTreeMap;

/// All pins of a database.
pub struct Snapshots {
    budget: Arc<Budget>,
    visibility: Arc<Visibility>,
    /// In a child process the registry may be locked by a thread that does not exist there: nothing
    /// is pinned or released, and no lock taken.
    process: Arc<ForkMark>,
    registry: Mutex<Registry>,
    /// The least pinned seqno, or the greatest number: readable without the lock.
    oldest: AtomicU64,
}

/// Pinned seqnos, and the number of pins on each.
#[derive(Default)]
struct Seqnos {
    counts: BTreeMap<SeqNo, usize>,
}

#[derive(Default)]
struct Registry {
    /// Pins of all scopes.
    any: Seqnos,
    /// Pins over all keyspaces.
    all: Seqnos,
    /// Pins over one keyspace.
    one: BTreeMap<KeyspaceId, Seqnos>,
    /// The histories that have an entry of this name.
    kept: BTreeMap<(SeqNo, KeyspaceId), Arc<History>>,
}

/// Memory of a pin: itself, its registry entries, its holder.
const PIN_BYTES: u64 = 384;

/// Memory of a kept view: the view, its entries in the history and the registry.
const KEPT_BYTES: u64 = 256;

/// The scope of a pin.
#[derive(Clone)]
pub enum Scope {
    /// All keyspaces.
    All,
    /// One keyspace, with its history.
    One(KeyspaceId, Arc<History>),
}

/// A pinned seqno.
pub struct Pin {
    seqno: SeqNo,
    scope: Scope,
    snapshots: Arc<Snapshots>,
    /// `None` if it is not in the registry.
    charge: Option<Charge>,
}

/// A flush that is about to be published.
pub struct Flushed<'a> {
    pub keyspace: KeyspaceId,
    pub history: &'a Arc<History>,
    /// The version below the memtable.
    pub before: &'a HeldVersion,
    /// The versions that the flush made, ascending, with the seqno up to which each contains the
    /// memtable; the last contains all of it.
    pub versions: &'a [(SeqNo, HeldVersion)],
}

impl Seqnos {
    fn add(&mut self, seqno: SeqNo) {
        *self.counts.entry(seqno).or_insert(0) += 1;
    }

    /// Removes one pin; true if it was the last on this seqno.
    fn remove(&mut self, seqno: SeqNo) -> bool {
        let Some(count) = self.counts.get_mut(&seqno) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.counts.remove(&seqno);
        true
    }

    fn last_before(&self, end: SeqNo) -> Option<SeqNo> {
        self.counts.range(..end).next_back().map(|(seqno, _)| *seqno)
    }

    fn within(&self, from: SeqNo, to: SeqNo) -> impl Iterator<Item = SeqNo> {
        self.counts.range(from..to).map(|(seqno, _)| *seqno)
    }
}

impl Registry {
    /// The newest seqno before `end` that is pinned over `keyspace`.
    fn last_before(&self, keyspace: KeyspaceId, end: SeqNo) -> Option<SeqNo> {
        let one = self.one.get(&keyspace).and_then(|one| one.last_before(end));
        self.all.last_before(end).max(one)
    }

    fn add(&mut self, seqno: SeqNo, scope: &Scope) {
        self.any.add(seqno);
        match scope {
            Scope::All => self.all.add(seqno),
            Scope::One(keyspace, _) => self.one.entry(*keyspace).or_default().add(seqno),
        }
    }

    /// Removes a pin; returns the views that were kept for it alone.
    fn remove(&mut self, seqno: SeqNo, scope: &Scope) -> Vec<Kept> {
        self.any.remove(seqno);
        let mut candidates = Vec::new();
        match scope {
            Scope::All => {
                if self.all.remove(seqno) {
                    // A view that reaches to the next such pin is needed by that.
                    let next = self.all.within(seqno, SeqNo::MAX).next().unwrap_or(SeqNo::MAX);
                    let names = (seqno, KeyspaceId(0))..(next, KeyspaceId(0));
                    candidates.extend(self.kept.range(names).map(|(name, _)| *name));
                }
            }
            Scope::One(keyspace, history) => {
                let Some(one) = self.one.get_mut(keyspace) else { return Vec::new() };
                let is_last = one.remove(seqno);
                if one.counts.is_empty() {
                    self.one.remove(keyspace);
                }
                if is_last {
                    let read_from = history.interval(seqno).map(|(_, upto)| (upto, *keyspace));
                    candidates.extend(read_from);
                }
            }
        }
        let mut unneeded = Vec::new();
        for (upto, keyspace) in candidates {
            let Some(history) = self.kept.get(&(upto, keyspace)) else { continue };
            let Some((before, upto)) = history.interval(upto) else { continue };
            let last = self.last_before(keyspace, upto.next());
            if last.is_none_or(|last| before.is_some_and(|before| last <= before)) {
                unneeded.extend(history.remove(upto));
                self.kept.remove(&(upto, keyspace));
            }
        }
        unneeded
    }
}

impl Snapshots {
    /// Creates an empty registry.
    pub fn new(
        visibility: Arc<Visibility>,
        budget: Arc<Budget>,
        process: Arc<ForkMark>,
    ) -> Arc<Self> {
        let oldest = AtomicU64::new(u64::MAX);
        Arc::new(Self { budget, visibility, process, registry: Mutex::default(), oldest })
    }

    /// Pins the newest visible seqno.
    pub fn pin(self: &Arc<Self>, scope: Scope) -> Arc<Pin> {
        if !self.process.is_this_process() {
            // Nothing is charged: charging may take a lock.
            return self.unheld();
        }
        let mut registry = self.registry.lock();
        // From here on nothing that this seqno may need is unlinked: a writer that checks the pins
        // later sees this one, and one that checked before left what was visible then.
        self.oldest.fetch_min(self.visibility.visible().0, Ordering::SeqCst);
        let seqno = self.visibility.visible();
        registry.add(seqno, &scope);
        self.note_oldest(&registry);
        let charge = Some(self.budget.charge(Use::Metadata, PIN_BYTES));
        Arc::new(Pin { seqno, scope, snapshots: Arc::clone(self), charge })
    }

    /// A pin that holds nothing, for readers whose reads are refused anyway.
    pub fn unheld(self: &Arc<Self>) -> Arc<Pin> {
        let (seqno, scope) = (self.visibility.visible(), Scope::All);
        Arc::new(Pin { seqno, scope, snapshots: Arc::clone(self), charge: None })
    }

    /// Runs `act` while nothing can be pinned or released. For tests.
    #[cfg(feature = "internals")]
    pub fn while_locked<T>(&self, act: impl FnOnce() -> T) -> T {
        let _registry = self.registry.lock();
        act()
    }

    /// The seqnos `s` with `from <= s < to` that are pinned over `keyspace`, ascending.
    pub fn cuts(&self, keyspace: KeyspaceId, from: SeqNo, to: SeqNo) -> Vec<SeqNo> {
        let registry = self.registry.lock();
        let one = registry.one.get(&keyspace).into_iter().flat_map(|one| one.within(from, to));
        let mut cuts: Vec<SeqNo> = registry.all.within(from, to).chain(one).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// Publishes a flush: keeps the views that older pins need, then calls `publish`, which moves
    /// the keyspace's own view on.
    pub fn publish(&self, flushed: &Flushed<'_>, publish: impl FnOnce()) {
        let mut registry = self.registry.lock();
        // A pin reads from the newest version that is not newer than the pin.
        let (mut version, mut from) = (flushed.before, SeqNo::ZERO);
        for (upto, next) in flushed.versions {
            self.keep_for_pins(&mut registry, flushed, (from, *upto), version);
            (version, from) = (next, *upto);
        }
        publish();
    }

    /// Keeps `version` for pins from `from` on and before `to`, if any of them has no older view
    /// kept.
    fn keep_for_pins(
        &self,
        registry: &mut Registry,
        of: &Flushed<'_>,
        (from, to): (SeqNo, SeqNo),
        version: &HeldVersion,
    ) {
        let last = registry.last_before(of.keyspace, to).filter(|last| *last >= from);
        let kept = of.history.newest();
        let Some(upto) = last.filter(|last| kept.is_none_or(|kept| kept < *last)) else { return };
        let view = Arc::new(View::of_version(version.clone()));
        self.keep(registry, (of.keyspace, of.history), upto, view);
    }

    fn keep(
        &self,
        registry: &mut Registry,
        (keyspace, history): (KeyspaceId, &Arc<History>),
        upto: SeqNo,
        view: Arc<View>,
    ) {
        history.keep(upto, view, self.budget.charge(Use::Metadata, KEPT_BYTES));
        registry.kept.insert((upto, keyspace), Arc::clone(history));
    }

    /// Publishes the drop of a keyspace: keeps its `view` for all current pins that have no older
    /// view kept, then calls `publish`, which empties the keyspace's own view. A pin is made
    /// entirely before that, and reads the keyspace unchanged, or after it, and reads it as empty.
    /// Unless `may_keep_updates`, does nothing and returns `None` if memtables would have to be
    /// kept.
    pub fn publish_drop<T>(
        &self,
        (keyspace, history): (KeyspaceId, &Arc<History>),
        view: &Arc<View>,
        may_keep_updates: bool,
        publish: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut registry = self.registry.lock();
        let kept = history.newest();
        let last = registry.last_before(keyspace, SeqNo::MAX);
        if let Some(upto) = last.filter(|last| kept.is_none_or(|kept| kept < *last)) {
            if view.has_updates() && !may_keep_updates {
                return None;
            }
            self.keep(&mut registry, (keyspace, history), upto, Arc::clone(view));
        }
        Some(publish())
    }

    /// The oldest pinned seqno.
    pub fn oldest(&self) -> Option<SeqNo> {
        self.registry.lock().any.counts.keys().next().copied()
    }

    /// The number of pins.
    pub fn count(&self) -> usize {
        self.registry.lock().any.counts.values().sum()
    }

    fn note_oldest(&self, registry: &Registry) {
        let oldest = registry.any.counts.keys().next().map_or(u64::MAX, |seqno| seqno.0);
        self.oldest.store(oldest, Ordering::SeqCst);
    }

    fn unpin(&self, seqno: SeqNo, scope: &Scope) {
        let mut registry = self.registry.lock();
        let unneeded = registry.remove(seqno, scope);
        self.note_oldest(&registry);
        drop(registry);
        // Views free their resources when they are dropped.
        drop(unneeded);
    }
}

impl Pins for Snapshots {
    fn visible(&self) -> SeqNo {
        self.visibility.visible()
    }

    fn any_in(&self, from: SeqNo, to: SeqNo) -> bool {
        if self.oldest.load(Ordering::SeqCst) >= to.0 {
            return false;
        }
        self.registry.lock().any.within(from, to).next().is_some()
    }
}

impl Pin {
    /// The pinned seqno: the pin sees everything up to and including it.
    pub fn seqno(&self) -> SeqNo {
        self.seqno
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // In a child process the kept views stay, and no lock is taken.
        if self.charge.is_some() && self.snapshots.process.is_this_process() {
            self.snapshots.unpin(self.seqno, &self.scope);
        }
    }
}
