//! Absorbing updates into the pages of one node.
//!
//! ```text
//!   updates    a b     f          m n o p q r s t ...
//!   pages      [ A   ][ B    ][ C        ][ D  ]
//!              delta   stays   divided     joined with the next one, if it is small
//! ```
//!
//! Pages are gone through in key order, one of them *open*: it is written when it is known that the
//! next one is not joined with it. On a nearly full device pages are packed: what does not fit into
//! a page goes to the next ones, until there is space for it.

use super::homes::Homes;
use super::learned::Learned;
use super::merged::Merged;
use super::open::{HomeAt, OpenPage};
use super::{Context, PACKED_PERCENT, sum_of_home};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Generation};
use crate::base::keys::separator;
use crate::base::stream::SortedUpdates;
use crate::engine::OwnedExtent;
use crate::engines::bminus::node::{Facts, Listed, Node};
use crate::engines::bminus::read::pages::{Loaded, NodePages, Reading};
use crate::pages::homes::slotted::{blocks_for, page_bytes, taken_bytes};
use crate::pages::homes::{Changed, Image, Page, PageBytes, PageMut, Region, Writes};
use crate::run::Totals;
use crate::runtime::sync::Arc;
use crate::structure::{SharedKey, events};
use std::collections::BTreeMap;
use std::ops::Range;

/// Number of pages that are read together.
const READ_PAGES: usize = 16;

/// A page with less than this part of its room is small, and is joined with the next one.
const SMALL_PART: usize = 4;

/// A page of the node as it will be.
pub(super) struct Entry {
    pub first: SharedKey,
    pub region: Arc<Region>,
    pub home: u8,
    /// Totals, large values and stamp, if the page was read or written.
    pub known: Option<(Totals, u32, Generation)>,
}

/// The absorb of one node.
pub(super) struct NodeAbsorb<'a> {
    pub context: &'a Context<'a>,
    pub before: Option<(&'a Listed, &'a Node)>,
    /// True if that node was in memory before this absorb.
    pub is_hot: bool,
    pub homes: Homes<'a>,
    pub writes: Writes,
    pub entries: Vec<Entry>,
    /// Images written by this absorb, by the first block of the home.
    pub images: BTreeMap<BlockNo, Image>,
    pub learned: Learned,
    /// The least key that belongs to the node.
    pub first: SharedKey,
    open: Option<OpenPage>,
    scratch: Vec<u8>,
    /// Number of pages that are about to be made.
    pub expected: usize,
    /// Sums over the pages that were not read.
    rest: Rest,
}

/// Totals, large values and sum of the pages of a node that were not read.
#[derive(Clone, Copy, Default)]
pub(super) struct Rest {
    pub totals: Totals,
    pub large: u32,
    pub sum: u64,
}

impl<'a> NodeAbsorb<'a> {
    /// Creates the absorb of `before`, which `is_hot` if it was in memory; without it there are no
    /// pages yet.
    pub fn new(
        context: &'a Context<'a>,
        first: SharedKey,
        before: Option<(&'a Listed, &'a Node)>,
        is_hot: bool,
    ) -> Result<Self> {
        let node = before.map(|(_, node)| node);
        let newest = (context.newest, context.held);
        let facts = before.map(|(listed, _)| listed.facts);
        let rest = facts.map(|Facts { totals, large, sum, .. }| Rest { totals, large, sum });
        Ok(Self {
            context,
            before,
            is_hot,
            homes: Homes::new(context.output, (context.budget, context.stamp), newest, node),
            writes: context.writes()?,
            entries: Vec::new(),
            images: BTreeMap::new(),
            learned: Learned::default(),
            first,
            open: None,
            scratch: Vec::new(),
            expected: 0,
            rest: rest.unwrap_or_default(),
        })
    }

    /// Sums over the pages that were not read.
    pub fn rest(&self) -> Rest {
        self.rest
    }

    fn is_packing(&self) -> bool {
        self.context.is_packing
    }

    /// The pages of the node as it was.
    pub fn pages_of_node(&self) -> Option<NodePages<'a>> {
        let (listed, node) = self.before?;
        Some(self.context.pages_of(listed, node))
    }

    /// Absorbs the updates of these ranks; packing without updates goes through all pages.
    pub fn run(&mut self, updates: &dyn SortedUpdates, ranks: Range<usize>) -> Result<()> {
        let Some((_, node)) = self.before else {
            let bytes = page_bytes(self.context.config.page_blocks);
            let empty = OpenPage::empty(self.first.clone(), bytes, None);
            self.divide(&empty, updates, ranks)?;
            return self.close();
        };
        let touched = match ranks.is_empty() {
            true => (0..node.pages.len()).map(|page| (page, 0..0)).collect(),
            false => touched_pages(node, updates, ranks),
        };
        let mut done = 0;
        for chunk in touched.chunks(READ_PAGES) {
            let pages: Vec<usize> = chunk.iter().map(|(page, _)| *page).collect();
            let Some(of_node) = self.pages_of_node() else { return Ok(()) };
            let loaded = of_node.load(&pages, Reading::Merge);
            for ((page, ranks), loaded) in chunk.iter().zip(loaded) {
                self.pass(node, done..*page)?;
                let open = self.begin(node, *page, loaded?)?;
                self.update(open, updates, ranks.clone())?;
                done = page + 1;
            }
        }
        self.pass(node, done..node.pages.len())?;
        self.close()
    }

    /// Begins to change a page that was read.
    fn begin(&mut self, node: &Node, page: usize, loaded: Loaded) -> Result<OpenPage> {
        let (totals, large) = Page::parse(PageBytes::Whole(&loaded.page))?.totals();
        let (region, home) = node.home_of(page);
        let origin = (Arc::clone(region), home);
        self.take_from_rest((totals, large), &origin, loaded.stamp)?;
        Ok(OpenPage::loaded(node.pages[page].first.clone(), origin, loaded))
    }

    /// Takes a page that was read out of what the rest of the node has.
    pub fn take_from_rest(
        &mut self,
        (totals, large): (Totals, u32),
        (region, home): &HomeAt,
        stamp: Generation,
    ) -> Result<()> {
        let rest = &mut self.rest;
        let less = |whole: u64, part: u64| {
            let text = "a page has more than its node: a write is lost, or a page forged";
            whole.checked_sub(part).ok_or_else(|| Error::corrupt(text))
        };
        rest.totals.entries = less(rest.totals.entries, totals.entries)?;
        rest.totals.bytes = less(rest.totals.bytes, totals.bytes)?;
        rest.large = u32::try_from(less(u64::from(rest.large), u64::from(large))?).unwrap_or(0);
        rest.sum = rest.sum.wrapping_sub(sum_of_home(region, *home, stamp));
        Ok(())
    }

    /// Goes over pages without updates.
    fn pass(&mut self, node: &Node, pages: Range<usize>) -> Result<()> {
        for page in pages {
            if let Some(open) = &self.open {
                let room = self.context.config.page_room();
                let is_small = open.count() > 0 && open.live_bytes() < room / SMALL_PART;
                let needs_space = self.is_packing() && open.origin.is_none();
                let Some(of_node) = self.pages_of_node() else { return Ok(()) };
                if is_small || needs_space {
                    let loaded = of_node.load_one(page, Reading::Merge)?;
                    let next = self.begin(node, page, loaded)?;
                    self.push(next)?;
                    continue;
                }
                self.close()?;
            }
            let (region, home) = node.home_of(page);
            let (first, region) = (node.pages[page].first.clone(), Arc::clone(region));
            self.entries.push(Entry { first, region, home, known: None });
        }
        Ok(())
    }

    /// Makes updates of one page.
    fn update(
        &mut self,
        mut open: OpenPage,
        updates: &dyn SortedUpdates,
        ranks: Range<usize>,
    ) -> Result<()> {
        let output = self.context.output;
        for rank in ranks.clone() {
            let update = updates.update(rank);
            let mut page = PageMut::parse(&mut open.page)?;
            match page.change(updates.key(rank), update, &mut self.scratch)? {
                Changed::Done(before) => {
                    output.gain(update.large().as_ref().map(OwnedExtent::from));
                    output.lose(before.as_ref().map(OwnedExtent::from));
                }
                Changed::Full => {
                    (self.context.progress)((rank - ranks.start) as u64);
                    return self.divide(&open, updates, rank..ranks.end);
                }
            }
        }
        (self.context.progress)(ranks.len() as u64);
        let open = self.shrink(open)?;
        self.push(open)
    }

    /// Makes a page that had a large record one of the usual size once its records fit into that.
    /// It gets another home, or that of a page that it is joined with; so not on a nearly full
    /// device, where no home is reserved for an update in place.
    fn shrink(&mut self, open: OpenPage) -> Result<OpenPage> {
        let config = self.context.config;
        let usual = page_bytes(config.page_blocks);
        let is_usual = open.page.len() <= usual;
        if self.is_packing() || is_usual || open.live_bytes() > config.page_room() {
            return Ok(open);
        }
        let mut small = OpenPage::empty(open.first.clone(), usual, open.heat);
        small.append_all(&open.read()?, 0)?;
        if let Some((region, home)) = open.origin {
            self.homes.release(&region, home);
        }
        Ok(small)
    }

    /// Merges a page with more updates than it has space for, into several pages.
    fn divide(
        &mut self,
        page: &OpenPage,
        updates: &dyn SortedUpdates,
        ranks: Range<usize>,
    ) -> Result<()> {
        let config = self.context.config;
        let (room, bytes) = (config.page_room(), page_bytes(config.page_blocks));
        let old = Page::parse(PageBytes::Whole(&page.page))?;
        let last = old.count().checked_sub(1).map(|last| old.key(last)).transpose()?;
        let is_append = last.is_none_or(|last| *last < *updates.key(ranks.start));
        let more = updates.bytes_before(ranks.end) - updates.bytes_before(ranks.start);
        let more = usize::try_from(more).unwrap_or(usize::MAX) + 7 * ranks.len();
        let total = old.live_bytes() + more;
        let target = match is_append || self.is_packing() {
            true => room,
            false => total.div_ceil(total.div_ceil(room * PACKED_PERCENT / 100).max(2)),
        };
        let mut merged = Merged::new(old, self.context, updates, ranks);
        let mut open = OpenPage::empty(page.first.clone(), bytes, page.heat);
        (open.old, open.origin) = (page.old.clone(), page.origin.clone());
        let mut left = total;
        while let Some((key, payload, is_large)) = merged.next()? {
            let taken = taken_bytes(key.len(), payload.len());
            let is_full = open.count() > 0 && open.live_bytes() + taken > target;
            if !is_full && open.append(&key, &payload, is_large)? {
                continue;
            }
            if open.count() > 0 {
                let count = open.count();
                let bound = separator(&open.read()?.key(count - 1)?, &key);
                left = left.saturating_sub(open.live_bytes());
                let heat = open.heat;
                self.expected = left / room + 1;
                self.push(open)?;
                open = OpenPage::empty(SharedKey::whole(&bound), bytes, heat);
                events::add(&self.context.output.counters.splits, 1);
            }
            let blocks = blocks_for(key.len(), payload.len(), config.page_blocks);
            if page_bytes(blocks) > bytes {
                open.page = OpenPage::empty(SharedKey::LEAST, page_bytes(blocks), None).page;
            }
            if !open.append(&key, &payload, is_large)? {
                return Err(Error::internal("a record does not fit into a page made for it"));
            }
        }
        merged.finish();
        self.push(open)
    }

    /// Continues with the next page: joins the open one with it, or writes the open one.
    fn push(&mut self, next: OpenPage) -> Result<()> {
        let Some(open) = self.open.take() else {
            self.open = Some(next);
            return Ok(());
        };
        if next.count() == 0 {
            self.remove(next);
            self.open = Some(open);
            return Ok(());
        }
        let (size, room) = (self.context.config.page_room(), open.live_bytes());
        let sum = room + next.live_bytes();
        let is_usual =
            |page: &OpenPage| page.page.len() == page_bytes(self.context.config.page_blocks);
        let are_usual = is_usual(&open) && is_usual(&next);
        let is_small = room.min(next.live_bytes()) < size / SMALL_PART && sum <= size * 3 / 4;
        let fits = is_small || sum <= size * 5 / 8 || (self.is_packing() && sum <= size);
        if open.count() > 0 && are_usual && fits {
            return self.join(open, next);
        }
        let has_space = room + size / 16 < size;
        if open.count() > 0 && are_usual && self.is_packing() && has_space {
            return self.fill(open, next);
        }
        self.open = Some(open);
        self.close()?;
        self.open = Some(next);
        Ok(())
    }

    /// Makes one page of two.
    fn join(&mut self, open: OpenPage, next: OpenPage) -> Result<()> {
        let mut joined = OpenPage::empty(open.first.clone(), open.page.len(), open.heat);
        joined.append_all(&open.read()?, 0)?;
        joined.append_all(&next.read()?, 0)?;
        events::add(&self.context.output.counters.joins, 1);
        // One home is left; a page without one takes that of the other.
        if open.origin.is_some() {
            (joined.old, joined.origin) = (open.old, open.origin);
            self.remove(next);
        } else {
            (joined.old, joined.origin) = (next.old, next.origin);
        }
        self.open = Some(joined);
        Ok(())
    }

    /// Fills a page with entries of the next one.
    fn fill(&mut self, open: OpenPage, next: OpenPage) -> Result<()> {
        let mut filled = OpenPage::empty(open.first.clone(), open.page.len(), open.heat);
        filled.append_all(&open.read()?, 0)?;
        let end = filled.append_from(&next.read()?, 0)?;
        (filled.old, filled.origin) = (open.old, open.origin);
        let mut rest = OpenPage::empty(next.first.clone(), next.page.len(), next.heat);
        rest.append_all(&next.read()?, end)?;
        if end > 0 && end < next.count() {
            let (left, right) = (next.read()?.key(end - 1)?, next.read()?.key(end)?);
            rest.first = SharedKey::whole(&separator(&left, &right));
        }
        // A page without a home takes that of the next one, which gets a new one instead.
        if filled.origin.is_none() {
            (filled.old, filled.origin) = (next.old, next.origin);
        } else {
            (rest.old, rest.origin) = (next.old, next.origin);
        }
        self.open = Some(filled);
        self.close()?;
        if rest.count() == 0 {
            self.remove(rest);
        } else {
            self.open = Some(rest);
        }
        Ok(())
    }

    /// Ends the use of the home of a page that has no entries any more.
    fn remove(&mut self, page: OpenPage) {
        if page.count() == 0 {
            events::add(&self.context.output.counters.emptied, 1);
        }
        if let Some((region, home)) = page.origin {
            self.homes.release(&region, home);
        }
    }

    /// Writes the open page, if it was changed.
    fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if open.count() == 0 {
            self.remove(open);
            return Ok(());
        }
        let (totals, large) = open.read()?.totals();
        let first = open.first.clone();
        let ((region, home), stamp) = match (&open.origin, &open.old) {
            (Some(origin), Some((_, stamp))) if open.is_unchanged() => (origin.clone(), *stamp),
            _ => (self.write(open)?, self.context.stamp),
        };
        let known = Some((totals, large, stamp));
        self.entries.push(Entry { first, region, home, known });
        Ok(())
    }
}

/// The pages with updates, and the ranks of these.
fn touched_pages(
    node: &Node,
    updates: &dyn SortedUpdates,
    ranks: Range<usize>,
) -> Vec<(usize, Range<usize>)> {
    let mut touched = Vec::new();
    let mut rank = ranks.start;
    while rank < ranks.end {
        let page = node.page_of(updates.key(rank));
        let end = node
            .pages
            .get(page + 1)
            .map_or(ranks.end, |next| updates.lower_bound(&next.first.to_bytes()).min(ranks.end));
        let end = end.max(rank + 1);
        touched.push((page, rank..end));
        rank = end;
    }
    touched
}
