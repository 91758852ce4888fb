//! The interface of stores, and tests that every store of this build passes.

use super::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Barrier;
use tempfile::TempDir;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Entries of the tests: a few batches of a store without a log, and blocks of every store.
const ENTRIES: u64 = 5000;

const MEMORY: u64 = 64_000_000;

/// Stores that do not write a commit to files at once; their settings say so.
const FORGETFUL: [&str; 2] = ["redb", "bf-tree"];

fn options(kind: Kind, path: &Path) -> StoreOptions {
    StoreOptions {
        path: path.to_path_buf(),
        engine: kind.name.to_owned(),
        memory: MEMORY,
        checkpoint_distance: None,
        shape: Shape::default(),
        durability: Durability::Process,
        threads: 2,
        live_bytes: ENTRIES * 128,
        key_bytes_max: 32,
        value_bytes_max: 400,
    }
}

fn built() -> impl Iterator<Item = Kind> {
    all().into_iter().filter(|kind| kind.open.is_some())
}

/// Keys in no order, with common beginnings.
fn key(number: u64) -> Vec<u8> {
    format!("key {:06}", number * 7919 % 1_000_003).into_bytes()
}

fn value(number: u64, version: u64) -> Vec<u8> {
    let length = 16 + usize::try_from(number * 31 % 300).unwrap();
    let mut value = format!("value {number} {version} ").into_bytes();
    value.resize(length.max(value.len()), b'.');
    value
}

/// A session, its expected content, and the number of writes per commit.
struct Writer<'a> {
    session: Box<dyn Session + 'a>,
    map: Map,
    commit_every: u32,
    waiting: u32,
}

impl<'a> Writer<'a> {
    fn new(store: &'a dyn Store) -> Self {
        let commit_every = store.facts().commit_every;
        Self { session: store.session().unwrap(), map: Map::new(), commit_every, waiting: 0 }
    }

    fn insert(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.session.insert(&key, &value).unwrap();
        self.map.insert(key, value);
        self.written();
    }

    fn remove(&mut self, key: &[u8]) {
        self.session.remove(key).unwrap();
        self.map.remove(key);
        self.written();
    }

    fn written(&mut self) {
        self.waiting += 1;
        if self.commit_every > 1 && self.waiting == self.commit_every {
            self.commit();
        }
    }

    fn commit(&mut self) {
        if self.commit_every > 1 && self.waiting > 0 {
            self.session.commit().unwrap();
        }
        self.waiting = 0;
    }

    /// Inserts, overwrites, removes, and inserts again.
    fn write(&mut self, numbers: Range<u64>) {
        for number in numbers.clone() {
            self.insert(key(number), value(number, 0));
        }
        for number in numbers.clone().step_by(3) {
            self.insert(key(number), value(number + 5, 1));
        }
        for number in numbers.clone().step_by(7) {
            self.remove(&key(number));
        }
        for number in numbers.clone().step_by(70) {
            self.insert(key(number), value(number, 2));
        }
        self.remove(b"key that never was");
        self.commit();
    }
}

/// Asserts that everything readable equals `map`.
fn compare(name: &str, session: &mut dyn Session, map: &Map) {
    let mut found = Vec::new();
    let numbers = 0..ENTRIES + 100;
    for number in numbers.clone() {
        found.clear();
        let is_there = session.get(&key(number), &mut found).unwrap();
        let expected = map.get(&key(number));
        assert_eq!(is_there.then_some(&found), expected, "{name}: get {number}");
    }
    let mut entries = Entries::default();
    let after_last: &[u8] = b"kez";
    for (from, count) in [
        (&b"a"[..], 1),
        (b"key 5", 100),
        (&key(17), 10),
        (b"key 999", 1000),
        (b"a", map.len()),
        (b"a", map.len() + 9),
        (after_last, 5),
        (b"key 3", 0),
    ] {
        entries.clear();
        session.scan(from, count, &mut entries).unwrap();
        let expected: Vec<_> = map.range(from.to_vec()..).take(count).collect();
        assert_eq!(entries.len(), expected.len(), "{name}: scan of {count} from {from:?}");
        for ((key, value), (expected_key, expected_value)) in entries.iter().zip(expected) {
            assert_eq!((key, value), (&expected_key[..], &expected_value[..]), "{name}");
        }
    }
    let mut answers = Answers::default();
    let keys: Vec<Vec<u8>> = numbers.step_by(37).chain([0, 1, 0]).map(key).collect();
    session.multi_get(&keys, &mut answers).unwrap();
    let expected: Vec<_> = keys.iter().map(|key| map.get(key).map(Vec::as_slice)).collect();
    assert_eq!(answers.iter().collect::<Vec<_>>(), expected, "{name}: multi_get");
}

#[test]
fn every_store_behaves_like_a_map() {
    for kind in built() {
        let directory = TempDir::new().unwrap();
        let store = kind.open(&options(kind, directory.path())).unwrap();
        let mut writer = Writer::new(store.as_ref());
        compare(kind.name, writer.session.as_mut(), &Map::new());
        writer.write(0..ENTRIES);
        let map = std::mem::take(&mut writer.map);
        compare(kind.name, writer.session.as_mut(), &map);
        drop(writer);
        assert_eq!(store.settle(Duration::from_secs(60)).unwrap(), Settled::Done, "{}", kind.name);
        compare(kind.name, store.session().unwrap().as_mut(), &map);
        let facts = store.facts();
        assert!(facts.version.starts_with(|first: char| first.is_ascii_digit()), "{facts:?}");
        assert!(facts.settings.iter().any(|(name, _)| *name == "log"), "{facts:?}");
        let counters = store.counters().unwrap();
        let logged = counters.log_bytes.unwrap_or(u64::MAX);
        let is_coarse = kind.name == "rocksdb";
        assert!(logged > ENTRIES * 100 || is_coarse, "{}: {counters:?}", kind.name);
        store.close().unwrap();
        assert!(std::fs::read_dir(directory.path()).unwrap().count() > 0);
    }
}

#[test]
fn two_threads_write_and_read_at_the_same_time() {
    for kind in built() {
        let directory = TempDir::new().unwrap();
        let store = kind.open(&options(kind, directory.path())).unwrap();
        let half = ENTRIES / 2;
        let start = Barrier::new(2);
        let work = |numbers: Range<u64>| {
            let mut writer = Writer::new(store.as_ref());
            start.wait();
            writer.write(numbers.clone());
            // Reads between the writes of the other.
            let mut found = Vec::new();
            for number in numbers {
                found.clear();
                let is_there = writer.session.get(&key(number), &mut found).unwrap();
                assert_eq!(is_there.then_some(&found), writer.map.get(&key(number)));
            }
            writer.map
        };
        let mut map = std::thread::scope(|scope| {
            let other = scope.spawn(|| work(half..ENTRIES));
            let mut map = work(0..half);
            map.append(&mut other.join().unwrap());
            map
        });
        compare(kind.name, store.session().unwrap().as_mut(), &map);
        map.clear();
        store.close().unwrap();
    }
}

/// True if a file below `folder` holds `bytes`.
fn is_in_files(folder: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return is_in_files(&path, bytes);
        }
        let file = std::fs::read(&path).unwrap();
        file.windows(bytes.len()).any(|window| window == bytes)
    })
}

#[test]
fn a_commit_is_with_the_system_when_its_call_returns() {
    for kind in built() {
        let directory = TempDir::new().unwrap();
        let store = kind.open(&options(kind, directory.path())).unwrap();
        let mut writer = Writer::new(store.as_ref());
        for number in 0..100_u64 {
            let secret = format!("a value that is nowhere else: {number}").into_bytes();
            writer.insert(key(number), secret.clone());
            writer.commit();
            if number % 33 == 0 && !FORGETFUL.contains(&kind.name) {
                let is_there = is_in_files(directory.path(), &secret);
                assert!(is_there, "{}: write {number} is only in the process", kind.name);
            }
        }
        drop(writer);
        store.close().unwrap();
    }
}

#[test]
fn other_durabilities_do_the_same_or_are_refused() {
    for (kind, durability) in
        built().flat_map(|kind| [(kind, Durability::Memory), (kind, Durability::Sync)])
    {
        let directory = TempDir::new().unwrap();
        let options = StoreOptions { durability, ..options(kind, directory.path()) };
        if kind.name == "bf-tree" && durability == Durability::Sync {
            let refused = kind.open(&options).map(|_| ()).unwrap_err();
            assert!(refused.to_string().contains("allowed are memory"), "{refused}");
            continue;
        }
        let store = kind.open(&options).unwrap();
        let mut writer = Writer::new(store.as_ref());
        writer.write(0..100);
        let map = std::mem::take(&mut writer.map);
        compare(kind.name, writer.session.as_mut(), &map);
        drop(writer);
        store.close().unwrap();
    }
}

#[test]
fn keys_and_values_may_be_as_long_as_the_options_allow() {
    for kind in built() {
        let directory = TempDir::new().unwrap();
        let (key_bytes_max, value_bytes_max) = (489, 9000);
        let options = options(kind, directory.path());
        let store = kind.open(&StoreOptions { key_bytes_max, value_bytes_max, ..options }).unwrap();
        let mut writer = Writer::new(store.as_ref());
        for number in 0..20_u8 {
            writer.insert(vec![number; key_bytes_max], vec![number; value_bytes_max]);
            writer.insert(vec![number], vec![number; 16]);
        }
        writer.commit();
        for (key, value) in &writer.map {
            let mut found = Vec::new();
            assert!(writer.session.get(key, &mut found).unwrap(), "{}", kind.name);
            assert_eq!(&found, value, "{}", kind.name);
        }
        drop(writer);
        store.close().unwrap();
    }
}

#[test]
fn entries_and_answers_come_back() {
    let mut entries = Entries::default();
    entries.push(b"a", b"1");
    entries.push(b"", b"");
    entries.push(b"bc", b"23");
    let all: Vec<_> = entries.iter().collect();
    assert_eq!(all, [(&b"a"[..], &b"1"[..]), (b"", b""), (b"bc", b"23")]);
    let mut answers = Answers::default();
    answers.push(Some(b"one"));
    answers.push(None::<&[u8]>);
    answers.push(Some(b""));
    let all: Vec<_> = answers.iter().collect();
    assert_eq!(all, [Some(&b"one"[..]), None, Some(b"")]);
}

#[test]
fn names_are_unique_and_ours_come_first() {
    let names = names();
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
    assert_eq!(names[0], "turtle");
    assert!(all().iter().take_while(|kind| kind.open.is_some()).count() >= 1);
}

#[test]
fn a_store_that_was_not_built_names_its_package() {
    let absent =
        Kind { name: "other", open: None, package: Some("libother-dev"), uses_page_cache: false };
    let message = absent.check_built().unwrap_err().to_string();
    assert!(message.contains("--features other") && message.contains("libother-dev"));
}
