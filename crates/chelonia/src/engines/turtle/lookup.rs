//! Point reads.
//!
//! A lookup walks from the root to a leaf and meets every run that may hold the key, newest first.
//! Filters come before data: a run whose filter is in memory and says no costs nothing more. A run
//! that may hold the key is read at once if nothing newer is undecided; else the path is
//! walked to its end, the filters that are missing are read together, and then the runs that are
//! left are read in their order.
//!
//! Many lookups go in rounds: all keys of a round walk, all missing filters are read together, then
//! the data blocks of every key's next candidate, until every key is decided. So the reads of
//! different keys overlap; and while those of one round are under way the next one walks.
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
use std::ops::Range;

/// Keys whose blocks are read together: enough to keep a device busy.
const ROUND_KEYS: usize = 32;

/// Keys that are looked up under one guard; the blocks of two rounds are in memory at once.
const GROUP_KEYS: usize = 4 * ROUND_KEYS;

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

/// Reads the entry of `key` in `run`, whose filter said that it may be there: what was found, and
/// where the blocks were before that have it or not.
fn read(run: &Run, key: &[u8], guard: &Guard) -> Result<(Option<RunHit>, Presence)> {
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
                    (Some(hit), presence) => Visit::Found((hit, presence)),
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
    let mut answers: Vec<Answer> = vec![Answer::default(); keys.len()];
    let groups = keys.chunks(GROUP_KEYS).zip(answers.chunks_mut(GROUP_KEYS));
    groups.into_iter().try_for_each(|(keys, answers)| get_group(shared, root, keys, answers))?;
    Ok(answers)
}

/// The same for the keys of one group, round after round: while the blocks of one round are read,
/// the round before is decided and the way of the next one's keys is found.
fn get_group(
    shared: &Shared,
    root: &Arc<NodeSlot>,
    keys: &[(&[u8], KeyHash)],
    answers: &mut [Answer],
) -> Result<()> {
    let guard = epoch::pin();
    let find = |first: usize| {
        let last = keys.len().min(first + ROUND_KEYS);
        (first < last).then(|| Round::find(shared, root, keys, first..last, &guard)).transpose()
    };
    let mut next = find(0)?;
    let mut first = 0;
    let mut before: Option<(Round<'_>, Loaded<'_>)> = None;
    while let Some(round) = next.take() {
        first += ROUND_KEYS;
        let mut meanwhile = Ok(());
        let loaded = round.load(&shared.residence, &guard, &mut || {
            let decided = before.take().map_or(Ok(()), |(round, loaded)| {
                round.decide(&shared.residence, keys, loaded, answers, &guard)
            });
            meanwhile = decided.and_then(|()| find(first).map(|found| next = found));
        })?;
        meanwhile?;
        before = Some((round, loaded));
    }
    before.map_or(Ok(()), |(round, loaded)| {
        round.decide(&shared.residence, keys, loaded, answers, &guard)
    })
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

/// Keys whose blocks are read together.
struct Round<'g> {
    /// Those that are not decided.
    open: Vec<Open<'g>>,
    /// What the next read is of: blocks of indexes, and of entries.
    index_blocks: Vec<(&'g CachedExtent, u32)>,
    data_blocks: Vec<(&'g CachedExtent, u32)>,
}

/// What a round has read. Held until the round is decided: the cache may not keep it all.
struct Loaded<'g> {
    _index: Vec<CachedBlock<'g>>,
    data: Vec<CachedBlock<'g>>,
}

impl<'g> Round<'g> {
    /// Finds the way of the keys `range` of `keys`, down to the blocks to be read.
    fn find(
        shared: &Shared,
        root: &'g Arc<NodeSlot>,
        keys: &[(&[u8], KeyHash)],
        range: Range<usize>,
        guard: &'g Guard,
    ) -> Result<Self> {
        let mut open = Vec::with_capacity(range.len());
        for index in range {
            let (key, hash) = keys[index];
            let mut runs = Vec::new();
            let walked = walk(shared, root, Wanted::new(key, hash), guard, |run, filter| {
                match filter.state(hash, guard) {
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
        ask_filters(&shared.residence, keys, &mut open, guard)?;
        let mut round = Self { open, index_blocks: Vec::new(), data_blocks: Vec::new() };
        round.locate(keys, guard)?;
        Ok(round)
    }

    /// Finds out where every open key's newest run has it.
    fn locate(&mut self, keys: &[(&[u8], KeyHash)], guard: &'g Guard) -> Result<()> {
        self.index_blocks.clear();
        self.data_blocks.clear();
        let mut at = 0;
        while at < self.open.len() {
            let candidate = &mut self.open[at];
            let Some((run, _)) = candidate.runs.last().copied() else {
                self.open.swap_remove(at).failure.map_or(Ok(()), Err)?;
                continue;
            };
            let (list, span) = match run.locate_cached(keys[candidate.index].0, guard)? {
                Located::Absent => {
                    candidate.runs.pop();
                    continue;
                }
                Located::Missing(span) => (&mut self.index_blocks, span),
                Located::Span(span) => {
                    candidate.span = Some((span, self.data_blocks.len()));
                    candidate.presence = run.presence(span);
                    (&mut self.data_blocks, span)
                }
            };
            let blocks = span.first..span.first.saturating_add(span.blocks);
            list.extend(blocks.map(|block| (run.cached(), block)));
            at += 1;
        }
        Ok(())
    }

    /// Reads what was located. `meanwhile` is called once, if this does not fail before.
    fn load(
        &self,
        residence: &Residence,
        guard: &'g Guard,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Loaded<'g>> {
        let storage = residence.storage();
        let index = storage.load_many(&self.index_blocks, Priority::Index, guard)?;
        let data = storage.load_many_while(&self.data_blocks, Priority::Data, guard, meanwhile)?;
        Ok(Loaded { _index: index, data })
    }

    /// Decides what can be decided by what was read; the rest is read and decided after it.
    fn decide(
        mut self,
        residence: &Residence,
        keys: &[(&[u8], KeyHash)],
        mut loaded: Loaded<'g>,
        answers: &mut [Answer],
        guard: &'g Guard,
    ) -> Result<()> {
        loop {
            self.decide_some(keys, &loaded, answers, guard)?;
            if self.open.is_empty() {
                return Ok(());
            }
            self.locate(keys, guard)?;
            loaded = self.load(residence, guard, &mut || {})?;
        }
    }

    fn decide_some(
        &mut self,
        keys: &[(&[u8], KeyHash)],
        loaded: &Loaded<'g>,
        answers: &mut [Answer],
        guard: &'g Guard,
    ) -> Result<()> {
        let mut at = 0;
        while at < self.open.len() {
            let candidate = &mut self.open[at];
            let key = keys[candidate.index].0;
            let Some((run, _)) = candidate.runs.last().copied() else {
                at += 1;
                continue;
            };
            let hit = match candidate.span.take() {
                Some((span, first)) => {
                    let blocks = &loaded.data[first..first + span.blocks as usize];
                    run.find_loaded(span, key, blocks)?.map(|hit| (hit, candidate.presence))
                }
                // Its index block was just loaded; a cache that could not keep it reads it again.
                None => {
                    let (hit, presence) = read(run, key, guard)?;
                    hit.map(|hit| (hit, presence))
                }
            };
            match hit {
                Some(hit) => {
                    answers[candidate.index] = answer(hit);
                    self.open.swap_remove(at);
                }
                None => {
                    candidate.runs.pop();
                    at += 1;
                }
            }
        }
        Ok(())
    }
}
