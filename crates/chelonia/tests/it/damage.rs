//! Damage to the data file: undamaged data stays readable and writable, and `verify` names every
//! damaged block.

use chelonia::limits::MEMORY_BYTES_MIN;
use chelonia::{Database, ErrorKind, Keyspace, KeyspaceOptions};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const BLOCK: usize = 4096;
const KEYS: u64 = 20_000;

fn open(path: &Path) -> Database {
    Database::builder(path).memory(MEMORY_BYTES_MIN).open().unwrap()
}

fn keyspace(database: &Database, name: &str) -> Keyspace {
    database.keyspace(name, KeyspaceOptions::new()).unwrap()
}

/// A closed database of these keyspaces, each with all keys and its own value.
fn closed(keyspaces: &[(&str, &[u8])]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    for (name, value) in keyspaces {
        let keyspace = keyspace(&database, name);
        (0..KEYS).for_each(|number| keyspace.insert(number.to_be_bytes(), value).unwrap());
    }
    database.checkpoint().unwrap();
    database.close().unwrap();
    (directory, path)
}

/// Changes the data file.
fn change(path: &Path, change: impl FnOnce(&mut [u8])) {
    let data = path.join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    change(&mut bytes);
    std::fs::write(data, bytes).unwrap();
}

#[test]
fn a_damaged_leaf_block_closes_neither_its_keyspace_nor_the_database() {
    let (_directory, path) = closed(&[("damaged", &[b'v'; 120]), ("sound", &[b's'; 120])]);
    let mut damaged_block = 0;
    change(&path, |bytes| {
        let place = bytes.windows(64).position(|window| window == [b'v'; 64]).unwrap();
        bytes[place] ^= 1;
        damaged_block = place / BLOCK * BLOCK;
    });
    let database = open(&path);
    let damaged = keyspace(&database, "damaged");
    let lost: Vec<u64> =
        (0..KEYS).filter(|number| damaged.get(number.to_be_bytes()).is_err()).collect();
    assert!((1..100).contains(&lost.len()), "one block holds {} keys", lost.len());
    // A flush reads the block; lost entries are not written again.
    for number in 0..300_000_u64 {
        let number = number % KEYS;
        if !lost.contains(&number) {
            damaged.insert(number.to_be_bytes(), [b'w'; 120]).unwrap();
        }
    }
    assert!(database.stats().background.flushes > 3);
    drop((damaged, database));
    for read_only in [true, false] {
        let builder = Database::builder(&path).memory(MEMORY_BYTES_MIN).read_only(read_only);
        let database = builder.open().unwrap();
        let (damaged, sound) = (keyspace(&database, "damaged"), keyspace(&database, "sound"));
        for number in 0..KEYS {
            let key = number.to_be_bytes();
            assert_eq!(sound.get(key).unwrap().unwrap(), [b's'; 120]);
            match damaged.get(key) {
                Ok(value) => assert_eq!(value.unwrap(), [b'w'; 120]),
                Err(error) => assert!(lost.contains(&number), "{error}"),
            }
        }
        let findings = database.verify().unwrap().findings;
        let named: Vec<_> = findings.iter().map(chelonia::Error::offset).collect();
        assert_eq!(named, [Some(damaged_block as u64)], "{findings:?}");
        if !read_only {
            lost.iter().for_each(|number| damaged.insert(number.to_be_bytes(), "new").unwrap());
            database.checkpoint().unwrap();
            let again = |number: &u64| damaged.get(number.to_be_bytes()).unwrap().unwrap();
            assert!(lost.iter().all(|number| again(number) == *b"new"));
        }
    }
}

/// Matches blocks of this kind, by the byte in the header.
const ENTRIES: u8 = 1;
const FILTER: u8 = 4;

fn is_of(bytes: &[u8], kind: u8) -> impl Fn(&usize) -> bool {
    move |block| bytes[block * BLOCK + 8] == kind
}

/// A filter contains no data of users.
#[test]
fn a_damaged_filter_block_hides_no_entry() {
    let (_directory, path) = closed(&[("k", &[b'v'; 12])]);
    let mut filter = 0;
    change(&path, |bytes| {
        filter = (2..bytes.len() / BLOCK).find(is_of(bytes, FILTER)).unwrap() * BLOCK;
        bytes[filter + 1000] ^= 1;
    });
    let database = open(&path);
    let keyspace = keyspace(&database, "k");
    let keys: Vec<_> = (0..KEYS).map(u64::to_be_bytes).collect();
    for keys in keys.chunks(500) {
        let found = keyspace.multi_get(keys).unwrap();
        assert!(found.iter().all(|value| *value.as_ref().unwrap() == [b'v'; 12]));
    }
    assert!(keys.iter().all(|key| keyspace.get(key).unwrap().unwrap() == [b'v'; 12]));
    assert!((KEYS..2 * KEYS).all(|number| keyspace.get(number.to_be_bytes()).unwrap().is_none()));
    let findings = database.verify().unwrap().findings;
    let named: Vec<_> = findings.iter().map(chelonia::Error::offset).collect();
    assert_eq!(named, [Some(filter as u64)], "{findings:?}");
}

#[test]
fn every_damaged_block_of_a_run_is_reported_once() {
    let (_directory, path) = closed(&[("k", &[b'v'; 12])]);
    let mut damaged = Vec::new();
    change(&path, |bytes| {
        let filter = (2..bytes.len() / BLOCK).find(is_of(bytes, FILTER)).unwrap();
        let last = (2..filter).rev().find(is_of(bytes, ENTRIES)).unwrap();
        // Two entry blocks, the index between, and the first of the filter.
        damaged = [last - 3, last].into_iter().chain(last + 1..=filter).collect();
        damaged.iter().for_each(|block| bytes[block * BLOCK + 1000] ^= 1);
    });
    let findings = open(&path).verify().unwrap().findings;
    let mut found: Vec<_> =
        findings.iter().map(|finding| finding.offset().unwrap() as usize / BLOCK).collect();
    found.sort_unstable();
    assert_eq!(found, damaged, "{findings:?}");
}

#[test]
fn a_damaged_block_is_named_and_the_rest_stays_readable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for number in 0..20_000_u64 {
        keyspace.insert(number.to_be_bytes(), [b'v'; 120]).unwrap();
    }
    database.checkpoint().unwrap();
    database.close().unwrap();
    let data = path.join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    // A block with values of some keys: damage one byte of a value.
    let place = 600_000 + bytes[600_000..].windows(64).position(|w| w == [b'v'; 64]).unwrap();
    bytes[place] ^= 1;
    std::fs::write(&data, &bytes).unwrap();

    let database = open(&path);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let (mut damaged, mut first_damaged) = (0, 0);
    for number in 0..20_000_u64 {
        match keyspace.get(number.to_be_bytes()) {
            Ok(value) => assert_eq!(value.unwrap(), [b'v'; 120]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert_eq!(error.file(), Some("data"));
                assert_eq!(error.offset(), Some(place as u64 / 4096 * 4096));
                let named = format!("(file {}, offset {})", data.display(), place / 4096 * 4096);
                assert!(error.to_string().contains(&named), "{error}");
                if damaged == 0 {
                    first_damaged = number;
                }
                damaged += 1;
            }
        }
    }
    assert!((1..100).contains(&damaged), "{damaged} keys are damaged");
    // Scans from either end return every entry before the damage, report it once, and end.
    for forward in [true, false] {
        let mut iter = keyspace.iter();
        let mut next = || if forward { iter.next() } else { iter.next_back() };
        let mut given = 0;
        let error = loop {
            match next().unwrap() {
                Ok(_) => given += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.offset(), Some(place as u64 / 4096 * 4096));
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert_eq!(given, if forward { first_damaged } else { 20_000 - first_damaged - damaged });
        assert!(next().is_none());
    }
    let report = database.verify().unwrap();
    assert!(!report.is_clean());
    assert_eq!(report.findings[0].offset(), Some(place as u64 / 4096 * 4096));
    assert!(report.findings[0].to_string().contains(&path.display().to_string()));
    let several = keyspace.multi_get((0..20_000_u64).map(u64::to_be_bytes)).unwrap_err();
    let in_snapshot = database.snapshot().get(&keyspace, first_damaged.to_be_bytes()).unwrap_err();
    for error in [several, in_snapshot] {
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    keyspace.insert("still", "writable").unwrap();
}
