//! Every history of up to three operations from a database with trees of several levels, cut
//! everywhere in its last operation: cuts in the earlier ones belong to a shorter history.

use crate::suite::crash::history::Verb;
use crate::suite::crash::short::{EVERY, Start, cut_from};
use crate::suite::support::layout_of;
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::Rng;

/// Histories of one, two and three operations.
const HISTORIES: u64 = {
    let verbs = EVERY.len() as u64;
    verbs + verbs * verbs + verbs * verbs * verbs
};

/// A unit is a pair of operations, with each third one; the unit of an operation and the first one
/// also runs it alone.
pub struct Every;

impl Test for Every {
    fn name(&self) -> &'static str {
        "crash-every"
    }

    fn about(&self) -> &'static str {
        "cuts every history of up to three of sixteen operations in the last one"
    }

    fn short_units(&self) -> u64 {
        12
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "histories", count: HISTORIES }]
    }

    fn units_max(&self) -> Option<u64> {
        Some((EVERY.len() * EVERY.len()) as u64)
    }

    fn run(&self, unit: Unit) -> Tally {
        // In an order in which any few units differ in both operations.
        let verbs = EVERY.len();
        let number = usize::try_from(unit.number).unwrap() % (verbs * verbs);
        let (first, second) = (number % verbs, (number / verbs + number) % verbs);
        let mut tally = Tally::default();
        if second == 0 {
            tally.merge(cut(&[EVERY[first]]));
        }
        tally.merge(cut(&[EVERY[first], EVERY[second]]));
        for third in EVERY {
            tally.merge(cut(&[EVERY[first], EVERY[second], third]));
        }
        tally
    }
}

/// Applies `verbs`, and cuts while the last of them runs.
fn cut(verbs: &[Verb]) -> Tally {
    // The seed follows from the operations, so each operation meets each engine in some history.
    let mix = |mixed: u64, verb: &Verb| {
        let place = EVERY.iter().position(|one| one == verb).unwrap_or(0) as u64;
        Rng::new(mixed ^ place).next_u64()
    };
    let seed = verbs.iter().fold(0, mix);
    let mut history = Start::of(layout_of(seed)).begin(None, seed);
    let mut began = 0;
    let mut tally = Tally::default();
    tally.add("histories", 1);
    for verb in verbs {
        began = history.boundary();
        if !history.apply(*verb) {
            // Not applicable: nothing happens that a shorter history has not cut.
            return tally;
        }
    }
    tally.merge(cut_from(&history.end(), began, format!("{verbs:?}")));
    tally
}
