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

use super::node::{Child, Node};
use super::residence::{NodeSlot, Residence};
use crate::base::checksum::KeyHash;
use crate::base::error::Result;
use crate::base::sync::Arc;
use crate::engine::Found;
use crate::run::{BlockSpan, FilterState, Located, Run, RunHit};
use crate::storage::cache::{CachedExtent, Priority};
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
    let mut undecided: Vec<(&Arc<Run>, Option<u32>)> = Vec::new();
    let hit =
        walk(residence, root, key, &guard, &mut |run| match run.filter_state(hash, &guard)? {
            FilterState::No => Ok(None),
            FilterState::Maybe if undecided.is_empty() => read(run, key, &guard),
            FilterState::Maybe => {
                undecided.push((run, None));
                Ok(None)
            }
            FilterState::Missing(block) => {
                undecided.push((run, Some(block)));
                Ok(None)
            }
        })?;
    if hit.is_some() || undecided.is_empty() {
        return Ok(hit.and_then(answer));
    }
    let missing: Vec<(&CachedExtent, u32)> = undecided
        .iter()
        .filter_map(|(run, block)| block.map(|block| (&**run.cached(), block)))
        .collect();
    let loaded = residence.storage().load_many(&missing, Priority::Filter, &guard)?;
    let mut loaded = loaded.iter();
    for (run, block) in undecided {
        if block.is_some()
            && let Some(bytes) = loaded.next()
            && !run.may_contain_in(hash, bytes)?
        {
            continue;
        }
        if let Some(hit) = read(run, key, &guard)? {
            return Ok(answer(hit));
        }
    }
    Ok(None)
}

/// A key of a round that is not decided.
struct Open<'g> {
    index: usize,
    /// Runs that may hold it, the newest last, with the filter block to be asked first.
    runs: Vec<(&'g Arc<Run>, Option<u32>)>,
    /// Where its newest run has it, if anywhere, when that is known.
    span: Option<BlockSpan>,
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
            walk(residence, root, key, &guard, &mut |run| {
                match run.filter_state(*hash, &guard)? {
                    FilterState::No => {}
                    FilterState::Maybe => runs.push((run, None)),
                    FilterState::Missing(block) => runs.push((run, Some(block))),
                }
                Ok(None::<()>)
            })?;
            runs.reverse();
            open.push(Open { index, runs, span: None });
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
    let missing: Vec<(&CachedExtent, u32)> = open
        .iter()
        .flat_map(|open| &open.runs)
        .filter_map(|(run, block)| block.map(|block| (&**run.cached(), block)))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let loaded = residence.storage().load_many(&missing, Priority::Filter, guard)?;
    let mut loaded = loaded.iter();
    for open in open {
        let hash = keys[open.index].1;
        let mut kept = Vec::with_capacity(open.runs.len());
        for (run, block) in open.runs.drain(..) {
            let maybe = match block.and_then(|_| loaded.next()) {
                Some(bytes) => run.may_contain_in(hash, bytes)?,
                None => true,
            };
            if maybe {
                kept.push((run, None));
            }
        }
        open.runs = kept;
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
            open.swap_remove(at);
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
                candidate.span = Some(span);
                (&mut data_blocks, span)
            }
        };
        let blocks = span.first..span.first.saturating_add(span.blocks);
        list.extend(blocks.map(|block| (cached, block)));
        at += 1;
    }
    let storage = residence.storage();
    // Held until the round is over, so that the blocks are there even if the cache could not keep
    // them all.
    let _index = storage.load_many(&index_blocks, Priority::Index, guard)?;
    let _data = storage.load_many(&data_blocks, Priority::Data, guard)?;
    let mut at = 0;
    while at < open.len() {
        let candidate = &mut open[at];
        let key = keys[candidate.index].0;
        let Some((run, _)) = candidate.runs.last().copied() else {
            at += 1;
            continue;
        };
        let span = match candidate.span.take() {
            Some(span) => Some(span),
            // Its index block was just loaded; a cache that could not keep it reads it again.
            None => run.locate(key, guard)?,
        };
        let hit = match span {
            Some(span) => run.find_in(span, key, guard)?,
            None => None,
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
