//! Point reads of many keys.
//!
//! They go in rounds: all keys of a round walk, all missing filters are read together, then the
//! data blocks of every key's next candidate, until every key is decided. So the reads of different
//! keys overlap; and while those of one round are under way the next one walks and adds its own.

use super::candidates::{Candidate, Candidates, load_filters};
use super::filter::FilterState;
use super::lookup::{Located, RunHit};
use crate::base::checksum::KeyHash;
use crate::base::epoch::{self, Guard};
use crate::base::error::{Error, Result};
use crate::base::residents::Residents;
use crate::run::reference::BlockSpan;
use crate::storage::Storage;
use crate::storage::cache::{CachedBlock, CachedExtent, Presence, Priority};

/// Keys whose blocks are read together: enough to keep a device busy.
const ROUND_KEYS: usize = 32;

/// Keys that are looked up under one guard; the blocks of four rounds are in memory at once.
const GROUP_KEYS: usize = 4 * ROUND_KEYS;

/// The keys of a round have at most so many bytes, unless it is one key: blocks that have a long
/// key are as long.
const ROUND_KEY_BYTES: usize = 256 << 10;

/// A guard is let go when nodes came into memory of so large a part of what they may take: it keeps
/// those that were evicted since.
const NODES_PART: u64 = 2;

/// What nodes take that are kept by one guard.
struct Kept<'s> {
    residents: &'s Residents,
    /// What had come into memory when the guard was taken.
    before: u64,
}

impl<'s> Kept<'s> {
    fn since_now(storage: &'s Storage) -> Self {
        let residents = storage.residents();
        Self { residents, before: residents.admitted() }
    }

    /// True if the guard should be let go.
    fn is_much(&self) -> bool {
        self.residents.admitted() - self.before > self.residents.share() / NODES_PART
    }
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

/// What was found of key number so many, and where its blocks were before.
type Take<'t> = dyn FnMut(usize, RunHit, Presence) + 't;

/// Finds `keys` in runs that `candidates` names, and gives `take` what was found.
pub fn find_many<C: Candidates>(
    storage: &Storage,
    candidates: &C,
    keys: &[(&[u8], KeyHash)],
    take: &mut Take<'_>,
) -> Result<()> {
    let mut first = 0;
    while first < keys.len() {
        let kept = Kept::since_now(storage);
        let group = &keys[first..keys.len().min(first + GROUP_KEYS)];
        first += find_group(storage, candidates, group, &mut |index, hit, presence| {
            take(first + index, hit, presence);
        })?;
        if kept.is_much() {
            epoch::collect();
        }
    }
    Ok(())
}

/// The same for the keys of one group, two rounds at a time: the reads of the second join those of
/// the first while these are under way, so that the device has much to do until the last of both;
/// meanwhile the two before are decided. Gives how many of the keys were looked up, one at least.
fn find_group<C: Candidates>(
    storage: &Storage,
    candidates: &C,
    keys: &[(&[u8], KeyHash)],
    take: &mut Take<'_>,
) -> Result<usize> {
    let guard = epoch::pin();
    let kept = Kept::since_now(storage);
    let find = |first: usize| Round::find(storage, candidates, keys, first, &kept, &guard);
    let mut before: Vec<(Round<'_>, Loaded<'_>)> = Vec::with_capacity(2);
    let mut next = 0;
    while next < keys.len() && (next == 0 || !kept.is_much()) {
        let one = find(next)?;
        next = one.end;
        let mut other = Ok(None);
        let mut decided = Ok(());
        let loaded = one.load(storage, &guard, &mut || {
            if next == keys.len() || kept.is_much() {
                return;
            }
            other = find(next).and_then(|other| {
                let loaded = other.load(storage, &guard, &mut || {
                    decided = decide_all(&mut before, storage, keys, take, &guard);
                })?;
                Ok(Some((other, loaded)))
            });
        })?;
        let other = other?;
        decided?;
        next = other.as_ref().map_or(next, |(other, _)| other.end);
        decide_all(&mut before, storage, keys, take, &guard)?;
        before.push((one, loaded));
        before.extend(other);
    }
    decide_all(&mut before, storage, keys, take, &guard)?;
    Ok(next)
}

/// Decides rounds that were loaded.
fn decide_all<'g>(
    rounds: &mut Vec<(Round<'g>, Loaded<'g>)>,
    storage: &Storage,
    keys: &[(&[u8], KeyHash)],
    take: &mut Take<'_>,
    guard: &'g Guard,
) -> Result<()> {
    let mut rounds = rounds.drain(..);
    rounds.try_for_each(|(round, loaded)| round.decide(storage, keys, loaded, take, guard))
}

/// Loads all missing filter blocks together and drops the runs they exclude.
fn ask_filters<'g>(
    storage: &Storage,
    keys: &[(&[u8], KeyHash)],
    open: &mut [Open<'g>],
    guard: &'g Guard,
) -> Result<()> {
    let all: Vec<_> = open.iter().flat_map(|open| &open.runs).copied().collect();
    if all.iter().all(|(_, block)| block.is_none()) {
        return Ok(());
    }
    let mut filters = load_filters(storage, &all, guard)?.into_iter();
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
    /// The number of the key behind them.
    end: usize,
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
    /// Finds the way of some of `keys` from number `first` on, down to the blocks to be read.
    fn find<C: Candidates>(
        storage: &Storage,
        candidates: &'g C,
        keys: &[(&[u8], KeyHash)],
        first: usize,
        kept: &Kept<'_>,
        guard: &'g Guard,
    ) -> Result<Self> {
        let (mut open, mut end, mut bytes) = (Vec::with_capacity(ROUND_KEYS), first, 0);
        for (index, (key, hash)) in keys.iter().copied().enumerate().skip(first).take(ROUND_KEYS) {
            bytes += key.len();
            if index > first && (bytes > ROUND_KEY_BYTES || kept.is_much()) {
                break;
            }
            end = index + 1;
            let mut runs = Vec::new();
            let walked = candidates.visit((key, hash), guard, &mut |run, filter| match filter
                .state(hash, guard)
            {
                FilterState::No => {}
                FilterState::Maybe => runs.push((run, None)),
                FilterState::Missing(block) => runs.push((run, Some(block))),
            });
            runs.reverse();
            let presence = Presence::default();
            open.push(Open { index, runs, failure: walked.err(), span: None, presence });
        }
        ask_filters(storage, keys, &mut open, guard)?;
        let mut round = Self { open, end, index_blocks: Vec::new(), data_blocks: Vec::new() };
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
        storage: &Storage,
        guard: &'g Guard,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Loaded<'g>> {
        let index = storage.load_many(&self.index_blocks, Priority::Index, guard)?;
        let data = storage.load_many_while(&self.data_blocks, Priority::Data, guard, meanwhile)?;
        Ok(Loaded { _index: index, data })
    }

    /// Decides what can be decided by what was read; the rest is read and decided after it.
    fn decide(
        mut self,
        storage: &Storage,
        keys: &[(&[u8], KeyHash)],
        mut loaded: Loaded<'g>,
        take: &mut Take<'_>,
        guard: &'g Guard,
    ) -> Result<()> {
        loop {
            self.decide_some(keys, &loaded, take, guard)?;
            if self.open.is_empty() {
                return Ok(());
            }
            self.locate(keys, guard)?;
            loaded = self.load(storage, guard, &mut || {})?;
        }
    }

    fn decide_some(
        &mut self,
        keys: &[(&[u8], KeyHash)],
        loaded: &Loaded<'g>,
        take: &mut Take<'_>,
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
                    let (hit, presence) = run.find(key, guard)?;
                    hit.map(|hit| (hit, presence))
                }
            };
            match hit {
                Some((hit, presence)) => {
                    take(candidate.index, hit, presence);
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
