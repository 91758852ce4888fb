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
//! Locks, in order: `registry` (taken while a pin is made and while a drain is published, so that
//! both happen wholly before or after each other), then a pin's `views`, then a cursor slot.

use crate::base::ids::{KeyspaceId, SeqNo};
use crate::base::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};
use crate::db::lifetimes::HeldVersion;
use crate::db::view::{Buffer, View};
use crate::db::visibility::Visibility;
use crate::memtable::Pins;
use std::collections::BTreeMap;

/// All pins of a database.
pub struct Snapshots {
    visibility: Arc<Visibility>,
    registry: Mutex<Registry>,
    /// The least pinned seqno, or the greatest number: a look without the lock.
    oldest: AtomicU64,
}

#[derive(Default)]
struct Registry {
    /// Pinned seqnos and how many pins are on each.
    seqnos: BTreeMap<SeqNo, usize>,
    pins: Vec<Weak<Pin>>,
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

/// A pinned seqno with what it reads from.
pub struct Pin {
    seqno: SeqNo,
    snapshots: Arc<Snapshots>,
    views: Mutex<BTreeMap<KeyspaceId, Arc<View>>>,
    standing: Mutex<Vec<Weak<dyn Standing>>>,
}

impl Snapshots {
    /// No pins.
    pub fn new(visibility: Arc<Visibility>) -> Arc<Self> {
        let oldest = AtomicU64::new(u64::MAX);
        Arc::new(Self { visibility, registry: Mutex::default(), oldest })
    }

    /// Pins the newest visible seqno over the views that `views` gives, which is called while no
    /// drain can be published.
    pub fn pin(
        self: &Arc<Self>,
        views: impl FnOnce() -> BTreeMap<KeyspaceId, Arc<View>>,
    ) -> Arc<Pin> {
        let mut registry = self.registry.lock();
        // From here on nothing that this seqno may need is unlinked: a writer that looks at the
        // pins later sees this one, and one that looked before left what was visible then.
        self.oldest.fetch_min(self.visibility.visible().0, Ordering::SeqCst);
        let seqno = self.visibility.visible();
        *registry.seqnos.entry(seqno).or_insert(0) += 1;
        self.note_oldest(&registry);
        let pin = Arc::new(Pin {
            seqno,
            snapshots: Arc::clone(self),
            views: Mutex::new(views()),
            standing: Mutex::default(),
        });
        if registry.pins.len() >= registry.sweep_at {
            registry.pins.retain(|pin| pin.strong_count() > 0);
            registry.sweep_at = 2 * registry.pins.len() + SWEEP_AT_LEAST;
        }
        registry.pins.push(Arc::downgrade(&pin));
        pin
    }

    /// The pinned seqnos `s` with `from <= s < to`, ascending.
    pub fn cuts(&self, from: SeqNo, to: SeqNo) -> Vec<SeqNo> {
        self.registry.lock().seqnos.range(from..to).map(|(seqno, _)| *seqno).collect()
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
        for pin in &pins {
            pin.replace(keyspace, buffer, versions);
        }
        // Only now may pins go: the last one to let go of a pin takes the registry's lock.
        drop(registry);
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
        self.views.lock().get(&keyspace).cloned()
    }

    /// Registers something that must let go when a view changes.
    pub fn register(&self, standing: Weak<dyn Standing>) {
        let mut all = self.standing.lock();
        all.retain(|standing| standing.strong_count() > 0);
        all.push(standing);
    }

    /// Replaces a drained memtable by the version at this pin's seqno.
    fn replace(
        &self,
        keyspace: KeyspaceId,
        buffer: &Arc<Buffer>,
        versions: &[(SeqNo, HeldVersion)],
    ) {
        // The view before is kept until nobody stands in it.
        let _before = {
            let mut views = self.views.lock();
            let Some(view) = views.get_mut(&keyspace) else { return };
            let Some(next) = view.without(buffer, self.seqno, versions) else { return };
            std::mem::replace(view, Arc::new(next))
        };
        // Not under the lock of the views: whoever stands may be looking for its view right now.
        let standing: Vec<_> = self.standing.lock().iter().filter_map(Weak::upgrade).collect();
        for standing in standing {
            standing.let_go();
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.snapshots.unpin(self.seqno);
    }
}
