//! The single import point for locks, atomics and threads: with the feature `shuttle` they are
//! those of `explored.rs`, under the control of a schedule explorer.

#[cfg(feature = "shuttle")]
mod explored;
#[cfg(not(feature = "shuttle"))]
mod plain;

#[cfg(feature = "shuttle")]
pub use explored::*;
#[cfg(not(feature = "shuttle"))]
pub use plain::*;
pub use std::sync::atomic::Ordering;
pub use std::sync::{Arc, Weak};

use std::ops::Deref;

/// A frequently written value on cache lines of its own, which avoids false sharing with its
/// neighbors. Two lines, because processors fetch them in pairs.
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
