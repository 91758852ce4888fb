//! A merge compared with a direct implementation of "newest wins".

use super::*;
use crate::base::error::Error;
use crate::runtime::rng::Rng;
use std::collections::BTreeMap;

/// `None` is a tombstone.
type Entries = Vec<(Vec<u8>, Option<Vec<u8>>)>;

struct Listed {
    entries: Entries,
    next: usize,
    fail_at: usize,
}

impl Listed {
    fn new(entries: Entries) -> Self {
        Self { entries, next: 0, fail_at: usize::MAX }
    }
}

impl SortedStream for Listed {
    fn key(&self) -> Option<&[u8]> {
        self.entries.get(self.next).map(|(key, _)| key.as_slice())
    }

    fn update(&self) -> Update<'_> {
        match &self.entries[self.next].1 {
            Some(value) => Update::Put(value),
            None => Update::Delete,
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.next += 1;
        if self.next == self.fail_at { Err(Error::internal("made to fail")) } else { Ok(()) }
    }
}

/// Keys that share heads, are prefixes of each other, and differ only in trailing zeros.
fn random_key(rng: &mut Rng) -> Vec<u8> {
    let mut key = vec![b'k'; usize::try_from(rng.below(10)).unwrap()];
    for _ in 0..rng.below(4) {
        key.push([0, 1, b'k', 0xff][usize::try_from(rng.below(4)).unwrap()]);
    }
    key
}

fn random_source(rng: &mut Rng, age: u64) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let count = rng.below(60);
    (0..count)
        .map(|index| {
            let value = format!("{age}-{index}").into_bytes();
            (random_key(rng), (!rng.one_in(4)).then_some(value))
        })
        .collect()
}

#[test]
fn the_newest_source_wins_in_both_directions() {
    let mut rng = Rng::new(1);
    for round in 0..600 {
        let sources: Vec<_> = (0..rng.below(9)).map(|age| random_source(&mut rng, age)).collect();
        let mut model = BTreeMap::new();
        for source in sources.iter().rev() {
            model.extend(source.clone());
        }
        let drop = round % 2 == 0;
        let mut expected: Entries =
            model.into_iter().filter(|(_, value)| !drop || value.is_some()).collect();
        let direction = if round % 3 == 0 { Direction::Descending } else { Direction::Ascending };
        let streams = sources.iter().map(|source| {
            let mut entries: Entries = source.clone().into_iter().collect();
            if direction == Direction::Descending {
                entries.reverse();
            }
            Listed::new(entries)
        });
        if direction == Direction::Descending {
            expected.reverse();
        }
        let tombstones = if drop { Tombstones::Drop } else { Tombstones::Keep };
        let mut merge = Merge::new(streams.collect(), direction, tombstones).unwrap();
        let mut given: Entries = Vec::new();
        while let Some(key) = merge.key() {
            let value = match merge.update() {
                Update::Put(value) => Some(value.to_vec()),
                _ => None,
            };
            given.push((key.to_vec(), value));
            merge.advance().unwrap();
        }
        assert_eq!(given, expected, "round {round}");
        let read: usize = sources.iter().map(BTreeMap::len).sum();
        assert_eq!(merge.passed_over().entries, (read - given.len()) as u64);
        let bytes = |entries: &Entries| -> usize {
            let value_bytes = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
            entries.iter().map(|(key, value)| key.len() + value_bytes(value)).sum()
        };
        let all: usize =
            sources.iter().map(|source| bytes(&source.clone().into_iter().collect())).sum();
        assert_eq!(merge.passed_over().bytes, (all - bytes(&given)) as u64);
    }
}

#[test]
fn an_error_of_a_source_comes_out() {
    let entries = |from: u8| (from..from + 4).map(|byte| (vec![byte], Some(vec![]))).collect();
    for fail_at in 1..4 {
        let mut failing = Listed::new(entries(2));
        failing.fail_at = fail_at;
        let sources = vec![Listed::new(entries(0)), failing, Listed::new(entries(9))];
        let mut merge = match Merge::new(sources, Direction::Ascending, Tombstones::Keep) {
            Ok(merge) => merge,
            Err(error) => {
                assert!(error.to_string().contains("made to fail"));
                continue;
            }
        };
        let mut failed = false;
        while merge.key().is_some() && !failed {
            failed = merge.advance().is_err();
        }
        assert!(failed);
    }
}
