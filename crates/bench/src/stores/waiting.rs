//! Writes that wait in a session until they are committed together, for stores without a log.
//!
//! Such stores have one writer at a time. If a session held a write transaction open between calls,
//! all other threads would wait for it, and two that depend on each other would deadlock; so a
//! session buffers its writes here, and the store applies all of them in one transaction during a
//! commit.

use std::ops::Range;

/// Writes in the order in which they were made.
#[derive(Debug, Default)]
pub struct Waiting {
    bytes: Vec<u8>,
    /// Where the key of each is, and the value, if it is not removed.
    writes: Vec<(Range<usize>, Option<Range<usize>>)>,
}

impl Waiting {
    /// Adds an insert of `value`, or of nothing: a removal.
    pub fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        let key = self.copy(key);
        let value = value.map(|value| self.copy(value));
        self.writes.push((key, value));
    }

    fn copy(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// Keys, each with its value or that it is removed.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let of = |range: &Range<usize>| &self.bytes[range.clone()];
        self.writes.iter().map(move |(key, value)| (of(key), value.as_ref().map(of)))
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.writes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_come_back_in_order() {
        let mut waiting = Waiting::default();
        waiting.push(b"b", Some(b"1"));
        waiting.push(b"a", None);
        waiting.push(b"b", Some(b""));
        let all: Vec<_> = waiting.iter().collect();
        assert_eq!(all, [(&b"b"[..], Some(&b"1"[..])), (b"a", None), (b"b", Some(b""))]);
        waiting.clear();
        assert_eq!(waiting.iter().count(), 0);
    }
}
