//! Pages of a node, from the cache and from the device.
//!
//! Missing pages are read together. If a place of a home cannot be read, all pages of the node are,
//! and the sum of their stamps decides whether that place is needed (`pages/homes/mod.rs`).

use crate::base::error::{Error, Result};
use crate::base::ids::Generation;
use crate::base::limits::BLOCK_BYTES;
use crate::engines::bminus::counters::Counters;
use crate::engines::bminus::node::{Facts, Node};
use crate::engines::bminus::version::BminusVersion;
use crate::memory::budget::Use;
use crate::memory::buffers::BUFFER_BYTES;
use crate::pages::homes::{HeldStamps, HomeRead, View, Wanted, read_bytes, read_homes, sum_of};
use crate::storage::Storage;
use crate::storage::cache::{Heat, Priority};
use crate::storage::io::AlignedBuffer;
use crate::structure::events;

/// Pages that take at most this many bytes are read into small buffers.
const SMALL_BYTES: usize = 32 << 10;

/// How pages are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engines::bminus) enum Reading {
    /// For an absorb: cached pages are verified again, nothing is put into the cache.
    Merge,
    /// For a scan: pages that were read are cached for a short time.
    Scan,
    /// For a lookup.
    Lookup,
    /// To check what is on the device: around the cache, and whole homes.
    Device,
}

/// A page in memory.
pub(in crate::engines::bminus) struct Loaded {
    /// Its bytes, base and delta merged.
    pub page: Vec<u8>,
    /// The stamp of its image.
    pub stamp: Generation,
    /// The heat that it had in the cache.
    pub heat: Option<Heat>,
}

/// The pages of a node in one version.
#[derive(Clone, Copy)]
pub(in crate::engines::bminus) struct NodePages<'n> {
    pub storage: &'n Storage,
    pub counters: &'n Counters,
    pub held: &'n HeldStamps,
    pub view: &'n View,
    pub node: &'n Node,
    pub facts: &'n Facts,
}

impl<'n> NodePages<'n> {
    /// The pages of `node`, the node with these `facts` in `version`.
    pub fn of(version: &'n BminusVersion, node: &'n Node, facts: &'n Facts) -> Self {
        let (storage, counters) = (&**version.storage(), &version.shared.counters);
        let (held, view) = (&version.shared.held, &version.parts.view);
        Self { storage, counters, held, view, node, facts }
    }

    /// Reads pages, in the order given.
    pub fn load(&self, pages: &[usize], reading: Reading) -> Vec<Result<Loaded>> {
        let mut loaded: Vec<Option<Result<Loaded>>> = Vec::with_capacity(pages.len());
        let mut missing = Vec::new();
        for (at, page) in pages.iter().enumerate() {
            let cached = self.cached(*page, reading);
            if cached.is_none() {
                missing.push(at);
            }
            loaded.push(cached.map(Ok));
        }
        let mut rest = &missing[..];
        while !rest.is_empty() {
            let wanted: Vec<Wanted<'_>> =
                rest.iter().map(|at| self.wanted(pages[*at], reading)).collect();
            let mut bytes = 0;
            let fits = |wanted: &&Wanted<'_>| {
                bytes += read_bytes(wanted);
                bytes <= BUFFER_BYTES
            };
            let count = wanted.iter().take_while(fits).count().max(1);
            for (at, read) in rest.iter().zip(self.read_each(&wanted[..count])) {
                let page = pages[*at];
                loaded[*at] = Some(read.and_then(|read| self.believe(page, read, reading)));
            }
            rest = &rest[count..];
        }
        loaded.into_iter().flatten().collect()
    }

    /// Reads one page.
    pub fn load_one(&self, page: usize, reading: Reading) -> Result<Loaded> {
        let mut loaded = self.load(&[page], reading);
        loaded.pop().unwrap_or_else(|| Err(Error::internal("a page was not read")))
    }

    fn wanted(&self, page: usize, reading: Reading) -> Wanted<'n> {
        let (region, home) = self.node.home_of(page);
        let image = match reading {
            Reading::Device => None,
            _ => region.image(home, self.view, self.facts.changed),
        };
        Wanted { region, home, view: self.view, image }
    }

    /// Reads pages together; if the device fails, one by one, so that the error is that of a page.
    fn read_each(&self, wanted: &[Wanted<'_>]) -> Vec<Result<HomeRead>> {
        let one = |read: Result<Vec<Result<HomeRead>>>| {
            let none = || Err(Error::internal("a page was not read"));
            read.and_then(|mut read| read.pop().unwrap_or_else(none))
        };
        match self.read(wanted) {
            Ok(read) => read,
            Err(error) if wanted.len() == 1 => vec![Err(error)],
            Err(_) => wanted.chunks(1).map(|wanted| one(self.read(wanted))).collect(),
        }
    }

    fn read(&self, wanted: &[Wanted<'_>]) -> Result<Vec<Result<HomeRead>>> {
        let bytes: usize = wanted.iter().map(read_bytes).sum();
        let searched = wanted.iter().filter(|wanted| wanted.image.is_none()).count();
        events::add(&self.counters.found, searched as u64);
        events::add(&self.counters.read_bytes, bytes as u64);
        if (SMALL_BYTES + 1..=BUFFER_BYTES).contains(&bytes) {
            return read_homes(self.storage, wanted, &mut self.storage.buffers().take()?);
        }
        let _charge = self.storage.budget().charge(Use::Work, bytes as u64);
        read_homes(self.storage, wanted, &mut AlignedBuffer::new(bytes.max(BLOCK_BYTES)))
    }

    /// The cached page.
    fn cached(&self, page: usize, reading: Reading) -> Option<Loaded> {
        if reading == Reading::Device {
            return None;
        }
        let (region, home) = self.node.home_of(page);
        let image = region.image(home, self.view, self.facts.changed)?;
        let guard = self.storage.epochs().pin();
        let mut bytes = Vec::new();
        let heat = region.copy_cached(home, image.stamp, &mut bytes, &guard);
        if heat.is_none() && reading != Reading::Merge {
            region.count_miss(home);
        }
        heat.map(|heat| Loaded { page: bytes, stamp: image.stamp, heat: Some(heat) })
    }

    /// Takes a page from the device, unless the node shows that it is not the newest image.
    fn believe(&self, page: usize, read: HomeRead, reading: Reading) -> Result<Loaded> {
        if let Some(suspect) = read.suspect {
            self.settle(suspect)?;
        }
        let (region, home) = self.node.home_of(page);
        let newest = region.image(home, self.view, self.facts.changed);
        let is_newest = newest.is_some_and(|image| image.stamp == read.stamp);
        let priority = match reading {
            Reading::Scan => Some(Priority::Scan),
            Reading::Lookup => Some(Priority::Data),
            Reading::Merge | Reading::Device => None,
        };
        if let Some(priority) = priority.filter(|_| is_newest) {
            region.cache(self.storage, (home, read.stamp), &read.page, priority);
        }
        Ok(Loaded { page: read.page, stamp: read.stamp, heat: None })
    }

    /// Decides whether places that cannot be read are needed: fails with `suspect` if they are.
    /// Otherwise what was found is remembered, if no older version may need those places.
    pub fn settle(&self, suspect: Error) -> Result<()> {
        events::add(&self.counters.settled, 1);
        let all: Vec<usize> = (0..self.node.pages.len()).collect();
        let mut sum = 0_u64;
        let mut found = Vec::with_capacity(all.len());
        for chunk in all.chunks(8) {
            let wanted: Vec<_> =
                chunk.iter().map(|page| self.wanted(*page, Reading::Device)).collect();
            for (page, read) in chunk.iter().zip(self.read(&wanted)?) {
                let Ok(HomeRead { stamp, places, .. }) = read else { return Err(suspect) };
                let (region, home) = self.node.home_of(*page);
                sum = sum.wrapping_add(sum_of(region.number_of(home), stamp));
                found.extend(places.map(|places| (region, home, places)));
            }
        }
        if sum != self.facts.sum {
            return Err(suspect);
        }
        // An older version may need a place that cannot be read: then nobody may overwrite it.
        if !self.held.any_in(Generation(0)..self.view.stamp) {
            for (region, home, places) in found {
                region.learn(home, places, self.view);
            }
        }
        Ok(())
    }
}
