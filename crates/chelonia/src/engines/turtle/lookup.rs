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

use super::Shared;
use super::node::{Child, HEIGHT_MAX, Node, NodeSlot, Pivot};
use super::residence::Residence;
use super::toll;
use crate::base::checksum::KeyHash;
use crate::base::epoch::{self, Guard};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::Arc;
use crate::engine::{Answer, Found};
use crate::run::{BlockSpan, FilterState, Located, Run, RunFilter, RunHit};
use crate::storage::cache::{CachedBlock, CachedExtent, Presence, Priority};

/// Keys of one round: their blocks are in memory at once.
const ROUND_KEYS: usize = 64;

/// A hit, and where its blocks were before.
type Hit = (RunHit, Presence);

/// What a hit means: a tombstone is an answer, too.
fn answer((hit, presence): Hit) -> Answer {
    let found = match hit {
        RunHit::Value(value) => Some(Found::Value(value)),
        RunHit::Large(large) => Some(Found::Large(large)),
        RunHit::Tombstone => None,
    };
    Answer { found, presence }
}

/// What a walk looks for.
#[derive(Clone, Copy)]
struct Wanted<'k> {
    key: &'k [u8],
    hash: KeyHash,
    /// It pays for the filters it asks.
    pays: bool,
}

impl<'k> Wanted<'k> {
    fn new(key: &'k [u8], hash: KeyHash) -> Self {
        Self { key, hash, pays: toll::is_sampled(hash) }
    }
}

/// What came of a run that may hold a key.
enum Visit<T> {
    /// It has it.
    Found(T),
    /// It has not, or that is not known yet.
    Passed,
    /// It has not, and its filter did not know: a block was looked at in vain.
    InVain,
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

/// Calls `visit` with every run that may hold `key`, newest first, until it gives something. What
/// is looked at in vain is paid for at the pivots, and the filters, if it `pays` (`toll.rs`).
#[inline]
fn walk<'g, T>(
    shared: &Shared,
    root: &'g Arc<NodeSlot>,
    wanted: Wanted<'_>,
    guard: &'g Guard,
    mut visit: impl FnMut(&'g Arc<Run>, &'g RunFilter) -> Result<Visit<T>>,
) -> Result<Option<T>> {
    let mut next = Some(root);
    while let Some(slot) = next {
        let way = Way::down(shared, slot, wanted, guard)?;
        for pivot in way.pivots.into_iter().map_while(|pivot| pivot) {
            if let Some(found) = visit_parts(shared, pivot, wanted, &mut visit)? {
                return Ok(Some(found));
            }
            if let (Child::Leaf(run), Some(filter)) = (&pivot.child, &pivot.leaf_filter) {
                let last = visit(run, filter)?;
                return Ok(if let Visit::Found(hit) = last { Some(hit) } else { None });
            }
        }
        next = way.below;
    }
    Ok(None)
}

/// The same for what waits at one pivot.
#[inline]
fn visit_parts<'g, T>(
    shared: &Shared,
    pivot: &'g Pivot,
    wanted: Wanted<'_>,
    visit: &mut impl FnMut(&'g Arc<Run>, &'g RunFilter) -> Result<Visit<T>>,
) -> Result<Option<T>> {
    let mut paid = if wanted.pays { toll::filters(pivot.parts.len()) } else { 0 };
    let mut found = None;
    for (index, part) in pivot.parts.iter().enumerate() {
        if !pivot.is_candidate(index, wanted.key) {
            continue;
        }
        match visit(&part.segment.run, &part.filter)? {
            Visit::Found(hit) => {
                found = Some(hit);
                break;
            }
            Visit::InVain => paid += toll::BLOCK_READ,
            Visit::Passed => {}
        }
    }
    if paid > 0 {
        shared.dues.pay(pivot, paid);
    }
    Ok(found)
}

/// Reads the entry of `key` in `run`, whose filter said that it may be there.
fn read(run: &Run, key: &[u8], guard: &Guard) -> Result<Option<Hit>> {
    let Some(span) = run.locate(key, guard)? else { return Ok(None) };
    let presence = run.presence(span);
    Ok(run.find_in(span, key, guard)?.map(|hit| (hit, presence)))
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
                return Ok(read(run, key, &guard)?.map_or(Visit::InVain, Visit::Found));
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
            && let Some(hit) = read(run, key, &guard)?
        {
            return Ok(answer(hit));
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
        Ok(if maybe { Visit::Found(()) } else { Visit::Passed })
    });
    walked.map(|found| found.is_some())
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
    /// Where those blocks were before.
    presence: Presence,
}

/// The values of `keys` in the tree below `root`, in the order asked.
pub(super) fn multi_get(
    shared: &Shared,
    root: &Arc<NodeSlot>,
    keys: &[(&[u8], KeyHash)],
) -> Result<Vec<Answer>> {
    let residence = &shared.residence;
    let mut found = Vec::with_capacity(keys.len());
    for keys in keys.chunks(ROUND_KEYS) {
        let guard = epoch::pin();
        let mut answers: Vec<Answer> = vec![Answer::default(); keys.len()];
        let mut open = Vec::with_capacity(keys.len());
        for (index, (key, hash)) in keys.iter().enumerate() {
            let mut runs = Vec::new();
            let walked = walk(shared, root, Wanted::new(key, *hash), &guard, |run, filter| {
                match filter.state(*hash, &guard) {
                    FilterState::No => {}
                    FilterState::Maybe => runs.push((run, None)),
                    FilterState::Missing(block) => runs.push((run, Some(block))),
                }
                Ok(Visit::<()>::Passed)
            });
            runs.reverse();
            let presence = Presence::default();
            open.push(Open { index, runs, failure: walked.err(), span: None, presence });
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
            filters.next().flatten().is_none_or(|bytes| run.filter().may_contain_in(hash, &bytes))
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
    answers: &mut [Answer],
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
        let cached = run.cached();
        let (list, span) = match run.locate_cached(keys[candidate.index].0, guard)? {
            Located::Absent => {
                candidate.runs.pop();
                continue;
            }
            Located::Missing(span) => (&mut index_blocks, span),
            Located::Span(span) => {
                candidate.span = Some((span, data_blocks.len()));
                candidate.presence = run.presence(span);
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
                let blocks = &data[first..first + span.blocks as usize];
                run.find_loaded(span, key, blocks)?.map(|hit| (hit, candidate.presence))
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
