//! An operation, a power cut in it, another operation on the recovered state, and cuts everywhere
//! in that: leftovers of the first operation must never be mistaken for data of the second.

use crate::suite::crash::database::{open, read};
use crate::suite::crash::history::{History, Verb};
use crate::suite::crash::run::Opening;
use crate::suite::crash::short::{EVERY, Start, cut_from};
use crate::suite::support::{below, layout_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::LogLayout;
use chelonia::internals::{CrashDirectory, MemoryDirectory, Rng, Survivors};
use std::sync::Arc;

/// A unit is a pair of operations.
pub struct Twice;

impl Test for Twice {
    fn name(&self) -> &'static str {
        "crash-twice"
    }

    fn about(&self) -> &'static str {
        "cuts an operation, recovers, and cuts another operation everywhere"
    }

    fn short_units(&self) -> u64 {
        EVERY.len() as u64
    }

    fn targets(&self) -> &'static [Target] {
        const { &[Target { what: "operation pairs", count: (EVERY.len() * EVERY.len()) as u64 }] }
    }

    fn units_max(&self) -> Option<u64> {
        Some((EVERY.len() * EVERY.len()) as u64)
    }

    fn run(&self, unit: Unit) -> Tally {
        let verbs = EVERY.len();
        let number = usize::try_from(unit.number % (verbs * verbs) as u64).unwrap();
        // Among the first units, each operation is once the first and once the second of a pair.
        let (first, round) = (number % verbs, number / verbs);
        let second = (first * 5 + round) % verbs;
        let layout = layout_of(unit.number);
        let mut tally = cut_twice(EVERY[first], EVERY[second], layout, &mut unit.rng());
        tally.add_distinct("operation pairs", number as u64);
        tally
    }
}

fn cut_twice(first: Verb, second: Verb, layout: LogLayout, rng: &mut Rng) -> Tally {
    let start = Start::of(layout);
    let opening = Opening { write_share: None, layout };
    let mut history = start.begin(None, rng.next_u64());
    let began = history.boundary();
    history.apply(first);
    let run = history.end();
    let ended = run.journal.boundaries();
    let middle = began + below(rng, ended - began + 1);
    let mut tally = Tally::default();
    for boundary in [ended, middle] {
        // Large values without the record of their commit, and a random subset.
        let pending = run.journal.pending(boundary);
        let subset = Survivors::Subset(rng.next_u64());
        for survivors in [Survivors::Prefix(pending.saturating_sub(2)), subset] {
            let files = run.journal.image(boundary, survivors);
            let left = open(Arc::new(MemoryDirectory::from_files(files.clone())), opening);
            let left = left.unwrap();
            let state = (read(&left).unwrap().0, start.next_made + 2);
            drop(left);
            let directory = CrashDirectory::from_files(&files);
            let mut history = History::begin(directory, opening, state, rng.next_u64());
            let began = history.boundary();
            if history.apply(second) {
                let name = format!("{first:?} cut at {boundary} with {survivors:?}, {second:?}");
                tally.merge(cut_from(&history.end(), began, name));
            }
        }
    }
    tally
}
