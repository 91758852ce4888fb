//! Only one process writes at a time, through whatever path a second one opens the files, and
//! however the first one ended.

use chelonia::{Database, ErrorKind, KeyspaceOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Set for a child to the database that it opens and holds; it runs the test below.
const HOLD: &str = "CHELONIA_TEST_HOLD";

fn open(path: &Path) -> Result<Database, ErrorKind> {
    Database::open(path).map_err(|error| error.kind())
}

/// An open database.
fn database() -> (tempfile::TempDir, PathBuf, Database) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = Database::open(&path).unwrap();
    (directory, path, database)
}

#[test]
fn child_that_holds_a_database() {
    let Ok(path) = std::env::var(HOLD) else { return };
    let _database = Database::open(path).unwrap();
    println!("open");
    std::io::stdin().lines().for_each(drop);
}

/// A process that has the database at `path` open until it is killed.
fn holder(path: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "double_open::child_that_holds_a_database", "--nocapture"])
        .env(HOLD, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("open")), "it did not open");
    child
}

#[test]
fn another_path_to_the_same_files_is_locked() {
    let (directory, path, database) = database();
    let mut ways = vec![path.clone(), path.join("."), path.join("../database")];
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    ways.push(link);
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.ancestors().skip(1).map(|_| "..").collect();
    ways.push(up.join(path.strip_prefix("/").unwrap()));
    for way in ways {
        assert_eq!(open(&way).err(), Some(ErrorKind::AlreadyOpen), "{}", way.display());
    }
    drop(database);
    assert!(open(&path).is_ok());
}

#[test]
fn hard_links_of_the_files_are_locked() {
    let (directory, path, database) = database();
    let other = directory.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for entry in std::fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        std::fs::hard_link(entry.path(), other.join(entry.file_name())).unwrap();
    }
    assert_eq!(open(&other).err(), Some(ErrorKind::AlreadyOpen));
    drop(database);
}

#[test]
fn a_directory_mounted_twice_is_one_database() {
    let (directory, path, database) = database();
    let other = directory.path().join("mounted");
    std::fs::create_dir(&other).unwrap();
    let mount = |arguments: &[&Path]| {
        Command::new("mount").arg("--bind").args(arguments).stderr(Stdio::null()).status()
    };
    if !mount(&[&path, &other]).is_ok_and(|status| status.success()) {
        println!("skipped: only root may mount, and where the system lets it");
        return;
    }
    let opened = open(&other).err();
    drop(database);
    let afterwards = open(&other).is_ok();
    let unmounted = Command::new("umount").arg(&other).status().unwrap();
    assert!(unmounted.success());
    assert_eq!((opened, afterwards), (Some(ErrorKind::AlreadyOpen), true));
}

#[test]
fn another_process_is_refused_until_the_first_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let mut child = holder(&path);
    assert_eq!(open(&path).err(), Some(ErrorKind::AlreadyOpen));
    let reader = Database::builder(&path).read_only(true).open();
    assert_eq!(reader.err().map(|error| error.kind()), Some(ErrorKind::AlreadyOpen));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(open(&path).is_ok(), "a lock of a process that died stays");
}

#[test]
fn the_error_names_the_processes_that_have_the_database_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let mut child = holder(&path);
    let refused = |read_only| {
        let error = Database::builder(&path).read_only(read_only).open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyOpen);
        error.to_string()
    };
    for read_only in [false, true] {
        let expected = format!("the database is in use by pid {}", child.id());
        assert_eq!(refused(read_only), expected);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Readers too, and this process. The files of a dead writer name no process.
    let reader = Database::builder(&path).read_only(true).open().unwrap();
    let own = format!("the database is in use by this process, pid {}: ", std::process::id());
    assert!(refused(false).starts_with(&own), "{}", refused(false));
    drop(reader);
    assert!(open(&path).is_ok());
}

#[test]
fn closing_another_descriptor_of_a_file_does_not_release_the_lock() {
    let (_directory, path, database) = database();
    // POSIX locks would be released now.
    for name in ["lock", "data", "log-0000"] {
        drop(std::fs::File::open(path.join(name)).unwrap());
    }
    assert_eq!(open(&path).err(), Some(ErrorKind::AlreadyOpen));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "double_open::child_that_holds_a_database", "--nocapture"])
        .env(HOLD, &path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(!child.wait().unwrap().success(), "another process opened it");
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("key", "value").unwrap();
}

#[test]
fn removing_the_lock_file_does_not_release_the_lock() {
    let (_directory, path, database) = database();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let reader = || Database::builder(&path).read_only(true).open().map_err(|error| error.kind());
    for _ in 0..2 {
        std::fs::remove_file(path.join("lock")).unwrap();
        // The first attempt creates a lock file, which is not locked.
        for _ in 0..2 {
            assert_eq!(open(&path).err(), Some(ErrorKind::AlreadyOpen));
            assert_eq!(reader().err(), Some(ErrorKind::AlreadyOpen));
        }
        keyspace.insert("key", "value").unwrap();
        database.sync().unwrap();
    }
    drop((keyspace, database));
    let readers = [reader().unwrap(), reader().unwrap()];
    std::fs::remove_file(path.join("lock")).unwrap();
    assert_eq!(open(&path).err(), Some(ErrorKind::AlreadyOpen), "readers are written under");
    drop(readers);
    let database = open(&path).unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_started_program_does_not_hold_the_lock() {
    let (_directory, path, database) = database();
    // The started program has no file of the database open: they are closed when it starts.
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    drop(database);
    let opened = open(&path);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(opened.is_ok());
}

#[test]
fn a_second_open_fails_at_once() {
    let (directory, path, database) = database();
    let read_only =
        |path: &Path| Database::builder(path).read_only(true).open().map_err(|error| error.kind());
    assert_eq!(open(&path).err(), Some(ErrorKind::AlreadyOpen));
    assert_eq!(read_only(&path).err(), Some(ErrorKind::AlreadyOpen));
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(open(&link).err(), Some(ErrorKind::AlreadyOpen));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    database.close().unwrap();
    assert_eq!(keyspace.get("a").unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!(keyspace.insert("a", "b").unwrap_err().kind(), ErrorKind::Stopped);
    let readers = [0, 1].map(|_| read_only(&path).unwrap());
    assert_eq!(open(&path).err(), Some(ErrorKind::AlreadyOpen));
    let reader = readers[0].keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(reader.insert("a", "b").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(readers[1].drop_keyspace("k").unwrap_err().kind(), ErrorKind::ReadOnly);
    drop((readers, reader));
    open(&path).unwrap();
}
