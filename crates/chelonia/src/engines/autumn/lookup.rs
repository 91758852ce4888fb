//! Point reads: level 0 from the newest to the oldest sequence, then the levels from the top down.
//!
//! In each there is at most one table that may have a key. Their filters are asked for together,
//! for each is a miss of the processor's cache. A table that may have the key is read at once if
//! nothing newer is undecided; else the walk goes on to its end, the filters that are missing are
//! read together, and then the tables that are left are read in their order.

use super::AutumnVersion;
use super::table::{Sequence, Table};
use crate::base::checksum::KeyHash;
use crate::base::epoch::Guard;
use crate::base::error::Result;
use crate::base::sync::Arc;
use crate::engine::Answer;
use crate::run::{
    Candidate, Candidates, FilterState, Run, RunFilter, RunHit, find_many, find_newest,
};
use crate::storage::cache::Presence;

/// So many tables are found before their filters are asked.
const AHEAD: usize = 16;

/// Where a key may be in a sequence.
enum Where<'g> {
    /// In no table.
    Nowhere,
    /// In this one.
    In(&'g Table),
    /// The node that knows it is not in memory.
    OnDevice,
}

fn answer((hit, presence): (RunHit, Presence)) -> Answer {
    Answer { found: hit.found(), presence }
}

impl AutumnVersion {
    /// The sequences, newest first.
    pub(super) fn sequences(&self) -> impl Iterator<Item = &Arc<Sequence>> {
        self.level0.iter().chain(&self.levels)
    }

    /// The table of `sequence` that may have `key`; reads the node that says it only if that may
    /// not wait.
    #[inline]
    fn table_of<'g>(
        &self,
        sequence: &'g Sequence,
        key: &[u8],
        may_wait: bool,
        guard: &'g Guard,
    ) -> Result<Where<'g>> {
        let Some(place) = sequence.node_of(key) else { return Ok(Where::Nowhere) };
        let (residence, slot) = (&self.shared.residence, &sequence.nodes[place].slot);
        let node = match residence.resident(slot, guard) {
            Some(node) => node,
            None if may_wait => return Ok(Where::OnDevice),
            None => residence.load(slot, guard)?,
        };
        Ok(node.table_of(key).map_or(Where::Nowhere, Where::In))
    }

    /// Calls `visit` with every table that may have `key`, newest first, until it returns
    /// something.
    #[inline]
    fn walk<'g, T>(
        &'g self,
        key: &[u8],
        hash: KeyHash,
        guard: &'g Guard,
        mut visit: impl FnMut(&'g Table) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut sequences = self.sequences().peekable();
        loop {
            let mut tables: [Option<&Table>; AHEAD] = [None; AHEAD];
            let (mut count, mut failure) = (0, None);
            while count < AHEAD
                && let Some(sequence) = sequences.peek()
            {
                match self.table_of(sequence, key, count > 0, guard) {
                    Ok(Where::Nowhere) => {}
                    Ok(Where::In(table)) => {
                        table.filter.prefetch(hash, guard);
                        tables[count] = Some(table);
                        count += 1;
                    }
                    // Perhaps nobody needs it: what is newer is looked at first.
                    Ok(Where::OnDevice) => break,
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
                sequences.next();
            }
            for table in tables.into_iter().map_while(|table| table) {
                if let Some(found) = visit(table)? {
                    return Ok(Some(found));
                }
            }
            // What is newer than what cannot be read has not the key.
            failure.map_or(Ok(()), Err)?;
            if sequences.peek().is_none() {
                return Ok(None);
            }
        }
    }

    /// The value of `key`.
    pub(super) fn find(&self, key: &[u8], hash: KeyHash) -> Result<Answer> {
        let guard = self.shared.residence.storage().epochs().pin();
        // Stays empty, and costs nothing, while filters are in memory.
        let mut undecided: Vec<Candidate<'_>> = Vec::new();
        let walked = self.walk(key, hash, &guard, |table| {
            match table.filter.state(hash, &guard) {
                FilterState::No => {}
                FilterState::Maybe if undecided.is_empty() => {
                    let (hit, presence) = table.run.find(key, &guard)?;
                    return Ok(hit.map(|hit| (hit, presence)));
                }
                FilterState::Maybe => undecided.push((&table.run, None)),
                FilterState::Missing(block) => undecided.push((&table.run, Some(block))),
            }
            Ok(None)
        });
        if undecided.is_empty() {
            return walked.map(|hit| hit.map(answer).unwrap_or_default());
        }
        let storage = self.shared.residence.storage();
        match find_newest(storage, &undecided, (key, hash), &guard)? {
            Some(hit) => Ok(answer(hit)),
            None => walked.map(|hit| hit.map(answer).unwrap_or_default()),
        }
    }

    /// The values of `keys`, in the order asked.
    pub(super) fn find_all(&self, keys: &[(&[u8], KeyHash)]) -> Result<Vec<Answer>> {
        let mut answers: Vec<Answer> = vec![Answer::default(); keys.len()];
        let storage = self.shared.residence.storage();
        find_many(storage, self, keys, &mut |index, hit, presence| {
            answers[index] = answer((hit, presence));
        })?;
        Ok(answers)
    }
}

impl Candidates for AutumnVersion {
    fn visit<'g>(
        &'g self,
        (key, hash): (&[u8], KeyHash),
        guard: &'g Guard,
        visit: &mut dyn FnMut(&'g Arc<Run>, &'g RunFilter),
    ) -> Result<()> {
        let walked = self.walk::<()>(key, hash, guard, |table| {
            visit(&table.run, &table.filter);
            Ok(None)
        });
        walked.map(|_| ())
    }
}
