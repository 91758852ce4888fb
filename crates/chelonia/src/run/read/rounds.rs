//! Point reads of many keys.
//!
//! They go in rounds: all keys of a round walk, all missing filters are read together, then the
//! data blocks of every key's next candidate, until every key is decided. So the reads of different
//! keys overlap; and while those of one round are under way the next one walks and adds its own. No
//! guard is held meanwhile: runs are held, and blocks are copies.

use super::candidates::{Candidate, Candidates, load_filters};
use super::filter::{FilterState, RunFilter};
use super::lookup::{Located, Run, RunHit};
use crate::base::checksum::KeyHash;
use crate::base::error::{Error, Result};
use crate::base::limits::BLOCK_BYTES;
use crate::memory::budget::{Charge, Use};
use crate::run::reference::BlockSpan;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::cache::{CachedBlock, Presence, Priority};

/// Keys whose blocks are read together: enough to keep a device busy.
const ROUND_KEYS: usize = 32;

/// The keys of a round have at most this many bytes, unless it is one key: blocks that have a long
/// key are as long.
const ROUND_KEY_BYTES: usize = 256 << 10;

/// A key of a round that is not decided.
struct Open {
    index: usize,
    /// Runs that may hold it, the newest last.
    runs: Vec<Candidate>,
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

/// Finds `keys` in runs that `candidates` names, and gives `take` what was found: two rounds at a
/// time. The reads of the second join those of the first while these are under way, so that the
/// device has much to do until the last of both; meanwhile the two before are decided. So the
/// blocks of four rounds are in memory at once.
pub fn find_many<C: Candidates>(
    storage: &Storage,
    candidates: &C,
    keys: &[(&[u8], KeyHash)],
    take: &mut Take<'_>,
) -> Result<()> {
    let find = |first: usize| Round::find(storage, candidates, keys, first);
    let mut before: Vec<(Round, Loaded)> = Vec::with_capacity(2);
    let mut next = 0;
    while next < keys.len() {
        let one = find(next)?;
        next = one.end;
        let mut other = Ok(None);
        let mut decided = Ok(());
        let loaded = one.load(storage, &mut || {
            if next == keys.len() {
                return;
            }
            other = find(next).and_then(|other| {
                let loaded = other.load(storage, &mut || {
                    decided = decide_all(&mut before, storage, keys, take);
                })?;
                Ok(Some((other, loaded)))
            });
        })?;
        let other = other?;
        decided?;
        next = other.as_ref().map_or(next, |(other, _)| other.end);
        // They are still there if there was no second round.
        decide_all(&mut before, storage, keys, take)?;
        before.push((one, loaded));
        before.extend(other);
    }
    decide_all(&mut before, storage, keys, take)
}

/// Decides rounds that were loaded.
fn decide_all(
    rounds: &mut Vec<(Round, Loaded)>,
    storage: &Storage,
    keys: &[(&[u8], KeyHash)],
    take: &mut Take<'_>,
) -> Result<()> {
    let mut rounds = rounds.drain(..);
    rounds.try_for_each(|(round, loaded)| round.decide(storage, keys, loaded, take))
}

/// Loads all missing filter blocks together and drops the runs they exclude.
fn ask_filters(storage: &Storage, keys: &[(&[u8], KeyHash)], open: &mut [Open]) -> Result<()> {
    let all: Vec<_> = open.iter().flat_map(|open| &open.runs).cloned().collect();
    if all.iter().all(|(_, block)| block.is_none()) {
        return Ok(());
    }
    let mut filters = load_filters(storage, &all)?.into_iter();
    for open in open {
        let hash = keys[open.index].1;
        open.runs.retain(|(run, _)| {
            filters.next().flatten().is_none_or(|bytes| run.filter().may_contain_in(hash, &bytes))
        });
    }
    Ok(())
}

/// Keys whose blocks are read together.
struct Round {
    /// Those that are not decided.
    open: Vec<Open>,
    /// The number of the key behind them.
    end: usize,
    /// What the next read is of: blocks of indexes, and of entries.
    index_blocks: Vec<(Arc<Run>, u32)>,
    data_blocks: Vec<(Arc<Run>, u32)>,
}

/// What a round has read. Held until the round is decided: the cache may not keep it all.
struct Loaded {
    data: Vec<CachedBlock<'static>>,
    _charge: Charge,
}

impl Round {
    /// Finds the way of some of `keys` from number `first` on, down to the blocks to be read.
    fn find<C: Candidates>(
        storage: &Storage,
        candidates: &C,
        keys: &[(&[u8], KeyHash)],
        first: usize,
    ) -> Result<Self> {
        let (mut open, mut end, mut bytes) = (Vec::with_capacity(ROUND_KEYS), first, 0);
        for (index, (key, hash)) in keys.iter().copied().enumerate().skip(first).take(ROUND_KEYS) {
            bytes += key.len();
            if index > first && bytes > ROUND_KEY_BYTES {
                break;
            }
            end = index + 1;
            let mut runs = Vec::new();
            let mut visit = |run: &Arc<Run>, filter: &RunFilter| {
                let state = filter.state(hash, &storage.epochs().pin());
                match state {
                    FilterState::No => {}
                    FilterState::Maybe => runs.push((Arc::clone(run), None)),
                    FilterState::Missing(block) => runs.push((Arc::clone(run), Some(block))),
                }
            };
            let walked = candidates.visit(index, (key, hash), &mut visit);
            runs.reverse();
            let presence = Presence::default();
            open.push(Open { index, runs, failure: walked.err(), span: None, presence });
        }
        ask_filters(storage, keys, &mut open)?;
        let mut round = Self { open, end, index_blocks: Vec::new(), data_blocks: Vec::new() };
        round.locate(keys)?;
        Ok(round)
    }

    /// Finds out where every open key's newest run has it.
    fn locate(&mut self, keys: &[(&[u8], KeyHash)]) -> Result<()> {
        self.index_blocks.clear();
        self.data_blocks.clear();
        let mut at = 0;
        while at < self.open.len() {
            let candidate = &mut self.open[at];
            let Some((run, _)) = candidate.runs.last().cloned() else {
                self.open.swap_remove(at).failure.map_or(Ok(()), Err)?;
                continue;
            };
            let located = run.locate_cached(keys[candidate.index].0, &run.pin())?;
            let (list, span) = match located {
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
            list.extend(blocks.map(|block| (Arc::clone(&run), block)));
            at += 1;
        }
        Ok(())
    }

    /// Reads what was located. `meanwhile` is called once, if this does not fail before.
    fn load(&self, storage: &Storage, meanwhile: &mut dyn FnMut()) -> Result<Loaded> {
        let index: Vec<_> = self.index_blocks.iter().map(|(run, it)| (run.cached(), *it)).collect();
        storage.load_many(&index, Priority::Index)?;
        let data: Vec<_> = self.data_blocks.iter().map(|(run, it)| (run.cached(), *it)).collect();
        let charge = storage.budget().charge(Use::Work, (data.len() * BLOCK_BYTES) as u64);
        let data = storage.load_many_while(&data, Priority::Data, meanwhile)?;
        Ok(Loaded { data, _charge: charge })
    }

    /// Decides what can be decided by what was read; the rest is read and decided after it.
    fn decide(
        mut self,
        storage: &Storage,
        keys: &[(&[u8], KeyHash)],
        mut loaded: Loaded,
        take: &mut Take<'_>,
    ) -> Result<()> {
        loop {
            self.decide_some(keys, &loaded, take)?;
            if self.open.is_empty() {
                return Ok(());
            }
            self.locate(keys)?;
            loaded = self.load(storage, &mut || {})?;
        }
    }

    fn decide_some(
        &mut self,
        keys: &[(&[u8], KeyHash)],
        loaded: &Loaded,
        take: &mut Take<'_>,
    ) -> Result<()> {
        let mut at = 0;
        while at < self.open.len() {
            let candidate = &mut self.open[at];
            let key = keys[candidate.index].0;
            let Some((run, _)) = candidate.runs.last() else {
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
                    let (hit, presence) = run.find(key)?;
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
