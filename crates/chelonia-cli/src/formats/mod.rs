//! The formats of import and export: one entry per record, keys and values in the chosen form.
//!
//! | format | record |
//! | --- | --- |
//! | tsv | `key`, tab, `value`, line break |
//! | csv | `key,value` and a line break; quoted as in RFC 4180 if necessary |
//! | jsonl | `{"key": "...", "value": "..."}` and a line break |
//!
//! Fields of tsv and csv have the text form (or hexadecimal) of `text.rs`, strings of jsonl that of
//! `json.rs`; both represent any bytes. For records of other programs, fields can be taken without
//! decoding escapes, and two columns can be selected (`columns.rs`). `format.rs` writes entries,
//! `reader.rs` reads records, `fields.rs` splits them, `flaw.rs` describes invalid ones, and
//! `csv.rs` handles quotes.

mod csv;
mod fields;
mod flaw;
mod format;
mod reader;

pub use flaw::{Flaw, FlawKind};
pub use format::Format;
pub use reader::{Layout, LineCounts, Reader, Record};
