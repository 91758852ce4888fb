//! The engines, and the one place that knows all of them.
//!
//! | number | engine | how it keeps data |
//! | --- | --- | --- |
//! | 1 | `turtle` | a tree of runs with update buffers, written in one pass per memtable |
//! | 2 | `autumn` | an LSM-tree whose size ratios grow with the data |
//!
//! Numbers and names are stored in catalogs and never change their meaning.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::Arc;
use crate::engine::{Engine, LevelOptions};
use crate::filters::FilterKind;
use crate::storage::Storage;

pub mod autumn;
pub mod turtle;

/// How a keyspace keeps its durable data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum EngineKind {
    /// A tree of runs with update buffers: reads, writes and memory are traded by the checkpoint
    /// distance.
    #[default]
    Turtle = 1,
    /// An LSM-tree with fewer levels the more data there is: reads, scans above all, are as good as
    /// a few sorted runs allow, whatever is written.
    Autumn = 2,
}

impl EngineKind {
    /// All engines.
    pub const ALL: [EngineKind; 2] = [EngineKind::Turtle, EngineKind::Autumn];

    /// The number in catalogs.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The engine of a number.
    pub(crate) fn from_number(number: u8) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number).ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("this build does not know the engine with number {number}"),
            )
        })
    }

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Turtle => "turtle",
            EngineKind::Autumn => "autumn",
        }
    }

    /// True if it keeps data in levels, whose shape [`crate::LevelOptions`] says.
    #[must_use]
    pub fn has_levels(self) -> bool {
        matches!(self, EngineKind::Autumn)
    }

    /// The engine of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What an engine is told when it is opened; db stores and checks it with the keyspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineOptions {
    /// The filter of new runs.
    pub filter: FilterKind,
    /// Its size.
    pub bits_per_key: u32,
    /// About the most bytes of a leaf; 0 lets it follow the checkpoint distance.
    pub leaf_bytes: u64,
    /// The most children of a tree node.
    pub pivots_max: u32,
    /// The shape of levels.
    pub levels: LevelOptions,
    /// Bytes of updates that come with one absorb, about.
    pub checkpoint_distance: u64,
}

/// Where an engine lives and how.
#[derive(Clone)]
pub struct EngineContext {
    /// The data file of the database.
    pub storage: Arc<Storage>,
    /// The options of the keyspace.
    pub options: EngineOptions,
}

/// Opens an engine: at the state that `root` (from [`Engine::root`]) describes, or empty.
pub fn open(
    kind: EngineKind,
    context: &EngineContext,
    root: Option<&[u8]>,
) -> Result<Arc<dyn Engine>> {
    match kind {
        EngineKind::Turtle => {
            let options = turtle::TurtleOptions::new(&context.options);
            Ok(Arc::new(turtle::Turtle::open(&context.storage, options, root)?))
        }
        EngineKind::Autumn => {
            let options = autumn::AutumnOptions::new(&context.options);
            Ok(Arc::new(autumn::Autumn::open(&context.storage, options, root)?))
        }
    }
}

/// Decodes a root blob. For tests.
#[cfg(feature = "internals")]
pub fn decode_root(kind: EngineKind, bytes: &[u8]) -> Result<()> {
    match kind {
        EngineKind::Turtle => turtle::decode_root(bytes),
        EngineKind::Autumn => autumn::decode_root(bytes),
    }
}

/// Decodes a part of the structure on disk as whatever it may be, in the file of `storage`. For
/// tests.
#[cfg(feature = "internals")]
pub fn decode_structure(kind: EngineKind, bytes: &[u8], storage: &Arc<Storage>) {
    match kind {
        EngineKind::Turtle => turtle::decode_structure(bytes, storage),
        EngineKind::Autumn => autumn::decode_structure(bytes, storage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_come_back() {
        for kind in EngineKind::ALL {
            assert_eq!(EngineKind::from_number(kind.number()).unwrap(), kind);
            assert_eq!(EngineKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(EngineKind::from_number(0).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
