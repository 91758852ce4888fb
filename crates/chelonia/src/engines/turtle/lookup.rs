//! Point reads.
//!
//! A lookup walks from the root to a leaf and meets every run that may hold the key, newest first.
//! Filters come before data: a run whose filter is in memory and says no costs nothing more. A run
//! that may hold the key is read at once if nothing newer is undecided; else the path is
//! walked to its end, the filters that are missing are read together, and then the runs that are
//! left are read in their order.
//!
//! Many lookups at one time: `rounds.rs`.
//!
//! Damage hides only what it must: a filter block that is damaged says maybe, and what lies behind
//! it on the path fails a lookup only if nothing newer has the key.

use super::Shared;
use super::node::{Child, HEIGHT_MAX, Node, NodeSlot, Pivot};
use super::residence::Residence;
use super::toll;
use crate::base::budget::Use;
use crate::base::checksum::KeyHash;
use crate::base::epoch::{self, Guard};
use crate::base::error::{ErrorKind, Result};
use crate::base::sync::Arc;
use crate::engine::{Answer, Found};
use crate::run::{FilterState, Run, RunFilter, RunHit};
use crate::storage::cache::{CachedBlock, CachedExtent, Presence, Priority};

/// A hit, and where its blocks were before.
pub(super) type Hit = (RunHit, Presence);

/// What a hit means: a tombstone is an answer, too.
pub(super) fn answer((hit, presence): Hit) -> Answer {
    let found = match hit {
        RunHit::Value(value) => Some(Found::Value(value)),
        RunHit::Large(large) => Some(Found::Large(large)),
        RunHit::Tombstone => None,
    };
    Answer { found, presence }
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

/// Reads the entry of `key` in `run`, whose filter said that it may be there: what was found, and
/// where the blocks were before that have it or not.
pub(super) fn read(run: &Run, key: &[u8], guard: &Guard) -> Result<(Option<RunHit>, Presence)> {
    let Some(span) = run.locate(key, guard)? else { return Ok((None, Presence::Settled)) };
    let presence = run.presence(span);
    Ok((run.find_in(span, key, guard)?, presence))
}

/// The value of `key` in the tree below `root`.
pub(super) fn get(
    shared: &Shared,
    root: &Arc<NodeSlot>,
    key: &[u8],
    hash: KeyHash,
) -> Result<Answer> {
    let guard = epoch::pin();
    let residence = &shared.residence;
    // Undecided runs, newest first, with the filter block that is missing. Stays empty, and costs
    // nothing, while filters are in memory.
    let mut undecided: Vec<Candidate<'_>> = Vec::new();
    let walked = walk(shared, root, Wanted::new(key, hash), &guard, |run, filter| {
        match filter.state(hash, &guard) {
            FilterState::No => {}
            FilterState::Maybe if undecided.is_empty() => {
                return Ok(match read(run, key, &guard)? {
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
    let filters = load_filters(residence, &undecided, &guard)?;
    for ((run, _), filter) in undecided.iter().zip(filters) {
        if filter.is_none_or(|bytes| run.filter().may_contain_in(hash, &bytes))
            && let (Some(hit), presence) = read(run, key, &guard)?
        {
            return Ok(answer((hit, presence)));
        }
    }
    walked.map(|hit| hit.map(answer).unwrap_or_default())
}

/// True if the tree may have `key`, as far as filters tell. Reads filters, no entries.
pub(super) fn may_have(shared: &Shared, root: &Arc<NodeSlot>, key: &[u8]) -> Result<bool> {
    let guard = epoch::pin();
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

/// A run that may hold a key, with the filter block to be asked first.
pub(super) type Candidate<'g> = (&'g Arc<Run>, Option<u32>);

/// Loads the filter blocks that are missing, together: of each candidate the block, or `None` if
/// there is none to ask or it is damaged.
pub(super) fn load_filters<'g>(
    residence: &Residence,
    candidates: &[Candidate<'g>],
    guard: &'g Guard,
) -> Result<Vec<Option<CachedBlock<'g>>>> {
    let missing: Vec<(&CachedExtent, u32)> = candidates
        .iter()
        .filter_map(|(run, block)| block.map(|block| (run.cached(), block)))
        .collect();
    let together = residence.storage().load_many(&missing, Priority::Filter, guard);
    let mut loaded: Vec<Option<CachedBlock<'g>>> = match together {
        Ok(loaded) => loaded.into_iter().map(Some).collect(),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let each = missing.iter().map(|(extent, block)| {
                match extent.block(*block, Priority::Filter, guard) {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
                    Err(error) => Err(error),
                }
            });
            each.collect::<Result<_>>()?
        }
        Err(error) => return Err(error),
    };
    let mut loaded = loaded.drain(..);
    let of = |(_, block): &Candidate<'g>| block.and_then(|_| loaded.next().flatten());
    Ok(candidates.iter().map(of).collect())
}
