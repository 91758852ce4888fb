//! Limits, charges, slabs that are refused, forced or made ready, and what goes back.

use super::slabs::READY_SLABS;
use super::*;
use crate::memory::slab::OwnedSlab;

const SLAB: u64 = SLAB_BYTES as u64;

#[test]
fn slabs_stay_within_the_limit_and_are_recycled() {
    let budget = Budget::new(3 * SLAB);
    let mut first = budget.take_slab(Use::Cache).unwrap();
    first.bytes_mut()[0] = 7;
    let place = first.as_ptr();
    let _second = budget.take_slab(Use::Memtable).unwrap();
    let charge = budget.charge(Use::Log, SLAB);
    assert_eq!(budget.take_slab(Use::Cache).err(), Some(Refused::Full));
    drop(first);
    assert_eq!(budget.held(), 3 * SLAB);
    let again = budget.take_slab(Use::Memtable).unwrap();
    assert_eq!(again.as_ptr(), place);
    assert_eq!(again.bytes()[0], 7);
    drop(charge);
    assert_eq!(budget.used_by(Use::Memtable), 2 * SLAB);
}

#[test]
fn charges_of_metadata_count_with_what_the_allocator_loses() {
    let budget = Budget::new(8 * SLAB);
    let mut charge = budget.charge(Use::Metadata, 1_000);
    assert_eq!((budget.used_by(Use::Metadata), charge.bytes()), (1_250, 1_000));
    charge.resize(101);
    assert_eq!(budget.used(), 126);
    drop(charge);
    assert_eq!(budget.used(), 0);
}

#[test]
fn room_is_made_ahead_of_what_is_about_to_be_taken() {
    struct Reserve(Mutex<Vec<OwnedSlab>>);

    impl Reclaim for Reserve {
        fn reclaim_slab(&self) -> Reclaimed {
            let slab = self.0.lock().pop();
            if slab.is_some() { Reclaimed::Now } else { Reclaimed::Nothing }
        }
    }

    let budget = Budget::new(8 * SLAB);
    let slabs = (0..6).map(|_| budget.take_slab(Use::Cache).unwrap()).collect();
    let reserve = Arc::new(Reserve(Mutex::new(slabs)));
    let weak: Weak<dyn Reclaim> = Arc::downgrade(&reserve) as _;
    budget.set_reclaim(Side::Blocks, weak);
    budget.make_room_for(5 * SLAB);
    assert_eq!(budget.used(), 3 * SLAB);
    budget.make_room_for(100 * SLAB);
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_lower_limit_returns_what_is_not_in_use() {
    let budget = Budget::new(8 * SLAB);
    let slabs: Vec<_> = (0..8).map(|_| budget.take_slab(Use::Work).unwrap()).collect();
    budget.set_limit(2 * SLAB);
    assert_eq!(budget.held(), 8 * SLAB);
    drop(slabs);
    assert_eq!(budget.held(), 2 * SLAB);
    assert_eq!(budget.used(), 0);
}

#[test]
fn what_the_system_refuses_is_reported_and_costs_nothing() {
    let budget = Budget::new(64 * SLAB);
    budget.refuse_memory(true);
    assert_eq!(budget.take_slab(Use::Cache).err(), Some(Refused::Full));
    assert!(budget.take_work_slab().is_err_and(|error| error.is_transient()));
    assert_eq!((budget.used(), budget.held()), (0, 0));
    // After a refusal small requests are checked too.
    assert!(budget.make_ready(1).is_err());
    let _last = budget.take_slab_forced(Use::Memtable);
    assert_eq!(budget.used(), SLAB);
    budget.refuse_memory(false);
    budget.make_ready(10 * SLAB).unwrap();
    budget.refuse_memory(true);
    let ready = (0..20 + READY_SLABS).map(|_| budget.take_work_slab());
    let mut held: Vec<_> = ready.collect::<Result<_, _>>().unwrap();
    while let Ok(slab) = budget.take_work_slab() {
        held.push(slab);
    }
    assert!(budget.make_ready(1).is_err());
    drop(held);
    budget.make_ready(1).unwrap();
}

#[test]
fn forced_slabs_are_always_there() {
    let budget = Budget::new(SLAB);
    let _a = budget.take_slab_forced(Use::Memtable);
    let _b = budget.take_slab_forced(Use::Memtable);
    assert_eq!(budget.used(), 2 * SLAB);
    assert_eq!(budget.take_slab(Use::Cache).err(), Some(Refused::Full));
}
