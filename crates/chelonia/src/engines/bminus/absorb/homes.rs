//! The homes of a node while its pages change.
//!
//! A home that a page leaves is not used again in the same absorb, for the newest version still has
//! its page there; nor later, while an older version has.

use crate::base::error::{ErrorKind, Result};
use crate::base::ids::Generation;
use crate::engine::WriteBudget;
use crate::engines::bminus::node::Node;
use crate::engines::bminus::output::Output;
use crate::pages::homes::{HOMES_MAX, HeldStamps, HomeLayout, Region, View};
use crate::runtime::sync::Arc;
use crate::structure::events;

/// The homes of a region, a bit each.
struct RegionHomes {
    region: Arc<Region>,
    used: u32,
    /// Those that may get a page.
    free: u32,
}

/// All homes of a node.
pub(super) struct Homes<'a> {
    output: &'a Output<'a>,
    budget: WriteBudget,
    newest: &'a View,
    /// The stamp of the absorb.
    stamp: Generation,
    regions: Vec<RegionHomes>,
}

impl<'a> Homes<'a> {
    /// The homes of `node`, or none yet.
    pub fn new(
        output: &'a Output<'a>,
        (budget, stamp): (WriteBudget, Generation),
        (newest, held): (&'a View, &HeldStamps),
        node: Option<&Node>,
    ) -> Self {
        let regions = node.map_or(&[][..], |node| &node.regions);
        let mut regions: Vec<RegionHomes> = regions
            .iter()
            .map(|region| RegionHomes { region: Arc::clone(region), used: 0, free: 0 })
            .collect();
        let pages = node.map_or(&[][..], |node| &node.pages);
        for page in pages {
            if let Some(region) = regions.get_mut(usize::from(page.region)) {
                region.used |= 1 << page.home;
            }
        }
        let since = node.map_or(Generation(0), |node| node.stamp);
        for RegionHomes { region, used, free } in &mut regions {
            let all = all_homes(region.homes());
            if *used != all && region.is_free(since, held, output.storage()) {
                *free = all & !*used;
            }
        }
        Self { output, budget, newest, stamp, regions }
    }

    /// Number of homes with a page.
    pub fn used(&self) -> usize {
        self.regions.iter().map(|region| region.used.count_ones() as usize).sum()
    }

    /// Number of homes without a page.
    pub fn unused(&self) -> usize {
        self.regions.iter().map(|region| region.region.homes()).sum::<usize>() - self.used()
    }

    /// A home for a page; `more` pages are expected to need one.
    pub fn take(&mut self, layout: HomeLayout, more: usize) -> Result<(Arc<Region>, u8)> {
        let has_one = |own: &RegionHomes| own.free != 0 && own.region.layout() == layout;
        let index = match self.regions.iter().position(has_one) {
            Some(index) => index,
            None => self.allocate(layout, more)?,
        };
        let RegionHomes { region, used, free } = &mut self.regions[index];
        let home = u8::try_from(free.trailing_zeros()).unwrap_or(u8::MAX);
        *free &= !(1 << home);
        *used |= 1 << home;
        region.begin_use(home, self.newest);
        Ok((Arc::clone(region), home))
    }

    fn allocate(&mut self, layout: HomeLayout, more: usize) -> Result<usize> {
        let count = match self.budget {
            WriteBudget::Usual => more.max(self.used() / 4).clamp(1, HOMES_MAX),
            WriteBudget::Minimal => 1,
        };
        let region = match self.output.region(self.stamp, layout, count) {
            Err(error) if error.kind() == ErrorKind::NoSpace && count > 1 => {
                self.output.region(self.stamp, layout, 1)?
            }
            region => region?,
        };
        let free = all_homes(region.homes());
        self.regions.push(RegionHomes { region, used: 0, free });
        Ok(self.regions.len() - 1)
    }

    /// Ends the use of a home.
    pub fn release(&mut self, region: &Arc<Region>, home: u8) {
        let own = self.regions.iter_mut().find(|own| Arc::ptr_eq(&own.region, region));
        if let Some(own) = own {
            own.used &= !(1 << home);
        }
    }

    /// The region with the fewest pages, if all of them fit into free homes of others.
    pub fn sparsest(&self) -> Option<Arc<Region>> {
        let used = self.regions.iter().filter(|region| region.used != 0);
        let sparsest = used.min_by_key(|region| region.used.count_ones())?;
        let others = self.regions.iter().filter(|other| {
            !Arc::ptr_eq(&other.region, &sparsest.region)
                && other.region.layout() == sparsest.region.layout()
                && other.used != 0
        });
        let free: u32 = others.map(|other| other.free.count_ones()).sum();
        (free >= sparsest.used.count_ones()).then(|| Arc::clone(&sparsest.region))
    }

    /// A free home in another region than `region` that has pages.
    pub fn take_beside(&mut self, region: &Arc<Region>) -> Result<(Arc<Region>, u8)> {
        for own in &mut self.regions {
            if Arc::ptr_eq(&own.region, region) || own.used == 0 {
                // Empty regions are freed, not filled.
                own.free = 0;
            }
        }
        self.take(region.layout(), 1)
    }

    /// Takes a region of its own for `count` pages.
    pub fn take_region(&mut self, layout: HomeLayout, count: usize) -> Result<Arc<Region>> {
        let region = self.output.region(self.stamp, layout, count)?;
        (0..region.homes()).for_each(|home| {
            region.begin_use(u8::try_from(home).unwrap_or(u8::MAX), self.newest);
        });
        let used = all_homes(region.homes());
        self.regions.push(RegionHomes { region: Arc::clone(&region), used, free: 0 });
        Ok(region)
    }

    /// Loses the regions without pages; returns whether there were any.
    pub fn free_empty(&mut self) -> bool {
        let empty = self.regions.iter().filter(|region| region.used == 0);
        let lost: Vec<_> = empty.map(|region| region.region.owned()).collect();
        events::add(&self.output.counters.regions_freed, lost.len() as u64);
        self.regions.retain(|region| region.used != 0);
        let is_any = !lost.is_empty();
        self.output.lose(lost);
        is_any
    }
}

fn all_homes(count: usize) -> u32 {
    u32::MAX >> (u32::BITS as usize - count.clamp(1, HOMES_MAX))
}
