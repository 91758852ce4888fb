//! The registrations of a thread with the collectors of databases: a pin finds the one that it
//! needs here.
//!
//! ```text
//!   this thread:  [ last used | ... | first used ]     at most REGISTRATIONS_MAX
//! ```
//!
//! A registration is let go when its thread ends, when the thread uses many other databases, or,
//! if its owner has closed the collector, when the thread registers with another one. What the
//! thread had retired goes to the other threads of the collector then; if it is closed there may be
//! none, so it is dropped here.
//!
//! That may happen within any pin, under whatever locks the caller holds. They are never of the
//! database whose collector is let go: nobody pins for another database under locks of one.
//!
//! In a child of a fork registrations of the parent are left alone: what they would drop may need
//! locks of threads that are not in the child.
//!
//! Thread-safety: everything here is of one thread. Functions that a collector runs may pin, so
//! nothing is borrowed for a change while one could run.

use super::Shared;
use crate::runtime::sync::{Arc, Ordering};
use crossbeam_epoch::{Guard, LocalHandle};
use std::cell::RefCell;

/// A thread that uses more databases than this by turns registers again and again. Each takes about
/// two KiB.
const REGISTRATIONS_MAX: usize = 16;

thread_local! {
    static REGISTRATIONS: RefCell<Registrations> =
        const { RefCell::new(Registrations(Vec::new())) };
}

/// Those of one thread, the last used first.
struct Registrations(Vec<Registration>);

/// The registration of a thread with a collector.
struct Registration {
    /// The id of the collector, once more: a pin looks here.
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
    /// The thread ends.
    fn drop(&mut self) {
        self.0.drain(..).for_each(Registration::let_go);
    }
}

/// Pins with the registration that was used last, if it is with collector `id`.
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
        // The thread ends, and has let go of its registrations. One for this pin alone.
        Err(_) => return with.collector.register().pin(),
    }
    // It is not there if a function that a collector runs got here: then it is for this pin alone,
    // too.
    pin_again(with.id).unwrap_or_else(|| with.collector.register().pin())
}

/// Makes the registration with `with` the first. False if there is none.
fn bring_forward(all: &RefCell<Registrations>, with: &Shared) -> bool {
    let Ok(mut all) = all.try_borrow_mut() else {
        // A collector runs functions: it is not the time for changes.
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
    // What did not find its way back goes, too: it is registered again when it is wanted.
    gone.extend(kept.into_iter().flatten());
    gone.into_iter().for_each(Registration::let_go);
}

/// True if this thread holds a guard of the collector.
#[cfg(test)]
pub(super) fn is_pinned(id: u64) -> bool {
    REGISTRATIONS.with_borrow(|all| all.0.iter().any(|of| of.id == id && of.handle.is_pinned()))
}
