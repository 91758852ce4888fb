//! Random transactions beside random writes: one whose reads would differ now has a conflict.

use super::open;
use crate::support::{fresh_seed, hex_seed};
use chelonia::internals::Rng;
use chelonia::{
    Database, EngineKind, EngineOptions, ErrorKind, Keyspace, KeyspaceOptions, Transaction,
};
use std::ops::Bound;

/// Short keys of few bytes, the least and the greatest among them; also the empty key.
fn key(rng: &mut Rng) -> Vec<u8> {
    let length = rng.below(4);
    (0..length).map(|_| [0, 1, b'a', 0xff][rng.below(4) as usize]).collect()
}

fn bound(rng: &mut Rng) -> Bound<Vec<u8>> {
    match rng.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key(rng)),
        _ => Bound::Excluded(key(rng)),
    }
}

/// One operation of a transaction. Iterators make some steps, true forward and false backward.
#[derive(Clone, Debug)]
enum Op {
    Get(Vec<u8>),
    Contains(Vec<u8>),
    MultiGet(Vec<Vec<u8>>),
    Range(Bound<Vec<u8>>, Bound<Vec<u8>>, Vec<bool>),
    Prefix(Vec<u8>, Vec<bool>),
    Set(Vec<u8>, Option<u8>),
}

impl Op {
    fn random(rng: &mut Rng) -> Self {
        let mut steps = Vec::new();
        let forward = rng.below(5);
        for _ in 0..rng.below(9) {
            steps.push(rng.below(4) < forward);
        }
        match rng.below(9) {
            0 => Op::Get(key(rng)),
            1 => Op::Contains(key(rng)),
            2 => Op::MultiGet((0..3).map(|_| key(rng)).collect()),
            3..6 => Op::Range(bound(rng), bound(rng), steps),
            6 => Op::Prefix(key(rng), steps),
            7 => Op::Set(key(rng), None),
            _ => Op::Set(key(rng), Some(201 + rng.below(9) as u8)),
        }
    }

    /// Does it; returns what it shows.
    fn run(&self, transaction: &mut Transaction, keyspace: &Keyspace) -> String {
        let show = |error: chelonia::Error| format!("{:?}", error.kind());
        let mut entries = match self {
            Op::Get(key) => return format!("{:?}", transaction.get(keyspace, key).unwrap()),
            Op::Contains(key) => {
                return format!("{}", transaction.contains_key(keyspace, key).unwrap());
            }
            Op::MultiGet(keys) => {
                return format!("{:?}", transaction.multi_get(keyspace, keys).unwrap());
            }
            Op::Set(key, value) => {
                match value {
                    Some(value) => transaction.insert(keyspace, key, [*value]).unwrap(),
                    None => transaction.remove(keyspace, key).unwrap(),
                }
                return String::new();
            }
            Op::Range(lower, upper, _) => {
                transaction.range::<Vec<u8>, _>(keyspace, (lower.clone(), upper.clone()))
            }
            Op::Prefix(prefix, _) => transaction.prefix(keyspace, prefix),
        };
        let (Op::Range(.., steps) | Op::Prefix(_, steps)) = self else { unreachable!() };
        let mut step = |forward: &bool| {
            let entry = if *forward { entries.next() } else { entries.next_back() };
            entry.map(|entry| entry.map_err(show))
        };
        format!("{:?}", steps.iter().map(&mut step).collect::<Vec<_>>())
    }
}

fn set(keyspace: &Keyspace, rng: &mut Rng) {
    match rng.below(3) {
        0 => keyspace.remove(key(rng)).unwrap(),
        _ => keyspace.insert(key(rng), [rng.below(200) as u8]).unwrap(),
    }
}

/// More keys than are remembered for transactions.
fn flood(keyspace: &Keyspace) {
    for number in 0..1_200_u32 {
        keyspace.insert([&[7; 1_000][..], &number.to_be_bytes()].concat(), "").unwrap();
    }
}

#[test]
fn no_conflict_is_missed() {
    let seed = fresh_seed();
    let _guard = hex_seed(seed);
    let mut rng = Rng::new(seed);
    let database = open();
    let flooded = database.keyspace("flooded", KeyspaceOptions::new()).unwrap();
    let (mut conflicts, mut commits) = (0, 0);
    for round in 0..40 {
        let engine = EngineOptions::tiny(EngineKind::ALL[round % EngineKind::ALL.len()], 4 << 10);
        let options = KeyspaceOptions::new().engine(engine);
        let keyspace = database.keyspace("k", options).unwrap();
        for number in 0..40 {
            (0..rng.below(12)).for_each(|_| set(&keyspace, &mut rng));
            if rng.below(5) == 0 {
                database.checkpoint().unwrap();
            }
            let ops: Vec<Op> = (0..=rng.below(5)).map(|_| Op::random(&mut rng)).collect();
            let show = |database: &Database| {
                let mut transaction = database.transaction().unwrap();
                let shown: Vec<_> =
                    ops.iter().map(|op| op.run(&mut transaction, &keyspace)).collect();
                (transaction, shown)
            };
            let (mut transaction, before) = show(&database);
            transaction.insert(&flooded, "own", "1").unwrap();
            (0..=rng.below(2)).for_each(|_| set(&keyspace, &mut rng));
            if number == 7 && round % 6 == 0 {
                flood(&flooded);
            }
            let (_, after) = show(&database);
            match transaction.commit() {
                Ok(()) => {
                    assert_eq!(before, after, "a conflict was missed: {ops:?}");
                    commits += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Conflict);
                    conflicts += 1;
                }
            }
        }
        drop(keyspace);
        database.drop_keyspace("k").unwrap();
    }
    assert!(conflicts > 100 && commits > 300, "{conflicts} conflicts, {commits} commits");
}
