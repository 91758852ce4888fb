//! The text of a dump as JSON, an object a line of it.
//!
//! ```text
//!   superblock                           {"kind":"superblock","depth":0,"salt":..,"log":{..},..}
//!     Superblock { .. }
//!   catalog Some([6..7))                 {"kind":"catalog","depth":0,"extent":{..}}
//!   keyspace 1 "default": Options { .. } {"kind":"keyspace","depth":0,"id":1,"options":{..},..}
//!     in the log only: about 2 keys      {"kind":"memtable","depth":1,"keys_estimate":2}
//!     node [2..3) height 1, 4 pivots, .. {"kind":"node","depth":1,"extent":{..},"height":1,..}
//!       segment [4..9) from "a": ..      {"kind":"segment","depth":2,"extent":{..},"key":"a",..}
//!       pivot "k": 7 entries .. waiting  {"kind":"pivot","depth":2,"key":"k","entries":7,..}
//!         leaf [9..12) 7 entries ..      {"kind":"leaf","depth":3,"extent":{..},"entries":7,..}
//! ```
//!
//! What is deeper belongs to the last line before it that is less deep. An extent is a range of
//! blocks, `{"first_block":2,"end_block":3}`, or null. Keys stand as `json.rs` says; the text shows
//! the beginning of a long one only, which `key_is_cut` tells. A line that is none of these, of an
//! engine that is not known here, is `{"kind":"text","depth":..,"text":".."}`: nothing is left out.

use crate::json;
use crate::text::Form;
use serde_json::{Map, Value, json};
use std::fmt;
use std::io::{self, Write};

/// Turns text into JSON as it comes.
#[derive(Debug)]
pub struct Outline<W> {
    out: W,
    form: Form,
    /// The beginning of a line, or of the superblock.
    text: String,
    in_superblock: bool,
    error: Option<io::Error>,
}

impl<W: Write> Outline<W> {
    /// Writes to `out`, keys in this form.
    pub fn new(out: W, form: Form) -> Self {
        Self { out, form, text: String::new(), in_superblock: false, error: None }
    }

    /// Writes the last line, should it have no end, and gives the output back.
    pub fn finish(mut self) -> io::Result<W> {
        if !self.text.is_empty() && self.error.is_none() {
            let _ = self.end_line();
        }
        self.error.map_or(Ok(self.out), Err)
    }

    fn end_line(&mut self) -> fmt::Result {
        // The superblock takes several lines; the last one is not indented.
        if self.in_superblock && !self.text.ends_with("\n}") {
            self.text.push('\n');
            return Ok(());
        }
        let line = std::mem::take(&mut self.text);
        if std::mem::take(&mut self.in_superblock) {
            let object = superblock(&line).unwrap_or_else(|| plain(&line));
            return self.write(&object);
        }
        if line == "superblock" {
            self.in_superblock = true;
            return Ok(());
        }
        let object = object_of(&line, self.form).unwrap_or_else(|| plain(&line));
        self.write(&object)
    }

    fn write(&mut self, object: &Map<String, Value>) -> fmt::Result {
        let line = serde_json::to_string(object).map_err(io::Error::from);
        let written = line.and_then(|line| writeln!(self.out, "{line}"));
        written.map_err(|error| {
            self.error = Some(error);
            fmt::Error
        })
    }
}

impl<W: Write> fmt::Write for Outline<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive('\n') {
            let line = piece.strip_suffix('\n');
            self.text.push_str(line.unwrap_or(piece));
            if line.is_some() {
                self.end_line()?;
            }
        }
        Ok(())
    }
}

fn object(kind: &str, depth: usize) -> Map<String, Value> {
    Map::from_iter([("kind".to_owned(), json!(kind)), ("depth".to_owned(), json!(depth))])
}

fn plain(line: &str) -> Map<String, Value> {
    let text = line.trim_start_matches(' ');
    let mut object = object("text", depth_of(line));
    object.insert("text".to_owned(), json!(text));
    object
}

/// Two blanks a level.
fn depth_of(line: &str) -> usize {
    line.bytes().take_while(|byte| *byte == b' ').count() / 2
}

fn superblock(text: &str) -> Option<Map<String, Value>> {
    let mut scan = Scan { rest: text };
    let Value::Object(fields) = scan.debug()? else { return None };
    let mut object = object("superblock", 0);
    object.extend(fields);
    scan.end(object)
}

/// The object for a line; none if it is no line that is known.
fn object_of(line: &str, form: Form) -> Option<Map<String, Value>> {
    let mut scan = Scan { rest: line.trim_start_matches(' ') };
    let start = scan.rest;
    let kind = start.split(' ').next()?;
    scan.rest = &start[kind.len()..];
    let mut object = object(kind, depth_of(line));
    let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
    match kind {
        "catalog" => {
            set("extent", scan.after(" ")?.debug()?);
        }
        "keyspace" => {
            set("id", scan.after(" ")?.number()?);
            set("name", Value::from(scan.after(" ")?.string()?));
            set("options", scan.after(": ")?.debug()?);
        }
        "in" => {
            set("kind", json!("memtable"));
            set("keys_estimate", scan.after(" the log only: about ")?.number()?);
            scan.after(" keys")?;
        }
        "node" => {
            scan.after(" ")?;
            let is_nowhere = scan.after("empty").is_some();
            set("extent", if is_nowhere { Value::Null } else { scan.extent()? });
            set("height", scan.after(" height ")?.number()?);
            set("pivots", scan.after(", ")?.number()?);
            set("levels", scan.after(" pivots, ")?.number()?);
            scan.after(" levels")?;
        }
        "leaf" => {
            set("extent", scan.after(" ")?.extent()?);
            totals(scan.after(" ")?, &mut object)?;
        }
        "segment" => {
            set("extent", scan.after(" ")?.extent()?);
            key(scan.after(" from ")?, form, &mut object)?;
            totals(scan.after(": ")?, &mut object)?;
            object.insert("shared".to_owned(), json!(scan.after(", shared").is_some()));
        }
        "pivot" => {
            key(scan.after(" ")?, form, &mut object)?;
            totals(scan.after(": ")?, &mut object)?;
            scan.after(" waiting")?;
        }
        _ => return None,
    }
    scan.end(object)
}

/// `"k\x00"`, and `...` if there is more of it.
fn key(scan: &mut Scan<'_>, form: Form, object: &mut Map<String, Value>) -> Option<()> {
    let (name, text) = json::KEY.spell(form, &scan.bytes()?);
    object.insert(name.to_owned(), Value::from(text));
    object.insert("key_is_cut".to_owned(), json!(scan.after("...").is_some()));
    Some(())
}

/// `7 entries (0 tombstones), 99 bytes`
fn totals(scan: &mut Scan<'_>, object: &mut Map<String, Value>) -> Option<()> {
    for (name, after) in
        [("entries", " entries ("), ("tombstones", " tombstones), "), ("bytes", " bytes")]
    {
        object.insert(name.to_owned(), scan.number()?);
        scan.after(after)?;
    }
    Some(())
}

/// Reads a line from left to right.
struct Scan<'a> {
    rest: &'a str,
}

impl<'a> Scan<'a> {
    /// Passes over `text`, which must be next.
    fn after(&mut self, text: &str) -> Option<&mut Self> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(self)
    }

    /// Passes over blanks and breaks, then over `text`, if it is next.
    fn eat(&mut self, text: &str) -> bool {
        self.rest = self.rest.trim_start();
        self.after(text).is_some()
    }

    /// What was found, if nothing is left.
    fn end<T>(self, found: T) -> Option<T> {
        self.rest.is_empty().then_some(found)
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> Option<&'a str> {
        let end = self.rest.find(|character| !is_part(character)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!taken.is_empty()).then_some(taken)
    }

    fn number(&mut self) -> Option<Value> {
        let number: u64 = self.take_while(|character| character.is_ascii_digit())?.parse().ok()?;
        Some(Value::from(number))
    }

    /// `[2..3)`
    fn extent(&mut self) -> Option<Value> {
        let first = self.after("[")?.number()?;
        let end = self.after("..")?.number()?;
        self.after(")")?;
        Some(json!({ "first_block": first, "end_block": end }))
    }

    /// A string between quotes, still with its escapes.
    fn quoted(&mut self) -> Option<&'a str> {
        let inner = self.after("\"")?.rest;
        let mut is_escaped = false;
        let end = inner.bytes().position(|byte| {
            let is_end = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        })?;
        self.rest = &inner[end + 1..];
        Some(&inner[..end])
    }

    /// Bytes as `escape_ascii` writes them: the text form, and two more escapes.
    fn bytes(&mut self) -> Option<Vec<u8>> {
        let mut text = String::new();
        let mut characters = self.quoted()?.chars();
        while let Some(character) = characters.next() {
            match (character, characters.as_str().chars().next()) {
                ('\\', Some('"' | '\'')) => {}
                ('\\', Some(escaped)) => {
                    text.extend(['\\', escaped]);
                    characters.next();
                }
                _ => text.push(character),
            }
        }
        Form::Text.read(text.as_bytes()).ok()
    }

    /// A string as `Debug` writes it.
    fn string(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut characters = self.quoted()?.chars();
        while let Some(character) = characters.next() {
            if character != '\\' {
                text.push(character);
                continue;
            }
            text.push(match characters.next()? {
                't' => '\t',
                'n' => '\n',
                'r' => '\r',
                '0' => '\0',
                'u' => {
                    let rest = characters.as_str().strip_prefix('{')?;
                    let (digits, rest) = rest.split_once('}')?;
                    characters = rest.chars();
                    char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
                }
                other => other,
            });
        }
        Some(text)
    }

    /// A value as `Debug` writes it: `Name { field: value, .. }` is an object, `Some(x)` and other
    /// wrappers are what they hold, `None` is null, another name is itself in lower case.
    fn debug(&mut self) -> Option<Value> {
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '[' => self.extent(),
            '"' => self.string().map(Value::from),
            '0'..='9' => self.number(),
            _ => {
                let name = self.take_while(|it| it.is_ascii_alphanumeric() || it == '_')?;
                if self.rest.starts_with('(') {
                    self.after("(")?;
                    let held = self.debug()?;
                    self.eat(",");
                    return self.eat(")").then_some(held);
                }
                if self.rest.starts_with(" {") {
                    self.after(" {")?;
                    return self.fields();
                }
                Some(match name {
                    "None" => Value::Null,
                    "true" | "false" => json!(name == "true"),
                    _ => Value::from(name.to_ascii_lowercase()),
                })
            }
        }
    }

    /// `field: value, ..}`
    fn fields(&mut self) -> Option<Value> {
        let mut fields = Map::new();
        while !self.eat("}") {
            let name = self.take_while(|it| it.is_ascii_alphanumeric() || it == '_')?;
            let value = self.after(":")?.debug()?;
            fields.insert(name.to_owned(), value);
            self.eat(",");
        }
        Some(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    fn outlined(text: &str, form: Form) -> Vec<Value> {
        let mut outline = Outline::new(Vec::new(), form);
        // However it is cut up.
        for piece in text.as_bytes().chunks(3) {
            outline.write_str(std::str::from_utf8(piece).unwrap()).unwrap();
        }
        let lines = String::from_utf8(outline.finish().unwrap()).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    const DUMP: &str = r#"superblock
  Superblock {
    salt: 7,
    catalog: Some(
        Location {
            extent: [6..7),
            generation: Generation(4),
        },
    ),
    none: None,
}
catalog Some([6..7))
keyspace 1 "a\"\u{85}\n": Options { engine: Turtle, filter: None, is_fixed: true }
  in the log only: about 2 keys
  node empty height 1, 4 pivots, 0 levels
    segment [4..9) from "\"a\\\'\x00b": 3 entries (1 tombstones), 99 bytes, shared
    segment [4..9) from "\xff"...: 3 entries (1 tombstones), 99 bytes
    pivot "": 0 entries (0 tombstones), 0 bytes waiting
      leaf [9..12) 7 entries (0 tombstones), 5 bytes
    something else
"#;

    #[test]
    fn every_line_is_an_object() {
        let extent = |first: u32, end: u32| json!({ "first_block": first, "end_block": end });
        let location = json!({ "extent": extent(6, 7), "generation": 4 });
        let options = json!({ "engine": "turtle", "filter": null, "is_fixed": true });
        let expected = [
            json!({ "kind": "superblock", "depth": 0, "salt": 7, "catalog": location,
                    "none": null }),
            json!({ "kind": "catalog", "depth": 0, "extent": extent(6, 7) }),
            json!({ "kind": "keyspace", "depth": 0, "id": 1, "name": "a\"\u{85}\n",
                    "options": options }),
            json!({ "kind": "memtable", "depth": 1, "keys_estimate": 2 }),
            json!({ "kind": "node", "depth": 1, "extent": null, "height": 1, "pivots": 4,
                    "levels": 0 }),
            json!({ "kind": "segment", "depth": 2, "extent": extent(4, 9), "key": "\"a\\'\0b",
                    "key_is_cut": false, "entries": 3, "tombstones": 1, "bytes": 99,
                    "shared": true }),
            json!({ "kind": "segment", "depth": 2, "extent": extent(4, 9), "key_hex": "ff",
                    "key_is_cut": true, "entries": 3, "tombstones": 1, "bytes": 99,
                    "shared": false }),
            json!({ "kind": "pivot", "depth": 2, "key": "", "key_is_cut": false, "entries": 0,
                    "tombstones": 0, "bytes": 0 }),
            json!({ "kind": "leaf", "depth": 3, "extent": extent(9, 12), "entries": 7,
                    "tombstones": 0, "bytes": 5 }),
            json!({ "kind": "text", "depth": 2, "text": "something else" }),
        ];
        assert_eq!(outlined(DUMP, Form::Text), expected);
        assert_eq!(outlined(DUMP, Form::Hex)[5]["key_hex"], "22615c270062");
    }

    #[test]
    fn what_is_cut_short_is_text() {
        for end in 0..DUMP.len() {
            for line in outlined(&DUMP[..end], Form::Text) {
                assert!(line["kind"].is_string() && line["depth"].is_u64(), "{line}");
            }
        }
        assert_eq!(outlined("catalog Some([6..", Form::Text)[0]["kind"], "text");
    }
}
