//! Page groups: extents of small pages that are updated one by one.
//!
//! ```text
//!   extent of a group   [ slot 0 | slot 1 | slot 2 | slot 3 | ... | slot n ]
//!                         page 2   free     page 0   page 1         free
//!   page                one sorted block (`run/block.rs`), in one slot
//! ```
//!
//! The pages of a group are neighbors in key order, and on the device: a scan reads them together,
//! a lookup reads one. A page is updated by writing its next image to a free slot of its group. The
//! slot of the image before is free again when no version that is held, and no durable root, refers
//! to it (`storage/slots.rs`). So an update writes one page, near its neighbors, a torn write
//! destroys nothing, and snapshots stay exact.
//!
//! Each page carries the generation of its last write, which its reference in a node repeats. So a
//! damaged page, a misdirected write, and a lost write (an older image in the slot) are found by
//! the read of the page.
//!
//! All slots of a group have the same size, one block if records are small.
//!
//! | module | contents |
//! | --- | --- |
//! | `group` | [`Group`]: the reference to a group; its pages through the cache |
//! | `bounds` | [`Bounds`]: the lower bounds of the pages of a group, short |
//! | `line`, `fit` | [`Line`]: from keys to pages; bounds follow from it; [`Fit`]: finding one |
//! | `image` | [`PageBuilder`]: entries to the blocks of a page |
//! | `stream` | [`PageStream`]: the entries of pages in memory, in order |
//! | `load` | [`LoadedPages`]: pages of a group, read together |
//! | `homes` | pages with fixed places, for storage that compresses |
//!
//! Invariants:
//! 1. A slot is written only while no version, held or durable, refers to it; only the newest
//!    version's engine writes.
//! 2. The pages of a group are in key order, each with its own key range; their slots differ.

mod bounds;
mod fit;
mod group;
pub mod homes;
mod image;
mod line;
mod load;
mod stream;

pub use bounds::Bounds;
pub use fit::Fit;
pub use group::{Group, Place, SLOTS_MAX};
pub use image::{PageBuilder, blocks_of_page};
pub use line::{Line, POSITION_BYTES};
pub use load::{LoadedPages, Reading};
pub use stream::PageStream;
