//! Power cuts and deaths of the process at every write, sync, growth, creation and removal of a
//! history, with subsets of what was not synced surviving; and power cuts inside the recovery after
//! that.
//!
//! After every cut: the database opens; it is in a state that the rule in `crash/history.rs`
//! allows; `verify` finds nothing; it can be written again, keyspaces made and dropped; no space is
//! lost; it opens once more with the same content.

mod cuts;
mod history;

use crate::support::{fresh_seed, hex_seed};
use chelonia::Durability::{Memory, Process, Sync};
use chelonia::internals::{CrashDirectory, MemoryDirectory, Rng, Survivors};
use cuts::{Counts, Cutter, Effort};
use history::{History, Run, SHARE_MIN, State, Verb, open, read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What random histories draw from; what comes more often stands here more often.
const DRAWN: [Verb; 34] = [
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
    Verb::Checkpoint,
    Verb::Sync,
    Verb::Tick,
    Verb::Hold,
    Verb::Close,
    Verb::LetGo,
    Verb::Die,
    Verb::Die,
];

/// What every history of a few verbs is made of. (At level `Memory` a commit does what it does at
/// `Process`; to make again is to drop and to make.)
const EVERY: [Verb; 15] = [
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

/// Cuts a random history of `verbs` verbs at every `stride`-th boundary. In every other one
/// recovery has to drain.
fn cut_random(seed: u64, verbs: usize, stride: usize, effort: Effort) -> Counts {
    let _seed = hex_seed(seed);
    let write_share = seed.is_multiple_of(2).then_some(SHARE_MIN);
    let mut history = History::begin(CrashDirectory::new(), write_share, (State::new(), 0), seed);
    let mut rng = Rng::new(seed ^ 0xd1ce);
    for _ in 0..2 {
        history.apply(Verb::Make);
    }
    for _ in 0..verbs {
        let verb = DRAWN[usize::try_from(rng.below(DRAWN.len() as u64)).unwrap()];
        history.apply(verb);
    }
    let run = history.end();
    let offset = usize::try_from(rng.below(stride as u64)).unwrap();
    let boundaries = (0..=run.journal.boundaries()).skip(offset).step_by(stride);
    Cutter::new(&run, effort, seed, format!("seed {seed:#x}")).cut_at(boundaries)
}

/// Where histories of a few verbs begin.
struct Start {
    files: cuts::Files,
    state: State,
    next_made: u32,
}

/// Two keyspaces with trees of a few levels, a dropped one, large values, and a log to replay.
fn start() -> Start {
    let mut history = History::begin(CrashDirectory::new(), None, (State::new(), 0), 0x57a7);
    let before = [Verb::Make, Verb::Make, Verb::Make, Verb::Large(Process), Verb::Drop];
    let after = [Verb::Large(Process), Verb::Insert(Process), Verb::Batch(Process)];
    let filling = std::iter::repeat_n(Verb::Batch(Process), 20);
    for verb in before.into_iter().chain(filling).chain([Verb::Checkpoint]).chain(after) {
        assert!(history.apply(verb), "{verb:?}");
    }
    let (files, state, next_made) = history.files();
    Start { files, state, next_made }
}

/// Does `verbs` from `start` and cuts while the last of them runs: what is before was cut in a
/// shorter history.
fn cut_last(start: &Start, verbs: &[Verb], effort: Effort) -> Counts {
    let directory = CrashDirectory::from_files(&start.files);
    let state = (start.state.clone(), start.next_made);
    let mut history = History::begin(directory, None, state, 0x3e7b);
    let mut began = 0;
    for verb in verbs {
        began = history.boundary();
        if !history.apply(*verb) {
            return Counts::default();
        }
    }
    cut_from(&history.end(), began, effort, format!("{verbs:?}"))
}

/// Does `first`, cuts the power in it, goes on with what is left, does `second`, and cuts while
/// that runs: what the first life wrote for nothing is never taken for what the second one wrote.
fn cut_twice(start: &Start, first: Verb, second: Verb, effort: Effort) -> Counts {
    let directory = CrashDirectory::from_files(&start.files);
    let (state, next_made) = (start.state.clone(), start.next_made);
    let mut history = History::begin(directory, None, (state, next_made), 0x3e7b);
    let began = history.boundary();
    history.apply(first);
    let run = history.end();
    let ended = run.journal.boundaries();
    let mut rng = Rng::new(0x11fe);
    let middle = began + usize::try_from(rng.below((ended - began) as u64 + 1)).unwrap();
    let mut counts = Counts::default();
    for boundary in [ended, middle] {
        // Large values without the record of their commit; and anything.
        let pending = run.journal.pending(boundary);
        let subset = Survivors::Subset(rng.next_u64());
        for survivors in [Survivors::Prefix(pending.saturating_sub(2)), subset] {
            let files = run.journal.image(boundary, survivors);
            let left = open(Arc::new(MemoryDirectory::from_files(files.clone())), None).unwrap();
            let state = (read(&left).unwrap().0, next_made + 2);
            drop(left);
            let directory = CrashDirectory::from_files(&files);
            let mut history = History::begin(directory, None, state, 0x3e7c);
            let began = history.boundary();
            if history.apply(second) {
                let name = format!("{first:?} cut at {boundary} with {survivors:?}, {second:?}");
                counts.add(cut_from(&history.end(), began, effort, name));
            }
        }
    }
    counts
}

/// Cuts at every boundary behind `began`, and at the last one.
fn cut_from(run: &Run, began: usize, effort: Effort, name: String) -> Counts {
    let ended = run.journal.boundaries();
    Cutter::new(run, effort, 0, name).cut_at((began + 1).min(ended)..=ended)
}

/// Cuts every history of up to `depth` verbs that begins with `verbs`.
fn cut_every(start: &Start, verbs: &mut Vec<Verb>, depth: usize, effort: Effort) -> Counts {
    let mut counts = cut_last(start, verbs, effort);
    if verbs.len() < depth {
        for verb in EVERY {
            verbs.push(verb);
            counts.add(cut_every(start, verbs, depth, effort));
            verbs.pop();
        }
    }
    counts
}

#[test]
fn cuts_everywhere_in_short_histories() {
    let effort = Effort { all_subsets_of: 4, subsets: 2, recovery_one_in: 40 };
    let mut counts = Counts::default();
    (0..24).for_each(|seed| counts.add(cut_random(0xdead_0000 + seed, 20, 1, effort)));
    println!("{counts:?}");
    assert!(counts.total() > 6_000 && counts.drained > 500, "{counts:?} only");
}

#[test]
fn cuts_all_over_long_histories() {
    let effort = Effort { all_subsets_of: 2, subsets: 1, recovery_one_in: 40 };
    let mut counts = Counts::default();
    (0..3).for_each(|seed| counts.add(cut_random(0xbeef_0000 + seed, 300, 29, effort)));
    println!("{counts:?}");
}

#[test]
fn cuts_in_a_history_that_nobody_made_before() {
    let effort = Effort { all_subsets_of: 4, subsets: 1, recovery_one_in: 40 };
    println!("{:?}", cut_random(fresh_seed(), 80, 5, effort));
}

/// Does `work` for every verb, on two threads.
fn for_every_verb(work: impl Fn(Verb) -> Counts + std::marker::Sync) -> Counts {
    let next = AtomicUsize::new(0);
    let some = || {
        let mut counts = Counts::default();
        while let Some(verb) = EVERY.get(next.fetch_add(1, Ordering::Relaxed)) {
            counts.add(work(*verb));
        }
        counts
    };
    let mut counts = Counts::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(some)).collect();
        threads.into_iter().for_each(|thread| counts.add(thread.join().unwrap()));
    });
    println!("{counts:?}");
    counts
}

#[test]
fn cuts_in_every_history_of_three_verbs() {
    let effort = Effort { all_subsets_of: 3, subsets: 1, recovery_one_in: 60 };
    let start = start();
    cut_last(&start, &[], effort);
    let counts = for_every_verb(|verb| cut_every(&start, &mut vec![verb], 3, effort));
    assert!(counts.total() > 40_000, "{counts:?} only");
}

#[test]
fn cuts_in_a_second_life() {
    let effort = Effort { all_subsets_of: 3, subsets: 1, recovery_one_in: 60 };
    let start = start();
    let counts = for_every_verb(|first| {
        let mut counts = Counts::default();
        EVERY.iter().for_each(|second| counts.add(cut_twice(&start, first, *second, effort)));
        counts
    });
    assert!(counts.total() > 5_000, "{counts:?} only");
}
