//! How the values of a keyspace are stored.

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
}

impl Compression {
    /// All of them.
    pub const ALL: [Compression; 2] = [Compression::None, Compression::Fast];

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

    /// The number on disk.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Fast => 1,
        }
    }

    /// The compression with this number.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::Fast),
            _ => None,
        }
    }
}
