//! Counts of everything that an import left out or changed: no input is lost silently.

use crate::formats::{Flaw, FlawKind, LineCounts, Record};
use crate::output::{complain, counted, grouped};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};

/// The count of each kind of loss.
#[derive(Default, Debug)]
pub struct Losses {
    /// Records not stored, in the order of [`FlawKind::ALL`].
    skipped: [u64; FlawKind::ALL.len()],
    /// Lines inside of a quote that never closes, except the first of its record.
    lines_lost: u64,
    /// Records with decoded escapes.
    unescaped: u64,
    /// Columns, or members of objects, other than key and value, in stored records.
    left_out: u64,
    /// Entries that replaced an earlier one of the input with the same key.
    repeated: u64,
    /// Hashes of the first [`KEYS_SEEN_MAX`] keys.
    seen: HashSet<u64>,
}

/// The number of keys that are compared with later ones; their hashes take 38 MB.
const KEYS_SEEN_MAX: usize = 3_500_000;

impl Losses {
    /// Counts a record that was not stored.
    pub fn skip(&mut self, flaw: &Flaw) {
        if let Flaw::Unclosed { lines_lost, .. } = flaw {
            self.lines_lost += lines_lost;
        }
        self.skipped[flaw.kind() as usize] += 1;
    }

    /// Counts the losses of a stored record with this key.
    pub fn take(&mut self, record: &Record, key: &[u8]) {
        let mut hasher = DefaultHasher::new();
        hasher.write(key);
        let hash = hasher.finish();
        if self.seen.contains(&hash) {
            self.repeated += 1;
        } else if self.seen.len() < KEYS_SEEN_MAX {
            self.seen.insert(hash);
        }
        self.unescaped += u64::from(record.is_unescaped);
        self.left_out += record.left_out as u64;
    }

    /// The number of records not stored.
    pub fn skipped(&self) -> u64 {
        self.skipped.iter().sum()
    }

    /// True if every key was compared with all earlier ones.
    fn has_seen_all(&self) -> bool {
        self.seen.len() < KEYS_SEEN_MAX
    }

    fn by_kind(&self) -> impl Iterator<Item = (FlawKind, u64)> {
        FlawKind::ALL.into_iter().map(|kind| (kind, self.skipped[kind as usize]))
    }

    /// Prints a line for each kind of loss to standard error.
    pub fn complain(&self, lines: LineCounts, is_json: bool) {
        for text in self.texts(lines, is_json) {
            complain(&text);
        }
    }

    fn texts(&self, lines: LineCounts, is_json: bool) -> Vec<String> {
        let kinds: Vec<String> = self
            .by_kind()
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| format!("{} {}", grouped(count), kind.text()))
            .collect();
        let records = |count| counted(count, "record", "records");
        let others = if is_json { "members of objects" } else { "columns" };
        let crlf = if lines.lf > 0 { lines.crlf } else { 0 };
        let all = [
            (self.skipped(), format!("not stored: {}", kinds.join(", "))),
            (self.lines_lost, format!("lines lost behind open quotes: {}", self.lines_lost)),
            (
                self.unescaped,
                format!(
                    "escapes decoded in {}: add --raw if their backslashes are data",
                    records(self.unescaped)
                ),
            ),
            (self.left_out, format!("{others} left out: {}", grouped(self.left_out))),
            (
                self.repeated,
                format!(
                    "entries that replaced earlier ones with the same key: {}{}",
                    grouped(self.repeated),
                    if self.has_seen_all() { "" } else { " at least" }
                ),
            ),
            (
                crlf,
                format!(
                    "CR left out before the line break of {}, where other lines have none",
                    records(crlf)
                ),
            ),
        ];
        all.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect()
    }

    /// The counts as members of a JSON object.
    pub fn json(&self, lines: LineCounts) -> Map<String, Value> {
        let by_kind: Map<String, Value> =
            self.by_kind().map(|(kind, count)| (kind.name().to_owned(), json!(count))).collect();
        let members = [
            ("skipped", json!(self.skipped())),
            ("skipped_by_reason", Value::from(by_kind)),
            ("lines_lost", json!(self.lines_lost)),
            ("unescaped", json!(self.unescaped)),
            ("left_out", json!(self.left_out)),
            ("repeated", json!(self.repeated)),
            ("repeated_is_exact", json!(self.has_seen_all())),
            ("empty_lines", json!(lines.empty)),
            ("crlf_lines", json!(lines.crlf)),
            ("lf_lines", json!(lines.lf)),
        ];
        members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_loss_has_a_line() {
        let mut losses = Losses::default();
        assert!(losses.texts(LineCounts { empty: 3, crlf: 7, lf: 0 }, false).is_empty());
        for kind in FlawKind::ALL {
            let flaw = match kind {
                FlawKind::Columns => Flaw::NoColumn(1, 2),
                FlawKind::Spelling => Flaw::Spelling("bad".to_owned()),
                FlawKind::Quotes => Flaw::Unclosed { opened: 1, lines_lost: 4 },
                FlawKind::Json => Flaw::Json("bad".to_owned()),
                FlawKind::Size => Flaw::Size("long".to_owned()),
            };
            assert_eq!(flaw.kind(), kind);
            losses.skip(&flaw);
        }
        let entry = Ok((Vec::new(), Vec::new()));
        let record = Record { line: 1, entry, left_out: 1, is_unescaped: true };
        for key in ["a", "b", "a"] {
            losses.take(&record, key.as_bytes());
        }
        let lines = LineCounts { empty: 0, crlf: 1, lf: 1 };
        assert_eq!(
            losses.texts(lines, false),
            [
                "not stored: 1 with other columns than expected, 1 with bad escapes or digits, \
                 1 with misplaced or unclosed quotes, 1 that are not a JSON object with a key and \
                 a value, 1 with a key or value that is too long",
                "lines lost behind open quotes: 4",
                "escapes decoded in 3 records: add --raw if their backslashes are data",
                "columns left out: 3",
                "entries that replaced earlier ones with the same key: 1",
                "CR left out before the line break of 1 record, where other lines have none",
            ]
        );
        let object = losses.json(lines);
        assert_eq!(
            (&object["skipped"], &object["skipped_by_reason"]["json"]),
            (&5.into(), &1.into())
        );
        assert_eq!((&object["left_out"], &object["repeated"]), (&3.into(), &1.into()));
    }
}
