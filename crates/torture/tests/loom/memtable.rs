//! The trait that the library's pins implement.

use crate::base::ids::SeqNo;

/// As in the library.
pub trait Pins: Sync {
    fn visible(&self) -> SeqNo;
    fn any_in(&self, from: SeqNo, to: SeqNo) -> bool;
}
