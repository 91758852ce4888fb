//! Confidentiality: permissions of files, links, and the content of files and messages.

use chelonia::internals::{Directory, MemoryDirectory, Rng};
use chelonia::{Database, ErrorKind, KeyspaceOptions, TurtleOptions, limits};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Set for a child to the database that it creates; it runs the test below.
const MAKE: &str = "CHELONIA_TEST_MAKE";

/// Bytes that must not appear elsewhere.
const SECRET: &[u8] = b"the-secret-of-another-process";

fn open(directory: &MemoryDirectory) -> Database {
    let directory: Arc<dyn Directory> = Arc::new(directory.clone());
    let builder = Database::builder("in memory").memory(32 << 20).internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
        internals.log_segment_bytes = Some(64 << 10);
    });
    builder.open().unwrap()
}

/// Writes records of all kinds, which use every path to the files; `fill` makes the values.
fn write(database: &Database, fill: impl Fn(usize) -> Vec<u8>) {
    let engine = TurtleOptions::new().leaf_bytes(16 << 10).pivots_max(4);
    let options = KeyspaceOptions::new().engine(engine);
    let keyspace = database.keyspace("k", options.checkpoint_distance(100_000)).unwrap();
    let mut rng = Rng::new(7);
    for number in 0..2_500_u32 {
        let length = match number % 100 {
            7 => 32_768 + rng.below(5_000),
            8 => 4_000 + rng.below(9_000),
            _ => rng.below(200),
        };
        let key = (number % 900).to_be_bytes();
        keyspace.insert(key, fill(usize::try_from(length).unwrap())).unwrap();
        if number % 7 == 3 {
            keyspace.remove(key).unwrap();
        }
    }
    database.checkpoint().unwrap();
    keyspace.insert("last", fill(3_000)).unwrap();
}

#[test]
fn child_that_makes_a_database() {
    let Ok(path) = std::env::var(MAKE) else { return };
    let database = Database::open(path).unwrap();
    database.keyspace("k", KeyspaceOptions::new()).unwrap().insert("key", "value").unwrap();
}

#[test]
fn files_belong_to_their_owner_under_every_umask() {
    let directory = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    for mask in ["000", "022", "077"] {
        let path = directory.path().join(mask);
        let script =
            format!("umask {mask}; exec \"$0\" --exact privacy::child_that_makes_a_database");
        let status = Command::new("sh")
            .args(["-c", &script])
            .arg(&program)
            .env(MAKE, &path)
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&path), 0o700, "{mask}");
        let files: Vec<_> = std::fs::read_dir(&path).unwrap().collect();
        assert!(files.len() >= 3);
        for file in files {
            assert_eq!(mode(&file.unwrap().path()), 0o600, "{mask}");
        }
    }
}

#[test]
fn planted_links_are_not_followed() {
    for name in ["lock", "data", "log-0000"] {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("database"), directory.path().join("victim"));
        std::fs::create_dir(&path).unwrap();
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, path.join(name)).unwrap();
        let opened = Database::open(&path);
        // The open fails, or works as without the link.
        if let Ok(database) = opened {
            let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
            keyspace.insert("key", vec![7; 100_000]).unwrap();
            database.close().unwrap();
        }
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious", "{name}");
    }
}

#[test]
fn freed_memory_is_not_written_to_disk() {
    let secret = |length: usize| SECRET.iter().copied().cycle().take(length).collect();
    // The databases free their memory one after the other, and the last one reuses it.
    for _ in 0..3 {
        write(&open(&MemoryDirectory::new()), secret);
        drop((0..2_000).map(|number| secret(64 + number * 11)).collect::<Vec<Vec<u8>>>());
    }
    let directory = MemoryDirectory::new();
    let database = open(&directory);
    write(&database, |length| vec![b'.'; length]);
    let before_the_end = directory.to_files();
    database.close().unwrap();
    for (name, content) in before_the_end.iter().chain(&directory.to_files()) {
        // A part of the secret would be as bad.
        let part = &SECRET[4..12];
        let found = content.windows(part.len()).position(|window| window == part);
        assert_eq!(found, None, "{name} contains the secret");
    }
}

#[test]
fn messages_contain_no_keys_and_no_values() {
    let text = String::from_utf8(SECRET.to_vec()).unwrap();
    let directory = MemoryDirectory::new();
    let database = open(&directory);
    write(&database, |length| SECRET.iter().copied().cycle().take(length).collect());
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert(SECRET, SECRET).unwrap();
    database.checkpoint().unwrap();
    let mut errors = Vec::new();
    let long: Vec<u8> = SECRET.iter().copied().cycle().take(limits::KEY_BYTES_MAX + 1).collect();
    errors.extend(keyspace.insert(&long, "value").err());
    errors.extend(keyspace.get(&long).err());
    errors.extend(keyspace.insert("key", SECRET.repeat(limits::VALUE_BYTES_MAX / 20)).err());
    errors.extend(keyspace.range(SECRET..&SECRET[..3]).filter_map(Result::err));
    let mut batch = database.batch();
    for _ in 0..400 {
        batch.insert(&keyspace, SECRET, &long);
    }
    errors.extend(batch.commit().err());
    drop(keyspace);
    database.close().unwrap();
    // Every block is damaged, one at a time.
    let files = directory.to_files();
    for name in files.keys() {
        for block in 0..files[name].len() / 4096 {
            let mut files = files.clone();
            files.get_mut(name).unwrap()[block * 4096 + 40] ^= 4;
            let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(files));
            let builder = Database::builder("in memory").memory(32 << 20).internals(|internals| {
                internals.directory = Some(directory);
                internals.stepped = true;
            });
            match builder.open() {
                Ok(database) => {
                    errors.extend(database.verify().unwrap().findings);
                    if let Ok(keyspace) = database.keyspace("k", KeyspaceOptions::new()) {
                        errors.extend(keyspace.iter().filter_map(Result::err));
                        errors.extend(keyspace.get(SECRET).err());
                    }
                }
                Err(error) => errors.push(error),
            }
        }
    }
    assert!(errors.len() > 50, "{}", errors.len());
    for error in errors {
        let said = format!("{error} {error:?}");
        let has_secret = said.contains(&text) || said.contains(&text[4..12]);
        assert!(!has_secret && error.kind() != ErrorKind::Internal, "{said}");
    }
}

#[test]
fn files_are_for_their_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = Database::open(&path).unwrap();
    database.keyspace("k", KeyspaceOptions::new()).unwrap().insert("a", "b").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for entry in std::fs::read_dir(&path).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
}
