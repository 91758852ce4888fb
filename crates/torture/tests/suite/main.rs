//! A few units of each torture test. The program `chelonia-torture` runs more of them on all
//! processors, and the tests that need separate processes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that fails panics, and prints how to run its unit again"
)]

mod golden;

use chelonia_torture::suite;
use chelonia_torture::test::{Tally, Unit};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The seed of the units. It differs from that of the program, so that `.ci/run` runs both.
const SEED: u64 = 0x7e57;

/// Runs the first `units` units of the test called `name` on two threads, and one with a fresh
/// seed; returns their counts.
fn run(name: &str, units: u64) -> Tally {
    let tests = suite::all();
    let test = tests.iter().find(|test| test.name() == name).unwrap();
    let (next, tally_of_all) = (AtomicU64::new(0), Mutex::new(Tally::default()));
    let fresh = fresh_seed();
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let (number, seed) = match number.cmp(&units) {
                std::cmp::Ordering::Less => (number, SEED),
                std::cmp::Ordering::Equal => (0, fresh),
                std::cmp::Ordering::Greater => return,
            };
            let again = format!("chelonia-torture --repeat {name}:{number} --seed {seed:#x}");
            let _again = RepeatOnPanic(again);
            let tally = test.run(Unit::new(name, number, seed));
            tally_of_all.lock().unwrap().merge(tally);
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work();
        other.join().unwrap();
    });
    tally_of_all.into_inner().unwrap()
}

/// A random seed.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Prints the command that repeats a unit if it panics.
struct RepeatOnPanic(String);

impl Drop for RepeatOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("to repeat the unit: {}", self.0);
        }
    }
}

fn count(tally: &Tally, what: &str) -> u64 {
    let of = |(name, count): (&'static str, u64)| (name == what).then_some(count);
    let distinct = tally.distinct().find(|(name, _)| *name == what);
    tally.counts().find_map(of).unwrap_or(0) + distinct.map_or(0, |(_, all)| all.len() as u64)
}

#[test]
fn crashes_in_random_histories() {
    let tally = run("crash", 24);
    assert!(count(&tally, "crash states") > 6_000);
    assert!(count(&tally, "recoveries that flushed") > 300);
    assert!(count(&tally, "pages in place of treeline") > 0);
    every_engine_moved_data(&tally);
}

#[test]
fn crashes_in_every_short_history() {
    let tally = run("crash-every", 12);
    assert!(count(&tally, "crash states") > 3_000);
    every_engine_moved_data(&tally);
}

#[test]
fn crashes_in_a_second_life() {
    let tally = run("crash-twice", 16);
    assert!(count(&tally, "crash states") > 1_000);
    for event in SOON_AFTER_FLUSHES {
        assert!(count(&tally, event) > 0, "no {event}");
    }
}

/// Events of every engine that soon follow a flush.
const SOON_AFTER_FLUSHES: [&str; 3] =
    ["flushes of turtle", "merges of level 0 of autumn", "merges of leaves of splinter"];

/// Asserts that trees of each engine had several levels and moved data between them.
fn every_engine_moved_data(tally: &Tally) {
    for event in [
        "flushes of turtle",
        "merges of level 0 of autumn",
        "merges of levels of autumn",
        "flushes of splinter",
        "merges of leaves of splinter",
        "groups rewritten of treeline",
        "pages of bminus",
        "deltas of bminus",
    ] {
        assert!(count(tally, event) > 0, "no {event}");
    }
}

#[test]
fn crashes_beside_threads() {
    run("crash-threads", 2);
}

#[test]
fn histories_agree_with_a_map_under_all_settings_and_reach_every_case() {
    let tally = run("model", 5);
    // Not reached, or not always, by a small stepped database without damage: a flush or a level
    // cut into pieces, evicted nodes, a buffer of too many levels, a job whose inputs are gone
    // before its install, and the handling of damage. They need threads, more metadata than a share
    // of the budget, or many memtables per leaf. The engines' own tests reach them.
    let elsewhere = [
        "flushes_cut",
        "levels_cut",
        "nodes_evicted",
        "merges_forced",
        "jobs_dropped",
        "passes_repeated",
        "pivots_stuck",
        "tables_stuck",
        "merges_within_level0",
        "sweeps_stuck",
        "node_joins",
        "node_splits",
        "suspects_settled",
        "nodes_cleared",
    ];
    let mut never: Vec<&str> =
        tally.counts().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect();
    never.retain(|event| !elsewhere.contains(event));
    assert!(never.is_empty(), "no history reached {never:?}");
}

#[test]
fn crowds_of_keyspaces_and_pins() {
    let tally = run("crowd", 3);
    assert!(count(&tally, "reads of snapshots") > 500);
    assert!(count(&tally, "batches at the limit") > 0);
}

#[test]
fn simulations() {
    assert!(count(&run("simulation", 300), "commits") > 10_000);
}

#[test]
fn failing_calls() {
    run("faults", 8);
}

#[test]
fn full_devices() {
    let tally = run("full-device", 4);
    assert!(count(&tally, "devices filled") == 5 && count(&tally, "puts refused") > 10);
}

#[test]
fn readers_beside_writers() {
    run("readers", 2);
}

#[test]
fn transactions_beside_each_other() {
    let tally = run("isolation", 3);
    assert!(count(&tally, "operations") > 10_000 && count(&tally, "conflicts") > 100);
}

#[test]
fn rot() {
    run("rot-flips", 4);
    run("rot-blocks", 6);
}

#[test]
fn forged() {
    run("decoders", 1);
    run("forged", 3);
}
