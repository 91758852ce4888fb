//! What the tour remembers of what it stored, to compare with what it reads.
//!
//! A model holds the keys and a digest of each value, so that a gigabyte of files does not have to
//! stay in memory.

use crate::failure::{Failure, Result};
use chelonia::{Key, Value};
use std::collections::{BTreeMap, btree_map};
use std::hash::{DefaultHasher, Hasher};
use std::ops::RangeBounds;

/// Length and hash of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest {
    bytes: u64,
    hash: u64,
}

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        Self { bytes: bytes.len() as u64, hash: hasher.finish() }
    }

    /// The hash as a key: sixteen hexadecimal digits.
    pub fn key(self) -> Vec<u8> {
        format!("{:016x}", self.hash).into_bytes()
    }
}

/// The entries of a keyspace as they should be.
#[derive(Clone, Default, Debug)]
pub struct Model {
    entries: BTreeMap<Vec<u8>, Digest>,
}

/// How much was compared.
#[derive(Clone, Copy, Default, Debug)]
pub struct Compared {
    /// Entries.
    pub count: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

impl Compared {
    /// Counts one entry.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        self.count += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }

    /// Counts all that `other` counted.
    pub fn extend(&mut self, other: Compared) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

impl Model {
    /// Remembers an entry.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) {
        self.entries.insert(key.to_vec(), Digest::of(value));
    }

    /// Forgets an entry.
    pub fn remove(&mut self, key: &[u8]) {
        self.entries.remove(key);
    }

    /// How many entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.keys().map(Vec::as_slice)
    }

    /// Fails unless `value` is what `key` should have.
    pub fn check(&self, what: &str, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        if self.entries.get(key).copied() == value.map(Digest::of) {
            return Ok(());
        }
        Err(mismatch(what, key, if value.is_some() { "another value" } else { "no value" }))
    }

    /// Fails unless `found` is exactly the entries of `range`, in key order.
    pub fn check_forward(
        &self,
        what: &str,
        range: impl RangeBounds<[u8]>,
        found: impl Iterator<Item = chelonia::Result<(Key, Value)>>,
    ) -> Result<Compared> {
        check_sequence(what, self.within(range), found)
    }

    /// Fails unless `found` is exactly the entries of `range`, from the greatest key down.
    pub fn check_backward(
        &self,
        what: &str,
        range: impl RangeBounds<[u8]>,
        found: impl Iterator<Item = chelonia::Result<(Key, Value)>>,
    ) -> Result<Compared> {
        check_sequence(what, self.within(range).rev(), found)
    }

    fn within(&self, range: impl RangeBounds<[u8]>) -> btree_map::Range<'_, Vec<u8>, Digest> {
        self.entries.range::<[u8], _>((range.start_bound(), range.end_bound()))
    }
}

fn check_sequence<'a>(
    what: &str,
    mut expected: impl Iterator<Item = (&'a Vec<u8>, &'a Digest)>,
    found: impl Iterator<Item = chelonia::Result<(Key, Value)>>,
) -> Result<Compared> {
    let mut compared = Compared::default();
    for entry in found {
        let (key, value) = entry?;
        match expected.next() {
            Some((expected, digest)) if key == expected.as_slice() => {
                if Digest::of(&value) != *digest {
                    return Err(mismatch(what, &key, "another value"));
                }
            }
            Some((expected, _)) => {
                return Err(mismatch(what, expected, "another key in its place"));
            }
            None => return Err(mismatch(what, &key, "a key that should not be there")),
        }
        compared.add(&key, &value);
    }
    match expected.next() {
        Some((expected, _)) => Err(mismatch(what, expected, "an end before it")),
        None => Ok(compared),
    }
}

/// Tells a mismatch: the tour's own keys are no secret.
fn mismatch(what: &str, key: &[u8], found: &str) -> Failure {
    let key = crate::text::Form::Text.write(key);
    Failure::no(format!("MISMATCH: {what}: at `{key}` the store has {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(pairs: &[(&str, &str)]) -> Vec<chelonia::Result<(Key, Value)>> {
        let entry = |(key, value): &(&str, &str)| {
            Ok((Key::copy_from(key.as_bytes()), Value::copy_from(value.as_bytes())))
        };
        pairs.iter().map(entry).collect()
    }

    #[test]
    fn every_kind_of_difference_is_told() {
        let mut model = Model::default();
        for (key, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
            model.insert(key.as_bytes(), value.as_bytes());
        }
        let check =
            |pairs: &[(&str, &str)]| model.check_forward("t", .., entries(pairs).into_iter());
        assert_eq!(check(&[("a", "1"), ("b", "2"), ("c", "3")]).unwrap().bytes, 6);
        for wrong in [
            &[("a", "1"), ("b", "2")][..],
            &[("a", "1"), ("c", "3")],
            &[("a", "1"), ("b", "x"), ("c", "3")],
            &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")],
            &[("c", "3"), ("b", "2"), ("a", "1")],
        ] {
            assert_eq!(check(wrong).unwrap_err().code(), 1, "{wrong:?}");
        }
        let back = entries(&[("c", "3"), ("b", "2")]);
        let range = (std::ops::Bound::Included(&b"b"[..]), std::ops::Bound::Unbounded);
        assert!(model.check_backward("t", range, back.into_iter()).is_ok());
        assert!(model.check("t", b"a", Some(b"1")).is_ok());
        assert!(model.check("t", b"a", None).is_err());
        assert!(model.check("t", b"z", None).is_ok());
    }
}
