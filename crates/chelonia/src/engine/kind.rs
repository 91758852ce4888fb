//! The engines by number and name.
//!
//! | number | engine | data structure |
//! | --- | --- | --- |
//! | 1 | `turtle` | a tree of runs with update buffers, written in one pass per memtable |
//! | 2 | `autumn` | an LSM-tree whose size ratios grow with the data |
//! | 3 | `splinter` | a tree of runs that move down by reference and are merged later |
//! | 4 | `treeline` | groups of small pages that are updated in place |
//! | 5 | `bminus` | a B+-tree of pages with fixed places, for storage that compresses |
//!
//! Numbers and names are stored in catalogs and never change their meaning.

use crate::base::error::{Error, ErrorKind, Result};

/// The data structure of a keyspace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum EngineKind {
    /// A tree of runs with update buffers: the checkpoint distance trades reads, writes and memory.
    #[default]
    Turtle = 1,
    /// An LSM-tree whose size ratios grow with the data, so that it has fewer levels: reads see few
    /// sorted runs under any write load.
    Autumn = 2,
    /// A tree of shared runs that move down by reference and are merged later: the fewest bytes
    /// written while memory is short. Updates with locality are merged once.
    Splinter = 3,
    /// Groups of small pages that are updated in place: a read of a key that is not in memory reads
    /// one page, also soon after a load. It has no filters: a lookup of an absent key reads a page.
    Treeline = 4,
    /// A B+-tree after the B-minus-tree paper, for storage that compresses: a page has fixed
    /// places, which are written in turn, and small changes are written as a delta. After
    /// compression, an update writes few bytes. It has no filters: a lookup of an absent key reads
    /// a page.
    Bminus = 5,
}

impl EngineKind {
    /// All engines.
    pub const ALL: [EngineKind; 5] = [
        EngineKind::Turtle,
        EngineKind::Autumn,
        EngineKind::Splinter,
        EngineKind::Treeline,
        EngineKind::Bminus,
    ];

    /// Returns the number used in catalogs.
    #[must_use]
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// Returns the engine with this number.
    pub(crate) fn from_number(number: u8) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number).ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("engine number {number} is not supported by this build"),
            )
        })
    }

    /// Returns the name.
    ///
    /// ```
    /// # use chelonia::EngineKind;
    /// let names = EngineKind::ALL.map(EngineKind::name);
    /// assert_eq!(names, ["turtle", "autumn", "splinter", "treeline", "bminus"]);
    /// assert_eq!(EngineKind::Autumn.name(), "autumn");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Turtle => "turtle",
            EngineKind::Autumn => "autumn",
            EngineKind::Splinter => "splinter",
            EngineKind::Treeline => "treeline",
            EngineKind::Bminus => "bminus",
        }
    }

    /// True if the engine keeps data in levels, with the shape given by [`crate::LevelOptions`].
    ///
    /// ```
    /// # use chelonia::EngineKind;
    /// assert!(EngineKind::Autumn.has_levels());
    /// assert!(!EngineKind::Turtle.has_levels());
    /// ```
    #[must_use]
    pub fn has_levels(self) -> bool {
        matches!(self, EngineKind::Autumn)
    }

    /// Returns the engine with this name.
    ///
    /// ```
    /// # use chelonia::EngineKind;
    /// assert_eq!(EngineKind::from_name("autumn"), Some(EngineKind::Autumn));
    /// assert_eq!(EngineKind::from_name("winter"), None);
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
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
