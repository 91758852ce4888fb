//! Knowledge of homes that an absorb gathers, for when it has succeeded.

use crate::base::ids::Generation;
use crate::pages::homes::Region;
use crate::runtime::sync::{Arc, Weak};

/// Images written by an absorb, and regions that it has left as they are otherwise.
///
/// The references are weak: what a region refers to is freed with its node, if that is not kept in
/// memory, and not at the end of the absorb; nobody would ask it.
#[derive(Default)]
pub(super) struct Learned {
    /// Region, home and place of each image.
    written: Vec<(Weak<Region>, u8, u8)>,
    /// Regions of a node, and when the node was changed before.
    carried: Vec<(Vec<Weak<Region>>, Generation)>,
}

impl Learned {
    /// Notes an image that was written to `place` of `home`.
    pub fn write(&mut self, region: &Arc<Region>, home: u8, place: u8) {
        self.written.push((Arc::downgrade(region), home, place));
    }

    /// Notes that a page has left `home`: the image written there is not needed.
    pub fn forget(&mut self, region: &Arc<Region>, home: u8) {
        self.written.retain(|(other, other_home, _)| {
            *other_home != home || !std::ptr::eq(other.as_ptr(), Arc::as_ptr(region))
        });
    }

    /// Notes the regions of a node that was changed at `changed` before.
    pub fn carry(&mut self, regions: &[Arc<Region>], changed: Generation) {
        self.carried.push((regions.iter().map(Arc::downgrade).collect(), changed));
    }

    /// Adds the knowledge of another part of the absorb.
    pub fn append(&mut self, mut other: Self) {
        self.written.append(&mut other.written);
        self.carried.append(&mut other.carried);
    }

    /// Records everything in the regions, after the absorb with this stamp has succeeded.
    pub fn record(self, stamp: Generation) {
        for (region, home, place) in self.written {
            if let Some(region) = region.upgrade() {
                region.record(home, place, stamp);
            }
        }
        for (regions, changed) in self.carried {
            let regions = regions.iter().filter_map(Weak::upgrade);
            regions.for_each(|region| region.carry_over(changed, stamp));
        }
    }
}
