//! Random histories under several sets of options: every answer equals that of an ordered map, so
//! all sets agree.

mod history;
mod setting;

use crate::test::{Tally, Target, Test, Unit};
use history::History;
use setting::SETTINGS;

/// Steps of a history; many of them are a few hundred operations.
const STEPS: u64 = 1_200;

/// A unit is a history, run under every setting.
pub struct Model;

impl Test for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn about(&self) -> &'static str {
        "random histories under fourteen sets of options, compared with an ordered map"
    }

    fn short_units(&self) -> u64 {
        4
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "operations", count: 20_000_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let mut tally = Tally::default();
        let mut first = None;
        for setting in SETTINGS {
            let mut history = History::new(setting, unit.seed);
            for step in 0..STEPS {
                let done = history.step();
                assert!(done.is_ok(), "{:?}, step {step}: {done:?}", setting.name);
            }
            history.check_everything().unwrap();
            tally.add("operations", history.operations());
            let answers = history.answers();
            let same = *first.get_or_insert(answers) == answers;
            assert!(same, "{:?} gives other answers than the first setting", setting.name);
            for (event, count) in history.events() {
                tally.add(event, count);
            }
        }
        tally.add("histories", 1);
        tally
    }
}
