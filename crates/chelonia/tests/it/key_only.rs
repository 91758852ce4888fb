//! Key-only reads: `contains_key`, counting and iterating over keys never read a large value.

use chelonia::{Database, EngineKind, Keyspace, KeyspaceOptions, Result};

const LARGE: usize = 1 << 20;
const COUNT: u32 = 20;

/// Every second of these keys has a value in an extent of its own.
fn filled(engine: EngineKind, is_checkpointed: bool) -> (tempfile::TempDir, Database, Keyspace) {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::builder(dir.path()).memory(32 << 20).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new().engine(engine)).unwrap();
    for number in 0..2 * COUNT {
        keyspace.insert(number.to_be_bytes(), vec![7; LARGE + number as usize]).unwrap();
    }
    (1..2 * COUNT).step_by(2).for_each(|number| keyspace.remove(number.to_be_bytes()).unwrap());
    if is_checkpointed {
        database.checkpoint().unwrap();
    }
    (dir, database, keyspace)
}

fn numbers(keys: impl Iterator<Item = Result<chelonia::Key>>) -> Vec<u32> {
    keys.map(|key| u32::from_be_bytes(key.unwrap()[..].try_into().unwrap())).collect()
}

fn read_keys(database: &Database, keyspace: &Keyspace) {
    let snapshot = database.snapshot();
    for number in 0..2 * COUNT {
        let (key, is_there) = (number.to_be_bytes(), number % 2 == 0);
        let bytes = is_there.then_some(LARGE as u64 + u64::from(number));
        assert_eq!(keyspace.contains_key(key).unwrap(), is_there);
        assert_eq!(snapshot.contains_key(keyspace, key).unwrap(), is_there);
        assert_eq!(keyspace.size_of(key).unwrap(), bytes);
        assert_eq!(snapshot.size_of(keyspace, key).unwrap(), bytes);
    }
    assert_eq!(keyspace.len().unwrap(), u64::from(COUNT));
    assert_eq!(snapshot.len(keyspace).unwrap(), u64::from(COUNT));
    assert!(!keyspace.is_empty().unwrap() && !snapshot.is_empty(keyspace).unwrap());
    assert_eq!(keyspace.iter().count(), COUNT as usize);
    assert!(keyspace.iter().nth(COUNT as usize).is_none());
    assert!(keyspace.iter().nth_back(COUNT as usize).is_none());
    let even: Vec<u32> = (0..2 * COUNT).step_by(2).collect();
    assert_eq!(numbers(keyspace.iter().keys()), even);
    assert_eq!(numbers(snapshot.iter(keyspace).keys()), even);
    let mut backward = numbers(keyspace.iter().keys().rev());
    backward.reverse();
    assert_eq!(backward, even);
    let within = 3_u32.to_be_bytes()..=8_u32.to_be_bytes();
    assert_eq!(numbers(keyspace.range(within).keys()), [4, 6, 8]);
    // From both ends, each key once.
    let mut both = keyspace.iter().keys();
    let ends = [both.next(), both.next_back(), both.next()].map(|key| key.unwrap());
    assert_eq!(numbers(ends.into_iter()), [0, 2 * COUNT - 2, 2]);
    assert_eq!(both.count(), COUNT as usize - 3);
}

#[test]
fn key_only_reads_never_read_large_values() {
    for engine in EngineKind::ALL {
        for is_checkpointed in [false, true] {
            let (_dir, database, keyspace) = filled(engine, is_checkpointed);
            let bytes_read = || database.stats().io.data_bytes_read;
            let before = bytes_read();
            read_keys(&database, &keyspace);
            let read = bytes_read() - before;
            assert!(read < LARGE as u64 / 2, "{engine:?}: {read} bytes read");
            // A value that is read is counted, so the assertion can fail.
            let before = bytes_read();
            let (key, value) = keyspace.iter().nth(1).unwrap().unwrap();
            assert_eq!((key, value.len()), (2_u32.to_be_bytes()[..].into(), LARGE + 2));
            let read = bytes_read() - before;
            assert!((LARGE as u64..2 * LARGE as u64).contains(&read), "{read} bytes for one");
        }
    }
}

#[test]
fn an_emptied_keyspace_has_length_zero() {
    let (_dir, database, keyspace) = filled(EngineKind::Turtle, true);
    let before = database.snapshot();
    for number in 0..2 * COUNT {
        keyspace.remove(number.to_be_bytes()).unwrap();
    }
    assert!(keyspace.is_empty().unwrap());
    assert_eq!((keyspace.len().unwrap(), keyspace.iter().keys().count()), (0, 0));
    assert_eq!(before.len(&keyspace).unwrap(), u64::from(COUNT));
    database.drop_keyspace("k").unwrap();
    assert!(keyspace.len().is_err() && keyspace.is_empty().is_err());
    assert!(keyspace.size_of("any").is_err());
}
