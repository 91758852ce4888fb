//! Small parts that threads share without locks, in every order of events that the memory model
//! allows, up to a number of preemptions (`loom`). The files are those of the library, with the
//! locks and atomics of loom.
//!
//! | part | assertion |
//! | --- | --- |
//! | `versions/visibility.rs` | visible commits are a completed prefix; no thread waits forever |
//! | `versions/pins.rs` | a version that a pin needs is not unlinked |
#![allow(
    dead_code,
    unused_imports,
    unexpected_cfgs,
    clippy::reversed_empty_ranges,
    clippy::absurd_extreme_comparisons,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "files of the library of which a part is used; a test that fails panics"
)]

mod base;
mod memory;
mod memtable;
mod runtime;
mod versions;

use base::ids::SeqNo;
use memory::budget::Budget;
use memory::fork::ForkMark;
use memtable::Pins as _;
use runtime::sync::{Arc, AtomicU64, Ordering, thread};
use versions::pins::{Scope, Snapshots};
use versions::visibility::Visibility;

/// The number of preemptions: few bugs need more.
const PREEMPTIONS: usize = 3;

fn main() {
    let models: [(&str, fn()); 4] = [
        ("what is visible is a completed prefix", what_is_visible_is_a_completed_prefix),
        ("tickets wait for room and get it", tickets_wait_for_room_and_get_it),
        ("a thread waits for an abandoned ticket", nobody_waits_for_a_ticket_that_was_given_up),
        ("what a pin needs stays", what_a_pin_needs_stays),
    ];
    for (name, model) in models {
        model();
        println!("in every order: {name}");
    }
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

fn what_is_visible_is_a_completed_prefix() {
    explore(|| {
        let visibility: Arc<Visibility<4>> = Arc::new(Visibility::new(SeqNo(10)));
        // For each ticket, whether its entries are inserted.
        let written: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let commit = |ticket: usize| {
            let (visibility, written) = (Arc::clone(&visibility), Arc::clone(&written));
            move || {
                written[ticket].store(1, Ordering::Relaxed);
                let end = SeqNo(11 + ticket as u64);
                visibility.complete(ticket as u64, end).unwrap();
                assert!(visibility.visible() >= end);
            }
        };
        let later = thread::spawn(commit(1));
        let first = thread::spawn(commit(0));
        let visible = visibility.visible().0;
        assert!((10..=12).contains(&visible));
        for ticket in 0..visible - 10 {
            let ticket = usize::try_from(ticket).unwrap();
            assert_eq!(written[ticket].load(Ordering::Relaxed), 1, "visible but not inserted");
        }
        first.join().unwrap();
        later.join().unwrap();
        assert_eq!(visibility.visible(), SeqNo(12));
    });
}

fn tickets_wait_for_room_and_get_it() {
    explore(|| {
        let visibility: Arc<Visibility<2>> = Arc::new(Visibility::new(SeqNo(0)));
        let first = {
            let visibility = Arc::clone(&visibility);
            thread::spawn(move || visibility.complete(0, SeqNo(1)).unwrap())
        };
        let second = {
            let visibility = Arc::clone(&visibility);
            thread::spawn(move || visibility.complete(1, SeqNo(2)).unwrap())
        };
        visibility.wait_for_slot(2).unwrap();
        visibility.complete(2, SeqNo(3)).unwrap();
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(visibility.visible(), SeqNo(3));
    });
}

fn nobody_waits_for_a_ticket_that_was_given_up() {
    explore(|| {
        let visibility: Arc<Visibility<2>> = Arc::new(Visibility::new(SeqNo(0)));
        let later = {
            let visibility = Arc::clone(&visibility);
            thread::spawn(move || visibility.complete(1, SeqNo(2)).is_err())
        };
        visibility.abandon();
        assert!(later.join().unwrap());
    });
}

fn what_a_pin_needs_stays() {
    explore(|| {
        let visibility: Arc<Visibility> = Arc::new(Visibility::new(SeqNo(1)));
        let snapshots =
            Snapshots::new(Arc::clone(&visibility), Arc::new(Budget), Arc::new(ForkMark));
        // Version 1 of a key exists; 1 means that it was unlinked.
        let unlinked = Arc::new(AtomicU64::new(0));
        let writer = {
            let (visibility, snapshots) = (Arc::clone(&visibility), Arc::clone(&snapshots));
            let unlinked = Arc::clone(&unlinked);
            thread::spawn(move || {
                // Version 2 is inserted; then the memtable handles the previous one.
                visibility.complete(0, SeqNo(2)).unwrap();
                if snapshots.visible() >= SeqNo(2) && !snapshots.any_in(SeqNo(1), SeqNo(2)) {
                    unlinked.store(1, Ordering::SeqCst);
                }
            })
        };
        let pin = snapshots.pin(Scope::All);
        if pin.seqno() == SeqNo(1) {
            assert_eq!(
                unlinked.load(Ordering::SeqCst),
                0,
                "a version that a pin needs was unlinked"
            );
            writer.join().unwrap();
            assert_eq!(
                unlinked.load(Ordering::SeqCst),
                0,
                "a version was unlinked while a pin needed it"
            );
        } else {
            writer.join().unwrap();
        }
    });
}
