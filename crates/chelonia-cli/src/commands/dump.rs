//! `dump`: the structure on disk as text, or as JSON.
//!
//! ```text
//!   node extent [2..3), height 1, ..     {"kind":"node","depth":1,"extent":{..},"height":1,..}
//!     pivot key "k", entries 7, ..       {"kind":"pivot","depth":2,"key":"k","entries":7,..}
//! ```
//!
//! In JSON an item belongs to the last one before it with a smaller depth. An extent is a range of
//! blocks, `{"first_block":2,"end_block":3}`, a missing value null. A key that is not UTF-8, or any
//! key with `--hex`, is hexadecimal under its name with `_hex`.

use super::patience::until_free;
use crate::arguments::Dump;
use crate::failure::{Context, Failure, Result};
use crate::output::{Output, output};
use crate::text::Form;
use chelonia::{Database, DumpField, DumpItem, DumpVisitor, ErrorKind};
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// Writes items to standard output.
struct Printer {
    out: Output,
    /// The form of keys in JSON; `None` prints text.
    json: Option<Form>,
    error: Option<io::Error>,
}

impl DumpVisitor for Printer {
    fn item(&mut self, item: &DumpItem<'_>) -> chelonia::Result<()> {
        let written = match self.json {
            None => writeln!(self.out, "{item}"),
            Some(form) => writeln!(self.out, "{}", Value::Object(object(item, form))),
        };
        written.map_err(|error| {
            let text = format!("cannot write the dump: {error}");
            self.error = Some(error);
            chelonia::Error::new(ErrorKind::Io, text)
        })
    }
}

fn object(item: &DumpItem<'_>, form: Form) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("kind".to_owned(), json!(item.kind));
    object.insert("depth".to_owned(), json!(item.depth));
    for (name, field) in item.fields {
        let value = match *field {
            DumpField::Number(number) => json!(number),
            DumpField::Flag(flag) => json!(flag),
            DumpField::Word(text) | DumpField::Name(text) => json!(text),
            DumpField::Blocks { first, end } => json!({ "first_block": first, "end_block": end }),
            DumpField::Key(key) => {
                let (name, text) = match std::str::from_utf8(key) {
                    Ok(text) if form == Form::Text => ((*name).to_owned(), text.to_owned()),
                    _ => (format!("{name}_hex"), Form::Hex.write(key).to_string()),
                };
                object.insert(name, Value::from(text));
                continue;
            }
            _ => Value::Null,
        };
        object.insert((*name).to_owned(), value);
    }
    object
}

/// `dump`
pub fn dump(arguments: &Dump) -> Result<()> {
    let (path, wait) = (&arguments.path, arguments.patience.wait);
    let open = || Database::builder(path).read_only(true).open();
    let form = if arguments.hex { Form::Hex } else { Form::Text };
    let json = arguments.json.then_some(form);
    let mut printer = Printer { out: output(), json, error: None };
    let dumped = until_free(path, wait, open).and_then(|database| database.dump(&mut printer));
    // Print the items read before a failure, too.
    let written = printer.error.map_or_else(|| printer.out.flush(), Err);
    written.map_err(Failure::from)?;
    dumped.context(path.display().to_string())
}
