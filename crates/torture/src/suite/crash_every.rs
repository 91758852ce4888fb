//! Every history of up to three verbs from a database of a few levels, cut everywhere while the
//! last verb runs: what is before was cut in a shorter history.

use crate::suite::crash::history::Verb;
use crate::suite::crash::short::{EVERY, Start, cut_from};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::Rng;

/// Histories of one, of two and of three verbs.
const HISTORIES: u64 = {
    let verbs = EVERY.len() as u64;
    verbs + verbs * verbs + verbs * verbs * verbs
};

/// A unit is what begins with two verbs; that of a verb and the first one does it alone, too.
pub struct Every;

impl Test for Every {
    fn name(&self) -> &'static str {
        "crash-every"
    }

    fn about(&self) -> &'static str {
        "cuts every history of up to three of sixteen verbs everywhere in its last verb"
    }

    fn short_units(&self) -> u64 {
        20
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "histories", count: HISTORIES }]
    }

    fn units_max(&self) -> Option<u64> {
        Some((EVERY.len() * EVERY.len()) as u64)
    }

    fn run(&self, unit: Unit) -> Tally {
        // In an order in which any few units differ in both verbs.
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

/// Does `verbs` and cuts while the last of them runs.
fn cut(verbs: &[Verb]) -> Tally {
    // Among histories with the same verbs in other places each engine gets its turn at each verb.
    let mix = |mixed: u64, verb: &Verb| {
        let place = EVERY.iter().position(|one| one == verb).unwrap_or(0) as u64;
        Rng::new(mixed ^ place).next_u64()
    };
    let mut history = Start::get().begin(None, verbs.iter().fold(0, mix));
    let mut began = 0;
    let mut tally = Tally::default();
    tally.add("histories", 1);
    for verb in verbs {
        began = history.boundary();
        if !history.apply(*verb) {
            // It cannot be done here: nothing happens that was not cut before.
            return tally;
        }
    }
    tally.merge(cut_from(&history.end(), began, format!("{verbs:?}")));
    tally
}
