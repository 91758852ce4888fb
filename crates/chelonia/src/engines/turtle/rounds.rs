//! Point reads of many keys.
//!
//! They go in rounds: all keys of a round walk, all missing filters are read together, then the
//! data blocks of every key's next candidate, until every key is decided. So the reads of different
//! keys overlap; and while those of one round are under way the next one walks and adds its own.

use super::Shared;
use super::lookup::{Candidate, Visit, Wanted, answer, load_filters, read, walk};
use super::node::NodeSlot;
use super::residence::Residence;
use crate::base::checksum::KeyHash;
use crate::base::epoch::{self, Guard};
use crate::base::error::{Error, Result};
use crate::base::sync::Arc;
use crate::engine::Answer;
use crate::run::{BlockSpan, FilterState, Located};
use crate::storage::cache::{CachedBlock, CachedExtent, Presence, Priority};
use std::ops::Range;

/// Keys whose blocks are read together: enough to keep a device busy.
const ROUND_KEYS: usize = 32;

/// Keys that are looked up under one guard; the blocks of four rounds are in memory at once.
const GROUP_KEYS: usize = 4 * ROUND_KEYS;

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

/// The same for the keys of one group, two rounds at a time: the reads of the second join those of
/// the first while these are under way, so that the device has much to do until the last of both;
/// meanwhile the two before are decided.
fn get_group(
    shared: &Shared,
    root: &Arc<NodeSlot>,
    keys: &[(&[u8], KeyHash)],
    answers: &mut [Answer],
) -> Result<()> {
    let guard = epoch::pin();
    let residence = &shared.residence;
    let find = |first: usize| {
        let last = keys.len().min(first + ROUND_KEYS);
        Round::find(shared, root, keys, first.min(last)..last, &guard)
    };
    let mut before: Vec<(Round<'_>, Loaded<'_>)> = Vec::with_capacity(2);
    for first in (0..keys.len()).step_by(2 * ROUND_KEYS) {
        let one = find(first)?;
        let mut other = Ok(None);
        let mut decided = Ok(());
        let loaded = one.load(residence, &guard, &mut || {
            other = find(first + ROUND_KEYS).and_then(|other| {
                let loaded = other.load(residence, &guard, &mut || {
                    decided = decide_all(&mut before, residence, keys, answers, &guard);
                })?;
                Ok(Some((other, loaded)))
            });
        })?;
        let other = other?;
        decided?;
        before.push((one, loaded));
        before.extend(other);
    }
    decide_all(&mut before, residence, keys, answers, &guard)
}

/// Decides rounds that were loaded.
fn decide_all<'g>(
    rounds: &mut Vec<(Round<'g>, Loaded<'g>)>,
    residence: &Residence,
    keys: &[(&[u8], KeyHash)],
    answers: &mut [Answer],
    guard: &'g Guard,
) -> Result<()> {
    let mut rounds = rounds.drain(..);
    rounds.try_for_each(|(round, loaded)| round.decide(residence, keys, loaded, answers, guard))
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
