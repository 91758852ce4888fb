//! The text of a dump as JSON, an object a line of it.
//!
//! ```text
//!   superblock generation 14, ..         {"kind":"superblock","depth":0,"generation":14,..}
//!     catalog [6..7) generation 4, ..    {"kind":"catalog","depth":1,"extent":{..},..}
//!     log replayed from lsn 36864 ..     {"kind":"log","depth":1,"lsn":36864,..}
//!   keyspace 1 "default": engine ..      {"kind":"keyspace","depth":0,"id":1,"options":{..},..}
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
    /// The beginning of a line.
    text: String,
    error: Option<io::Error>,
}

impl<W: Write> Outline<W> {
    /// Writes to `out`, keys in this form.
    pub fn new(out: W, form: Form) -> Self {
        Self { out, form, text: String::new(), error: None }
    }

    /// Writes the last line, should it have no end, and gives the output back.
    pub fn finish(mut self) -> io::Result<W> {
        if !self.text.is_empty() && self.error.is_none() {
            let _ = self.end_line();
        }
        self.error.map_or(Ok(self.out), Err)
    }

    fn end_line(&mut self) -> fmt::Result {
        let line = std::mem::take(&mut self.text);
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

/// The object for a line; none if it is no line that is known.
fn object_of(line: &str, form: Form) -> Option<Map<String, Value>> {
    let mut scan = Scan { rest: line.trim_start_matches(' ') };
    let start = scan.rest;
    let kind = start.split(' ').next()?;
    scan.rest = &start[kind.len()..];
    let mut object = object(kind, depth_of(line));
    let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
    match kind {
        "superblock" => {
            set("generation", scan.after(" generation ")?.number()?);
            set("opens", scan.after(", opened for writing ")?.number()?);
            set("file_blocks", scan.after(" times, at least ")?.number()?);
            set("salt", scan.after(" blocks in the file, salt ")?.number()?);
        }
        "catalog" => {
            let is_there = scan.after(" none").is_none();
            set("extent", if is_there { scan.after(" ")?.extent()? } else { Value::Null });
            if is_there {
                set("generation", scan.after(" generation ")?.number()?);
                set("bytes", scan.after(", ")?.number()?);
                scan.after(" bytes")?;
            }
        }
        "log" => {
            set("lsn", scan.after(" replayed from lsn ")?.number()?);
            set("seqno", scan.after(" behind seqno ")?.number()?);
            set("chain", scan.after(", chain ")?.number()?);
            set("durable", scan.after(", known to be durable up to lsn ")?.number()?);
        }
        "keyspace" => {
            set("id", scan.after(" ")?.number()?);
            set("name", Value::from(scan.after(" ")?.string()?));
            set("options", options(scan.after(": ")?)?);
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

/// `engine turtle, filter bloom of 16 bits a key, leaf size automatic, ..`
fn options(scan: &mut Scan<'_>) -> Option<Value> {
    Some(json!({
        "engine": scan.after("engine ")?.word()?,
        "filter": scan.after(", filter ")?.word()?,
        "filter_bits_per_key": scan.after(" of ")?.number()?,
        "leaf_bytes": scan.after(" bits a key, leaf size ")?.size()?,
        "pivots_max": scan.after(", at most ")?.number()?,
        "checkpoint_distance": scan.after(" pivots, checkpoint distance ")?.size()?,
    }))
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

    fn word(&mut self) -> Option<&'a str> {
        self.take_while(|character| character.is_ascii_alphanumeric())
    }

    /// `512 bytes`, or `automatic`, which is null
    fn size(&mut self) -> Option<Value> {
        if self.after("automatic").is_some() {
            return Some(Value::Null);
        }
        let bytes = self.number()?;
        self.after(" bytes")?;
        Some(bytes)
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

    const DUMP: &str = concat!(
        "superblock generation 5, opened for writing 2 times, at least 9 ",
        "blocks in the file, salt 7\n",
        "  catalog [6..7) generation 4, 46 bytes\n",
        "  catalog none\n",
        "  log replayed from lsn 36864 behind seqno 3, chain 8, known to ",
        "be durable up to lsn 49198\n",
        "keyspace 1 \"a\\\"\\u{85}\\n\": engine turtle, filter bloom of 16 bits ",
        "a key, leaf size automatic, at most 64 pivots, checkpoint ",
        "distance 512 bytes\n",
        "  in the log only: about 2 keys\n",
        "  node empty height 1, 4 pivots, 0 levels\n",
        "    segment [4..9) from \"\\\"a\\\\\\'\\x00b\": 3 entries (1 tombstones), ",
        "99 bytes, shared\n",
        "    segment [4..9) from \"\\xff\"...: 3 entries (1 tombstones), 99 bytes\n",
        "    pivot \"\": 0 entries (0 tombstones), 0 bytes waiting\n",
        "      leaf [9..12) 7 entries (0 tombstones), 5 bytes\n",
        "    something else\n",
    );

    #[test]
    fn every_line_is_an_object() {
        let extent = |first: u32, end: u32| json!({ "first_block": first, "end_block": end });
        let options = json!({ "engine": "turtle", "filter": "bloom", "filter_bits_per_key": 16,
                              "leaf_bytes": null, "pivots_max": 64, "checkpoint_distance": 512 });
        let expected = [
            json!({ "kind": "superblock", "depth": 0, "generation": 5, "opens": 2,
                    "file_blocks": 9, "salt": 7 }),
            json!({ "kind": "catalog", "depth": 1, "extent": extent(6, 7), "generation": 4,
                    "bytes": 46 }),
            json!({ "kind": "catalog", "depth": 1, "extent": null }),
            json!({ "kind": "log", "depth": 1, "lsn": 36864, "seqno": 3, "chain": 8,
                    "durable": 49198 }),
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
        assert_eq!(outlined(DUMP, Form::Hex)[7]["key_hex"], "22615c270062");
    }

    #[test]
    fn what_is_cut_short_is_text() {
        for end in 0..DUMP.len() {
            for line in outlined(&DUMP[..end], Form::Text) {
                assert!(line["kind"].is_string() && line["depth"].is_u64(), "{line}");
            }
        }
        assert_eq!(outlined("catalog [6..", Form::Text)[0]["kind"], "text");
    }
}
