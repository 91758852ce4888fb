//! Event counters of a tree since it was opened.

use crate::runtime::sync::{AtomicU64, Ordering};

/// Defines `Counters`, a counter for each kind of event of a tree: a documented field, and its name
/// in statistics. Bytes are counted beside events, in fields that all trees have.
macro_rules! event_counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Counters of one tree. Thread-safe.
        #[derive(Default)]
        pub(super) struct Counters {
            $($(#[$doc])* pub $name: $crate::runtime::sync::AtomicU64,)*
            /// Bytes written for entries.
            pub data_bytes: $crate::runtime::sync::AtomicU64,
            /// Bytes written for nodes.
            pub node_bytes: $crate::runtime::sync::AtomicU64,
            /// Bytes of entries read by merges.
            pub read_bytes: $crate::runtime::sync::AtomicU64,
        }

        impl Counters {
            /// Lists the counters of events with their names.
            pub fn list(&self, (loaded, evicted): (u64, u64)) -> Vec<(&'static str, u64)> {
                vec![
                    $(($text, $crate::structure::events::read(&self.$name)),)*
                    ("nodes_loaded", loaded),
                    ("nodes_evicted", evicted),
                ]
            }
        }
    };
}
pub(crate) use event_counters;

/// Adds `times` to a counter.
pub fn add(counter: &AtomicU64, times: u64) {
    if times > 0 {
        counter.fetch_add(times, Ordering::Relaxed);
    }
}

/// The value of a counter.
#[must_use]
pub fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
