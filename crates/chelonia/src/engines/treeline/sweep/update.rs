//! Sweeping staged updates into the groups of a node.
//!
//! ```text
//!   updates      a b     f          m n o p q r s t ...
//!   groups       [ A      ][ B    ][ C         ][ D  ]
//!                2 pages   stays   rewritten    stays
//! ```
//!
//! A group with few updated pages is updated in place: these pages are read, merged, and written to
//! free slots. A page that became too large is divided, if the group has slots for that. A group
//! with more updated pages than free slots is rewritten, together with what follows while that is
//! small [4.5].

use super::build::GroupBuilder;
use super::change::Change;
use super::updates::{GroupUpdates, Recorded, SinkingUpdates, StagedStream, Upcoming};
use crate::base::error::{Error, Result};
use crate::base::ids::BlockNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::{LargeRef, SortedStream, Update};
use crate::engines::treeline::config::TreelineConfig;
use crate::engines::treeline::forecast::{Histogram, Met};
use crate::engines::treeline::node::{Item, Listed};
use crate::engines::treeline::output::Output;
use crate::merge::{Merge, Tombstones};
use crate::pages::{Group, LoadedPages, PageBuilder, PageStream, Reading};
use crate::run::Totals;
use crate::runtime::sync::{Arc, Ordering};
use crate::storage::block::BLOCK_PAYLOAD_BYTES;
use crate::storage::data_file::BlockWrite;
use crate::structure::{SharedKey, events};
use std::collections::BTreeSet;
use std::ops::Range;

/// Updates that are divided among the pages of a group; with more of them it is rewritten.
const BATCH_BYTES: usize = 64 << 10;

/// A group whose entries weigh less than this part of a full one is joined with its neighbor.
const SMALL_PART: usize = 4;

/// A page that became too large is divided into pages filled to this percentage.
const DIVIDED_PERCENT: usize = 60;

/// The result of the sweep of one node.
#[derive(Default)]
pub(in crate::engines::treeline) struct Swept {
    /// Its groups; `None` if there were no updates.
    pub items: Option<Vec<Item>>,
    /// Large values read; those of them that were written again are in `written`.
    pub consumed: BTreeSet<LargeRef>,
    pub written: Vec<LargeRef>,
    /// Large values of staged runs that were read, by the first block of the run.
    pub counts: Vec<(BlockNo, u64)>,
    /// The inserts of each group.
    pub met: Vec<Met>,
}

/// The sweep of one node.
pub(in crate::engines::treeline) struct NodeSweep<'o, 't> {
    output: &'o Output<'t>,
    config: TreelineConfig,
    builder: GroupBuilder<'o, 't>,
    page: PageBuilder,
    batch: GroupUpdates,
    swept: Swept,
    bytes_read: u64,
}

impl<'o, 't> NodeSweep<'o, 't> {
    pub fn new(output: &'o Output<'t>, config: TreelineConfig, forecast: Arc<Histogram>) -> Self {
        Self {
            output,
            config,
            builder: GroupBuilder::new(output, config, forecast),
            page: PageBuilder::new(),
            batch: GroupUpdates::default(),
            swept: Swept::default(),
            bytes_read: 0,
        }
    }

    /// Sweeps `sources`, the sinking updates within the node's range, newest first, into the groups
    /// of `node`; without a node, into new groups.
    pub fn run(mut self, node: Option<&Listed>, sources: Vec<StagedStream>) -> Result<Swept> {
        if sources.iter().all(|source| source.key().is_none()) {
            return Ok(self.swept);
        }
        let mut updates = Merge::new(sources, Direction::Ascending, Tombstones::Keep)?;
        let items = match node {
            Some(node) => self.output.node_cache.load_owned(&node.slot)?.items.clone(),
            None => Vec::new(),
        };
        for (index, item) in items.iter().enumerate() {
            let upper = items.get(index + 1).map(|next| &next.first);
            let (first, entries) = (item.first.to_bytes().into(), item.group.totals.entries);
            self.swept.met.push(Met { first, entries, inserts: 0 });
            self.item(item, upper, &mut updates)?;
        }
        if items.is_empty() {
            self.builder.begin(&SharedKey::LEAST);
            let all = Upcoming {
                batch: &GroupUpdates::default(),
                at: 0..0,
                more: Some((&mut updates, None)),
            };
            rewrite(&mut self.builder, all, None)?;
        }
        for source in updates.into_sources() {
            self.swept.consumed.extend(source.large);
            self.swept.counts.extend(source.counts);
            self.bytes_read += source.bytes_read;
        }
        self.swept.items = Some(self.builder.finish()?);
        self.swept.written.append(&mut self.builder.written);
        self.output.counters.read_bytes.fetch_add(self.bytes_read, Ordering::Relaxed);
        Ok(self.swept)
    }

    /// Sweeps the updates below `upper` into one group.
    fn item(
        &mut self,
        item: &Item,
        upper: Option<&SharedKey>,
        updates: &mut SinkingUpdates,
    ) -> Result<()> {
        let group = &*item.group;
        let mut batch = std::mem::take(&mut self.batch);
        let is_all = batch.fill(updates, upper, BATCH_BYTES)?;
        if is_all && batch.len() == 0 {
            self.batch = batch;
            let bytes = bytes_of(group.totals);
            let small = self.small_group(group);
            let joins = self.builder.is_open()
                && (self.builder.open_bytes() < small || bytes < small)
                && self.builder.open_bytes() + bytes <= self.full_group(group);
            if !joins {
                return self.builder.push(item.clone());
            }
            events::add(&self.output.counters.joined, 1);
            let nothing = Upcoming { batch: &GroupUpdates::default(), at: 0..0, more: None };
            return self.rewrite_group(item, nothing);
        }
        if is_all && let Some(next) = self.in_place(item, &batch)? {
            self.batch = batch;
            return match next {
                Some(group) => {
                    self.builder.push(Item { first: item.first.clone(), group: Arc::new(group) })
                }
                None => {
                    events::add(&self.output.counters.emptied, 1);
                    Ok(())
                }
            };
        }
        let full = self.config.pages_of(group.place.page_blocks() as usize);
        self.builder.want_pages(full);
        if is_all {
            // Groups of similar size, rather than full ones and a small one.
            let fill = self.config.fill_bytes(group.place.page_blocks() as usize);
            let open = self.builder.open_bytes();
            let pages = (open + bytes_of(group.totals) + batch.bytes()).div_ceil(fill.max(1));
            self.builder.want_pages(pages.div_ceil(pages.div_ceil(full).max(1)) + 1);
        }
        let (at, more) = (0..batch.len(), (!is_all).then_some((updates, upper)));
        self.rewrite_group(item, Upcoming { batch: &batch, at, more })?;
        self.batch = batch;
        Ok(())
    }

    /// Bytes of entries in a full group with pages like those of `group`.
    fn full_group(&self, group: &Group) -> usize {
        let blocks = group.place.page_blocks() as usize;
        self.config.pages_of(blocks) * self.config.fill_bytes(blocks)
    }

    /// Bytes of entries up to which a group is small. Lines may end after any page, so groups with
    /// them are small only with less than a page.
    fn small_group(&self, group: &Group) -> usize {
        let blocks = group.place.page_blocks() as usize;
        match self.config.epsilon_percent {
            0 => self.full_group(group) / SMALL_PART,
            _ => self.config.fill_bytes(blocks) / SMALL_PART,
        }
    }

    /// Merges all pages of a group with its updates into new groups.
    fn rewrite_group(&mut self, item: &Item, updates: Upcoming<'_>) -> Result<()> {
        let storage = self.output.storage();
        let group = &*item.group;
        let loaded = LoadedPages::read(storage, group, 0..group.slots.len(), Reading::Merge)?;
        self.bytes_read += loaded.bytes_read();
        let loaded = Arc::new(loaded);
        self.builder.begin(&item.first);
        let all = Arc::new(KeyRange::all());
        let count = loaded.count();
        let pages = PageStream::new(&loaded, 0..count, &all, Direction::Ascending)?;
        let (large, inserts) = rewrite(&mut self.builder, updates, Some((pages, &loaded)))?;
        self.note_inserts(inserts);
        self.swept.consumed.extend(large);
        self.output.lose([group.owned()]);
        Ok(())
    }

    /// Updates the pages of a group in free slots: the next version of the group, or nothing if it
    /// has no entries any more. `None` if the group has to be rewritten.
    fn in_place(&mut self, item: &Item, batch: &GroupUpdates) -> Result<Option<Option<Group>>> {
        let group = &*item.group;
        let storage = self.output.storage();
        let touched = touched_pages(item, batch);
        let free = group.free_slots(storage);
        if touched.len() > free.len() {
            return Ok(None);
        }
        let pages = touched.iter().map(|(page, _)| *page);
        let loaded = Arc::new(LoadedPages::read(storage, group, pages, Reading::Merge)?);
        self.bytes_read += loaded.bytes_read();
        let mut change = Change::new(storage, group, free.len())?;
        let mut inserts = 0;
        for (at, (page, ranks)) in touched.iter().enumerate() {
            if !self.merge_page(&mut change, (&loaded, at, *page), batch, ranks)? {
                return Ok(None);
            }
            if page + 1 < group.slots.len() {
                inserts = change.inserts();
            }
        }
        let left = group.slots.len() - touched.len() + change.images.len();
        if left == 0 {
            self.output.lose([group.owned()]);
            self.swept.consumed.append(&mut change.consumed);
            return Ok(Some(None));
        }
        if bytes_of(change.totals_of(group)) <= self.small_group(group) && left < group.slots.len()
        {
            // So small by deletes that it may be joined.
            return Ok(None);
        }
        self.note_inserts(inserts);
        let next = self.write_pages(item, &touched, change, &free)?;
        Ok(Some(Some(next)))
    }

    /// Adds to the inserts of the group that is swept.
    fn note_inserts(&mut self, inserts: u64) {
        if let Some(met) = self.swept.met.last_mut() {
            met.inserts += inserts;
        }
    }

    /// Merges one page with its updates; false if the group has no slots for the result.
    fn merge_page(
        &mut self,
        change: &mut Change,
        (loaded, at, page): (&Arc<LoadedPages>, usize, usize),
        batch: &GroupUpdates,
        ranks: &Range<usize>,
    ) -> Result<bool> {
        let blocks = change.page_blocks;
        let whole = blocks * BLOCK_PAYLOAD_BYTES;
        let first_image = change.images.len();
        for bytes_max in [whole, whole * DIVIDED_PERCENT / 100] {
            let all = Arc::new(KeyRange::all());
            let old = PageStream::new(loaded, at..at + 1, &all, Direction::Ascending)?;
            let old = Recorded::new(Source::Page(Box::new(old)));
            let new = Upcoming { batch, at: ranks.clone(), more: None };
            let new = Recorded::new(Source::Updates(new));
            let mut merge = Merge::new(vec![new, old], Direction::Ascending, Tombstones::Drop)?;
            self.page.clear();
            let mut fits = true;
            let mut written = Vec::new();
            while let Some(key) = merge.key() {
                let update = merge.update();
                if !self.page.add((blocks, bytes_max), key, update)? {
                    if bytes_max == whole {
                        fits = false;
                        break;
                    }
                    // The first entry may take more than a part of a divided page by itself.
                    let is_closed = self.page.is_empty()
                        || change.close(&mut self.page, page, loaded.heat(at))?;
                    if !is_closed || !self.page.add((blocks, whole), key, update)? {
                        return Ok(false);
                    }
                }
                written.extend(update.large());
                merge.advance()?;
            }
            if !fits {
                continue;
            }
            if !self.page.is_empty() && !change.close(&mut self.page, page, loaded.heat(at))? {
                return Ok(false);
            }
            if change.images.len() > first_image + 1 {
                change.splits += 1;
            }
            let old = merge.into_sources().pop();
            let old = old.ok_or_else(|| Error::internal("a merge lost a source"))?;
            change.lost_totals += old.totals;
            change.lost_large += u32::try_from(old.large.len()).unwrap_or(u32::MAX);
            change.consumed.extend(old.large);
            change.written.append(&mut written);
            return Ok(true);
        }
        Ok(false)
    }

    /// Writes the images of a change to free slots.
    fn write_pages(
        &mut self,
        item: &Item,
        touched: &[(usize, Range<usize>)],
        mut change: Change,
        free: &[u8],
    ) -> Result<Group> {
        let group = &*item.group;
        let storage = self.output.storage();
        let generation = storage.new_generation()?;
        let bytes = change.page_blocks * BLOCK_BYTES;
        let images = change.bytes.bytes_mut().chunks_exact_mut(bytes).take(change.images.len());
        let writes = images.zip(free).map(|(blocks, slot)| {
            group.place.rewritten(*slot, generation);
            BlockWrite { first: group.place.number_of(*slot), generation, blocks }
        });
        let mut writes: Vec<BlockWrite<'_>> = writes.collect();
        storage.write_many(&mut writes)?;
        let data = (change.images.len() * bytes) as u64;
        self.output.counters.data_bytes.fetch_add(data, Ordering::Relaxed);
        events::add(&self.output.counters.in_place, change.images.len() as u64);
        events::add(&self.output.counters.splits, change.splits);
        let guard = storage.epochs().pin();
        for ((image, slot), index) in change.images.iter().zip(free).zip(0..) {
            let Some(heat) = image.heat else { continue };
            let first = group.place.block_of(*slot);
            let image = &change.bytes.bytes()[index * bytes..(index + 1) * bytes];
            let image = image.chunks_exact(BLOCK_BYTES);
            for (block, bytes) in (first..).zip(image) {
                group.place.cached().insert(block, bytes, heat, &guard);
            }
        }
        drop(guard);
        let next = change.group(item, touched, free);
        self.output.lose(touched.iter().map(|(page, _)| group.owned_page(*page)));
        self.swept.consumed.append(&mut change.consumed);
        self.swept.written.append(&mut change.written);
        Ok(next)
    }
}

/// A source of the merge of a page.
enum Source<'b> {
    Page(Box<PageStream>),
    Updates(Upcoming<'b>),
}

impl SortedStream for Source<'_> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            Source::Page(stream) => stream.key(),
            Source::Updates(stream) => stream.key(),
        }
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        match self {
            Source::Page(stream) => stream.update(),
            Source::Updates(stream) => stream.update(),
        }
    }

    fn advance(&mut self) -> Result<()> {
        match self {
            Source::Page(stream) => stream.advance(),
            Source::Updates(stream) => stream.advance(),
        }
    }
}

/// Approximate bytes of entries as they are laid out.
fn bytes_of(totals: Totals) -> usize {
    usize::try_from(totals.weight()).unwrap_or(usize::MAX / 2)
}

/// Merges `updates` with pages into `builder`; returns the large values of the pages, and the
/// number of new entries before the last entry of the pages.
fn rewrite(
    builder: &mut GroupBuilder<'_, '_>,
    updates: Upcoming<'_>,
    pages: Option<(PageStream, &Arc<LoadedPages>)>,
) -> Result<(Vec<LargeRef>, u64)> {
    let mut sources = vec![Recorded::new(Source::Updates(updates))];
    let loaded = pages.as_ref().map(|(_, loaded)| Arc::clone(loaded));
    sources.extend(pages.map(|(pages, _)| Recorded::new(Source::Page(Box::new(pages)))));
    // The heat of a page is that of the first page in it.
    let mut heats = loaded.iter().flat_map(|loaded| (0..loaded.count()).map(|at| loaded.heat(at)));
    let mut heat = heats.next().flatten();
    let mut merge = Merge::new(sources, Direction::Ascending, Tombstones::Drop)?;
    let (mut entries, mut inserts, mut old) = (0_u64, 0, 0);
    while let Some(key) = merge.key() {
        builder.add(key, merge.update(), heat)?;
        merge.advance()?;
        entries += 1;
        if let Some(Recorded { stream: Source::Page(pages), totals, .. }) = merge.sources().last()
            && let Some(loaded) = &loaded
        {
            heat = loaded.heat(pages.page());
            if totals.entries > old {
                (old, inserts) = (totals.entries, entries.saturating_sub(totals.entries));
            }
        }
    }
    let large = merge.into_sources().pop().map(|source| source.large);
    Ok((loaded.and(large).unwrap_or_default(), inserts))
}

/// The pages of a group that have updates, with the ranks of these.
fn touched_pages(item: &Item, batch: &GroupUpdates) -> Vec<(usize, Range<usize>)> {
    let mut touched: Vec<(usize, Range<usize>)> = Vec::new();
    for rank in 0..batch.len() {
        let page = item.group.bounds.page_of(&item.first, batch.key(rank));
        match touched.last_mut() {
            Some((last, ranks)) if *last == page => ranks.end = rank + 1,
            _ => touched.push((page, rank..rank + 1)),
        }
    }
    touched
}
