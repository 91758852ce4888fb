//! Keys: the one of each record, keys that no record has, and those of queues.
//!
//! Every kind of key begins with eight bytes that order it (big-endian), and is filled up to its
//! length with bytes that follow from the record:
//!
//! | kind | the eight bytes of record `r` | an absent key |
//! | --- | --- | --- |
//! | `random` | `mix(r)` | `mix(not r)` |
//! | `sequential` | `r` | the record's key and one byte more |
//! | `mixed:P` | `4 r`, or for P% of the records `4 p(r) + 1`, `p` a permutation | `4 r + 2` |
//! | `timestamps` | nanoseconds: a record each millisecond, up to 64 ms out of order | 1 ns later |
//! | `moving` | near one of 128 places, which move on; the lower half is `r` | `r + 2^31` there |
//! | `file:PATH` | none: the key is the line | the record's key and a byte of 1 |
//!
//! Different records have different keys, which the permutations and `mix` being one-to-one ensures
//! and the file is checked for. Records beyond the lines of a file have the keys of its lines with
//! a suffix. Queue entries have keys behind all of these: eight bytes of 0xff, the queue, a number.

use crate::failure::{Failure, Result};
use crate::kinds::{KeyKind, SizeRange};
use crate::workload::random::{Permutation, mix, scale};
use std::path::Path;
use std::sync::Arc;

/// The prefix of every key of a queue.
const QUEUE_PREFIX: [u8; 8] = [0xff; 8];

/// The length of the part that orders keys.
pub const ORDERING_BYTES: usize = 8;

/// The length of a queue's key: the prefix, the queue, the number.
const QUEUE_KEY_BYTES: usize = QUEUE_PREFIX.len() + size_of::<u32>() + size_of::<u64>();

/// The longest suffix of a key: a byte, or one and a number.
const SUFFIX_BYTES_MAX: usize = 1 + size_of::<u64>();

/// 2025-01-01 in nanoseconds since 1970.
const FIRST_TIMESTAMP: u64 = 1_735_689_600_000_000_000;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// Timestamps are out of order by less than this many records.
const DISORDER: u64 = 64;

/// Places of hot moving keys. The first ones have most of the keys.
const PLACES: u64 = 128;

/// The span of the keys of a place at one time: a 4096th of all keys.
const PLACE_SPAN_BITS: u32 = 52;

/// A place moves on by its span in this many records.
const PLACE_RECORDS: u64 = 1 << 20;

/// Of this many moving keys, one is anywhere.
const MOVING_ANYWHERE: u64 = 10;

/// The keys of a file, one after the other.
#[derive(Debug)]
struct FileKeys {
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: Vec<usize>,
}

/// Makes keys.
#[derive(Clone, Debug)]
pub struct Keys {
    kind: KeyKind,
    sizes: SizeRange,
    permutation: Permutation,
    file: Option<Arc<FileKeys>>,
}

impl Keys {
    /// Keys of `kind` for records 0 .. `capacity`; reads the file if there is one.
    pub fn new(kind: &KeyKind, sizes: SizeRange, capacity: u64) -> Result<Self> {
        let file = match kind {
            KeyKind::File(path) => Some(Arc::new(FileKeys::read(path)?)),
            _ => None,
        };
        Ok(Self { kind: kind.clone(), sizes, permutation: permutation(capacity), file })
    }

    /// The same for records 0 .. `capacity`.
    pub fn with_capacity(mut self, capacity: u64) -> Self {
        self.permutation = permutation(capacity);
        self
    }

    /// How many keys the file has, if they come from one.
    pub fn file_records(&self) -> Option<u64> {
        self.file.as_ref().map(|file| u64::try_from(file.ends.len()).unwrap_or(u64::MAX))
    }

    /// The mean length of the keys of the first `records` records.
    #[expect(clippy::cast_precision_loss, reason = "a mean for people and ratios")]
    pub fn mean_bytes(&self) -> f64 {
        match &self.file {
            Some(file) => file.bytes.len() as f64 / file.ends.len() as f64,
            None => self.sizes.mean(),
        }
    }

    /// No key is longer: of a record, of none, of a queue.
    pub fn bytes_max(&self) -> usize {
        let of_records = match &self.file {
            Some(file) => (0..file.ends.len()).map(|index| file.line(index).len()).max(),
            None => Some(self.sizes.max),
        };
        QUEUE_KEY_BYTES.max(of_records.unwrap_or(0) + SUFFIX_BYTES_MAX)
    }

    /// The memory that the keys take.
    pub fn memory_bytes(&self) -> usize {
        self.file
            .as_ref()
            .map_or(0, |file| file.bytes.capacity() + file.ends.capacity() * size_of::<usize>())
    }

    /// True if records with following numbers have neighbouring keys.
    pub fn are_sequential(&self) -> bool {
        matches!(self.kind, KeyKind::Sequential)
    }

    /// Writes the key of `record` to `key`.
    pub fn write(&self, record: u64, key: &mut Vec<u8>) {
        key.clear();
        let ordering = match &self.kind {
            KeyKind::Random => mix(record),
            KeyKind::Sequential => record,
            KeyKind::Mixed(percent) if scale(mix(!record), 100) < *percent => {
                4 * self.permutation.of(record) + 1
            }
            KeyKind::Mixed(_) => 4 * record,
            KeyKind::Timestamps => timestamp(record),
            KeyKind::Moving => moving(record),
            KeyKind::File(_) => return self.write_line(record, key),
        };
        self.finish(ordering, record, key);
    }

    /// Writes a key that no record has to `key`; which one follows from `record`.
    pub fn write_absent(&self, record: u64, key: &mut Vec<u8>) {
        key.clear();
        match &self.kind {
            KeyKind::Random => self.finish(mix(!record), record, key),
            KeyKind::Mixed(_) => self.finish(4 * record + 2, record, key),
            KeyKind::Timestamps => self.finish(timestamp(record) + 1, record, key),
            KeyKind::Moving => self.finish(moving(record) ^ (1 << 31), record, key),
            KeyKind::Sequential => {
                self.finish(record, record, key);
                key.push(0);
            }
            KeyKind::File(_) => {
                self.write_line(record, key);
                key.push(1);
            }
        }
    }

    /// Writes the key of entry `number` of `queue` to `key`. All queues sort after all records.
    pub fn write_queue(queue: u32, number: u64, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(&QUEUE_PREFIX);
        key.extend_from_slice(&queue.to_be_bytes());
        key.extend_from_slice(&number.to_be_bytes());
    }

    /// The ordering part, and bytes up to the length that is the record's.
    fn finish(&self, ordering: u64, record: u64, key: &mut Vec<u8>) {
        key.extend_from_slice(&ordering.to_be_bytes());
        let size = self.sizes.of(mix(record));
        let mut filling = record;
        while key.len() < size {
            filling = mix(filling);
            let bytes = filling.to_be_bytes();
            key.extend_from_slice(&bytes[..bytes.len().min(size - key.len())]);
        }
    }

    fn write_line(&self, record: u64, key: &mut Vec<u8>) {
        let Some(file) = &self.file else { return };
        let count = u64::try_from(file.ends.len()).unwrap_or(u64::MAX);
        key.extend_from_slice(file.line(usize::try_from(record % count).unwrap_or(0)));
        if record >= count {
            // Behind the line and before the line with any printable character added.
            key.push(2);
            key.extend_from_slice(&(record / count).to_be_bytes());
        }
    }
}

/// Where the random ones of mixed keys go.
fn permutation(capacity: u64) -> Permutation {
    Permutation::new(capacity, 0x6b65_7973)
}

fn timestamp(record: u64) -> u64 {
    let slot = record + mix(record) % DISORDER;
    // Records of one slot are fewer than `DISORDER` apart, so their keys differ.
    let within = record % DISORDER * (NANOS_PER_MILLI / DISORDER);
    FIRST_TIMESTAMP + slot * NANOS_PER_MILLI + within
}

/// A key near a place that is hot when the record is inserted; its lower half is the record.
fn moving(record: u64) -> u64 {
    const HALF: u64 = 1 << 32;
    let chance = mix(!record);
    let anywhere = mix(record);
    let upper = if scale(chance, MOVING_ANYWHERE) == 0 {
        anywhere
    } else {
        // A product of two even draws is skewed towards the first places.
        let place = scale(mix(chance), PLACES) * scale(mix(chance + 1), PLACES) / PLACES;
        let moved = record * ((1 << PLACE_SPAN_BITS) / PLACE_RECORDS);
        mix(place).wrapping_add(moved).wrapping_add(anywhere >> (u64::BITS - PLACE_SPAN_BITS))
    };
    // Below that of queues.
    upper.min((u64::from(u32::MAX) - 1) * HALF) / HALF * HALF + record % (HALF / 2)
}

impl FileKeys {
    fn read(path: &Path) -> Result<Self> {
        let what = || format!("read keys from {}", path.display());
        let text = std::fs::read(path).map_err(|error| Failure::failed(what(), error))?;
        let mut keys = Self { bytes: Vec::with_capacity(text.len()), ends: Vec::new() };
        let text = text.strip_suffix(b"\n").unwrap_or(&text);
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || line.first() == Some(&0xff) {
                let message = "a key has at least one byte and does not begin with 0xff";
                return Err(Failure::usage(format!("{}: line {}: {message}", what(), index + 1)));
            }
            keys.bytes.extend_from_slice(line);
            keys.ends.push(keys.bytes.len());
        }
        keys.check_unique().map_err(|message| Failure::usage(format!("{}: {message}", what())))?;
        Ok(keys)
    }

    fn line(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[index]]
    }

    /// Records must not share keys, nor have those that the benchmark makes of them.
    fn check_unique(&self) -> Result<(), String> {
        let mut order: Vec<usize> = (0..self.ends.len()).collect();
        order.sort_unstable_by(|a, b| self.line(*a).cmp(self.line(*b)));
        for pair in order.windows(2) {
            let (first, second) = (self.line(pair[0]), self.line(pair[1]));
            let lines = || format!("lines {} and {}", pair[0] + 1, pair[1] + 1);
            if first == second {
                return Err(format!("{} are the same; keys must differ", lines()));
            }
            if second.starts_with(first) && matches!(second[first.len()], 1 | 2) {
                return Err(format!("{} differ by a byte of 1 or 2, which is ours", lines()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn keys(kind: &KeyKind, sizes: SizeRange, capacity: u64) -> Keys {
        Keys::new(kind, sizes, capacity).unwrap()
    }

    fn key(keys: &Keys, record: u64) -> Vec<u8> {
        let mut key = Vec::new();
        keys.write(record, &mut key);
        key
    }

    #[test]
    fn keys_differ_and_absent_ones_are_absent() {
        let count = 20_000;
        for kind in [
            KeyKind::Random,
            KeyKind::Sequential,
            KeyKind::Mixed(0),
            KeyKind::Mixed(30),
            KeyKind::Mixed(100),
            KeyKind::Timestamps,
            KeyKind::Moving,
        ] {
            for sizes in [SizeRange::fixed(8), SizeRange::new(9, 40)] {
                let keys = keys(&kind, sizes, count);
                let all: BTreeSet<Vec<u8>> = (0..count).map(|record| key(&keys, record)).collect();
                assert_eq!(all.len(), usize::try_from(count).unwrap(), "{kind:?}");
                assert!(all.iter().all(|key| (sizes.min..=sizes.max).contains(&key.len())));
                let (mut absent, mut queued) = (Vec::new(), Vec::new());
                Keys::write_queue(0, 0, &mut queued);
                assert!(*all.last().unwrap() < queued);
                for record in 0..count {
                    keys.write_absent(record, &mut absent);
                    assert!(!all.contains(&absent), "{kind:?} {record}");
                }
            }
        }
    }

    #[test]
    fn kinds_are_in_the_order_they_promise() {
        let count = 10_000;
        let descents = |kind: KeyKind| {
            let keys = keys(&kind, SizeRange::fixed(8), count);
            (1..count).filter(|record| key(&keys, *record) < key(&keys, record - 1)).count()
        };
        assert_eq!(descents(KeyKind::Sequential), 0);
        assert_eq!(descents(KeyKind::Mixed(0)), 0);
        let mixed = descents(KeyKind::Mixed(10));
        assert!((700..1300).contains(&mixed), "{mixed}");
        let random = descents(KeyKind::Random);
        assert!((4500..5500).contains(&random), "{random}");
        let keys = keys(&KeyKind::Timestamps, SizeRange::fixed(8), count);
        assert!((100..count).all(|record| key(&keys, record) > key(&keys, record - 100)));
    }

    #[test]
    fn moving_keys_are_near_each_other_and_far_from_later_ones() {
        let spans = |from: u64| -> BTreeSet<u64> {
            (from..from + 20_000).map(|record| moving(record) >> PLACE_SPAN_BITS).collect()
        };
        let (now, later) = (spans(0), spans(8 * PLACE_RECORDS));
        // A tenth of the keys are anywhere: in up to 2,000 of 4,096 spans.
        assert!((1_000..2_300).contains(&now.len()), "{}", now.len());
        let hot = |from: u64, spans: &BTreeSet<u64>| {
            (from..from + 2_000).filter(|record| spans.contains(&(moving(*record) >> 52))).count()
        };
        assert_eq!(hot(0, &now), 2_000);
        assert!(hot(8 * PLACE_RECORDS, &now) < 1_500);
        assert_eq!(hot(8 * PLACE_RECORDS, &later), 2_000);
    }

    #[test]
    fn files_give_their_lines_and_must_not_repeat_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Keys::new(&KeyKind::File(path.clone()), SizeRange::fixed(8), 4)
        };
        let keys = read("bee\r\nant\ncat\n").unwrap();
        assert_eq!(keys.file_records(), Some(3));
        assert_eq!([key(&keys, 0), key(&keys, 1), key(&keys, 2)], [b"bee", b"ant", b"cat"]);
        assert!(key(&keys, 3).starts_with(b"bee\x02"));
        for (bad, expected) in [
            ("a\nb\na\n", "lines 1 and 3 are the same"),
            ("a\n\nb\n", "line 2"),
            ("a\na\u{1}\n", "lines 1 and 2"),
            ("", "line 1"),
        ] {
            let message = read(bad).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
