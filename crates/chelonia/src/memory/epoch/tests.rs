//! Tests of cells and slots, collectors of several databases, and ending threads.

use super::*;
use std::cell::RefCell;

/// Counts itself when it is dropped.
struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

fn dropped(count: &AtomicU64) -> u64 {
    count.load(Ordering::Acquire)
}

#[test]
fn old_contents_live_as_long_as_their_guards() {
    let epochs = Epochs::new().unwrap();
    let first = Arc::new(1);
    let cell = EpochCell::new(Arc::clone(&first), &epochs);
    let guard = epochs.pin();
    let seen = cell.load(&guard);
    cell.replace(Arc::new(2));
    assert_eq!(**seen, 1);
    assert_eq!(Arc::strong_count(&first), 2);
    assert_eq!(**cell.load(&guard), 2);
    drop(guard);
    drop(cell);
}

/// A value with a slow drop.
struct Slow(Arc<AtomicBool>);

impl Drop for Slow {
    fn drop(&mut self) {
        Clock::real().sleep(Duration::from_millis(2));
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn what_another_thread_is_dropping_is_waited_for() {
    let epochs = Epochs::new().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    epochs.collect();
                }
            });
        }
        for _ in 0..100 {
            let dropped = Arc::new(AtomicBool::new(false));
            let cell = EpochCell::new(Some(Slow(Arc::clone(&dropped))), &epochs);
            cell.replace(None);
            epochs.settle();
            let was_dropped = dropped.load(Ordering::Acquire);
            is_over.store(!was_dropped, Ordering::Release);
            assert!(was_dropped, "it returned while the content was dropped elsewhere");
        }
        is_over.store(true, Ordering::Release);
    });
}

#[test]
fn a_value_outlives_its_cell_for_those_who_hold_a_guard() {
    let epochs = Epochs::new().unwrap();
    let cell: EpochSlot<Arc<u64>> = EpochSlot::empty(&epochs);
    let value = Arc::new(7);
    let guard = epochs.pin();
    assert!(cell.get(&guard).is_none());
    assert!(cell.put(Arc::clone(&value), &guard).1);
    let (held, mine) = cell.put(Arc::new(8), &guard);
    assert!(!mine);
    assert!(cell.clear(&guard) && !cell.clear(&guard));
    assert_eq!(**held, 7);
    assert!(cell.get(&guard).is_none());
    assert!(cell.put(Arc::clone(&value), &guard).1);
    drop(guard);
    drop(cell);
    assert!(Arc::strong_count(&value) <= 2);
}

#[test]
fn readers_and_writers_meet() {
    let epochs = Epochs::new().unwrap();
    let cell: EpochSlot<Vec<u64>> = EpochSlot::empty(&epochs);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (cell, epochs) = (&cell, &epochs);
            scope.spawn(move || {
                for round in 0..2_000 {
                    let guard = epochs.pin();
                    if let Some(value) = cell.get(&guard) {
                        assert!(value.iter().all(|item| *item == value[0]));
                    }
                    if round % 3 == thread {
                        cell.clear(&guard);
                    }
                    cell.put(vec![round; 16], &guard);
                }
            });
        }
    });
}

#[test]
fn a_guard_of_one_database_keeps_nothing_of_another() {
    let (one, other) = (Epochs::new().unwrap(), Epochs::new().unwrap());
    let count = Arc::new(AtomicU64::new(0));
    let cell = EpochCell::new(Some(Counted(Arc::clone(&count))), &one);
    let guards = (other.pin(), crossbeam_epoch::pin());
    cell.replace(None);
    one.settle();
    assert_eq!(dropped(&count), 1);
    assert!(other.is_pinned() && !one.is_pinned());
    drop(guards);
}

#[test]
#[should_panic(expected = "a guard of the epochs of another database")]
fn a_cell_is_not_read_under_the_guard_of_another_database() {
    let (one, other) = (Epochs::new().unwrap(), Epochs::new().unwrap());
    let cell = EpochCell::new(7, &one);
    cell.load(&other.pin());
}

#[test]
fn slots_take_no_guard_of_another_database() {
    let (one, other) = (Epochs::new().unwrap(), Epochs::new().unwrap());
    let (slot, slots) = (EpochSlot::<u64>::empty(&one), EpochSlots::<u64>::empty(2, &one));
    let refused = |call: &dyn Fn(&Guard)| {
        call(&one.pin());
        let call = std::panic::AssertUnwindSafe(|| call(&other.pin()));
        assert!(std::panic::catch_unwind(call).is_err());
    };
    refused(&|guard| assert!(slot.put(7, guard).1));
    refused(&|guard| assert_eq!(slot.get(guard), Some(&7)));
    refused(&|guard| assert!(slot.clear(guard)));
    refused(&|guard| assert!(slots.put(1, 8, guard).1));
    refused(&|guard| assert_eq!((slots.get(0, guard), slots.get(1, guard)), (None, Some(&8))));
    refused(&|guard| assert!(slots.clear(1, guard)));
}

#[test]
fn a_thread_that_uses_many_databases_by_turns_keeps_few_registrations() {
    let all: Vec<_> = (0..100).map(|_| Epochs::new().unwrap()).collect();
    let count = Arc::new(AtomicU64::new(0));
    for round in 1..=3 {
        for epochs in &all {
            let cell = EpochCell::new(Some(Counted(Arc::clone(&count))), epochs);
            let guard = epochs.pin();
            assert!(cell.load(&guard).is_some() && epochs.is_pinned());
            drop(guard);
            cell.replace(None);
            epochs.settle();
        }
        assert_eq!(dropped(&count), round * 100);
    }
}

#[test]
fn what_a_thread_retired_is_dropped_though_the_owner_was_first() {
    let count = Arc::new(AtomicU64::new(0));
    let epochs = Epochs::new().unwrap();
    let slot = Arc::new(EpochSlot::empty(&epochs));
    let guard = epochs.pin();
    slot.put(Counted(Arc::clone(&count)), &guard);
    slot.clear(&guard);
    drop(guard);
    // It is in the bag of this thread, where the owner does not see it.
    let owner = Arc::clone(&epochs);
    std::thread::scope(|scope| {
        scope.spawn(|| owner.close());
    });
    assert_eq!(dropped(&count), 0);
    // The thread registers with another one.
    drop(Epochs::new().unwrap().pin());
    assert_eq!(dropped(&count), 1);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a thread that ends is what it is about")]
fn a_thread_that_ends_leaves_nothing_of_a_closed_database() {
    let count = Arc::new(AtomicU64::new(0));
    let epochs = Epochs::new().unwrap();
    let (counted, used) = (Counted(Arc::clone(&count)), Arc::clone(&epochs));
    let thread = std::thread::spawn(move || {
        let slot = EpochSlot::empty(&used);
        slot.put(counted, &used.pin());
        slot.clear(&used.pin());
        used.shared.is_closed.store(true, Ordering::SeqCst);
    });
    thread.join().unwrap();
    assert_eq!(dropped(&count), 1);
    drop(epochs);
}

#[test]
fn a_collector_goes_with_its_owner_when_nobody_is_left() {
    let count = Arc::new(AtomicU64::new(0));
    let epochs = Epochs::new().unwrap();
    let counted = Counted(Arc::clone(&count));
    epochs.pin().defer(move || drop(counted));
    epochs.pin().flush();
    // A retired value may hold its owner.
    let owner = Arc::clone(&epochs);
    epochs.pin().defer(move || drop(owner));
    epochs.close();
    let shared = Arc::downgrade(&epochs.shared);
    drop(epochs);
    drop(Epochs::new().unwrap().pin());
    assert_eq!(dropped(&count), 1);
    assert!(shared.upgrade().is_none());
}

/// Pins when its thread ends.
struct AtEnd(Arc<Epochs>, Arc<EpochCell<u64>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let Self(epochs, cell) = self;
        let (outer, inner) = (epochs.pin(), epochs.pin());
        assert_eq!((cell.load(&outer), cell.load(&inner)), (&7, &7));
        drop((outer, inner));
        cell.replace(8);
        epochs.settle();
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a thread that ends is what it is about")]
fn a_thread_pins_also_when_it_ends() {
    thread_local! {
        static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
    }
    let epochs = Epochs::new().unwrap();
    let cell = Arc::new(EpochCell::new(7, &epochs));
    let at_end = AtEnd(Arc::clone(&epochs), Arc::clone(&cell));
    let (its_epochs, its_cell) = (Arc::clone(&epochs), Arc::clone(&cell));
    let thread = std::thread::spawn(move || {
        // Before the registrations of the thread, so that it goes after them.
        AT_END.with_borrow_mut(|place| *place = Some(at_end));
        assert_eq!(its_cell.load(&its_epochs.pin()), &7);
    });
    thread.join().unwrap();
    assert_eq!(cell.load(&epochs.pin()), &8);
}

#[test]
fn a_function_that_is_called_late_may_pin_any_database() {
    let (one, other, third) =
        (Epochs::new().unwrap(), Epochs::new().unwrap(), Epochs::new().unwrap());
    let count = Arc::new(AtomicU64::new(0));
    drop(other.pin());
    let guard = one.pin();
    for epochs in [&one, &other, &third] {
        let (epochs, count) = (Arc::clone(epochs), Counted(Arc::clone(&count)));
        guard.defer(move || {
            let cell = EpochCell::new(1, &epochs);
            cell.replace(2);
            assert_eq!(cell.load(&epochs.pin()), &2);
            drop(count);
        });
    }
    drop(guard);
    one.collect();
    assert_eq!(dropped(&count), 3);
}
