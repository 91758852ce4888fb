//! How the values of a keyspace are stored.

use crate::base::stream::Codec;

/// How the values of a keyspace are stored. For engines turtle, autumn and splinter.
///
/// Keys are not compressed, beyond the prefix that neighbors share. Values below 32 bytes and those
/// that hardly get smaller stay as they are, and so do large ones
/// ([`crate::limits::LARGE_VALUE_BYTES_MIN`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// By LZ4, each value alone, with a dictionary that is made of the keyspace's own values. Text
    /// and JSON take about half of the space. A read decodes the one value that it returns.
    Fast,
    /// By zstd, each value alone, with such a dictionary. Text and JSON take about two fifths of
    /// the space; decoding takes twice as long as with `Fast`, and a load a third longer.
    ///
    /// Needs the feature `zstd`, which compiles a library in C. Without it a database with such a
    /// keyspace is not opened, and what was stored so is not read
    /// ([`crate::ErrorKind::Unsupported`]). Making a dictionary takes 10 MB of the memory budget
    /// for a tenth of a second. Where values of more than 16 keyspaces are read or written in turn,
    /// each takes 30 to 60 us more.
    Small,
}

impl Compression {
    /// All of them.
    pub const ALL: [Compression; 3] = [Compression::None, Compression::Fast, Compression::Small];

    /// Its name, for people and programs.
    ///
    /// ```
    /// use chelonia::Compression;
    /// assert_eq!(Compression::Fast.name(), "fast");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fast => "fast",
            Self::Small => "small",
        }
    }

    /// The compression with this name.
    ///
    /// ```
    /// use chelonia::Compression;
    /// assert_eq!(Compression::from_name("fast"), Some(Compression::Fast));
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|compression| compression.name() == name)
    }

    /// How values are compressed, if they are.
    pub(crate) fn codec(self) -> Option<Codec> {
        match self {
            Self::None => None,
            Self::Fast => Some(Codec::Lz4),
            Self::Small => Some(Codec::Zstd),
        }
    }

    /// The number on disk.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Fast => 1,
            Self::Small => 2,
        }
    }

    /// The compression with this number.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::Fast),
            2 => Some(Self::Small),
            _ => None,
        }
    }
}
