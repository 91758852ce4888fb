//! The structure on disk as typed items, for people and for programs.
//!
//! ```text
//!   superblock                                depth 0
//!     catalog                                 depth 1: belongs to the last item of depth 0
//!     log
//!   keyspace
//!     memtable
//!     ...                                     the engine's own items
//! ```

use crate::base::error::Result;
use crate::base::ids::Extent;
use std::fmt::{self, Display, Formatter, Write};

/// The most bytes of a key in the text of an item.
const KEY_BYTES_SHOWN: usize = 24;

/// One part of the structure on disk: a superblock, a keyspace, a tree node, a run, ...
///
/// Its `Display` is one line of text, indented by two spaces per level. Kinds and fields may change
/// with any version of the library.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DumpItem<'a> {
    /// The kind: `node`, `leaf`, ...
    pub kind: &'static str,
    /// The nesting level. An item belongs to the last one before it with a smaller depth.
    pub depth: usize,
    /// Names and values, in a fixed order for each kind.
    pub fields: &'a [(&'static str, DumpField<'a>)],
}

/// A value of a [`DumpItem`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DumpField<'a> {
    /// A count, a size in bytes, a seqno, ...
    Number(u64),
    /// A flag.
    Flag(bool),
    /// A word, such as the name of an engine.
    Word(&'a str),
    /// A name that a user chose.
    Name(&'a str),
    /// A key, or a bound between keys.
    Key(&'a [u8]),
    /// A range of blocks of the data file.
    Blocks {
        /// The first block.
        first: u64,
        /// The block after the last one.
        end: u64,
    },
    /// There is no value: no catalog, an automatic size, ...
    Missing,
}

/// Receives the items of a [`crate::Database::dump`]. A `String` collects their text.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let database = chelonia::Database::open(directory.path().join("d"))?;
/// # use chelonia::{DumpItem, DumpVisitor, Result};
/// struct Kinds(Vec<&'static str>);
///
/// impl DumpVisitor for Kinds {
///     fn item(&mut self, item: &DumpItem<'_>) -> Result<()> {
///         self.0.push(item.kind);
///         Ok(())
///     }
/// }
///
/// let mut kinds = Kinds(Vec::new());
/// database.dump(&mut kinds)?;
/// assert_eq!(kinds.0[0], "superblock");
/// # Ok::<(), chelonia::Error>(())
/// ```
pub trait DumpVisitor {
    /// Receives the next item. An error ends the dump and is returned by it.
    ///
    /// # Errors
    /// As the visitor decides.
    fn item(&mut self, item: &DumpItem<'_>) -> Result<()>;
}

impl DumpVisitor for String {
    fn item(&mut self, item: &DumpItem<'_>) -> Result<()> {
        // Writing to a string does not fail.
        let _ = writeln!(self, "{item}");
        Ok(())
    }
}

impl DumpField<'_> {
    /// A number, or nothing.
    #[must_use]
    pub(crate) fn number(number: Option<u64>) -> Self {
        number.map_or(Self::Missing, Self::Number)
    }

    /// An extent, or nothing.
    #[must_use]
    pub(crate) fn extent(extent: Option<Extent>) -> Self {
        extent.map_or(Self::Missing, |extent| Self::Blocks {
            first: extent.start.0,
            end: extent.start.0 + u64::from(extent.blocks),
        })
    }
}

impl Display for DumpItem<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:1$}{2}", "", 2 * self.depth, self.kind)?;
        let mut comma = "";
        for (name, field) in self.fields {
            let name = name.replace('_', " ");
            match field {
                DumpField::Flag(false) => continue,
                DumpField::Flag(true) => write!(f, "{comma} {name}")?,
                field => write!(f, "{comma} {name} {field}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl Display for DumpField<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Word(word) => f.write_str(word),
            Self::Name(name) => write!(f, "{name:?}"),
            Self::Key(key) => {
                let shown = &key[..key.len().min(KEY_BYTES_SHOWN)];
                let more = if shown.len() < key.len() { "..." } else { "" };
                write!(f, "\"{}\"{more}", shown.escape_ascii())
            }
            Self::Blocks { first, end } => write!(f, "[{first}..{end})"),
            Self::Missing => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_a_line_of_text() {
        let long = [b'k'; 30];
        let fields = [
            ("extent", DumpField::Blocks { first: 2, end: 3 }),
            ("first_key", DumpField::Key(b"a\0\"")),
            ("last_key", DumpField::Key(&long)),
            ("shared", DumpField::Flag(true)),
            ("sinking", DumpField::Flag(false)),
            ("leaf_bytes", DumpField::Missing),
            ("name", DumpField::Name("a\nb")),
        ];
        let mut text = String::new();
        text.item(&DumpItem { kind: "node", depth: 1, fields: &fields }).unwrap();
        let last = "k".repeat(KEY_BYTES_SHOWN);
        let expected = [
            "  node extent [2..3), first key \"a\\x00\\\"\", last key \"",
            &last,
            "\"..., shared, leaf bytes none, name \"a\\nb\"\n",
        ];
        assert_eq!(text, expected.concat());
    }
}
