//! Point reads: level 0 from the newest to the oldest sequence, then the levels from the top down.
//!
//! Each sequence has at most one table that may contain a key. The filters of several tables are
//! prefetched together, because each access is a CPU cache miss. The first walk uses only memory,
//! under the guard of the caller. If a node, a filter or a block is not in memory, a second walk
//! runs without a guard: it reads a candidate table at once if no newer table is undecided;
//! otherwise it continues to the end, reads all missing filters together, and then reads the
//! remaining tables in order.

use crate::base::checksum::KeyHash;
use crate::base::error::Result;
use crate::engine::{Answer, Looked, Progress, look_many};
use crate::engines::autumn::table::{Sequence, Table};
use crate::engines::autumn::version::AutumnVersion;
use crate::memory::epoch::Guard;
use crate::run::{
    Candidate, Candidates, FilterState, Run, RunFilter, RunHit, find_many, find_newest,
};
use crate::runtime::sync::Arc;
use crate::storage::cache::Presence;

/// Number of tables located before their filters are checked.
const AHEAD: usize = 16;

/// Result of visiting a table that may have a key, or of a walk.
enum Visit<T> {
    /// The key was found.
    Found(T),
    /// The table does not have the key, or it is undecided.
    Progress,
    /// Data must be read first: the walk ends.
    Ended,
}

fn answer((hit, presence): (RunHit, Presence)) -> Answer {
    Answer { found: hit.found(), presence }
}

impl AutumnVersion {
    /// Returns the sequences, newest first.
    pub(in crate::engines::autumn) fn sequences(&self) -> impl Iterator<Item = &Arc<Sequence>> {
        self.level0.iter().chain(&self.levels)
    }

    /// Calls `visit` with every table that may have `key`, newest first, until it returns a result
    /// or data is not in memory.
    #[inline]
    fn walk<'g, T>(
        &'g self,
        key: &[u8],
        hash: KeyHash,
        guard: &'g Guard,
        mut visit: impl FnMut(&'g Table) -> Result<Visit<T>>,
    ) -> Result<Visit<T>> {
        let mut sequences = self.sequences().peekable();
        loop {
            let mut tables: [Option<&Table>; AHEAD] = [None; AHEAD];
            let (mut count, mut is_cut) = (0, false);
            while count < AHEAD
                && let Some(sequence) = sequences.next_if(|_| !is_cut)
            {
                let Some(place) = sequence.node_of(key) else { continue };
                let slot = &sequence.nodes[place].slot;
                let Some(node) = self.shared.node_cache.in_memory(slot, guard) else {
                    is_cut = true;
                    continue;
                };
                if let Some(table) = node.table_of(key) {
                    table.filter.prefetch(hash, guard);
                    tables[count] = Some(table);
                    count += 1;
                }
            }
            for table in tables.into_iter().map_while(|table| table) {
                match visit(table)? {
                    Visit::Progress => {}
                    visited => return Ok(visited),
                }
            }
            if is_cut {
                return Ok(Visit::Ended);
            }
            if sequences.peek().is_none() {
                return Ok(Visit::Progress);
            }
        }
    }

    /// Calls `visit` with every table that may have `key`, newest first, and reads nodes that are
    /// not in memory. No guard is held meanwhile.
    fn walk_reading<T>(
        &self,
        key: &[u8],
        mut visit: impl FnMut(&Table) -> Result<Visit<T>>,
    ) -> Result<Option<T>> {
        for sequence in self.sequences() {
            let Some(place) = sequence.node_of(key) else { continue };
            let node = self.shared.node_cache.load_owned(&sequence.nodes[place].slot)?;
            if let Some(table) = node.table_of(key)
                && let Visit::Found(found) = visit(table)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the value of `key`, as far as memory decides it.
    pub(in crate::engines::autumn) fn find_cached(
        &self,
        key: &[u8],
        hash: KeyHash,
        guard: &Guard,
    ) -> Result<Looked> {
        let walked = self.walk(key, hash, guard, |table| {
            Ok(match table.filter.state(hash, guard) {
                FilterState::No => Visit::Progress,
                FilterState::Missing(_) => Visit::Ended,
                FilterState::Maybe => match table.run.find_cached(key, guard)? {
                    Some((Some(hit), presence)) => Visit::Found((hit, presence)),
                    Some((None, _)) => Visit::Progress,
                    None => Visit::Ended,
                },
            })
        });
        Ok(match walked? {
            Visit::Found(hit) => Looked::Answer(answer(hit)),
            Visit::Progress => Looked::Answer(Answer::default()),
            Visit::Ended => Looked::OnDevice(Progress::default()),
        })
    }

    /// Returns the value of `key`. No guard is held during reads.
    pub(in crate::engines::autumn) fn find(&self, key: &[u8], hash: KeyHash) -> Result<Answer> {
        let storage = self.shared.node_cache.storage();
        // Undecided tables, newest first.
        let mut undecided: Vec<Candidate> = Vec::new();
        let walked = self.walk_reading(key, |table| {
            let state = table.filter.state(hash, &storage.epochs().pin());
            match state {
                FilterState::No => {}
                FilterState::Maybe if undecided.is_empty() => {
                    let (hit, presence) = table.run.find(key)?;
                    return Ok(hit.map_or(Visit::Progress, |hit| Visit::Found((hit, presence))));
                }
                FilterState::Maybe => undecided.push((Arc::clone(&table.run), None)),
                FilterState::Missing(block) => {
                    undecided.push((Arc::clone(&table.run), Some(block)));
                }
            }
            Ok(Visit::Progress)
        });
        if undecided.is_empty() {
            return walked.map(|hit| hit.map(answer).unwrap_or_default());
        }
        match find_newest(storage, &undecided, (key, hash))? {
            Some(hit) => Ok(answer(hit)),
            None => walked.map(|hit| hit.map(answer).unwrap_or_default()),
        }
    }

    /// Returns the values of `keys`, in the same order.
    pub(in crate::engines::autumn) fn find_all(
        &self,
        keys: &[(&[u8], KeyHash)],
    ) -> Result<Vec<Answer>> {
        let storage = self.shared.node_cache.storage();
        let mut look =
            |key: &[u8], hash: KeyHash, guard: &Guard| self.find_cached(key, hash, guard);
        look_many(storage, keys, &mut look, &mut |rest, _, take| {
            find_many(storage, self, rest, &mut |index, hit, presence| {
                take(index, answer((hit, presence)));
            })
        })
    }
}

impl Candidates for AutumnVersion {
    fn visit(
        &self,
        _index: usize,
        (key, _hash): (&[u8], KeyHash),
        visit: &mut dyn FnMut(&Arc<Run>, &RunFilter),
    ) -> Result<()> {
        let walked = self.walk_reading::<()>(key, |table| {
            visit(&table.run, &table.filter);
            Ok(Visit::Progress)
        });
        walked.map(|_| ())
    }
}
