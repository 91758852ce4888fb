//! The lowest layer.

#[path = "../../../../chelonia/src/base/error.rs"]
pub mod error;
#[path = "../../../../chelonia/src/base/ids.rs"]
pub mod ids;

pub mod limits {
    //! As in the library.

    pub const BLOCK_BYTES_U64: u64 = 4096;
}
