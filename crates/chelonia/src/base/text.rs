//! Text formatting for people.

use crate::base::error::{Error, Result};

/// The most bytes of a key that are shown.
const KEY_BYTES_SHOWN: usize = 24;

/// The beginning of a key, in quotes.
#[must_use]
pub fn shown_key(key: &[u8]) -> String {
    let cut = &key[..key.len().min(KEY_BYTES_SHOWN)];
    let more = if cut.len() < key.len() { "..." } else { "" };
    format!("\"{}\"{more}", cut.escape_ascii())
}

/// Converts the result of formatting a text.
pub fn told(written: std::fmt::Result) -> Result<()> {
    written.map_err(|_| Error::invalid("cannot write the description"))
}
