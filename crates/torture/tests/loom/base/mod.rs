//! The floor that the files stand on.

pub mod budget;
#[path = "../../../../chelonia/src/base/error.rs"]
pub mod error;
pub mod fork;
#[path = "../../../../chelonia/src/base/ids.rs"]
pub mod ids;
pub mod reach;
pub mod sync;

pub mod limits {
    //! As in the library.

    pub const BLOCK_BYTES_U64: u64 = 4096;
}
