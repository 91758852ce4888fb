//! Writing the pages of a node: to a free place of their home, or to another home.

use super::Context;
use super::node::NodeAbsorb;
use super::open::{HomeAt, OpenPage};
use crate::base::error::{Error, Result};
use crate::engines::bminus::read::pages::{Loaded, Reading};
use crate::pages::homes::slotted::page_bytes;
use crate::pages::homes::{Image, Page, PageBytes, Region, Segments};
use crate::runtime::sync::Arc;
use crate::structure::{SharedKey, events};

impl NodeAbsorb<'_> {
    /// Writes a page to a free place of its home, or to another home.
    pub fn write(&mut self, mut open: OpenPage) -> Result<HomeAt> {
        let Context { output, config, stamp, .. } = self.context;
        let (storage, stamp) = (output.storage(), *stamp);
        let blocks = u32::try_from(open.page.len() / page_bytes(1)).unwrap_or(u32::MAX);
        let layout = config.layout(blocks);
        let place = match (&open.origin, &open.old) {
            (Some((region, home)), Some((old, _))) if region.layout() == layout => {
                self.place_for(region, *home, old, &open.page)
            }
            _ => None,
        };
        let (at, image) = match (place, open.origin.take()) {
            (Some((image, Some(set))), Some((region, home))) => {
                let place = image.delta.unwrap_or(image.slot);
                region.begin_write(home, place);
                set.note(&mut open.page);
                let segments = (set, config.segment_bytes);
                let stamps = (stamp, image.base, image.slot);
                let target = (&*region, home, place);
                self.writes.delta(storage, target, stamps, segments, &open.page)?;
                events::add(&output.counters.deltas, 1);
                let bytes = set.count() * config.segment_bytes;
                events::add(&output.counters.segment_bytes, bytes as u64);
                self.clear_stale(&region, home, image);
                ((region, home), image)
            }
            (place, origin) => {
                let image = place.map(|(image, _)| image);
                let slot = image.map_or(0, |image| image.slot);
                let (region, home) = match (image, origin) {
                    (Some(_), Some(origin)) => origin,
                    (_, origin) => {
                        let more = std::mem::take(&mut self.expected);
                        let taken = self.homes.take(layout, more)?;
                        if let Some((region, home)) = origin {
                            self.homes.release(&region, home);
                            events::add(&output.counters.moves, 1);
                        }
                        taken
                    }
                };
                region.begin_write(home, slot);
                Segments::default().note(&mut open.page);
                self.writes.page(storage, (&region, home, slot), stamp, &open.page)?;
                events::add(&output.counters.bases, 1);
                let image = Image { slot, delta: None, base: stamp, stamp };
                ((region, home), image)
            }
        };
        self.note_written(at, image, &open)
    }

    /// Clears the slot before the one that a delta was written for [3.1].
    fn clear_stale(&mut self, region: &Region, home: u8, image: Image) {
        let Context { newest, held, output, .. } = self.context;
        let changed = self.before.map(|(listed, _)| listed.facts.changed);
        let places = changed.and_then(|changed| region.places(home, changed));
        let stale = places.and_then(|places| places.stale_slot(image, newest, held));
        if let Some(slot) = stale {
            region.begin_write(home, slot);
            self.writes.clear((region, home, slot));
            events::add(&output.counters.slots_cleared, 1);
        }
    }

    fn note_written(&mut self, at: HomeAt, image: Image, open: &OpenPage) -> Result<HomeAt> {
        let (region, home) = at;
        let place = image.delta.unwrap_or(image.slot);
        if let Some(heat) = open.heat {
            let storage = self.context.output.storage();
            region.cache(storage, (home, self.context.stamp), &open.page, heat);
        }
        self.images.insert(region.number_of(home), image);
        self.learned.write(&region, home, place);
        Ok((region, home))
    }

    /// The place of its home that the next image of a page may be written to, with the segments of
    /// the delta if it is one.
    fn place_for(
        &self,
        region: &Region,
        home: u8,
        old: &[u8],
        page: &[u8],
    ) -> Option<(Image, Option<Segments>)> {
        let Context { config, newest, held, output, stamp, .. } = self.context;
        if !region.layout().shadow || !region.is_writable(output.storage()) {
            return None;
        }
        let (listed, _) = self.before?;
        let places = region.places(home, listed.facts.changed)?;
        let image = places.image(newest)?;
        let set = Segments::of(old);
        let set = set.with_changes(old, page, config.segment_bytes);
        let set = set.filter(|set| set.fit(config.segment_bytes));
        let delta = || {
            let (set, delta) = (set?, places.free_delta(newest, held)?);
            Some((Image { delta: Some(delta), stamp: *stamp, ..image }, Some(set)))
        };
        let slot = || {
            let slot = places.free_slot(newest, held)?;
            Some((Image { slot, delta: None, base: *stamp, stamp: *stamp }, None))
        };
        let is_few =
            set.is_some_and(|set| set.count() * config.segment_bytes <= config.delta_bytes);
        match is_few {
            true => delta().or_else(slot),
            false if config.delta_bytes > 0 => slot().or_else(delta),
            false => slot(),
        }
    }

    /// Moves a page that is already an entry to another home, given by `take`.
    pub fn relocate(&mut self, index: usize, to: HomeAt) -> Result<()> {
        let loaded = self.load_entry(index)?;
        let mut page = loaded.page;
        let (totals, large) = Page::parse(PageBytes::Whole(&page))?.totals();
        Segments::default().note(&mut page);
        let (storage, stamp) = (self.context.output.storage(), self.context.stamp);
        let (region, home) = &to;
        region.begin_write(*home, 0);
        self.writes.page(storage, (region, *home, 0), stamp, &page)?;
        events::add(&self.context.output.counters.moves, 1);
        let entry = &mut self.entries[index];
        let from = (Arc::clone(&entry.region), entry.home);
        (entry.region, entry.home) = (Arc::clone(region), *home);
        let was_known = entry.known.replace((totals, large, stamp)).is_some();
        if !was_known {
            self.take_from_rest((totals, large), &from, loaded.stamp)?;
        }
        self.images.remove(&from.0.number_of(from.1));
        self.learned.forget(&from.0, from.1);
        self.homes.release(&from.0, from.1);
        let image = Image { slot: 0, delta: None, base: stamp, stamp };
        let open =
            OpenPage { page, heat: loaded.heat, ..OpenPage::empty(SharedKey::LEAST, 4096, None) };
        self.note_written(to, image, &open)?;
        Ok(())
    }

    /// Reads the page of an entry, also if this absorb has written it.
    pub fn load_entry(&mut self, index: usize) -> Result<Loaded> {
        let (region, home) = (Arc::clone(&self.entries[index].region), self.entries[index].home);
        if let Some(image) = self.images.get(&region.number_of(home)).copied() {
            self.writes.flush(self.context.output.storage())?;
            return self.context.read_written(&region, home, image);
        }
        let (Some((_, node)), Some(pages)) = (self.before, self.pages_of_node()) else {
            return Err(Error::internal("a page was not written"));
        };
        let is_it = |page: &usize| {
            let (other, other_home) = node.home_of(*page);
            Arc::ptr_eq(other, &region) && other_home == home
        };
        let page = (0..node.pages.len()).find(is_it);
        let page = page.ok_or_else(|| Error::internal("a page is not in its node"))?;
        pages.load_one(page, Reading::Merge)
    }
}
