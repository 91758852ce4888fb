//! Builds groups: takes entries in key order, fills pages, writes groups of them.
//!
//! Pages are filled one after the other, and found by bounds; or, with an `epsilon_percent`,
//! entries are collected until a group is full, and divided along a line (`place.rs`).

use super::place::{Sizes, payload_len, place};
use super::updates::GroupUpdates;
use crate::base::error::{Error, Result};
use crate::base::keys::separator;
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::{LargeRef, Update};
use crate::engines::treeline::config::TreelineConfig;
use crate::engines::treeline::forecast::Histogram;
use crate::engines::treeline::node::Item;
use crate::engines::treeline::output::Output;
use crate::memory::budget::Use;
use crate::memory::slab::OwnedPages;
use crate::pages::{Bounds, Group, Line, PageBuilder, Place, blocks_of_page};
use crate::run::Totals;
use crate::runtime::sync::{Arc, Ordering};
use crate::storage::block::BLOCK_PAYLOAD_BYTES;
use crate::storage::cache::Heat;
use crate::structure::{SharedKey, events};

/// Maximum bytes of the bounds of a group: a group with long keys ends early.
const BOUNDS_BYTES_MAX: usize = 16 << 10;

/// A group under construction, and the finished ones.
pub(in crate::engines::treeline) struct GroupBuilder<'o, 't> {
    output: &'o Output<'t>,
    config: TreelineConfig,
    forecast: Arc<Histogram>,
    /// Bytes of entries in the open page.
    fill: usize,
    /// Finished groups, in key order.
    items: Vec<Item>,
    is_open: bool,
    page: PageBuilder,
    /// Blocks of a page of the open group.
    page_blocks: usize,
    /// Maximum pages of the open group.
    pages_max: usize,
    /// Maximum pages of the groups opened from now on.
    pages_wanted: usize,
    /// Images of its closed pages.
    images: Option<OwnedPages>,
    pages: usize,
    /// Its lower bound, and those of its further closed pages.
    first: SharedKey,
    bounds: Vec<Vec<u8>>,
    bounds_bytes: usize,
    /// The last key of the closed page before.
    last_key: Vec<u8>,
    totals: Totals,
    large: u32,
    /// For each page, the greatest heat that pages had from which its entries came.
    heats: Vec<Option<Heat>>,
    heat: Option<Heat>,
    /// The lower bound of the next group, if it is known: of what is rewritten.
    next_first: Option<SharedKey>,
    /// Entries to be divided along a line, with the heats of the pages they come from.
    waiting: GroupUpdates,
    waiting_heats: Vec<Option<Heat>>,
    /// Bytes of them from which on a group is written.
    waiting_max: usize,
    /// The line of the group that is closed next.
    line: Option<Line>,
    /// Large values written to pages.
    pub written: Vec<LargeRef>,
}

impl<'o, 't> GroupBuilder<'o, 't> {
    /// Creates a builder without groups.
    pub fn new(output: &'o Output<'t>, config: TreelineConfig, forecast: Arc<Histogram>) -> Self {
        Self {
            output,
            config,
            forecast,
            fill: 0,
            items: Vec::new(),
            is_open: false,
            page: PageBuilder::new(),
            page_blocks: 1,
            pages_max: config.group_pages,
            pages_wanted: config.group_pages,
            images: None,
            pages: 0,
            first: SharedKey::LEAST,
            bounds: Vec::new(),
            bounds_bytes: 0,
            last_key: Vec::new(),
            totals: Totals::default(),
            large: 0,
            heats: Vec::new(),
            heat: None,
            next_first: None,
            waiting: GroupUpdates::default(),
            waiting_heats: Vec::new(),
            waiting_max: 0,
            line: None,
            written: Vec::new(),
        }
    }

    /// True if a group is open.
    pub fn is_open(&self) -> bool {
        self.is_open || self.waiting.len() > 0
    }

    /// Bytes of entries in the open group.
    pub fn open_bytes(&self) -> usize {
        let filled = self.pages * self.config.fill_bytes(self.page_blocks);
        filled + self.page.used_bytes() + self.waiting.bytes()
    }

    /// Begins to rewrite what begins at `first`, if no group is open. The next group then begins
    /// there.
    pub fn begin(&mut self, first: &SharedKey) {
        if !self.is_open() {
            self.next_first = Some(first.clone());
        }
    }

    /// Adds an entry that came from a page with this heat, if from any.
    pub fn add(&mut self, key: &[u8], update: Update<'_>, heat: Option<Heat>) -> Result<()> {
        if let Update::PutLarge(large) = update {
            self.written.push(large);
        }
        if self.config.epsilon_percent > 0 {
            if self.waiting.len() == 0 {
                // A page more than a group, so that only the last group of all is not full.
                let blocks = blocks_of_page(key.len(), payload_len(&update));
                self.waiting_max = (self.config.pages_of(blocks) + 1) * blocks * BLOCK_BYTES;
            }
            self.waiting.push(key, update);
            self.waiting_heats.push(heat);
            if self.waiting.bytes() > self.waiting_max {
                self.place_group(false)?;
            }
            return Ok(());
        }
        if !self.is_open {
            self.open(key, &update)?;
        }
        if !self.page.add((self.page_blocks, self.fill), key, update)? {
            if !self.page.is_empty() {
                self.close_page()?;
                if self.pages >= self.pages_max || self.bounds_bytes > BOUNDS_BYTES_MAX {
                    self.close()?;
                    self.next_first = Some(self.bound_of(key));
                }
            }
            self.add_first(key, update)?;
        }
        self.heat = self.heat.max(heat);
        Ok(())
    }

    /// Divides the first of the waiting entries among the pages of a group, and writes it.
    fn place_group(&mut self, is_last: bool) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.open(waiting.key(0), &waiting.update(0))?;
        let whole = self.page_blocks * BLOCK_PAYLOAD_BYTES;
        let sizes = Sizes {
            pages_max: self.pages_max,
            goal: self.fill,
            epsilon: whole * self.config.epsilon_percent / 100,
        };
        let placed = place(&self.first, &waiting, sizes, is_last);
        let mut taken = 0;
        'pages: for count in placed.pages {
            let start = taken;
            for index in start..start + count {
                let (key, update) = (waiting.key(index), waiting.update(index));
                if !self.page.add((self.page_blocks, whole), key, update)? {
                    if self.pages == 0 {
                        // A page of its own, with what fits.
                        taken = index;
                        self.close_page()?;
                    } else {
                        self.page.clear();
                        self.heat = None;
                    }
                    break 'pages;
                }
                self.heat = self.heat.max(self.waiting_heats[index]);
            }
            taken = start + count;
            self.close_page()?;
        }
        if taken == 0 {
            return Err(Error::internal("no entry fits the page of a group"));
        }
        self.line = placed.line.and_then(|line| line.cut(&self.first, self.pages));
        self.write_group()?;
        self.waiting = waiting;
        self.waiting.remove_first(taken);
        self.waiting_heats.drain(..taken);
        Ok(())
    }

    /// Adds the first entry of a page, which may fill it completely, or needs larger pages.
    fn add_first(&mut self, key: &[u8], update: Update<'_>) -> Result<()> {
        let whole = |blocks: usize| (blocks, blocks * BLOCK_PAYLOAD_BYTES);
        if self.is_open {
            self.begin_page(key);
            if self.page.add(whole(self.page_blocks), key, update)? {
                return Ok(());
            }
            self.close()?;
            self.next_first = Some(self.bound_of(key));
        }
        self.open(key, &update)?;
        if self.page.add(whole(self.page_blocks), key, update)? {
            return Ok(());
        }
        Err(Error::internal("an entry does not fit a page of its own"))
    }

    /// Begins a page at `key`: it has less where inserts are expected.
    fn begin_page(&mut self, key: &[u8]) {
        let TreelineConfig { fill_percent, forecast_rounds, .. } = self.config;
        let percent = self.forecast.fill_percent(key, forecast_rounds, fill_percent);
        if percent < fill_percent {
            events::add(&self.output.counters.spaced, 1);
        }
        self.fill =
            TreelineConfig { fill_percent: percent, ..self.config }.fill_bytes(self.page_blocks);
    }

    fn bound_of(&self, key: &[u8]) -> SharedKey {
        SharedKey::whole(&separator(&self.last_key, key))
    }

    /// Opens a group for records like this one.
    fn open(&mut self, key: &[u8], update: &Update<'_>) -> Result<()> {
        self.is_open = true;
        self.page_blocks = blocks_of_page(key.len(), payload_len(update));
        self.begin_page(key);
        self.pages_max = self.config.pages_of(self.page_blocks).min(self.pages_wanted);
        let bytes = self.pages_max * self.page_blocks * BLOCK_BYTES;
        let held = self.images.as_ref().map_or(0, |images| images.bytes().len());
        if held < bytes {
            self.images = None;
            let budget = self.output.storage().budget();
            let images = OwnedPages::take(bytes, budget, Use::Work);
            self.images = Some(images.ok_or_else(Error::out_of_memory)?);
        }
        self.first = match self.next_first.take() {
            Some(first) => first,
            None => self.bound_of(key),
        };
        Ok(())
    }

    fn close_page(&mut self) -> Result<()> {
        if self.pages > 0 {
            let bound = separator(&self.last_key, self.page.first_key().unwrap_or_default());
            self.bounds_bytes += bound.len();
            self.bounds.push(bound);
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(self.page.last_key().unwrap_or_default());
        let (totals, large) = self.page.totals();
        self.totals += totals;
        self.large += large;
        self.heats.push(self.heat.take());
        let bytes = self.page_blocks * BLOCK_BYTES;
        let start = self.pages * bytes;
        let images = self.images.as_mut().map(OwnedPages::bytes_mut).unwrap_or_default();
        self.page.lay_out(&mut images[start..start + bytes])?;
        self.pages += 1;
        Ok(())
    }

    /// Writes the open group, if there is one, and waiting entries.
    pub fn close(&mut self) -> Result<()> {
        while self.waiting.len() > 0 {
            self.place_group(true)?;
        }
        if !self.page.is_empty() {
            self.close_page()?;
        }
        self.write_group()
    }

    /// Writes the group of the closed pages, if there are any.
    fn write_group(&mut self) -> Result<()> {
        self.is_open = false;
        if self.pages == 0 {
            return Ok(());
        }
        let page_blocks = u32::try_from(self.page_blocks).unwrap_or(u32::MAX);
        let slots = u32::try_from(TreelineConfig::slots_of(self.pages)).unwrap_or(u32::MAX);
        let storage = self.output.storage();
        let allocation = storage.allocate(slots * page_blocks, self.output.quota)?;
        let (extent, generation) = (allocation.extent, allocation.generation);
        let place = Place::open(storage, extent, generation, page_blocks);
        let group = Group {
            place,
            slots: (0..self.pages).filter_map(|slot| u8::try_from(slot).ok()).collect(),
            bounds: match self.line.take() {
                Some(line) => Bounds::Line(line),
                None => Bounds::new(&self.first, &self.bounds),
            },
            totals: self.totals,
            large: self.large,
        };
        self.output.gain([group.owned()]);
        let bytes = self.pages * self.page_blocks * BLOCK_BYTES;
        let images = self.images.as_mut().map(OwnedPages::bytes_mut).unwrap_or_default();
        storage.write_blocks(extent.start, generation, &mut images[..bytes])?;
        self.output.counters.data_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let guard = storage.epochs().pin();
        for (page, heat) in self.heats.iter().enumerate() {
            let Some(heat) = *heat else { continue };
            let start = page * self.page_blocks * BLOCK_BYTES;
            let first = group.place.block_of(group.slots[page]);
            let image = images[start..].chunks_exact(BLOCK_BYTES).take(self.page_blocks);
            for (block, bytes) in (first..).zip(image) {
                group.place.cached().insert(block, bytes, heat, &guard);
            }
        }
        drop(guard);
        let first = std::mem::replace(&mut self.first, SharedKey::LEAST);
        self.items.push(Item { first, group: Arc::new(group) });
        events::add(&self.output.counters.rewritten, 1);
        events::add(&self.output.counters.single, u64::from(self.pages == 1));
        (self.pages, self.totals, self.large, self.bounds_bytes) = (0, Totals::default(), 0, 0);
        self.bounds.clear();
        self.heats.clear();
        Ok(())
    }

    /// Closes the open group and adds a finished one behind it.
    pub fn push(&mut self, item: Item) -> Result<()> {
        self.close()?;
        self.items.push(item);
        Ok(())
    }

    /// Sets the maximum number of pages of the groups opened from now on, so that groups written
    /// together have similar sizes.
    pub fn want_pages(&mut self, pages: usize) {
        self.pages_wanted = pages.max(1);
    }

    /// Writes the open group, and takes all groups.
    pub fn finish(&mut self) -> Result<Vec<Item>> {
        self.close()?;
        Ok(std::mem::take(&mut self.items))
    }
}
