//! Lookups of a key in the runs that may have it, the newest first.
//!
//! Filters are checked before data. Missing filter blocks are read together; then the remaining
//! runs are read in order, until one has the key.
//!
//! Damage hides as little as possible: a damaged filter block answers maybe.

use super::filter::RunFilter;
use super::lookup::{Run, RunHit};
use crate::base::checksum::KeyHash;
use crate::base::error::{ErrorKind, Result};
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::cache::{CachedBlock, CachedExtent, Presence, Priority};

/// A run that may have a key, with the filter block to check first.
pub type Candidate = (Arc<Run>, Option<u32>);

/// Source of candidate runs for lookups of many keys ([`super::find_many`]).
pub trait Candidates {
    /// Calls `visit` with every run that may have key number `index`, with its filter, newest
    /// first. If an error hides older data, it is returned after the readable ones were visited. No
    /// guard is held while it reads.
    fn visit(
        &self,
        index: usize,
        key: (&[u8], KeyHash),
        visit: &mut dyn FnMut(&Arc<Run>, &RunFilter),
    ) -> Result<()>;
}

/// The entry of a key in the first of `candidates` that has it, and where its blocks were before.
pub fn find_newest(
    storage: &Storage,
    candidates: &[Candidate],
    (key, hash): (&[u8], KeyHash),
) -> Result<Option<(RunHit, Presence)>> {
    let filters = load_filters(storage, candidates)?;
    for ((run, _), filter) in candidates.iter().zip(filters) {
        if filter.is_none_or(|bytes| run.filter().may_contain_in(hash, &bytes))
            && let (Some(hit), presence) = run.find(key)?
        {
            return Ok(Some((hit, presence)));
        }
    }
    Ok(None)
}

/// Loads the missing filter blocks together: for each candidate the block, or `None` if there is
/// none to check or it is damaged.
pub(super) fn load_filters(
    storage: &Storage,
    candidates: &[Candidate],
) -> Result<Vec<Option<CachedBlock<'static>>>> {
    let missing: Vec<(&CachedExtent, u32)> = candidates
        .iter()
        .filter_map(|(run, block)| block.map(|block| (run.cached(), block)))
        .collect();
    let together = storage.load_many(&missing, Priority::Filter);
    let mut loaded: Vec<Option<CachedBlock<'static>>> = match together {
        Ok(loaded) => loaded.into_iter().map(Some).collect(),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let each =
                missing.iter().map(|(extent, block)| match extent.load(*block, Priority::Filter) {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
                    Err(error) => Err(error),
                });
            each.collect::<Result<_>>()?
        }
        Err(error) => return Err(error),
    };
    let mut loaded = loaded.drain(..);
    let of = |(_, block): &Candidate| block.and_then(|_| loaded.next().flatten());
    Ok(candidates.iter().map(of).collect())
}
