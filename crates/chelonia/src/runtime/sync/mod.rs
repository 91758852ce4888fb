//! The one door to locks, atomics and threads, so that a schedule explorer can stand in for them:
//! with the feature `shuttle` they are those of `explored.rs`.

#[cfg(feature = "shuttle")]
mod explored;
#[cfg(not(feature = "shuttle"))]
mod plain;

#[cfg(feature = "shuttle")]
pub use explored::*;
#[cfg(not(feature = "shuttle"))]
pub use plain::*;
pub use std::sync::atomic::Ordering;
pub use std::sync::{Arc, OnceLock, Weak};

use std::ops::Deref;

/// What threads write often, on cache lines of its own: whoever reads its neighbours does not wait
/// for them. Two lines, for processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default, Debug)]
pub struct CachePadded<T>(pub T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
