//! Point reads of many keys.
//!
//! Keys are read in rounds: all keys of a round search the tree, all missing filters are read
//! together, then the data blocks of every key's next candidate, until every key is decided. So the
//! reads of different keys overlap; and while the reads of one round are in progress, the next
//! round searches and adds its own. No guard is held meanwhile: runs are held, and blocks are
//! copies.

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

/// Number of keys per round: enough to keep a device busy.
const ROUND_KEYS: usize = 32;

/// Maximum total key length of a round of several keys: blocks with a long key are as long.
const ROUND_KEY_BYTES: usize = 256 << 10;

/// An undecided key of a round.
struct Open {
    index: usize,
    /// Runs that may have it, the newest last.
    runs: Vec<Candidate>,
    /// The error that hides data older than those runs, if there is one.
    failure: Option<Error>,
    /// The span of its newest run that can have it, once that is known, and the index of its first
    /// block among the blocks that the round loads.
    span: Option<(BlockSpan, usize)>,
    /// Where those blocks were before the read.
    presence: Presence,
}

/// Called with the number of a key, its entry, and where its blocks were before.
type Take<'t> = dyn FnMut(usize, RunHit, Presence) + 't;

/// Finds `keys` in the runs that `candidates` names, and passes the results to `take`, two rounds
/// at a time. The reads of the second round are added while those of the first are in progress, so
/// that the device is busy until the end of both; meanwhile the two rounds before are decided. So
/// the blocks of four rounds are in memory at once.
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
        // This still holds rounds if there was no second one.
        decide_all(&mut before, storage, keys, take)?;
        before.push((one, loaded));
        before.extend(other);
    }
    decide_all(&mut before, storage, keys, take)
}

/// Decides rounds whose blocks were loaded.
fn decide_all(
    rounds: &mut Vec<(Round, Loaded)>,
    storage: &Storage,
    keys: &[(&[u8], KeyHash)],
    take: &mut Take<'_>,
) -> Result<()> {
    let mut rounds = rounds.drain(..);
    rounds.try_for_each(|(round, loaded)| round.decide(storage, keys, loaded, take))
}

/// Loads all missing filter blocks together and removes the runs they exclude.
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
    /// The undecided keys.
    open: Vec<Open>,
    /// The number of the key after the last.
    end: usize,
    /// Blocks of the next read: of indexes, and of data.
    index_blocks: Vec<(Arc<Run>, u32)>,
    data_blocks: Vec<(Arc<Run>, u32)>,
}

/// The blocks that a round has read. Held until the round is decided: the cache may not keep all.
struct Loaded {
    data: Vec<CachedBlock<'static>>,
    _charge: Charge,
}

impl Round {
    /// Searches the next keys of `keys`, from number `first` on, down to the blocks to be read.
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

    /// Locates every undecided key in its newest run.
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

    /// Reads the located blocks. `meanwhile` is called once, unless an error occurs before.
    fn load(&self, storage: &Storage, meanwhile: &mut dyn FnMut()) -> Result<Loaded> {
        let index: Vec<_> = self.index_blocks.iter().map(|(run, it)| (run.cached(), *it)).collect();
        storage.load_many(&index, Priority::Index)?;
        let data: Vec<_> = self.data_blocks.iter().map(|(run, it)| (run.cached(), *it)).collect();
        let charge = storage.budget().charge(Use::Work, (data.len() * BLOCK_BYTES) as u64);
        let data = storage.load_many_while(&data, Priority::Data, meanwhile)?;
        Ok(Loaded { data, _charge: charge })
    }

    /// Decides the keys that the loaded blocks decide; for the others it reads and decides one by
    /// one.
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
                // Its index block was just loaded; if the cache could not keep it, it is read
                // again.
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
