//! The registrations of a thread with the collectors of databases; a pin looks up its registration
//! here.
//!
//! ```text
//!   this thread:  [ last used | ... | first used ]     at most REGISTRATIONS_MAX
//! ```
//!
//! A registration is dropped when its thread ends, when the thread uses many other databases, or,
//! if its owner has closed the collector, when the thread registers with another one. Values that
//! the thread had retired then go to the other threads of the collector; a closed collector may
//! have none, so they are dropped here.
//!
//! That may happen within any pin, under whatever locks the caller holds. They are never of the
//! database whose registration is dropped: nobody pins for another database under locks of one.
//!
//! In a child of a fork the parent's registrations are left alone: dropping them may need locks of
//! threads that do not exist in the child.
//!
//! Thread-safety: everything here belongs to one thread. Functions that a collector runs may pin,
//! so nothing is borrowed mutably while one could run.

use super::Shared;
use crate::runtime::sync::{Arc, Ordering, thread_local};
use crossbeam_epoch::{Guard, LocalHandle};
use std::cell::RefCell;

/// A thread that alternates between more databases than this registers repeatedly. Each
/// registration takes about two KiB.
const REGISTRATIONS_MAX: usize = 16;

thread_local! {
    static REGISTRATIONS: RefCell<Registrations> =
        const { RefCell::new(Registrations(Vec::new())) };
}

/// The registrations of one thread, most recently used first.
struct Registrations(Vec<Registration>);

/// The registration of a thread with a collector.
struct Registration {
    /// The id of the collector, copied here for fast lookup by a pin.
    id: u64,
    handle: LocalHandle,
    with: Arc<Shared>,
}

impl Registration {
    fn let_go(self) {
        let Self { id: _, handle, with } = self;
        if !with.process.is_this_process() {
            std::mem::forget((handle, with));
            return;
        }
        drop(handle);
        if with.is_closed.load(Ordering::SeqCst) {
            with.sweep();
        }
    }
}

impl Drop for Registrations {
    /// Drops all registrations when the thread ends.
    fn drop(&mut self) {
        self.0.drain(..).for_each(Registration::let_go);
    }
}

/// Pins with the most recently used registration, if it is with collector `id`.
#[inline]
pub(super) fn pin_again(id: u64) -> Option<Guard> {
    let pinned = REGISTRATIONS.try_with(|all| {
        let all = all.try_borrow().ok()?;
        let last = all.0.first().filter(|last| last.id == id)?;
        Some(last.handle.pin())
    });
    pinned.ok().flatten()
}

/// Pins with any registration, or a new one.
#[cold]
pub(super) fn pin(with: &Arc<Shared>) -> Guard {
    let is_kept = REGISTRATIONS.try_with(|all| bring_forward(all, with));
    match is_kept {
        Ok(true) => {}
        Ok(false) => register(with),
        // The thread ends, and its registrations are gone. Register for this pin only.
        Err(_) => return with.collector.register().pin(),
    }
    // A function run by a collector got here and found no registration: register for this pin only,
    // too.
    pin_again(with.id).unwrap_or_else(|| with.collector.register().pin())
}

/// Moves the registration with `with` to the front. False if there is none.
fn bring_forward(all: &RefCell<Registrations>, with: &Shared) -> bool {
    let Ok(mut all) = all.try_borrow_mut() else {
        // A collector runs functions: no changes now.
        return true;
    };
    let place = all.0.iter().position(|registration| registration.id == with.id);
    if let Some(place) = place {
        all.0[..=place].rotate_right(1);
    }
    place.is_some()
}

fn register(with: &Arc<Shared>) {
    let new =
        Registration { id: with.id, handle: with.collector.register(), with: Arc::clone(with) };
    let before = REGISTRATIONS.try_with(|all| {
        all.try_borrow_mut().map(|mut all| std::mem::take(&mut all.0)).unwrap_or_default()
    });
    let is_closed = |of: &Registration| of.with.is_closed.load(Ordering::SeqCst);
    let (mut gone, mut kept): (Vec<_>, Vec<_>) =
        before.unwrap_or_default().into_iter().partition(is_closed);
    kept.insert(0, new);
    gone.extend(kept.drain(REGISTRATIONS_MAX.min(kept.len())..));
    let mut kept = Some(kept);
    let _ = REGISTRATIONS.try_with(|all| {
        if let Ok(mut all) = all.try_borrow_mut() {
            all.0.splice(..0, kept.take().into_iter().flatten());
        }
    });
    // Entries that could not be put back are dropped too; they register again when needed.
    gone.extend(kept.into_iter().flatten());
    gone.into_iter().for_each(Registration::let_go);
}

/// True if this thread holds a guard of the collector.
#[cfg(test)]
pub(super) fn is_pinned(id: u64) -> bool {
    REGISTRATIONS.with_borrow(|all| all.0.iter().any(|of| of.id == id && of.handle.is_pinned()))
}
