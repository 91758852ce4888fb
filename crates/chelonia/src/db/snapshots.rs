//! Which seqnos are pinned, and what each pinned seqno reads from.
//!
//! A *pin* is a seqno with, for each keyspace it covers, the view of that moment: the memtables
//! that may hold visible entries, and the engine's version below them. User snapshots cover all
//! keyspaces, iterators one.
//!
//! Memtables must not stay for the sake of a pin. So a drain cuts a memtable at the pinned seqnos
//! within it, and the engine makes a version at each cut; publishing the drain replaces, in every
//! pin, the memtable by the version at the pin's own seqno. From then on the pin holds disk, not
//! memory. Cursors that stand in a memtable are reset and find their place again in the version.
//!
//! ```text
//!   pin 7 -- own: { b }  --.
//!   pin 8 -- own: { b }  ---+-- shared: { a, c, d, ... }      nothing changed between 7, 8 and 9
//!   pin 9 -- own: { b }  --'                                  but in keyspace b, which was drained
//!   pin 12 - own: { }    ------ shared: { a, b, c, d, ... }
//! ```
//!
//! Pins that were made over the same views share a map of them. A drain that gives all of them the
//! same version changes the shared map; one that does not gives each its own entry. So a pin costs
//! some hundred bytes, and one to two kilobytes for each keyspace that was written between it and
//! the next pin, however many keyspaces there are; all of that is charged to the budget.
//!
//! Locks, in order: `registry` (taken while a pin is made and while a drain is published, so that
//! both happen wholly before or after each other), then a shared map or a pin's `own`, one at a
//! time, then a cursor slot.

use crate::base::budget::{Budget, Charge, Use};
use crate::base::fork::ForkMark;
use crate::base::ids::{KeyspaceId, SeqNo};
use crate::base::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};
use crate::db::lifetimes::HeldVersion;
use crate::db::view::{Buffer, View};
use crate::db::visibility::Visibility;
use crate::memtable::Pins;
use std::collections::BTreeMap;

/// What each keyspace is read from.
pub type Views = BTreeMap<KeyspaceId, Arc<View>>;

/// All pins of a database.
pub struct Snapshots {
    budget: Arc<Budget>,
    visibility: Arc<Visibility>,
    /// In a child of the process the registry may be locked by a thread that is not there: nothing
    /// is pinned or let go, and no lock taken.
    process: Arc<ForkMark>,
    registry: Mutex<Registry>,
    /// The least pinned seqno, or the greatest number: a look without the lock.
    oldest: AtomicU64,
}

#[derive(Default)]
struct Registry {
    /// Pinned seqnos and how many pins are on each.
    seqnos: BTreeMap<SeqNo, usize>,
    pins: Vec<Weak<Pin>>,
    /// The shared views of the newest pin over more than one keyspace.
    newest: Weak<SharedViews>,
    /// How long `pins` may get before the dead ones are dropped.
    sweep_at: usize,
}

/// Below this many, dead pins are left where they are.
const SWEEP_AT_LEAST: usize = 16;

/// Something that stands in a view and can be told that the view changed.
pub trait Standing: Send + Sync {
    /// Lets go of everything that belongs to the old view.
    fn let_go(&self);
}

/// The memory of a pin without views: itself, its places in the registry, what stands on it.
const PIN_BYTES: u64 = 384;

/// The memory of a view in a map: the entry, the view, its list of memtables.
const VIEW_BYTES: u64 = 192;

/// Views that several pins read from.
struct SharedViews {
    views: Mutex<Views>,
    _charge: Option<Charge>,
}

/// A pinned seqno with what it reads from.
pub struct Pin {
    seqno: SeqNo,
    snapshots: Arc<Snapshots>,
    shared: Arc<SharedViews>,
    /// It is in the registry.
    is_held: bool,
    /// Views of the pin's own, which come before the shared ones.
    own: Mutex<Own>,
    standing: Mutex<Vec<Weak<dyn Standing>>>,
}

struct Own {
    views: Views,
    /// `None` if it is not in the registry.
    charge: Option<Charge>,
}

impl Snapshots {
    /// No pins.
    pub fn new(
        visibility: Arc<Visibility>,
        budget: Arc<Budget>,
        process: Arc<ForkMark>,
    ) -> Arc<Self> {
        let oldest = AtomicU64::new(u64::MAX);
        Arc::new(Self { budget, visibility, process, registry: Mutex::default(), oldest })
    }

    /// Pins the newest visible seqno over the views that `views` gives, which is called while no
    /// drain can be published.
    pub fn pin(self: &Arc<Self>, views: impl FnOnce() -> Views) -> Arc<Pin> {
        if !self.process.is_this_process() {
            // Nothing is charged: that may take a lock.
            return self.unheld();
        }
        let mut registry = self.registry.lock();
        // From here on nothing that this seqno may need is unlinked: a writer that looks at the
        // pins later sees this one, and one that looked before left what was visible then.
        self.oldest.fetch_min(self.visibility.visible().0, Ordering::SeqCst);
        let seqno = self.visibility.visible();
        *registry.seqnos.entry(seqno).or_insert(0) += 1;
        self.note_oldest(&registry);
        let shared = self.shared(&mut registry, views());
        let pin = self.new_pin(seqno, shared, Some(self.budget.charge(Use::Metadata, PIN_BYTES)));
        if registry.pins.len() >= registry.sweep_at {
            registry.pins.retain(|pin| pin.strong_count() > 0);
            registry.sweep_at = 2 * registry.pins.len() + SWEEP_AT_LEAST;
        }
        registry.pins.push(Arc::downgrade(&pin));
        pin
    }

    /// A pin that holds nothing, for those who are refused whatever they read through it.
    pub fn unheld(self: &Arc<Self>) -> Arc<Pin> {
        let shared = SharedViews { views: Mutex::default(), _charge: None };
        self.new_pin(self.visibility.visible(), Arc::new(shared), None)
    }

    fn new_pin(
        self: &Arc<Self>,
        seqno: SeqNo,
        shared: Arc<SharedViews>,
        charge: Option<Charge>,
    ) -> Arc<Pin> {
        Arc::new(Pin {
            seqno,
            snapshots: Arc::clone(self),
            shared,
            is_held: charge.is_some(),
            own: Mutex::new(Own { views: Views::new(), charge }),
            standing: Mutex::default(),
        })
    }

    /// Does `act` while nothing can be pinned or let go. For tests.
    #[cfg(feature = "internals")]
    pub fn while_locked<T>(&self, act: impl FnOnce() -> T) -> T {
        let _registry = self.registry.lock();
        act()
    }

    /// The pinned seqnos `s` with `from <= s < to`, ascending.
    pub fn cuts(&self, from: SeqNo, to: SeqNo) -> Vec<SeqNo> {
        self.registry.lock().seqnos.range(from..to).map(|(seqno, _)| *seqno).collect()
    }

    /// These views, shared with the newest pin if it has the same.
    fn shared(&self, registry: &mut Registry, views: Views) -> Arc<SharedViews> {
        let newest = registry.newest.upgrade().filter(|newest| {
            let newest = newest.views.lock();
            let same = |((a, one), (b, other)): (_, (&KeyspaceId, &Arc<View>))| {
                a == b && Arc::ptr_eq(one, other)
            };
            newest.len() == views.len() && views.iter().zip(newest.iter()).all(same)
        });
        newest.unwrap_or_else(|| {
            let charge = self.budget.charge(Use::Metadata, VIEW_BYTES * views.len() as u64);
            let is_for_many = views.len() > 1;
            let shared = Arc::new(SharedViews { views: Mutex::new(views), _charge: Some(charge) });
            if is_for_many {
                registry.newest = Arc::downgrade(&shared);
            }
            shared
        })
    }

    /// Publishes a drain: `buffer` of `keyspace` gives way to `versions`, each with the seqno up
    /// to which it contains it, ascending. `publish` changes the keyspace's own view meanwhile.
    pub fn publish(
        &self,
        keyspace: KeyspaceId,
        buffer: &Arc<Buffer>,
        versions: &[(SeqNo, HeldVersion)],
        publish: impl FnOnce(),
    ) {
        let registry = self.registry.lock();
        publish();
        let pins: Vec<_> = registry.pins.iter().filter_map(Weak::upgrade).collect();
        let mut replaced = Replaced::new(keyspace, buffer, versions);
        for pin in &pins {
            replaced.replace_own(pin);
        }
        let mut groups: BTreeMap<*const SharedViews, Vec<&Arc<Pin>>> = BTreeMap::new();
        for pin in &pins {
            groups.entry(Arc::as_ptr(&pin.shared)).or_default().push(pin);
        }
        for group in groups.into_values() {
            replaced.replace_shared(&group);
        }
        // Only now may pins go: the last one to let go of a pin takes the registry's lock. Views of
        // before go after the cursors that stand in them.
        drop(registry);
        drop(replaced);
        drop(pins);
    }

    /// The oldest pinned seqno.
    pub fn oldest(&self) -> Option<SeqNo> {
        self.registry.lock().seqnos.keys().next().copied()
    }

    /// How many pins there are.
    pub fn count(&self) -> usize {
        self.registry.lock().seqnos.values().sum()
    }

    fn note_oldest(&self, registry: &Registry) {
        let oldest = registry.seqnos.keys().next().map_or(u64::MAX, |seqno| seqno.0);
        self.oldest.store(oldest, Ordering::SeqCst);
    }

    fn unpin(&self, seqno: SeqNo) {
        let mut registry = self.registry.lock();
        if let Some(count) = registry.seqnos.get_mut(&seqno) {
            *count -= 1;
            if *count == 0 {
                registry.seqnos.remove(&seqno);
            }
        }
        self.note_oldest(&registry);
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
        self.registry.lock().seqnos.range(from..to).next().is_some()
    }
}

impl Pin {
    /// What the pin sees: everything up to and with this number.
    pub fn seqno(&self) -> SeqNo {
        self.seqno
    }

    /// What the pin reads `keyspace` from; `None` if it does not cover it (it is younger).
    pub fn view(&self, keyspace: KeyspaceId) -> Option<Arc<View>> {
        let own = || self.own.lock().views.get(&keyspace).cloned();
        let shared = || self.shared.views.lock().get(&keyspace).cloned();
        // A drain gives a pin its own view before it takes the shared one away.
        own().or_else(shared).or_else(own)
    }

    /// Registers something that must let go when a view changes.
    pub fn register(&self, standing: Weak<dyn Standing>) {
        let mut all = self.standing.lock();
        all.retain(|standing| standing.strong_count() > 0);
        all.push(standing);
    }

    /// Puts `view` in place of what the pin read `keyspace` from. Gives what it had of its own.
    fn set_own(&self, keyspace: KeyspaceId, view: Arc<View>) -> Option<Arc<View>> {
        let mut own = self.own.lock();
        let before = own.views.insert(keyspace, view);
        let bytes = PIN_BYTES + VIEW_BYTES * own.views.len() as u64;
        if let Some(charge) = &mut own.charge {
            charge.resize(bytes);
        }
        before
    }

    /// A view was replaced: what stands in it lets go. Called without the locks of views: what
    /// stands may be looking for its view right now.
    fn let_standing_go(&self) {
        let standing: Vec<_> = self.standing.lock().iter().filter_map(Weak::upgrade).collect();
        for standing in standing {
            standing.let_go();
        }
    }
}

/// The views that a drain replaces, while it is published.
struct Replaced<'a> {
    keyspace: KeyspaceId,
    buffer: &'a Arc<Buffer>,
    versions: &'a [(SeqNo, HeldVersion)],
    /// New views by the view before and the number of the version in the memtable's place: pins
    /// with the same of both share one.
    views: BTreeMap<(*const View, u64), Arc<View>>,
    /// The views before, kept until nothing stands in them.
    before: Vec<Arc<View>>,
}

impl<'a> Replaced<'a> {
    fn new(
        keyspace: KeyspaceId,
        buffer: &'a Arc<Buffer>,
        versions: &'a [(SeqNo, HeldVersion)],
    ) -> Self {
        Self { keyspace, buffer, versions, views: BTreeMap::new(), before: Vec::new() }
    }

    /// `view` after the drain, as a pin at `at` sees it; `None` if the memtable is not part of it.
    fn next(&mut self, view: &Arc<View>, at: SeqNo) -> Option<Arc<View>> {
        let next = view.without(self.buffer, at, self.versions)?;
        let number = next.version.number();
        // The views before live in `before` or in their map until this is dropped, so no address
        // is used twice.
        let key = (Arc::as_ptr(view), number);
        Some(Arc::clone(self.views.entry(key).or_insert_with(|| Arc::new(next))))
    }

    /// Replaces a view that is the pin's own.
    fn replace_own(&mut self, pin: &Arc<Pin>) {
        let own = pin.own.lock().views.get(&self.keyspace).cloned();
        let Some(view) = own else { return };
        let Some(next) = self.next(&view, pin.seqno) else { return };
        self.before.push(view);
        self.before.extend(pin.set_own(self.keyspace, next));
        pin.let_standing_go();
    }

    /// Replaces a view that these pins share: all of them.
    fn replace_shared(&mut self, group: &[&Arc<Pin>]) {
        let Some(shared) = group.first().map(|pin| &pin.shared) else { return };
        let Some(view) = shared.views.lock().get(&self.keyspace).cloned() else { return };
        let next: Vec<_> = group.iter().map(|pin| self.next(&view, pin.seqno)).collect();
        let Some(Some(first)) = next.first().cloned() else { return };
        if next.iter().flatten().all(|next| Arc::ptr_eq(next, &first)) {
            shared.views.lock().insert(self.keyspace, first);
        } else {
            for (pin, next) in group.iter().zip(next) {
                self.before.extend(next.and_then(|next| pin.set_own(self.keyspace, next)));
            }
            shared.views.lock().remove(&self.keyspace);
        }
        self.before.push(view);
        group.iter().for_each(|pin| pin.let_standing_go());
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.snapshots.process.is_this_process() {
            if self.is_held {
                self.snapshots.unpin(self.seqno);
            }
        } else {
            // Views take locks when they go.
            std::mem::forget(std::mem::take(&mut self.own.get_mut().views));
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}
