//! Short histories: their start, their operations, and their cuts.

use super::cuts::{Cutter, Effort, Files};
use super::database::SHAPES;
use super::history::{History, Verb};
use super::run::{Opening, Run, State};
use crate::suite::support::{ENGINES, LAYOUTS, engine_of};
use crate::test::Tally;
use chelonia::Durability::{Process, Sync};
use chelonia::LogLayout;
use chelonia::internals::CrashDirectory;
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// The operations of short histories. (A commit at level `Memory` acts as one at `Process`, and
/// recreating a keyspace is a drop and a creation.)
pub const EVERY: [Verb; 16] = [
    Verb::Insert(Process),
    Verb::Insert(Sync),
    Verb::Remove(Process),
    Verb::Batch(Process),
    Verb::Large(Process),
    Verb::Large(Sync),
    Verb::Make,
    Verb::Drop,
    Verb::Dial,
    Verb::Shape,
    Verb::Checkpoint,
    Verb::Sync,
    Verb::Tick,
    Verb::Close,
    Verb::LetGo,
    Verb::Die,
];

/// How thoroughly short histories are cut.
pub const EFFORT: Effort = Effort { all_subsets_of: 3, subsets: 1, recovery_one_in: 60 };

/// The height of the trees at the start: an inner node above inner nodes, a level below a level.
const HEIGHT: u32 = 2;

/// Memtables flushed before the last commits without maintenance in between: more than level 0 may
/// have.
const LEVEL0_TRIGGER: usize = 4;

/// The merges that a full level 0 leads to: a name in the tally.
const LEVEL0_MERGES: &str = "merges of level 0 of autumn";

/// This many flushes fill level 1.
const FILLS: usize = 12;

/// The start of short histories.
pub struct Start {
    files: Files,
    /// The layout of its log.
    layout: LogLayout,
    /// The content of the files.
    pub state: State,
    /// The number of the next keyspace.
    pub next_made: u32,
}

impl Start {
    /// A keyspace per engine with a tree of several levels, a dropped keyspace, large values, and a
    /// log to replay; created once for each layout.
    pub fn of(layout: LogLayout) -> &'static Start {
        static STARTS: [OnceLock<Start>; LAYOUTS.len()] =
            [const { OnceLock::new() }; LAYOUTS.len()];
        let number = LAYOUTS.iter().position(|one| *one == layout).unwrap();
        STARTS[number].get_or_init(|| {
            let nothing = (State::new(), 0);
            let opening = Opening { write_share: None, layout };
            let mut history = History::begin(CrashDirectory::new(), opening, nothing, 0x57a7);
            do_all(&mut history, &[Verb::Make; ENGINES + 1]);
            do_all(&mut history, &[Verb::Large(Process)]);
            let (_, state, next_made) = history.files();
            let last = state.iter().find(|(_, space)| space.made + 1 == next_made).unwrap();
            history.drop_as(last.0);
            do_all(&mut history, &[Verb::Batch(Process); 3]);
            fill(&mut history);
            do_all(&mut history, &[Verb::Large(Process)]);
            // Level 1 is over its capacity once the shape is the first again.
            history.shape_all(SHAPES[SHAPES.len() - 1]);
            (0..FILLS).for_each(|_| history.put_cold(8));
            do_all(&mut history, &[Verb::Checkpoint]);
            history.shape_all(SHAPES[0]);
            // The next commits flush, and find level 0 full: nothing is flushed from here on.
            let merged = history.event(LEVEL0_MERGES);
            for _ in 0..LEVEL0_TRIGGER {
                history.put_cold(2);
                do_all(&mut history, &[Verb::Checkpoint]);
            }
            do_all(&mut history, &[Verb::Insert(Process)]);
            // No memtable is full before the second commit; then most are.
            (0..2).for_each(|_| history.put_cold(3));
            assert_eq!(history.event(LEVEL0_MERGES), merged, "level 0 is no longer full");
            let (files, state, next_made) = history.files();
            let engines = state.values().map(|space| engine_of(u64::from(space.made)).name());
            let engines: BTreeSet<&str> = engines.collect();
            assert_eq!(engines.len(), ENGINES, "an engine is missing");
            Start { files, layout, state, next_made }
        })
    }

    /// Begins a history here, with this write share; `seed` determines the random choices.
    pub fn begin(&self, write_share: Option<u64>, seed: u64) -> History {
        let directory = CrashDirectory::from_files(&self.files);
        let opening = Opening { write_share, layout: self.layout };
        History::begin(directory, opening, (self.state.clone(), self.next_made), seed)
    }
}

fn do_all(history: &mut History, verbs: &[Verb]) {
    for verb in verbs {
        assert!(history.apply(*verb), "{verb:?}");
    }
}

/// Writes until every tree has several levels and has moved data between them.
fn fill(history: &mut History) {
    for _ in 0..40 {
        let trees = history.database().stats().keyspaces;
        let are_high = trees.iter().all(|tree| tree.engine_stats.height >= HEIGHT);
        if are_high && history.events().all(|(_, count)| count > 0) {
            return;
        }
        history.put_cold(8);
    }
    let trees = history.database().stats().keyspaces;
    panic!("the trees do not grow: {trees:#?}, {:?}", history.events().collect::<Vec<_>>());
}

/// Cuts at every boundary after `began`, and at the last one.
pub fn cut_from(run: &Run, began: usize, name: String) -> Tally {
    let ended = run.journal.boundaries();
    Cutter::new(run, EFFORT, 0, name).cut_at((began + 1).min(ended)..=ended)
}
