//! The nodes that an absorb makes of one node, and the nodes of the next version.

use super::learned::Learned;
use super::node::{Entry, NodeAbsorb, Rest};
use super::{Context, sum_of_home};
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::{BlockNo, Generation};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engines::bminus::codec::PAGES_MAX;
use crate::engines::bminus::node::{Facts, Listed, Node, PageRef};
use crate::pages::homes::{HOMES_MAX, Page, PageBytes, Region};
use crate::run::Totals;
use crate::runtime::sync::Arc;
use crate::structure::{NodeRef, SharedKey, events};
use std::collections::BTreeMap;

/// A node with fewer pages than this part of a full one is joined with its neighbor.
const SMALL_PART: usize = 4;

/// Bytes of the bounds of a node, without what they share, unless a single page has more.
const NODE_KEY_BYTES: usize = 512 << 10;

/// The border between two new nodes is sought this many pages around the middle.
const BORDER_PAGES: usize = 8;

/// A node that is not written yet.
pub(super) struct Part {
    pub first: SharedKey,
    pub entries: Vec<Entry>,
    pub facts: Facts,
    /// True if a node that had its pages was in memory.
    pub is_hot: bool,
}

impl Part {
    /// Writes the node.
    fn write(self, context: &Context<'_>) -> Result<Listed> {
        let Self { first, entries, facts, is_hot } = self;
        let mut regions: Vec<Arc<Region>> = Vec::new();
        let mut pages = Vec::with_capacity(entries.len());
        let mut places: BTreeMap<BlockNo, u16> = BTreeMap::new();
        for Entry { first, region, home, .. } in entries {
            let next = u16::try_from(regions.len()).unwrap_or(u16::MAX);
            let place = *places.entry(region.owned().extent.start).or_insert_with(|| {
                regions.push(region);
                next
            });
            pages.push(PageRef { first, region: place, home });
        }
        context.output.write_node((context.stamp, is_hot), first, pages, regions, facts)
    }
}

/// The result of the absorb of a node.
pub(super) struct Finished {
    pub after: After,
    pub learned: Learned,
    /// True if regions became empty.
    pub has_freed: bool,
}

/// The nodes that a node becomes.
pub(super) enum After {
    /// The node stays; its pages were updated in their homes.
    Kept(Listed),
    /// New nodes.
    New(Vec<NewNode>),
}

/// A new node.
pub(super) enum NewNode {
    /// It is written: lists of all pages of many nodes would take much memory.
    Written(Listed),
    /// It is small, and may be joined with a neighbor.
    Small(Part),
}

impl NodeAbsorb<'_> {
    /// Ends the absorb of the node. With `gather`, sparse regions are emptied as far as possible.
    pub fn finish(mut self, gather: bool) -> Result<Finished> {
        let stamp = self.context.stamp;
        let is_kept = self.before.is_some_and(|(_, node)| {
            node.pages.len() == self.entries.len()
                && self.entries.iter().zip(0..).all(|(entry, page)| {
                    let (region, home) = node.home_of(page);
                    Arc::ptr_eq(region, &entry.region)
                        && home == entry.home
                        && (page == 0 || node.pages[page].first == entry.first)
                })
        });
        if let Some((listed, node)) = self.before {
            self.learned.carry(&node.regions, listed.facts.changed);
        }
        if is_kept
            && !gather
            && let Some((listed, _)) = self.before
        {
            let facts = Facts { changed: stamp, ..self.facts(listed.facts) };
            return self.end(After::Kept(Listed { facts, ..listed.clone() }), false);
        }
        self.gather_homes(gather)?;
        let parts = self.divide_node()?;
        let has_freed = self.homes.free_empty();
        let small = self.context.config.node_pages / SMALL_PART;
        let new = parts.into_iter().map(|part| match part.entries.len() < small {
            true => Ok(NewNode::Small(part)),
            false => part.write(self.context).map(NewNode::Written),
        });
        let new: Result<Vec<NewNode>> = new.collect();
        self.end(After::New(new?), has_freed)
    }

    /// Writes what waits, and leaves the buffer to the next node.
    fn end(mut self, after: After, has_freed: bool) -> Result<Finished> {
        self.writes.flush(self.context.output.storage())?;
        let bytes = self.writes.take_count() * BLOCK_BYTES_U64;
        events::add(&self.context.output.counters.data_bytes, bytes);
        self.context.spare.lock().push(self.writes);
        Ok(Finished { after, learned: self.learned, has_freed })
    }

    /// The facts of all entries: those that are known, and the rest.
    fn facts(&self, before: Facts) -> Facts {
        let Rest { mut totals, mut large, mut sum } = self.rest();
        for entry in &self.entries {
            if let Some((own, own_large, stamp)) = entry.known {
                totals += own;
                large = large.saturating_add(own_large);
                sum = sum.wrapping_add(sum_of_home(&entry.region, entry.home, stamp));
            }
        }
        Facts { totals, large, sum, ..before }
    }

    /// Moves the pages of sparse regions to free homes of others, so that regions become empty.
    fn gather_homes(&mut self, all: bool) -> Result<()> {
        loop {
            let (used, unused) = (self.homes.used(), self.homes.unused());
            if !all && unused <= used / 2 + HOMES_MAX {
                return Ok(());
            }
            let Some(region) = self.homes.sparsest() else { return Ok(()) };
            for index in 0..self.entries.len() {
                if Arc::ptr_eq(&self.entries[index].region, &region) {
                    let to = self.homes.take_beside(&region)?;
                    self.relocate(index, to)?;
                }
            }
        }
    }

    /// Makes nodes of the entries.
    fn divide_node(&mut self) -> Result<Vec<Part>> {
        let total = self.entries.len();
        if total == 0 {
            return Ok(Vec::new());
        }
        let is_hot = self.is_hot;
        let none = Facts {
            totals: Totals::default(),
            pages: 0,
            homes: 0,
            large: 0,
            sum: 0,
            changed: self.context.stamp,
        };
        let pages_max = self.context.config.node_pages;
        let by_pages = match total <= pages_max {
            true => 1,
            false => total.div_ceil((pages_max * 3).div_ceil(4)),
        };
        let by_keys = key_bytes(&self.entries).div_ceil(NODE_KEY_BYTES);
        let borders = match by_pages.max(by_keys).min(total) {
            0 | 1 => Vec::new(),
            count => self.separate(count)?,
        };
        if borders.is_empty() {
            let (facts, first) = (self.facts(none), self.first.clone());
            let entries = std::mem::take(&mut self.entries);
            return Ok(vec![Part { first, entries, facts, is_hot }]);
        }
        events::add(&self.context.output.counters.node_splits, borders.len() as u64);
        let mut rest = std::mem::take(&mut self.entries);
        let mut parts = Vec::with_capacity(borders.len() + 1);
        let part_of = |first: SharedKey, entries: Vec<Entry>| {
            let facts = facts_of(&entries, none);
            Part { first, entries, facts, is_hot }
        };
        for border in borders.into_iter().rev() {
            let entries = rest.split_off(border);
            parts.push(part_of(entries[0].first.clone(), entries));
        }
        parts.push(part_of(self.first.clone(), rest));
        parts.reverse();
        Ok(parts)
    }

    /// Chooses the borders of `count` nodes, and moves pages so that no region is in two of them.
    /// No borders if there is no space for that and one node may have all pages.
    fn separate(&mut self, count: usize) -> Result<Vec<usize>> {
        for index in 0..self.entries.len() {
            self.know(index)?;
        }
        let borders = borders(&self.entries, count);
        match self.part_regions(&borders) {
            Ok(()) => Ok(borders),
            Err(error)
                if error.kind() == ErrorKind::NoSpace && self.entries.len() <= PAGES_MAX / 2 =>
            {
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Reads what is not known of a page yet.
    fn know(&mut self, index: usize) -> Result<()> {
        if self.entries[index].known.is_none() {
            let loaded = self.load_entry(index)?;
            let (totals, large) = Page::parse(PageBytes::Whole(&loaded.page))?.totals();
            let entry = &mut self.entries[index];
            entry.known = Some((totals, large, loaded.stamp));
            let at = (Arc::clone(&entry.region), entry.home);
            self.take_from_rest((totals, large), &at, loaded.stamp)?;
        }
        Ok(())
    }

    fn part_regions(&mut self, borders: &[usize]) -> Result<()> {
        let start_of = |entry: &Entry| entry.region.owned().extent.start;
        let part_of = |index: usize| borders.partition_point(|border| *border <= index);
        let mut owner: BTreeMap<BlockNo, usize> = BTreeMap::new();
        for (index, entry) in self.entries.iter().enumerate() {
            owner.entry(start_of(entry)).or_insert_with(|| part_of(index));
        }
        let mut guests: BTreeMap<(usize, u32), Vec<usize>> = BTreeMap::new();
        for (index, entry) in self.entries.iter().enumerate() {
            if owner.get(&start_of(entry)) != Some(&part_of(index)) {
                let blocks = entry.region.layout().page_blocks;
                guests.entry((part_of(index), blocks)).or_default().push(index);
            }
        }
        for ((_, blocks), guests) in guests {
            let layout = self.context.config.layout(blocks);
            for guests in guests.chunks(HOMES_MAX) {
                let region = self.homes.take_region(layout, guests.len())?;
                for (home, index) in (0_u8..).zip(guests) {
                    self.relocate(*index, (Arc::clone(&region), home))?;
                }
            }
        }
        Ok(())
    }
}

/// Memory of the bounds of all entries.
fn key_bytes(entries: &[Entry]) -> usize {
    let mut before: Option<&SharedKey> = None;
    let each = entries.iter().map(|entry| {
        let shared = before.map_or(0, |before| entry.first.common_prefix(before));
        before = Some(&entry.first);
        entry.first.len() - shared
    });
    each.sum()
}

/// Borders that divide the entries evenly, where few regions have pages on both sides.
fn borders(entries: &[Entry], count: usize) -> Vec<usize> {
    let start_of = |entry: &Entry| entry.region.owned().extent.start;
    let mut first_of: BTreeMap<BlockNo, usize> = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        first_of.entry(start_of(entry)).or_insert(index);
    }
    let guests = |border: usize| {
        let behind = entries[border..].iter().take(8 * HOMES_MAX);
        behind.filter(|entry| first_of.get(&start_of(entry)).is_some_and(|at| *at < border)).count()
    };
    let mut borders: Vec<usize> = Vec::new();
    for part in 1..count {
        let middle = entries.len() * part / count;
        let least =
            borders.last().map_or(1, |last| last + 1).max(middle.saturating_sub(BORDER_PAGES));
        let most = (middle + BORDER_PAGES).min(entries.len() - (count - part));
        let nearest = |border: &usize| (guests(*border), border.abs_diff(middle));
        borders.extend((least..=most.max(least)).min_by_key(nearest));
    }
    borders.dedup();
    borders.retain(|border| (1..entries.len()).contains(border));
    borders
}

fn facts_of(entries: &[Entry], none: Facts) -> Facts {
    let mut facts = none;
    for entry in entries {
        if let Some((totals, large, stamp)) = entry.known {
            facts.totals += totals;
            facts.large = facts.large.saturating_add(large);
            let own = sum_of_home(&entry.region, entry.home, stamp);
            facts.sum = facts.sum.wrapping_add(own);
        }
    }
    facts
}

/// The nodes of the next version, in key order.
pub(super) struct NextNodes<'a> {
    context: &'a Context<'a>,
    nodes: Vec<Listed>,
    open: Option<Part>,
    /// The regions of nodes that were joined.
    pub learned: Learned,
    /// True if nodes were joined.
    pub has_joined: bool,
}

impl<'a> NextNodes<'a> {
    pub fn new(context: &'a Context<'a>) -> Self {
        let (nodes, open, learned) = (Vec::new(), None, Learned::default());
        Self { context, nodes, open, learned, has_joined: false }
    }

    fn pages_max(&self) -> usize {
        self.context.config.node_pages
    }

    /// Adds what a node has become; loses the node `before`.
    pub fn change(&mut self, before: Option<&Listed>, after: After) -> Result<()> {
        match after {
            After::Kept(listed) => self.keep(&listed),
            After::New(new) => {
                let before = before.and_then(|before| before.slot.reference());
                self.context.output.lose(before.map(NodeRef::owned));
                new.into_iter().try_for_each(|node| match node {
                    NewNode::Written(listed) => self.keep(&listed),
                    NewNode::Small(part) => self.add(part),
                })
            }
        }
    }

    fn add(&mut self, part: Part) -> Result<()> {
        let full = self.pages_max();
        let pages = part.entries.len();
        if let Some(open) = &mut self.open {
            let other = open.entries.len();
            if pages.min(other) < full / SMALL_PART && pages + other <= full * 3 / 4 {
                events::add(&self.context.output.counters.node_joins, 1);
                self.has_joined = true;
                open.is_hot |= part.is_hot;
                let first = open.entries.len();
                open.entries.extend(part.entries);
                open.entries[first].first = part.first;
                open.facts.totals += part.facts.totals;
                open.facts.large = open.facts.large.saturating_add(part.facts.large);
                open.facts.sum = open.facts.sum.wrapping_add(part.facts.sum);
                return Ok(());
            }
        }
        self.close()?;
        self.open = Some(part);
        Ok(())
    }

    /// Adds a node that stays, unless it is joined with a small one before it.
    pub fn keep(&mut self, listed: &Listed) -> Result<()> {
        let full = self.pages_max();
        let is_joined = self.open.as_ref().is_some_and(|open| {
            let pages = open.entries.len();
            pages < full / SMALL_PART && pages + listed.facts.pages as usize <= full * 3 / 4
        });
        if is_joined {
            let is_hot = self.context.is_hot(listed);
            let node = self.context.output.node_cache.load_once(&listed.slot)?;
            self.context.output.lose(listed.slot.reference().map(NodeRef::owned));
            self.learned.carry(&node.regions, listed.facts.changed);
            return self.add(Part { is_hot, ..part_of(listed, &node, self.context.stamp) });
        }
        self.close()?;
        self.nodes.push(listed.clone());
        Ok(())
    }

    /// Writes the open node.
    fn close(&mut self) -> Result<()> {
        if let Some(part) = self.open.take() {
            self.nodes.push(part.write(self.context)?);
        }
        Ok(())
    }

    /// Writes what is open, and returns all nodes: the first begins at the least key.
    pub fn end(mut self) -> Result<Vec<Listed>> {
        self.close()?;
        if let Some(first) = self.nodes.first_mut() {
            first.first = SharedKey::LEAST;
        }
        Ok(self.nodes)
    }
}

fn part_of(listed: &Listed, node: &Node, stamp: Generation) -> Part {
    let entries = node.pages.iter().enumerate().map(|(page, reference)| {
        let (region, home) = node.home_of(page);
        let (first, region) = (reference.first.clone(), Arc::clone(region));
        Entry { first, region, home, known: None }
    });
    let facts = Facts { changed: stamp, ..listed.facts };
    Part { first: listed.first.clone(), entries: entries.collect(), facts, is_hot: false }
}
