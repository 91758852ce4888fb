//! Point reads.
//!
//! A lookup walks from the root to a leaf and meets every run that may hold the key, newest first.
//! Filters come before data: a run whose filter is in memory and says no costs nothing more. A run
//! that may hold the key is read at once if nothing newer is undecided; else the path is
//! walked to its end, the filters that are missing are read together, and then the runs that are
//! left are read in their order.
//!
//! Many lookups go in rounds: all walk, all missing filters are read together, then the data blocks
//! of every key's next candidate, until every key is decided. Round by round the reads of different
//! keys overlap.
//!
//! Damage hides only what it must: a filter block that is damaged says maybe, and what lies behind
//! it on the path fails a lookup only if nothing newer has the key.

use super::node::{Child, Node, NodeSlot};
use super::residence::Residence;
use crate::base::checksum::KeyHash;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::Arc;
use crate::engine::Found;
use crate::run::{BlockSpan, FilterState, Located, Run, RunHit};
use crate::storage::cache::{CachedBlock, CachedExtent, Priority};
use crossbeam_epoch::Guard;

/// Keys of one round: their blocks are in memory at once.
const ROUND_KEYS: usize = 64;

/// What a hit means: a tombstone is an answer, too.
fn answer(hit: RunHit) -> Option<Found> {
    match hit {
        RunHit::Value(value) => Some(Found::Value(value)),
        RunHit::Large(large) => Some(Found::Large(large)),
        RunHit::Tombstone => None,
    }
}

/// Calls `visit` with every run that may hold `key`, newest first, until it gives something.
fn walk<'g, T>(
    residence: &Residence,
    root: &'g Arc<NodeSlot>,
    key: &[u8],
    guard: &'g Guard,
    visit: &mut dyn FnMut(&'g Arc<Run>) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let mut node: &'g Node = residence.load(root, guard)?;
    loop {
        let pivot = &node.pivots[node.pivot_of(key)];
        for (index, part) in pivot.parts.iter().enumerate() {
            if pivot.is_candidate(index, key)
                && let Some(found) = visit(&part.segment.run)?
            {
                return Ok(Some(found));
            }
        }
        match &pivot.child {
            Child::None => return Ok(None),
            Child::Leaf(run) => return visit(run),
            Child::Node(slot, _) => node = residence.load(slot, guard)?,
        }
    }
}

/// Reads the entry of `key` in `run`, whose filter said that it may be there.
fn read(run: &Run, key: &[u8], guard: &Guard) -> Result<Option<RunHit>> {
    match run.locate(key, guard)? {
        Some(span) => run.find_in(span, key, guard),
        None => Ok(None),
    }
}

/// The value of `key` in the tree below `root`.
pub(super) fn get(
    residence: &Residence,
    root: &Arc<NodeSlot>,
    key: &[u8],
    hash: KeyHash,
) -> Result<Option<Found>> {
    let guard = crossbeam_epoch::pin();
    // Undecided runs, newest first, with the filter block that is missing. Stays empty, and costs
    // nothing, while filters are in memory.
    let mut undecided: Vec<Candidate<'_>> = Vec::new();
    let walked = walk(residence, root, key, &guard, &mut |run| {
        match run.filter_state(hash, &guard) {
            FilterState::No => {}
            FilterState::Maybe if undecided.is_empty() => return read(run, key, &guard),
            FilterState::Maybe => undecided.push((run, None)),
            FilterState::Missing(block) => undecided.push((run, Some(block))),
        }
        Ok(None)
    });
    if undecided.is_empty() {
        return walked.map(|hit| hit.and_then(answer));
    }
    let filters = load_filters(residence, &undecided, &guard)?;
    for ((run, _), filter) in undecided.iter().zip(filters) {
        if filter.is_none_or(|bytes| run.may_contain_in(hash, &bytes))
            && let Some(hit) = read(run, key, &guard)?
        {
            return Ok(answer(hit));
        }
    }
    walked.map(|hit| hit.and_then(answer))
}

/// A run that may hold a key, with the filter block to be asked first.
type Candidate<'g> = (&'g Arc<Run>, Option<u32>);

/// Loads the filter blocks that are missing, together: of each candidate the block, or `None` if
/// there is none to ask or it is damaged.
fn load_filters<'g>(
    residence: &Residence,
    candidates: &[Candidate<'g>],
    guard: &'g Guard,
) -> Result<Vec<Option<CachedBlock<'g>>>> {
    let missing: Vec<(&CachedExtent, u32)> = candidates
        .iter()
        .filter_map(|(run, block)| block.map(|block| (&**run.cached(), block)))
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

/// A key of a round that is not decided.
struct Open<'g> {
    index: usize,
    /// Runs that may hold it, the newest last.
    runs: Vec<Candidate<'g>>,
    /// Why what is older than those is not known, if it is not.
    failure: Option<Error>,
    /// Where its newest run has it, if anywhere, when that is known: the blocks, and where the
    /// first of them is among those that the round loads.
    span: Option<(BlockSpan, usize)>,
}

/// The values of `keys` in the tree below `root`, in the order asked.
pub(super) fn multi_get(
    residence: &Residence,
    root: &Arc<NodeSlot>,
    keys: &[(&[u8], KeyHash)],
) -> Result<Vec<Option<Found>>> {
    let mut found = Vec::with_capacity(keys.len());
    for keys in keys.chunks(ROUND_KEYS) {
        let guard = crossbeam_epoch::pin();
        let mut answers: Vec<Option<Found>> = vec![None; keys.len()];
        let mut open = Vec::with_capacity(keys.len());
        for (index, (key, hash)) in keys.iter().enumerate() {
            let mut runs = Vec::new();
            let walked = walk(residence, root, key, &guard, &mut |run| {
                match run.filter_state(*hash, &guard) {
                    FilterState::No => {}
                    FilterState::Maybe => runs.push((run, None)),
                    FilterState::Missing(block) => runs.push((run, Some(block))),
                }
                Ok(None::<()>)
            });
            runs.reverse();
            open.push(Open { index, runs, failure: walked.err(), span: None });
        }
        ask_filters(residence, keys, &mut open, &guard)?;
        while !open.is_empty() {
            read_round(residence, keys, &mut open, &mut answers, &guard)?;
        }
        found.append(&mut answers);
    }
    Ok(found)
}

/// Loads all missing filter blocks together and drops the runs they exclude.
fn ask_filters<'g>(
    residence: &Residence,
    keys: &[(&[u8], KeyHash)],
    open: &mut [Open<'g>],
    guard: &'g Guard,
) -> Result<()> {
    let all: Vec<_> = open.iter().flat_map(|open| &open.runs).copied().collect();
    if all.iter().all(|(_, block)| block.is_none()) {
        return Ok(());
    }
    let mut filters = load_filters(residence, &all, guard)?.into_iter();
    for open in open {
        let hash = keys[open.index].1;
        open.runs.retain(|(run, _)| {
            filters.next().flatten().is_none_or(|bytes| run.may_contain_in(hash, &bytes))
        });
    }
    Ok(())
}

/// One round: finds out where every open key's newest run has it, reads those blocks together, and
/// decides what can be decided.
fn read_round<'g>(
    residence: &Residence,
    keys: &[(&[u8], KeyHash)],
    open: &mut Vec<Open<'g>>,
    answers: &mut [Option<Found>],
    guard: &'g Guard,
) -> Result<()> {
    let (mut index_blocks, mut data_blocks) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < open.len() {
        let candidate = &mut open[at];
        let Some((run, _)) = candidate.runs.last().copied() else {
            open.swap_remove(at).failure.map_or(Ok(()), Err)?;
            continue;
        };
        let cached: &CachedExtent = run.cached();
        let (list, span) = match run.locate_cached(keys[candidate.index].0, guard)? {
            Located::Absent => {
                candidate.runs.pop();
                continue;
            }
            Located::Missing(span) => (&mut index_blocks, span),
            Located::Span(span) => {
                candidate.span = Some((span, data_blocks.len()));
                (&mut data_blocks, span)
            }
        };
        let blocks = span.first..span.first.saturating_add(span.blocks);
        list.extend(blocks.map(|block| (cached, block)));
        at += 1;
    }
    let storage = residence.storage();
    // Held until the round is over: the cache may not keep them all.
    let _index = storage.load_many(&index_blocks, Priority::Index, guard)?;
    let data = storage.load_many(&data_blocks, Priority::Data, guard)?;
    let mut at = 0;
    while at < open.len() {
        let candidate = &mut open[at];
        let key = keys[candidate.index].0;
        let Some((run, _)) = candidate.runs.last().copied() else {
            at += 1;
            continue;
        };
        let hit = match candidate.span.take() {
            Some((span, first)) => {
                run.find_loaded(span, key, &data[first..first + span.blocks as usize])?
            }
            // Its index block was just loaded; a cache that could not keep it reads it again.
            None => read(run, key, guard)?,
        };
        match hit {
            Some(hit) => {
                answers[candidate.index] = answer(hit);
                open.swap_remove(at);
            }
            None => {
                candidate.runs.pop();
                at += 1;
            }
        }
    }
    Ok(())
}
