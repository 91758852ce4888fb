//! Where short histories begin, what they are made of, and how they are cut.

use super::cuts::{Cutter, Effort, Files};
use super::history::{History, Run, State, Verb};
use crate::trial::Tally;
use chelonia::Durability::{Process, Sync};
use chelonia::internals::CrashDirectory;
use std::sync::OnceLock;

/// What every history of a few verbs is made of. (At level `Memory` a commit does what it does at
/// `Process`; to make again is to drop and to make.)
pub const EVERY: [Verb; 15] = [
    Verb::Insert(Process),
    Verb::Insert(Sync),
    Verb::Remove(Process),
    Verb::Batch(Process),
    Verb::Large(Process),
    Verb::Large(Sync),
    Verb::Make,
    Verb::Drop,
    Verb::Dial,
    Verb::Checkpoint,
    Verb::Sync,
    Verb::Tick,
    Verb::Close,
    Verb::LetGo,
    Verb::Die,
];

/// How thoroughly they are cut.
pub const EFFORT: Effort = Effort { all_subsets_of: 3, subsets: 1, recovery_one_in: 60 };

/// Where histories of a few verbs begin.
pub struct Start {
    files: Files,
    /// What they hold.
    pub state: State,
    /// The number of the next keyspace.
    pub next_made: u32,
}

impl Start {
    /// Two keyspaces with trees of a few levels, a dropped one, large values, and a log to replay.
    pub fn get() -> &'static Start {
        static START: OnceLock<Start> = OnceLock::new();
        START.get_or_init(|| {
            let nothing = (State::new(), 0);
            let mut history = History::begin(CrashDirectory::new(), None, nothing, 0x57a7);
            let before = [Verb::Make, Verb::Make, Verb::Make, Verb::Large(Process), Verb::Drop];
            let after = [Verb::Large(Process), Verb::Insert(Process), Verb::Batch(Process)];
            let filling = std::iter::repeat_n(Verb::Batch(Process), 20);
            for verb in before.into_iter().chain(filling).chain([Verb::Checkpoint]).chain(after) {
                assert!(history.apply(verb), "{verb:?}");
            }
            let (files, state, next_made) = history.files();
            Start { files, state, next_made }
        })
    }

    /// A history that begins here.
    pub fn begin(&self) -> History {
        let directory = CrashDirectory::from_files(&self.files);
        History::begin(directory, None, (self.state.clone(), self.next_made), 0x3e7b)
    }
}

/// Cuts at every boundary behind `began`, and at the last one.
pub fn cut_from(run: &Run, began: usize, name: String) -> Tally {
    let ended = run.journal.boundaries();
    Cutter::new(run, EFFORT, 0, name).cut_at((began + 1).min(ended)..=ended)
}
