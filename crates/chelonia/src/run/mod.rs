//! Runs: immutable sorted sequences of entries, each in one extent of the data file.
//!
//! ```text
//!   extent   [ data spans ....... ][ index blocks ][ filter blocks ][ large refs ][ dictionary ]
//!             ascending entries     separators      one block per    extents of    of compressed
//!             (Data, DataMore,      (root last)     probe            large values  values
//!              DataOverflow)
//! ```
//!
//! A [`RunBuilder`] writes a run once, from memory, sequentially; only used blocks are written.
//! From then on a [`RunRef`] (stored in an engine's structure) is sufficient to read it:
//! [`Run::open`] does no I/O. Runs contain keys, values and tombstones; they are independent of
//! seqnos, levels and engines.
//!
//! ```text
//!   RunBuilder::new(&storage, options)            reset() keeps the memory for the next run
//!     .add(key, update)*          ascending keys
//!     .finish()          ->  RunRef
//!   Run::open(&storage, RunRef)  ->  Arc<Run>
//!     .filter().state / .locate / .find_in        filter, index, one data span: in steps, so that
//!                                                 the misses of many lookups are read together
//!   RunCursor::new(&run, range, direction)        through the block cache, both directions
//!   RunStream::new(&run, range)                   ascending, for merges: nothing stays cached
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | `block` | the sorted block: layout and search |
//! | `reference` | [`RunRef`] |
//! | `dictionary` | the dictionary at the end of a run |
//! | `large_list` | the list of large values at the end of a run |
//! | `opened` | [`OpenRuns`]: the open runs of an engine |
//! | `build` | [`RunBuilder`]: sorted blocks laid out, index, filter, one extent written |
//! | `read` | [`Run`]: point lookups, estimates, scans, merges, verification |
//!
//! Thread-safety: a [`Run`] is immutable and shared; builders, cursors and streams have one user.

pub mod block;
mod build;
mod dictionary;
mod large_list;
mod opened;
mod read;
mod reference;
mod totals;

pub use build::{Added, BlockBuilder, RunBuilder, RunOptions, WasCached};
pub use dictionary::DICTIONARY_BYTES_MAX;
pub use opened::OpenRuns;
pub use read::{
    Candidate, Candidates, FilterState, RangesStream, Run, RunCursor, RunFilter, RunHit, RunPart,
    RunStream, Steps, find_many, find_newest, first_blocks, scan_blocks_max,
};
pub use reference::RunRef;
pub use totals::{Totals, even_ranges, weight};

#[cfg(feature = "internals")]
pub use build::{blocks::Blocks, index::IndexBuilder};

/// Decodes a block of a list of large values. For tests.
#[cfg(feature = "internals")]
pub fn decode_large_list(bytes: &[u8]) -> crate::base::error::Result<()> {
    large_list::decode(bytes, &mut |_| Ok(()))
}

/// Decodes the block of a dictionary. For tests.
#[cfg(feature = "internals")]
pub fn decode_dictionary(bytes: &[u8]) -> crate::base::error::Result<()> {
    let name = crate::base::stream::DictionaryId(0);
    dictionary::decode(bytes, name).map(drop)
}

#[cfg(test)]
mod tests;
