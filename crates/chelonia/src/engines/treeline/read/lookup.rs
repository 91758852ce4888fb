//! Point reads: staged memtables from the newest on, then the page of the key.
//!
//! A key that is not staged costs one page. The first walk uses only memory, under the guard of the
//! caller. If a node, a filter or a block is not in memory, a second walk runs without a guard.

use crate::base::checksum::KeyHash;
use crate::base::error::Result;
use crate::engine::{Answer, Looked, Progress, look_many};
use crate::engines::treeline::node::Node;
use crate::engines::treeline::staged::Table;
use crate::engines::treeline::version::TreelineVersion;
use crate::memory::epoch::Guard;
use crate::pages::LoadedPages;
use crate::run::{Candidate, FilterState, RunHit, find_newest};
use crate::runtime::sync::Arc;
use crate::storage::cache::{Presence, Priority};

/// Number of keys whose pages are read together.
const ROUND_KEYS: usize = 64;

/// The place of a key in the pages.
struct Spot {
    node: Arc<Node>,
    item: usize,
    page: usize,
}

fn answer(hit: Option<RunHit>, presence: Presence) -> Answer {
    Answer { found: hit.and_then(RunHit::found), presence }
}

impl TreelineVersion {
    /// The staged runs that may have `key`, newest first.
    #[inline]
    fn tables_of<'v>(&'v self, key: &'v [u8]) -> impl Iterator<Item = &'v Table> {
        let live = self.parts.live().filter(|(_, from)| **from <= *key);
        live.filter_map(|(staged, _)| staged.table_of(key))
    }

    /// Returns the value of `key`, as far as memory decides it.
    pub(in crate::engines::treeline) fn find_cached(
        &self,
        key: &[u8],
        hash: KeyHash,
        guard: &Guard,
    ) -> Result<Looked> {
        let missing = Ok(Looked::OnDevice(Progress::default()));
        for table in self.tables_of(key) {
            match table.filter.state(hash, guard) {
                FilterState::No => {}
                FilterState::Missing(_) => return missing,
                FilterState::Maybe => match table.run.find_cached(key, guard)? {
                    Some((Some(hit), presence)) => {
                        return Ok(Looked::Answer(answer(Some(hit), presence)));
                    }
                    Some((None, _)) => {}
                    None => return missing,
                },
            }
        }
        let directory = &self.parts.directory;
        let Some(place) = directory.node_of(key) else {
            return Ok(Looked::Answer(Answer::default()));
        };
        let slot = &directory.nodes[place].slot;
        let Some(node) = self.shared.node_cache.in_memory(slot, guard) else { return missing };
        let item = &node.items[node.item_of(key)];
        let page = item.group.bounds.page_of(&item.first, key);
        let presence = item.group.presence(page);
        Ok(match item.group.find_cached(page, key, guard)? {
            Some(hit) => Looked::Answer(answer(hit, presence)),
            None => Looked::OnDevice(Progress::default()),
        })
    }

    /// The entry of `key` in staged runs. No guard is held during reads.
    fn find_staged(&self, key: &[u8], hash: KeyHash) -> Result<Option<Answer>> {
        let storage = self.shared.node_cache.storage();
        let mut candidates: Vec<Candidate> = Vec::new();
        for table in self.tables_of(key) {
            match table.filter.state(hash, &storage.epochs().pin()) {
                FilterState::No => {}
                FilterState::Maybe => candidates.push((Arc::clone(&table.run), None)),
                FilterState::Missing(block) => {
                    candidates.push((Arc::clone(&table.run), Some(block)));
                }
            }
        }
        if candidates.is_empty() {
            return Ok(None);
        }
        let found = find_newest(storage, &candidates, (key, hash))?;
        Ok(found.map(|(hit, presence)| answer(Some(hit), presence)))
    }

    /// The page that may have `key`.
    fn spot_of(&self, key: &[u8]) -> Result<Option<Spot>> {
        let directory = &self.parts.directory;
        let Some(place) = directory.node_of(key) else { return Ok(None) };
        let node = self.shared.node_cache.load_owned(&directory.nodes[place].slot)?;
        let item = node.item_of(key);
        let Some(found) = node.items.get(item) else { return Ok(None) };
        let page = found.group.bounds.page_of(&found.first, key);
        Ok(Some(Spot { node, item, page }))
    }

    /// Returns the value of `key`. No guard is held during reads.
    pub(in crate::engines::treeline) fn find(&self, key: &[u8], hash: KeyHash) -> Result<Answer> {
        if let Some(answer) = self.find_staged(key, hash)? {
            return Ok(answer);
        }
        let Some(Spot { node, item, page }) = self.spot_of(key)? else {
            return Ok(Answer::default());
        };
        let group = &node.items[item].group;
        let presence = group.presence(page);
        let storage = self.shared.node_cache.storage();
        LoadedPages::read_ahead(storage, group, page);
        let hit = group.find(storage, page, key)?;
        Ok(answer(hit, presence))
    }

    /// Returns the values of `keys`, in the same order. Missing pages are read together.
    pub(in crate::engines::treeline) fn find_all(
        &self,
        keys: &[(&[u8], KeyHash)],
    ) -> Result<Vec<Answer>> {
        let storage = self.shared.node_cache.storage();
        let mut look =
            |key: &[u8], hash: KeyHash, guard: &Guard| self.find_cached(key, hash, guard);
        look_many(storage, keys, &mut look, &mut |rest, _, take| {
            for first in (0..rest.len()).step_by(ROUND_KEYS) {
                let round = first..(first + ROUND_KEYS).min(rest.len());
                let mut spots = Vec::new();
                for index in round {
                    let (key, hash) = rest[index];
                    match self.find_staged(key, hash)? {
                        Some(answer) => take(index, answer),
                        None => spots.extend(self.spot_of(key)?.map(|spot| (index, spot))),
                    }
                }
                self.read_pages(rest, &spots, take)?;
            }
            Ok(())
        })
    }

    /// Reads the pages of a round, and finds the keys in them.
    fn read_pages(
        &self,
        keys: &[(&[u8], KeyHash)],
        spots: &[(usize, Spot)],
        take: &mut dyn FnMut(usize, Answer),
    ) -> Result<()> {
        let group = |spot: &Spot| Arc::clone(&spot.node.items[spot.item].group);
        let groups: Vec<_> = spots.iter().map(|(_, spot)| group(spot)).collect();
        let mut wanted = Vec::new();
        let mut places = Vec::with_capacity(spots.len());
        for ((_, spot), group) in spots.iter().zip(&groups) {
            let start = wanted.len();
            wanted.extend(group.wanted(spot.page));
            places.push((start..wanted.len(), group.presence(spot.page)));
        }
        let storage = self.shared.node_cache.storage();
        let blocks = storage.load_many(&wanted, Priority::Data)?;
        for (((index, spot), group), (range, presence)) in spots.iter().zip(&groups).zip(places) {
            let hit = group.find_in(spot.page, keys[*index].0, &blocks[range])?;
            take(*index, answer(hit, presence));
        }
        Ok(())
    }
}
