//! The places of one home: which image a version has, and which places may be overwritten.
//!
//! ```text
//!   place      slot 0     delta 0    delta 1    slot 1
//!   stamp      20         23         27         31
//!   needed by  20..31     23..27     27..31     31..         versions with these stamps
//! ```
//!
//! A slot is needed until the next slot was written, a delta until the next image of any kind. The
//! place of an image that was overwritten since is not there any more: the interval of the one
//! before it is then longer than it was, which errs on the safe side.

use super::stamps::{HeldStamps, View};
use super::{PLACES, segments};
use crate::base::ids::Generation;

/// Where an image of a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Image {
    /// The place of the slot.
    pub slot: u8,
    /// The place of the delta, if there is one.
    pub delta: Option<u8>,
    /// The stamp of the slot.
    pub base: Generation,
    /// The stamp of the image: that of the delta, or of the slot.
    pub stamp: Generation,
}

/// The stamps of the images in the places of a home; 0: there is none that anybody needs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Places(pub [u64; PLACES]);

/// The places that are slots.
const SLOTS: [u8; 2] = [0, 3];

/// The places that are deltas.
const DELTAS: [u8; 2] = [1, 2];

impl Places {
    /// The stamp in `place`.
    #[must_use]
    pub fn stamp(&self, place: u8) -> Generation {
        Generation(self.0[usize::from(place) % PLACES])
    }

    /// Sets the stamp in `place`.
    pub fn set(&mut self, place: u8, stamp: Generation) {
        self.0[usize::from(place) % PLACES] = stamp.0;
    }

    /// Those that `view` believes.
    #[must_use]
    pub fn believed(self, view: &View) -> Self {
        Self(self.0.map(|stamp| if view.believes(Generation(stamp)) { stamp } else { 0 }))
    }

    /// The newest image that `view` believes.
    #[must_use]
    pub fn image(&self, view: &View) -> Option<Image> {
        let newest = |places: [u8; 2], after: Generation| {
            let believed = places
                .into_iter()
                .filter(|place| self.stamp(*place) > after && view.believes(self.stamp(*place)));
            believed.max_by_key(|place| self.stamp(*place))
        };
        let slot = newest(SLOTS, Generation(0))?;
        let base = self.stamp(slot);
        let delta = newest(DELTAS, base);
        let stamp = delta.map_or(base, |delta| self.stamp(delta));
        Some(Image { slot, delta, base, stamp })
    }

    /// True if a version that exists may need what is in `place`. `newest` is the view of the
    /// newest version.
    fn is_needed(&self, place: u8, newest: &View, held: &HeldStamps) -> bool {
        let stamp = self.stamp(place);
        if !newest.believes(stamp) {
            return false;
        }
        let later = |place: &u8| {
            let other = self.stamp(*place);
            (other > stamp && newest.believes(other)).then_some(other)
        };
        let next = match SLOTS.contains(&place) {
            true => SLOTS.iter().filter_map(later).min(),
            false => SLOTS.iter().chain(&DELTAS).filter_map(later).min(),
        };
        held.any_in(stamp..next.unwrap_or(Generation(u64::MAX)))
    }

    /// A slot that may be overwritten.
    #[must_use]
    pub fn free_slot(&self, newest: &View, held: &HeldStamps) -> Option<u8> {
        SLOTS.into_iter().find(|place| !self.is_needed(*place, newest, held))
    }

    /// The other slot than that of `image`, if an image is there that no version needs.
    #[must_use]
    pub fn stale_slot(&self, image: Image, newest: &View, held: &HeldStamps) -> Option<u8> {
        let is_stale = |place: &u8| {
            *place != image.slot
                && self.stamp(*place) != Generation(0)
                && !self.is_needed(*place, newest, held)
        };
        SLOTS.into_iter().find(is_stale)
    }

    /// A delta block that may be overwritten.
    #[must_use]
    pub fn free_delta(&self, newest: &View, held: &HeldStamps) -> Option<u8> {
        DELTAS.into_iter().find(|place| !self.is_needed(*place, newest, held))
    }
}

/// The content of a place, as found on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// Never written, or only in another use of the space.
    Empty,
    /// An image with this stamp.
    Written(Generation),
    /// Something that does not verify, from this block of the home on.
    Unreadable(u32),
}

/// The places of a home as found on the device.
pub(super) struct FoundPlaces {
    pub places: Places,
    /// The first block that does not verify.
    pub unreadable: Option<u32>,
    /// The stamps of deltas whose base is in no slot.
    orphans: Places,
}

impl FoundPlaces {
    /// Sums up the contents; `bases` are the bases that the deltas name. A delta whose
    /// base is in no slot is of an older use of the home or of an older image, or its base is lost
    /// (`lost_base`).
    pub fn new(contents: [Content; PLACES], bases: [Generation; 2]) -> Self {
        let mut places = Places::default();
        let mut unreadable = None;
        for (place, content) in (0_u8..).zip(contents) {
            match content {
                Content::Empty => {}
                Content::Written(stamp) => places.set(place, stamp),
                Content::Unreadable(block) => unreadable = unreadable.or(Some(block)),
            }
        }
        let mut orphans = Places::default();
        for (delta, base) in DELTAS.into_iter().zip(bases) {
            if !SLOTS.iter().any(|slot| places.stamp(*slot) == base) {
                orphans.set(delta, places.stamp(delta));
                places.set(delta, Generation(0));
            }
        }
        Self { places, unreadable, orphans }
    }

    /// The place of a delta without a base that `view` believes, and that is newer than its image:
    /// the base was there, and is lost.
    pub fn lost_base(&self, view: &View) -> Option<u8> {
        let newest = self.places.image(view).map_or(Generation(0), |image| image.base);
        DELTAS.into_iter().find(|delta| {
            let stamp = self.orphans.stamp(*delta);
            stamp > newest && view.believes(stamp)
        })
    }
}

/// The base that the delta in `part` names.
pub(super) fn base_in(part: &[u8]) -> Generation {
    Generation(segments::base_of(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::homes::DeadStamps;
    use crate::runtime::sync::Arc;

    fn view(stamp: u64) -> View {
        let mut dead = DeadStamps::default();
        dead.add_between(Generation(14), Generation(18));
        View { stamp: Generation(stamp), dead: Arc::new(dead) }
    }

    #[test]
    fn each_version_finds_its_image() {
        let places = Places([20, 23, 27, 31]);
        let of = |stamp| places.image(&view(stamp)).map(|image| (image.slot, image.delta));
        assert_eq!(of(19), None);
        assert_eq!(of(20), Some((0, None)));
        assert_eq!(of(26), Some((0, Some(1))));
        assert_eq!(of(30), Some((0, Some(2))));
        assert_eq!(of(90), Some((3, None)));
        // The images of a failed attempt are older than later versions, and not believed by them.
        assert_eq!(Places([10, 0, 15, 16]).image(&view(40)).unwrap().stamp, Generation(10));
    }

    #[test]
    fn what_a_version_needs_is_not_overwritten() {
        let places = Places([20, 23, 27, 31]);
        let held = HeldStamps::default();
        let free = |newest: u64| {
            let newest = view(newest);
            (places.free_slot(&newest, &held), places.free_delta(&newest, &held))
        };
        let _newest = held.hold(Generation(31));
        assert_eq!(free(31), (Some(0), Some(1)));
        let snapshot = held.hold(Generation(29));
        assert_eq!(free(31), (None, Some(1)));
        let other = held.hold(Generation(24));
        assert_eq!(free(31), (None, None));
        drop(snapshot);
        assert_eq!(free(31), (None, Some(2)));
        drop(other);
        assert_eq!(free(31), (Some(0), Some(1)));
        let image = places.image(&view(31)).unwrap();
        assert_eq!(places.stale_slot(image, &view(31), &held), Some(0));
        let snapshot = held.hold(Generation(30));
        assert_eq!(places.stale_slot(image, &view(31), &held), None);
        drop(snapshot);
        assert_eq!(Places([0, 0, 0, 31]).stale_slot(image, &view(31), &held), None);
        // Nobody needs what a failed attempt left.
        let left = Places([20, 0, 0, 15]);
        assert_eq!(left.free_slot(&view(31), &held), Some(3));
    }

    #[test]
    fn deltas_of_other_bases_are_passed_over() {
        let written = |stamp| Content::Written(Generation(stamp));
        let contents = [written(20), written(12), written(22), Content::Unreadable(4)];
        let found = FoundPlaces::new(contents, [Generation(10), Generation(20)]);
        assert_eq!((found.places, found.unreadable), (Places([20, 0, 22, 0]), Some(4)));
        assert_eq!(found.lost_base(&view(31)), None);
        // A delta that is newer than all slots had a base that is not there any more.
        let contents = [written(20), written(25), written(22), Content::Empty];
        let found = FoundPlaces::new(contents, [Generation(24), Generation(20)]);
        assert_eq!(found.lost_base(&view(31)), Some(1));
        assert_eq!(found.lost_base(&view(24)), None);
    }
}
