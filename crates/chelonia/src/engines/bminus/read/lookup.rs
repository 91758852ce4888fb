//! Point reads: the page of the key.
//!
//! The first attempt uses only memory, under the guard of the caller. If the node or the page is
//! not in memory, a second one reads them, without a guard.

use super::pages::{NodePages, Reading};
use crate::base::checksum::KeyHash;
use crate::base::error::Result;
use crate::base::stream::{Found, Update};
use crate::engine::{Answer, Looked, Progress, look_many};
use crate::engines::bminus::node::Node;
use crate::engines::bminus::version::BminusVersion;
use crate::memory::epoch::Guard;
use crate::pages::homes::slotted::large_of;
use crate::pages::homes::{Page, PageBytes};
use crate::run::RunHit;
use crate::runtime::sync::Arc;
use crate::storage::block::DATA_FILE;
use crate::storage::cache::Presence;
use std::collections::BTreeMap;

/// Number of pages of a node that a lookup reads ahead while memory is ample.
const AHEAD_PAGES: usize = 8;

/// Number of keys whose pages are read together.
const ROUND_KEYS: usize = 64;

/// The value of `key` in a page.
fn find_in(bytes: PageBytes<'_>, key: &[u8]) -> Result<Option<Found>> {
    let page = Page::parse(bytes)?;
    let Ok(index) = page.find(key)? else { return Ok(None) };
    let (payload, is_large) = page.payload(index)?;
    let update = match is_large {
        true => Update::PutLarge(large_of(&payload)?),
        false => Update::Put(&payload),
    };
    RunHit::try_from(update).map(RunHit::found)
}

impl BminusVersion {
    /// Returns the value of `key`, as far as memory decides it.
    pub(in crate::engines::bminus) fn find_cached(
        &self,
        key: &[u8],
        guard: &Guard,
    ) -> Result<Looked> {
        let missing = Ok(Looked::OnDevice(Progress::default()));
        let directory = &self.parts.directory;
        let Some(place) = directory.node_of(key) else {
            return Ok(Looked::Answer(Answer::default()));
        };
        let listed = &directory.nodes[place];
        let Some(node) = self.shared.node_cache.in_memory(&listed.slot, guard) else {
            return missing;
        };
        let (region, home) = node.home_of(node.page_of(key));
        let changed = listed.facts.changed;
        let found =
            region.with_cached(home, &self.parts.view, changed, guard, |bytes| find_in(bytes, key));
        let Some(found) = found else { return missing };
        let found = found.map_err(|error| error.at(DATA_FILE, region.offset_of(home)))?;
        Ok(Looked::Answer(Answer { found, presence: region.presence(home, guard) }))
    }

    /// Returns the value of `key`. No guard is held during reads.
    pub(in crate::engines::bminus) fn find(&self, key: &[u8]) -> Result<Answer> {
        let Some(place) = self.parts.directory.node_of(key) else { return Ok(Answer::default()) };
        let listed = &self.parts.directory.nodes[place];
        let node = self.shared.node_cache.load_owned(&listed.slot)?;
        let page = node.page_of(key);
        let pages = NodePages::of(self, &node, &listed.facts);
        let mut wanted = vec![page];
        if self.storage().budget().is_ample() {
            let guard = self.storage().epochs().pin();
            let is_absent = |page: &usize| {
                let (region, home) = node.home_of(*page);
                region.presence(home, &guard) == Presence::Absent
            };
            let start = page - page % AHEAD_PAGES;
            let around = start..(start + AHEAD_PAGES).min(node.pages.len());
            wanted.extend(around.filter(|other| *other != page).filter(is_absent));
        }
        // Damage of the others is reported to their readers.
        let loaded = pages.load(&wanted, Reading::Lookup).into_iter().next();
        let Some(loaded) = loaded.transpose()? else { return Ok(Answer::default()) };
        let found = find_in(PageBytes::Whole(&loaded.page), key).map_err(|error| {
            let (region, home) = node.home_of(page);
            error.at(DATA_FILE, region.offset_of(home))
        })?;
        let presence = match loaded.heat {
            Some(_) => Presence::Settled,
            None => Presence::Absent,
        };
        Ok(Answer { found, presence })
    }

    /// Returns the values of `keys`, in the same order. Missing pages are read together.
    pub(in crate::engines::bminus) fn find_all(
        &self,
        keys: &[(&[u8], KeyHash)],
    ) -> Result<Vec<Answer>> {
        let mut look = |key: &[u8], _: KeyHash, guard: &Guard| self.find_cached(key, guard);
        look_many(self.storage(), keys, &mut look, &mut |rest, _, take| {
            for first in (0..rest.len()).step_by(ROUND_KEYS) {
                let last = (first + ROUND_KEYS).min(rest.len());
                self.find_round(&rest[first..last], &mut |index, answer| {
                    take(first + index, answer);
                })?;
            }
            Ok(())
        })
    }

    /// Finds the keys of a round: those in one node together.
    fn find_round(
        &self,
        keys: &[(&[u8], KeyHash)],
        take: &mut dyn FnMut(usize, Answer),
    ) -> Result<()> {
        let directory = &self.parts.directory;
        let mut by_node: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, (key, _)) in keys.iter().enumerate() {
            match directory.node_of(key) {
                Some(place) => by_node.entry(place).or_default().push(index),
                None => take(index, Answer::default()),
            }
        }
        for (place, indices) in by_node {
            let listed = &directory.nodes[place];
            let node: Arc<Node> = self.shared.node_cache.load_owned(&listed.slot)?;
            let of = |index: &usize| node.page_of(keys[*index].0);
            let mut wanted: Vec<usize> = indices.iter().map(of).collect();
            wanted.sort_unstable();
            wanted.dedup();
            let pages = NodePages::of(self, &node, &listed.facts);
            let loaded: Result<Vec<_>> = pages.load(&wanted, Reading::Lookup).into_iter().collect();
            let loaded = loaded?;
            for index in indices {
                let Ok(at) = wanted.binary_search(&of(&index)) else { continue };
                let found = find_in(PageBytes::Whole(&loaded[at].page), keys[index].0)?;
                let presence = match loaded[at].heat {
                    Some(_) => Presence::Settled,
                    None => Presence::Absent,
                };
                take(index, Answer { found, presence });
            }
        }
        Ok(())
    }
}
