//! Power cuts and process deaths at every write, sync, growth, creation and removal of a history,
//! where subsets of the unsynced changes survive; and power cuts within the recovery after that.
//!
//! After every cut: the database opens; it is in a state that `crash/history.rs` allows; `verify`
//! finds nothing; it can be written again, keyspaces can be created and dropped; no space is lost;
//! a second open shows the same content.

pub mod cuts;
pub mod database;
pub mod history;
pub mod run;
pub mod short;

use crate::suite::support::{ENGINES, below, layout_of, one_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::Durability::{Memory, Process, Sync};
use chelonia::internals::{CrashDirectory, Rng};
use cuts::{CRASH_STATES, Cutter, Effort};
use database::SHARE_MIN;
use history::{History, Verb};
use run::{Opening, Run, State};
use short::Start;

/// The operations of random histories; frequent ones are listed several times.
const DRAWN: [Verb; 38] = [
    Verb::Insert(Process),
    Verb::Insert(Process),
    Verb::Insert(Process),
    Verb::Insert(Process),
    Verb::Insert(Process),
    Verb::Insert(Process),
    Verb::Insert(Process),
    Verb::Insert(Memory),
    Verb::Insert(Sync),
    Verb::Remove(Process),
    Verb::Remove(Process),
    Verb::Remove(Memory),
    Verb::Remove(Sync),
    Verb::Batch(Process),
    Verb::Batch(Process),
    Verb::Batch(Process),
    Verb::Batch(Memory),
    Verb::Batch(Sync),
    Verb::Large(Process),
    Verb::Large(Memory),
    Verb::Large(Sync),
    Verb::Make,
    Verb::Make,
    Verb::Drop,
    Verb::Remake,
    Verb::Dial,
    Verb::Dial,
    Verb::Shape,
    Verb::Checkpoint,
    Verb::Checkpoint,
    Verb::Checkpoint,
    Verb::Sync,
    Verb::Tick,
    Verb::Hold,
    Verb::Close,
    Verb::LetGo,
    Verb::Die,
    Verb::Die,
];

/// Random histories: most are short and cut everywhere, some are long and cut in places.
pub struct Random;

impl Test for Random {
    fn name(&self) -> &'static str {
        "crash"
    }

    fn about(&self) -> &'static str {
        "cuts random histories at every write, sync, growth, creation and removal; recoveries too"
    }

    fn short_units(&self) -> u64 {
        30
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: CRASH_STATES, count: 500_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let few = Effort { all_subsets_of: 2, subsets: 1, recovery_one_in: 40 };
        let many = Effort { all_subsets_of: 4, subsets: 2, recovery_one_in: 40 };
        let (verbs, stride, effort) = match unit.number % 10 {
            3 => (300, 37, few),
            7 => (80, 9, many),
            _ => (10, 1, many),
        };
        let mut rng = unit.rng();
        // In one of two, recovery has to flush.
        let write_share = rng.one_in(2).then_some(SHARE_MIN);
        let layout = layout_of(unit.number / 2);
        let opening = Opening { write_share, layout };
        let run = random(opening, unit.number % 4 == 1, verbs, &mut rng);
        let offset = below(&mut rng, stride);
        let boundaries = (0..=run.journal.boundaries()).skip(offset).step_by(stride);
        let name = format!("unit {}", unit.number);
        let mut tally = Cutter::new(&run, effort, rng.next_u64(), name).cut_at(boundaries);
        tally.add("histories", 1);
        tally
    }
}

/// A random history of `verbs` operations, which starts with trees of several levels, or with
/// `nothing`.
fn random(opening: Opening, nothing: bool, verbs: usize, rng: &mut Rng) -> Run {
    let seed = rng.next_u64();
    let mut history = if nothing {
        let nothing = (State::new(), 0);
        let mut history = History::begin(CrashDirectory::new(), opening, nothing, seed);
        for _ in 0..ENGINES {
            history.apply(Verb::Make);
        }
        history
    } else {
        Start::of(opening.layout).begin(opening.write_share, seed)
    };
    for _ in 0..verbs {
        history.apply(one_of(rng, &DRAWN));
    }
    history.end()
}
