//! Point reads.
//!
//! A lookup walks from the root to a leaf and meets every run that may hold the key, newest first.
//! Filters come before data: a run whose filter is in memory and says no costs nothing more. A run
//! that may hold the key is read at once if nothing newer is undecided; else the path is
//! walked to its end, the filters that are missing are read together, and then the runs that are
//! left are read in their order.
//!
//! Many lookups at one time: `run/read/rounds.rs`.
//!
//! Damage hides only what it must: a filter block that is damaged says maybe, and what lies behind
//! it on the path fails a lookup only if nothing newer has the key.

use super::Shared;
use super::node::{Child, HEIGHT_MAX, Node, NodeSlot, Pivot};
use super::toll;
use crate::base::budget::Use;
use crate::base::checksum::KeyHash;
use crate::base::epoch::Guard;
use crate::base::error::Result;
use crate::base::sync::Arc;
use crate::engine::Answer;
use crate::run::{
    Candidate, Candidates, FilterState, Run, RunFilter, RunHit, find_many, find_newest,
};
use crate::storage::cache::{Presence, Priority};

/// What a hit means: a tombstone is an answer, too.
fn answer((hit, presence): (RunHit, Presence)) -> Answer {
    Answer { found: hit.found(), presence }
}

/// What a walk looks for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'k> {
    key: &'k [u8],
    hash: KeyHash,
    /// It pays for the filters it asks.
    pays: bool,
}

impl<'k> Wanted<'k> {
    pub fn new(key: &'k [u8], hash: KeyHash) -> Self {
        Self { key, hash, pays: toll::is_sampled(hash) }
    }
}

/// What came of a run that may hold a key.
pub(super) enum Visit<T> {
    /// It has it, in a block that was there before or not.
    Found(T, Presence),
    /// It has not, or that is not known yet.
    Passed,
    /// It has not, and its filter did not know: a block was looked at in vain, which was there
    /// before or not.
    InVain(Presence),
}

/// The pivots on the way of a key, from a node down as far as nodes are in memory.
struct Way<'g> {
    pivots: [Option<&'g Pivot>; HEIGHT_MAX as usize],
    /// The node below the last pivot, which has to be read.
    below: Option<&'g Arc<NodeSlot>>,
}

impl<'g> Way<'g> {
    /// The way down from the node of `slot`, which is read if need be. All filters on it are asked
    /// for: each is a miss of the processor's cache, and so they come together.
    #[inline]
    fn down(
        shared: &Shared,
        slot: &'g Arc<NodeSlot>,
        wanted: Wanted<'_>,
        guard: &'g Guard,
    ) -> Result<Self> {
        let mut way = Self { pivots: [None; HEIGHT_MAX as usize], below: None };
        let mut node: &'g Node = shared.residence.load(slot, guard)?;
        for place in &mut way.pivots {
            let pivot = &node.pivots[node.pivot_of(wanted.key)];
            *place = Some(pivot);
            for part in &pivot.parts {
                part.filter.prefetch(wanted.hash, guard);
            }
            match &pivot.child {
                Child::None => break,
                Child::Leaf(run) => {
                    if let Some(filter) = &pivot.leaf_filter {
                        filter.prefetch(wanted.hash, guard);
                    }
                    run.prefetch_root(guard);
                    break;
                }
                Child::Node(slot, _) => match shared.residence.resident(slot, guard) {
                    Some(child) => node = child,
                    None => {
                        way.below = Some(slot);
                        break;
                    }
                },
            }
        }
        Ok(way)
    }
}

/// Calls `visit` with every run that may hold `key`, newest first, until it finds something; with
/// it comes where its block was before. What is looked at in vain or read from the device is
/// paid for at the pivots, and the filters, if it `pays` (`toll.rs`).
#[inline]
pub(super) fn walk<'g, T>(
    shared: &Shared,
    root: &'g Arc<NodeSlot>,
    wanted: Wanted<'_>,
    guard: &'g Guard,
    mut visit: impl FnMut(&'g Arc<Run>, &'g RunFilter) -> Result<Visit<T>>,
) -> Result<Option<(T, Presence)>> {
    let mut next = Some(root);
    while let Some(slot) = next {
        let way = Way::down(shared, slot, wanted, guard)?;
        for pivot in way.pivots.into_iter().map_while(|pivot| pivot) {
            if let Some(found) = visit_parts(shared, pivot, wanted, &mut visit)? {
                return Ok(Some(found));
            }
            if let (Child::Leaf(run), Some(filter)) = (&pivot.child, &pivot.leaf_filter) {
                let Visit::Found(hit, presence) = visit(run, filter)? else { return Ok(None) };
                if presence == Presence::Absent {
                    shared.dues.pay(pivot, crowding(shared, pivot));
                }
                return Ok(Some((hit, presence)));
            }
        }
        next = way.below;
    }
    Ok(None)
}

/// The same for the parts of one pivot, which is paid there.
#[inline]
fn visit_parts<'g, T>(
    shared: &Shared,
    pivot: &'g Pivot,
    wanted: Wanted<'_>,
    visit: &mut impl FnMut(&'g Arc<Run>, &'g RunFilter) -> Result<Visit<T>>,
) -> Result<Option<(T, Presence)>> {
    let mut paid = if wanted.pays { toll::filters(pivot.parts.len()) } else { 0 };
    let mut found = None;
    for (index, part) in pivot.parts.iter().enumerate() {
        if !pivot.is_candidate(index, wanted.key) {
            continue;
        }
        match visit(&part.segment.run, &part.filter)? {
            Visit::Found(hit, presence) => {
                found = Some((hit, presence));
                if presence == Presence::Absent {
                    paid += crowding(shared, pivot);
                }
                break;
            }
            Visit::InVain(Presence::Absent) => paid += toll::BLOCK_READ,
            Visit::InVain(_) => paid += toll::BLOCK_LOOK,
            Visit::Passed => {}
        }
    }
    if paid > 0 {
        shared.dues.pay(pivot, paid);
    }
    Ok(found)
}

/// What is owed for a block that was not in memory ([`toll::Dues::crowding`]).
fn crowding(shared: &Shared, pivot: &Pivot) -> toll::Units {
    shared.dues.crowding(pivot, shared.residence.storage().budget().used_by(Use::Cache))
}

/// The value of `key` in the tree below `root`.
pub(super) fn get(
    shared: &Shared,
    root: &Arc<NodeSlot>,
    key: &[u8],
    hash: KeyHash,
) -> Result<Answer> {
    let guard = shared.residence.storage().epochs().pin();
    let residence = &shared.residence;
    // Undecided runs, newest first, with the filter block that is missing. Stays empty, and costs
    // nothing, while filters are in memory.
    let mut undecided: Vec<Candidate<'_>> = Vec::new();
    let walked = walk(shared, root, Wanted::new(key, hash), &guard, |run, filter| {
        match filter.state(hash, &guard) {
            FilterState::No => {}
            FilterState::Maybe if undecided.is_empty() => {
                return Ok(match run.find(key, &guard)? {
                    (Some(hit), presence) => Visit::Found(hit, presence),
                    (None, presence) => Visit::InVain(presence),
                });
            }
            FilterState::Maybe => undecided.push((run, None)),
            FilterState::Missing(block) => undecided.push((run, Some(block))),
        }
        Ok(Visit::Passed)
    });
    if undecided.is_empty() {
        return walked.map(|hit| hit.map(answer).unwrap_or_default());
    }
    match find_newest(residence.storage(), &undecided, (key, hash), &guard)? {
        Some(hit) => Ok(answer(hit)),
        None => walked.map(|hit| hit.map(answer).unwrap_or_default()),
    }
}

/// True if the tree may have `key`, as far as filters tell. Reads filters, no entries.
pub(super) fn may_have(shared: &Shared, root: &Arc<NodeSlot>, key: &[u8]) -> Result<bool> {
    let guard = shared.residence.storage().epochs().pin();
    let hash = shared.residence.storage().key_hash(key);
    let wanted = Wanted { key, hash, pays: false };
    let walked = walk(shared, root, wanted, &guard, |run, filter| {
        let maybe = match filter.state(hash, &guard) {
            FilterState::No => false,
            FilterState::Maybe => true,
            FilterState::Missing(block) => {
                // One that is damaged says maybe.
                let loaded = run.cached().block(block, Priority::Filter, &guard);
                loaded.map_or(true, |bytes| run.filter().may_contain_in(hash, &bytes))
            }
        };
        Ok(if maybe { Visit::Found((), Presence::Settled) } else { Visit::Passed })
    });
    walked.map(|found| found.is_some())
}

impl Candidates for Lookups<'_> {
    fn visit<'g>(
        &'g self,
        (key, hash): (&[u8], KeyHash),
        guard: &'g Guard,
        visit: &mut dyn FnMut(&'g Arc<Run>, &'g RunFilter),
    ) -> Result<()> {
        let walked = walk(self.shared, self.root, Wanted::new(key, hash), guard, |run, filter| {
            visit(run, filter);
            Ok(Visit::<()>::Passed)
        });
        walked.map(|_| ())
    }
}

/// The values of `keys` in the tree below `root`, in the order asked.
pub(super) fn multi_get(
    shared: &Shared,
    root: &Arc<NodeSlot>,
    keys: &[(&[u8], KeyHash)],
) -> Result<Vec<Answer>> {
    let mut answers: Vec<Answer> = vec![Answer::default(); keys.len()];
    let storage = shared.residence.storage();
    find_many(storage, &Lookups { shared, root }, keys, &mut |index, hit, presence| {
        answers[index] = answer((hit, presence));
    })?;
    Ok(answers)
}

/// Lookups of many keys in one tree.
struct Lookups<'t> {
    shared: &'t Shared,
    root: &'t Arc<NodeSlot>,
}
