//! Directories without a usable database: foreign, damaged, newer or hostile files. The open fails
//! with an error of the right kind, and changes no file.

use chelonia::limits::MEMORY_BYTES_MIN;
use chelonia::{Database, ErrorKind, KeyspaceOptions};

fn kind<T>(result: chelonia::Result<T>) -> ErrorKind {
    result.err().expect("it should fail").kind()
}

fn open(path: &std::path::Path) -> Database {
    Database::builder(path).memory(MEMORY_BYTES_MIN).open().unwrap()
}

#[test]
fn paths_without_a_database_are_refused() {
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
    assert_eq!(
        std::fs::read(foreign.join("data")).unwrap(),
        vec![b'x'; 100_000],
        "the file was changed"
    );
    // Beside a log the file is a damaged data file, not a foreign one.
    let damaged = directory.path().join("damaged");
    open(&damaged).close().unwrap();
    let mut bytes = std::fs::read(damaged.join("data")).unwrap();
    bytes[..8192].fill(b'x');
    std::fs::write(damaged.join("data"), bytes).unwrap();
    let error = Database::open(&damaged).unwrap_err();
    assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some("data")), "{error}");
    // No database is created in a directory with other files.
    let home = directory.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("notes.txt"), "mine").unwrap();
    assert_eq!(kind(Database::open(&home)), ErrorKind::InvalidArgument);
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 1, "a file was left there");
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
fn a_refused_directory_is_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let foreign = [
        ("data", b"short".to_vec(), ErrorKind::InvalidArgument),
        ("data", vec![b'x'; 100_000], ErrorKind::InvalidArgument),
        ("log-0000", b"another program's log".to_vec(), ErrorKind::Corrupt),
    ];
    for (index, (name, content, expected)) in foreign.into_iter().enumerate() {
        let path = directory.path().join(index.to_string());
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join(name), content).unwrap();
        let before = files_of(&path);
        for create in [true, false] {
            assert_eq!(kind(Database::builder(&path).create(create).open()), expected, "{name}");
            assert!(files_of(&path) == before, "{name}: a file was left there");
        }
    }
    let empty = directory.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert_eq!(kind(Database::builder(&empty).create(false).open()), ErrorKind::NotFound);
    assert!(files_of(&empty).is_empty(), "a file was left there");
    let none = directory.path().join("none");
    assert_eq!(kind(Database::builder(&none).memory(1).open()), ErrorKind::InvalidArgument);
    assert!(!none.exists(), "a refused call created it");
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
    let undamaged = std::fs::read(&data).unwrap();
    assert!(undamaged.len() > SUPERBLOCKS);
    let overwritten = |byte: u8| {
        let mut content = undamaged.clone();
        content[..SUPERBLOCKS].fill(byte);
        content
    };
    let lost = [
        Some(overwritten(0)),
        Some(overwritten(b'x')),
        Some(undamaged[..4].to_vec()),
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
            assert!(files_of(&path) == before, "{index}: a file was changed");
        }
        std::fs::write(&data, &undamaged).unwrap();
    }
    let keyspace = open(&path).keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.iter().count(), 2);
}

#[test]
fn a_log_without_its_data_file_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("only", "in the log").unwrap();
    drop((keyspace, database));
    let data = path.join("data");
    let undamaged = std::fs::read(&data).unwrap();
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
        assert!(segments() == before, "the log was changed");
        std::fs::write(&data, &undamaged).unwrap();
    }
    let keyspace = open(&path).keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.get("only").unwrap().unwrap(), b"in the log");

    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("log-0000"), "another program's log").unwrap();
    assert_eq!(kind(Database::open(&foreign)), ErrorKind::Corrupt);
    assert_eq!(std::fs::read(foreign.join("log-0000")).unwrap(), b"another program's log");
    assert!(!foreign.join("data").exists());
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
    assert!(std::fs::read(&data).unwrap() == bytes, "the file was changed");
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
            let (sender, receiver) = std::sync::mpsc::channel();
            // The thread is left behind if it waits for the other end of the pipe.
            std::thread::spawn(move || {
                sender.send(Database::builder(&path).read_only(read_only).open().map(drop))
            });
            let opened = receiver.recv_timeout(std::time::Duration::from_secs(60));
            assert!(opened.expect("the open waits for the pipe").is_err(), "{name}");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a thread is left behind where the test fails")]
fn a_sparse_log_file_of_terabytes_is_not_read_to_its_end() {
    const BYTES: u64 = 8 << 40;
    let extend = |path: &std::path::Path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        // As long as the file system allows.
        (0..8).find(|shift| file.set_len(BYTES >> shift).is_ok()).unwrap();
    };
    let (sender, receiver) = std::sync::mpsc::channel();
    // The thread is left behind if it does not end.
    std::thread::spawn(move || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("database");
        let database = open(&path);
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        keyspace.insert("key", "value").unwrap();
        database.close().unwrap();
        let log = |path: &std::path::Path| path.join("log-0000");
        extend(&log(&path));
        for read_only in [true, false, true] {
            let database = Database::builder(&path).read_only(read_only).open().unwrap();
            let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
            assert_eq!(keyspace.get("key").unwrap().unwrap(), b"value");
            assert!(database.verify().unwrap().is_clean());
        }
        let saved = chelonia::Salvage::new(&path, directory.path().join("saved")).run().unwrap();
        assert_eq!(saved.keyspaces.len(), 1);
        // A log without a data file.
        let alone = directory.path().join("alone");
        std::fs::create_dir(&alone).unwrap();
        std::fs::write(log(&alone), [0; 4096]).unwrap();
        extend(&log(&alone));
        open(&alone).close().unwrap();
        sender.send(()).unwrap();
    });
    receiver.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
}
