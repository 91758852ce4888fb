//! Bad input gets a clear error, and nothing is lost.

use chelonia::internals::{FaultDirectory, FaultPlan, MemoryDirectory};
use chelonia::limits::{BATCH_BYTES_MAX, KEY_BYTES_MAX, MEMORY_BYTES_MIN, VALUE_BYTES_MAX};
use chelonia::{Database, ErrorKind, KeyspaceOptions, TurtleOptions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn kind<T>(result: chelonia::Result<T>) -> ErrorKind {
    result.err().expect("it should fail").kind()
}

fn open(path: &std::path::Path) -> Database {
    Database::builder(path).memory(MEMORY_BYTES_MIN).open().unwrap()
}

#[test]
fn keys_and_values_up_to_their_limits_and_not_beyond() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let long_key = vec![9; KEY_BYTES_MAX];
    let long_value = vec![5; VALUE_BYTES_MAX];
    keyspace.insert(&long_key, &long_value).unwrap();
    keyspace.insert("", "the empty key is a key").unwrap();
    keyspace.insert("empty", "").unwrap();
    assert_eq!(kind(keyspace.insert(vec![9; KEY_BYTES_MAX + 1], "")), ErrorKind::InvalidArgument);
    assert_eq!(kind(keyspace.remove(vec![9; KEY_BYTES_MAX + 1])), ErrorKind::InvalidArgument);
    let too_long = vec![5; VALUE_BYTES_MAX + 1];
    let error = keyspace.insert("k", too_long).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("VALUE_BYTES_MAX"), "{error}");

    let mut batch = database.batch();
    let value = vec![1; 30_000];
    for number in 0..=BATCH_BYTES_MAX / value.len() {
        batch.insert(&keyspace, number.to_be_bytes(), &value);
    }
    let error = batch.commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("BATCH_BYTES_MAX"), "{error}");
    let mut batch = database.batch();
    batch.insert(&keyspace, "a", "b").insert(&keyspace, vec![9; KEY_BYTES_MAX + 1], "");
    assert_eq!(kind(batch.commit()), ErrorKind::InvalidArgument);
    // What is wrong with it stays wrong until it is cleared.
    assert_eq!(kind(batch.commit()), ErrorKind::InvalidArgument);
    assert_eq!(batch.len(), 1);
    batch.clear();
    batch.remove(&keyspace, "a").commit().unwrap();

    for round in 0..3 {
        assert_eq!(keyspace.iter().count(), 3, "round {round}");
        assert!(keyspace.get(&long_key).unwrap().unwrap() == long_value);
        assert_eq!(keyspace.get("").unwrap().unwrap(), b"the empty key is a key");
        assert_eq!(keyspace.get("empty").unwrap().unwrap(), b"");
        assert!(keyspace.get(vec![9; KEY_BYTES_MAX + 1]).unwrap().is_none());
        match round {
            0 => database.checkpoint().unwrap(),
            _ => assert!(database.verify().unwrap().is_clean()),
        }
    }
    database.close().unwrap();
    let database = open(&path);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    assert!(keyspace.get(&long_key).unwrap().unwrap() == long_value);
}

#[test]
fn ranges_that_end_before_they_begin_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(&directory.path().join("database"));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("b", "1").unwrap();
    assert_eq!(kind(keyspace.range("c".."a").next().unwrap()), ErrorKind::InvalidArgument);
    assert_eq!(kind(keyspace.range("c".."a").next_back().unwrap()), ErrorKind::InvalidArgument);
    assert_eq!(keyspace.range("c".."a").count(), 1);
    let mut reversed = database.snapshot().range(&keyspace, "c".."a");
    assert_eq!(kind(reversed.next().unwrap()), ErrorKind::InvalidArgument);
    assert!(reversed.next().is_none());
    assert_eq!(keyspace.range("b".."b").count(), 0);
    assert_eq!(keyspace.range("b"..="b").count(), 1);
}

#[test]
fn names_and_options_are_checked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    let options = KeyspaceOptions::new;
    let leaves = |bytes| options().engine(TurtleOptions::new().leaf_bytes(bytes));
    assert_eq!(kind(database.keyspace("", options())), ErrorKind::InvalidArgument);
    assert_eq!(kind(database.keyspace(&"x".repeat(256), options())), ErrorKind::InvalidArgument);
    assert_eq!(kind(database.keyspace("k", leaves(1))), ErrorKind::InvalidArgument);
    assert_eq!(
        kind(database.keyspace("k", options().filter_bits_per_key(99))),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        kind(database.keyspace("k", options().checkpoint_distance(0))),
        ErrorKind::InvalidArgument
    );
    assert!(database.keyspaces().is_empty());
    assert_eq!(kind(database.drop_keyspace("nobody")), ErrorKind::NotFound);
    let keyspace = database.keyspace("k", leaves(1 << 20)).unwrap();
    assert_eq!(kind(database.keyspace("k", leaves(2 << 20))), ErrorKind::InvalidArgument);
    keyspace.insert("a", "b").unwrap();
    database.drop_keyspace("k").unwrap();
    assert_eq!(kind(keyspace.insert("a", "c")), ErrorKind::NotFound);
    assert_eq!(kind(keyspace.get("a")), ErrorKind::NotFound);
    assert_eq!(kind(keyspace.set_checkpoint_distance(1 << 20)), ErrorKind::NotFound);
    let again = database.keyspace("k", options()).unwrap();
    assert!(again.get("a").unwrap().is_none(), "a new keyspace of an old name is empty");
    assert_eq!(kind(keyspace.insert("a", "c")), ErrorKind::NotFound);
    drop((keyspace, again));
    database.close().unwrap();
    let reader = Database::builder(&path).read_only(true).open().unwrap();
    assert_eq!(kind(reader.keyspace("nobody", options())), ErrorKind::NotFound);
}

#[test]
fn absurd_budgets_name_the_minimum() {
    let directory = tempfile::tempdir().unwrap();
    let error = Database::builder(directory.path()).memory(1).open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains(&MEMORY_BYTES_MIN.to_string()), "{error}");
    let database = open(&directory.path().join("database"));
    assert_eq!(kind(database.set_memory(1)), ErrorKind::InvalidArgument);
    database.set_memory(MEMORY_BYTES_MIN * 2).unwrap();
}

#[test]
fn paths_that_hold_no_database_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let builder = || Database::builder(&missing);
    assert_eq!(kind(builder().create(false).open()), ErrorKind::NotFound);
    assert_eq!(kind(builder().read_only(true).open()), ErrorKind::NotFound);
    assert!(!missing.exists());
    let file = directory.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    assert!(Database::open(&file).is_err());
    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("data"), vec![b'x'; 100_000]).unwrap();
    let error = Database::open(&foreign).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Corrupt), "{error:?}");
    assert_eq!(std::fs::read(foreign.join("data")).unwrap(), vec![b'x'; 100_000], "it was touched");
    // Beside a log it is no other file: it is ours, and damaged.
    let damaged = directory.path().join("damaged");
    open(&damaged).close().unwrap();
    let mut bytes = std::fs::read(damaged.join("data")).unwrap();
    bytes[..8192].fill(b'x');
    std::fs::write(damaged.join("data"), bytes).unwrap();
    let error = Database::open(&damaged).unwrap_err();
    assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some("data")), "{error}");
    // A database is not made among somebody else's files.
    let home = directory.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("notes.txt"), "mine").unwrap();
    assert_eq!(kind(Database::open(&home)), ErrorKind::InvalidArgument);
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 1, "something was left there");
    std::fs::remove_file(home.join("notes.txt")).unwrap();
    Database::open(&home).unwrap();
}

/// The names and contents of all files of a directory.
fn files_of(path: &std::path::Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_directory_that_is_refused_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let foreign = [
        ("data", b"short".to_vec(), ErrorKind::InvalidArgument),
        ("data", vec![b'x'; 100_000], ErrorKind::InvalidArgument),
        ("log-0000", b"somebody's diary".to_vec(), ErrorKind::Corrupt),
    ];
    for (index, (name, content, expected)) in foreign.into_iter().enumerate() {
        let path = directory.path().join(index.to_string());
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join(name), content).unwrap();
        let before = files_of(&path);
        for create in [true, false] {
            assert_eq!(kind(Database::builder(&path).create(create).open()), expected, "{name}");
            assert!(files_of(&path) == before, "{name}: something was left there");
        }
    }
    let empty = directory.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert_eq!(kind(Database::builder(&empty).create(false).open()), ErrorKind::NotFound);
    assert!(files_of(&empty).is_empty(), "something was left there");
    let none = directory.path().join("none");
    assert_eq!(kind(Database::builder(&none).memory(1).open()), ErrorKind::InvalidArgument);
    assert!(!none.exists(), "it was made for a call that is refused");
}

#[test]
fn a_database_that_lost_its_superblocks_is_damaged_and_not_foreign() {
    const SUPERBLOCKS: usize = 2 * 4096;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("a", "b").unwrap();
    database.checkpoint().unwrap();
    keyspace.insert("c", "d").unwrap();
    drop((keyspace, database));
    let data = path.join("data");
    let whole = std::fs::read(&data).unwrap();
    assert!(whole.len() > SUPERBLOCKS);
    let overwritten = |byte: u8| {
        let mut content = whole.clone();
        content[..SUPERBLOCKS].fill(byte);
        content
    };
    let lost = [
        Some(overwritten(0)),
        Some(overwritten(b'x')),
        Some(whole[..4].to_vec()),
        Some(Vec::new()),
        None,
    ];
    for (index, content) in lost.into_iter().enumerate() {
        std::fs::remove_file(&data).unwrap();
        if let Some(content) = content {
            std::fs::write(&data, content).unwrap();
        }
        let before = files_of(&path);
        for (read_only, create) in [(true, false), (false, false), (false, true)] {
            let builder = Database::builder(&path).read_only(read_only).create(create);
            let error = builder.open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{index}: {error}");
            let file = if index < 3 { "data" } else { "log-0000" };
            assert_eq!(error.file(), Some(file), "{index}: {error}");
            assert!(error.offset().is_some(), "{index}: {error}");
            assert!(files_of(&path) == before, "{index}: something was changed");
        }
        std::fs::write(&data, &whole).unwrap();
    }
    let keyspace = open(&path).keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.iter().count(), 2);
}

#[test]
fn a_log_without_its_data_file_is_not_written_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("only", "in the log").unwrap();
    drop((keyspace, database));
    let data = path.join("data");
    let whole = std::fs::read(&data).unwrap();
    let segments = || -> Vec<(String, Vec<u8>)> {
        let names = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| name.starts_with("log-"));
        names.sort();
        names
            .into_iter()
            .map(|name| (name.clone(), std::fs::read(path.join(name)).unwrap()))
            .collect()
    };
    let before = segments();
    for is_empty in [false, true] {
        std::fs::remove_file(&data).unwrap();
        if is_empty {
            std::fs::write(&data, "").unwrap();
        }
        let error = Database::open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(error.file(), Some("log-0000"), "{error}");
        assert!(segments() == before, "the log was touched");
        std::fs::write(&data, &whole).unwrap();
    }
    let keyspace = open(&path).keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.get("only").unwrap().unwrap(), b"in the log");

    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("log-0000"), "somebody's diary").unwrap();
    assert_eq!(kind(Database::open(&foreign)), ErrorKind::Corrupt);
    assert_eq!(std::fs::read(foreign.join("log-0000")).unwrap(), b"somebody's diary");
    assert!(!foreign.join("data").exists());
}

#[test]
fn an_error_ends_an_iterator() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(&directory.path().join("database"));
    let other = open(&directory.path().join("other"));
    let make = |database: &Database, name: &str| {
        let keyspace = database.keyspace(name, KeyspaceOptions::new()).unwrap();
        keyspace.insert("a", "b").unwrap();
        keyspace
    };
    // A dropped keyspace answers that, but for what was begun before.
    let dropped = make(&database, "dropped");
    let begun = dropped.iter();
    let snapshot = database.snapshot();
    database.drop_keyspace("dropped").unwrap();
    assert_eq!(begun.map(Result::unwrap).count(), 1);
    assert_eq!(snapshot.iter(&dropped).map(Result::unwrap).count(), 1);
    let failed = |mut iter: chelonia::Iter, from_back: bool| {
        let first = if from_back { iter.next_back() } else { iter.next() };
        assert!(iter.next().is_none() && iter.next_back().is_none(), "it ends");
        kind(first.unwrap())
    };
    for from_back in [false, true] {
        assert_eq!(failed(dropped.iter(), from_back), ErrorKind::NotFound);
        assert_eq!(failed(dropped.prefix("a"), from_back), ErrorKind::NotFound);
        assert_eq!(failed(dropped.range("a"..), from_back), ErrorKind::NotFound);
    }
    assert_eq!(kind(dropped.first_key_value()), ErrorKind::NotFound);
    // A keyspace of another database, for a snapshot.
    let foreign = make(&other, "foreign");
    assert_eq!(failed(snapshot.iter(&foreign), false), ErrorKind::InvalidArgument);
    // A close in the middle.
    let keyspace = make(&database, "kept");
    keyspace.insert("b", "c").unwrap();
    let mut begun = keyspace.iter();
    begun.next().unwrap().unwrap();
    database.close().unwrap();
    assert_eq!(failed(begun, false), ErrorKind::Stopped);
    assert_eq!(keyspace.iter().filter_map(Result::ok).count(), 0);
}

#[test]
fn a_second_open_fails_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    assert_eq!(kind(Database::open(&path)), ErrorKind::AlreadyOpen);
    assert_eq!(kind(Database::builder(&path).read_only(true).open()), ErrorKind::AlreadyOpen);
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(kind(Database::open(&link)), ErrorKind::AlreadyOpen);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    database.close().unwrap();
    assert_eq!(kind(keyspace.get("a")), ErrorKind::Stopped);
    assert_eq!(kind(keyspace.insert("a", "b")), ErrorKind::Stopped);
    let readers = [0, 1].map(|_| Database::builder(&path).read_only(true).open().unwrap());
    assert_eq!(kind(Database::open(&path)), ErrorKind::AlreadyOpen);
    let reader = readers[0].keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(kind(reader.insert("a", "b")), ErrorKind::ReadOnly);
    assert_eq!(kind(readers[1].drop_keyspace("k")), ErrorKind::ReadOnly);
    drop((readers, reader));
    open(&path);
}

#[test]
fn readers_see_what_is_only_in_the_log_and_write_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    for number in 0..500_u32 {
        keyspace.insert(number.to_be_bytes(), vec![1; 40_000 * usize::from(number == 7)]).unwrap();
    }
    drop((keyspace, database));
    let bytes = |name: &str| std::fs::read(path.join(name)).unwrap();
    let names: Vec<_> = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let before: Vec<_> = names.iter().map(|name| bytes(name)).collect();
    let reader = Database::builder(&path).read_only(true).open().unwrap();
    let keyspace = reader.keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.iter().count(), 500);
    assert_eq!(keyspace.get(7_u32.to_be_bytes()).unwrap().unwrap().len(), 40_000);
    assert!(reader.verify().unwrap().is_clean());
    let log_bytes = reader.stats().disk.log_file_bytes;
    let logs = names.iter().filter(|name| name.starts_with("log-"));
    assert_eq!(log_bytes, logs.map(|name| bytes(name).len() as u64).sum::<u64>());
    reader.close().unwrap();
    let after: Vec<_> = names.iter().map(|name| bytes(name)).collect();
    assert!(before == after, "a reader wrote");
}

#[test]
fn files_are_for_their_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    database.keyspace("k", KeyspaceOptions::new()).unwrap().insert("a", "b").unwrap();
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for entry in std::fs::read_dir(&path).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
}

#[test]
fn an_empty_database_is_small() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    open(&path).close().unwrap();
    let sizes =
        std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    let total: u64 = sizes.sum();
    assert!(total <= 64 << 10, "{total} bytes");
}

#[test]
fn a_newer_format_is_refused_untouched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    open(&path).close().unwrap();
    let data = path.join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    chelonia::internals::set_format(&mut bytes, 999);
    std::fs::write(&data, &bytes).unwrap();
    for read_only in [true, false] {
        let error = Database::builder(&path).read_only(read_only).open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("999"), "{error}");
    }
    assert!(std::fs::read(&data).unwrap() == bytes, "it was touched");
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
    // A block that holds the values of some keys: damage one byte of a value.
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
    // Scans from either end give all that stands before the damage, tell it once, and end.
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

fn on_a_device_that_can_fail() -> (Database, FaultPlan) {
    let plan = FaultPlan::new();
    let memory = Arc::new(MemoryDirectory::new());
    let directory = Arc::new(FaultDirectory::new(memory, plan.clone()).unwrap());
    let database = Database::builder("memory")
        .memory(MEMORY_BYTES_MIN)
        .internals(|internals| internals.directory = Some(directory))
        .open()
        .unwrap();
    (database, plan)
}

#[test]
fn a_full_device_is_told_and_writes_resume_when_there_is_room() {
    let (database, plan) = on_a_device_that_can_fail();
    let options = KeyspaceOptions::new().checkpoint_distance(200_000);
    let keyspace = database.keyspace("k", options).unwrap();
    plan.set_capacity(Some(plan.taken_bytes() + (6 << 20)));
    let mut written = 0_u64;
    let error = loop {
        match keyspace.insert(written.to_be_bytes(), [3; 1000]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "it never was full");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    // What was accepted has room, and a delete finds some.
    database.checkpoint().unwrap();
    keyspace.remove(u64::MAX.to_be_bytes()).unwrap();
    for number in 0..written {
        assert_eq!(keyspace.get(number.to_be_bytes()).unwrap().unwrap(), [3; 1000]);
    }
    assert_eq!(keyspace.iter().count() as u64, written);
    plan.set_capacity(None);
    database.checkpoint().unwrap();
    for number in written..written + 5_000 {
        keyspace.insert(number.to_be_bytes(), [3; 1000]).unwrap();
    }
    database.checkpoint().unwrap();
    assert_eq!(keyspace.iter().count() as u64, written + 5_000);
    assert!(database.verify().unwrap().is_clean());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a thread is left behind where the test fails")]
fn a_pipe_in_place_of_a_file_is_refused_at_once() {
    for name in ["lock", "data", "log-0000"] {
        for read_only in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("database");
            open(&path).keyspace("k", KeyspaceOptions::new()).unwrap();
            std::fs::remove_file(path.join(name)).unwrap();
            let made = std::process::Command::new("mkfifo").arg(path.join(name)).status();
            assert!(made.unwrap().success());
            let (said, told) = std::sync::mpsc::channel();
            // Left behind if it waits for the other end of the pipe.
            std::thread::spawn(move || {
                said.send(Database::builder(&path).read_only(read_only).open().map(drop))
            });
            let opened = told.recv_timeout(std::time::Duration::from_secs(60));
            assert!(opened.expect("it waits").is_err(), "{name}");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a thread is left behind where the test fails")]
fn a_log_file_that_claims_to_be_endless_is_not_read_to_its_end() {
    const BYTES: u64 = 8 << 40;
    let stretch = |path: &std::path::Path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        // As far as the file system lets it.
        (0..8).find(|shift| file.set_len(BYTES >> shift).is_ok()).unwrap();
    };
    let (said, told) = std::sync::mpsc::channel();
    // Left behind if it does not come to an end.
    std::thread::spawn(move || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("database");
        let database = open(&path);
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        keyspace.insert("key", "value").unwrap();
        database.close().unwrap();
        let log = |path: &std::path::Path| path.join("log-0000");
        stretch(&log(&path));
        for read_only in [true, false, true] {
            let database = Database::builder(&path).read_only(read_only).open().unwrap();
            let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
            assert_eq!(keyspace.get("key").unwrap().unwrap(), b"value");
            assert!(database.verify().unwrap().is_clean());
        }
        let saved = chelonia::Salvage::new(&path, directory.path().join("saved")).run().unwrap();
        assert_eq!(saved.keyspaces.len(), 1);
        // A log alone, which is a database that lost its data.
        let alone = directory.path().join("alone");
        std::fs::create_dir(&alone).unwrap();
        std::fs::write(log(&alone), [0; 4096]).unwrap();
        stretch(&log(&alone));
        open(&alone).close().unwrap();
        said.send(()).unwrap();
    });
    told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
}
