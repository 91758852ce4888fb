//! The size of the files: the log stays bounded while keyspaces are idle, its files have blocks of
//! their own, and an empty database is small.

use crate::support::{TINY_DISTANCE, tiny_options};
use chelonia::internals::{Access, DirectDirectory, Directory, MemoryDirectory, OpenMode};
use chelonia::limits::MEMORY_BYTES_MIN;
use chelonia::{Database, EngineKind, ErrorKind, KeyspaceOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

#[test]
fn one_old_record_of_an_idle_keyspace_does_not_retain_the_log() {
    let share = 1 << 20;
    let database = Database::builder("memory")
        .memory(48 << 20)
        .internals(|internals| {
            internals.directory = Some(Arc::new(MemoryDirectory::new()));
            internals.stepped = true;
            internals.write_share = Some(share);
            internals.log_segment_bytes = Some(64 << 10);
        })
        .open()
        .unwrap();
    let idle = database.keyspace("left", tiny_options()).unwrap();
    let busy = database.keyspace("right", tiny_options()).unwrap();
    busy.set_checkpoint_distance(100_000).unwrap();
    idle.insert("old", "record").unwrap();
    let mut largest = 0;
    for number in 0..40_000_u64 {
        busy.insert((number % 3_000).to_be_bytes(), [1; 300]).unwrap();
        if number % 1_000 == 0 {
            largest = largest.max(database.stats().disk.log_file_bytes);
        }
    }
    assert!(largest < 4 * share, "the log had {largest} bytes");
    assert_eq!(idle.get("old").unwrap().unwrap(), b"record");
}

#[test]
fn large_values_count_for_the_checkpoint_distance() {
    let database = Database::builder("memory")
        .memory(48 << 20)
        .internals(|internals| {
            internals.directory = Some(Arc::new(MemoryDirectory::new()));
            internals.stepped = true;
        })
        .open()
        .unwrap();
    let keyspace = database.keyspace("left", tiny_options()).unwrap();
    keyspace.set_checkpoint_distance(1 << 20).unwrap();
    for number in 0..100_u64 {
        keyspace.insert(number.to_be_bytes(), vec![1; 50_000]).unwrap();
    }
    let flushes = database.stats().background.flushes;
    assert!((3..=6).contains(&flushes), "{flushes} flushes for 5 MB at a distance of 1 MiB");
}

/// Threads that write as fast as they can, with background flushes that never finish.
#[test]
fn the_log_and_a_close_do_not_wait_for_writers_to_pause() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let directory = tempfile::tempdir().unwrap();
    let write_share = 2 << 20;
    let database = Database::builder(directory.path().join("database"))
        .memory(48 << 20)
        .internals(|internals| internals.write_share = Some(write_share))
        .open()
        .unwrap();
    let stopped = AtomicBool::new(false);
    let mut largest = 0;
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let keyspace = database.keyspace("k", tiny_options()).unwrap();
            let stopped = &stopped;
            scope.spawn(move || {
                let mut number = thread << 32;
                while keyspace.insert(number.reverse_bits().to_be_bytes(), [1; 100]).is_ok() {
                    number += 1;
                }
                stopped.store(true, Ordering::Relaxed);
            });
        }
        while database.stats().background.flushes < 40 && !stopped.load(Ordering::Relaxed) {
            largest = largest.max(database.stats().disk.log_file_bytes);
            std::thread::yield_now();
        }
        // Writers continue until this closes the database.
        let flushes = database.stats().background.flushes;
        database.clone().close().unwrap();
        let more = database.stats().background.flushes - flushes;
        // The close flushes the memtables that were immutable then, and each has at least this
        // size.
        let immutable_most = write_share / TINY_DISTANCE;
        assert!(more <= immutable_most, "{more} flushes during the close");
    });
    println!("the log had at most {largest} bytes");
    assert!(largest < 16 << 20, "the log had {largest} bytes");
}

/// A separate file system, unmounted when this is dropped.
struct Mounted(std::path::PathBuf);

impl Mounted {
    /// XFS in a file; `None` if it cannot be created or mounted.
    fn xfs(place: &Path) -> Option<Self> {
        Self::new(place, "mkfs.xfs", &["-q", "-m", "reflink=1"], "loop")
    }

    fn new(place: &Path, make: &str, arguments: &[&str], options: &str) -> Option<Self> {
        let (image, at) = (place.join("image"), place.join("mounted"));
        std::fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        std::fs::create_dir(&at).unwrap();
        let run = |program: &str, arguments: &[&str], path: &[&Path]| {
            let mut command = Command::new(program);
            let command = command.args(arguments).args(path).stderr(Stdio::null());
            command.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        let is_mounted =
            run(make, arguments, &[&image]) && run("mount", &["-o", options], &[&image, &at]);
        is_mounted.then_some(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn blocks_that_a_copy_shares_are_replaced_before_a_log_is_mapped() {
    const BYTES: u64 = 8 << 20;
    let place = tempfile::tempdir().unwrap();
    let Some(mounted) = Mounted::xfs(place.path()) else {
        println!("skipped: only root may mount, and this needs mkfs.xfs");
        return;
    };
    let path = mounted.0.join("database");
    let directory = DirectDirectory::open(&path, true).unwrap();
    let open = |mode| directory.open("log-0000", mode, Access::Buffered).unwrap();
    let file = open(OpenMode::CreateNew);
    let content: Vec<u8> = (0..BYTES).map(|place| place.to_le_bytes()[1]).collect();
    file.write_at(&content, 0).unwrap();
    file.sync().unwrap();
    drop(file);
    let copy = mounted.0.join("copy");
    let arguments = ["-r", "--reflink=always"];
    let copied = Command::new("cp").args(arguments).args([&path, &copy]).status().unwrap();
    assert!(copied.success());
    let before = directory.free_bytes().unwrap();
    let file = open(OpenMode::Write);
    file.allocate(0, BYTES).unwrap();
    let taken = before - directory.free_bytes().unwrap();
    assert!(taken >= BYTES, "{taken} bytes for {BYTES} that were shared");
    // The content stays, here and in the copy.
    let mut region = file.map(0, 1 << 20).unwrap();
    region.write(0, &[0xff; 5000]).unwrap();
    file.sync().unwrap();
    assert!(std::fs::read(copy.join("log-0000")).unwrap() == content);
    let ours = std::fs::read(path.join("log-0000")).unwrap();
    assert!(ours[..5000].iter().all(|byte| *byte == 0xff) && ours[5000..] == content[5000..]);
    // On a full device, blocks that are not allocated cannot be promised.
    let copied = Command::new("cp").args(arguments).arg(path.join("log-0000")).arg(&copy).status();
    assert!(copied.unwrap().success());
    let filler = directory.open("filler", OpenMode::CreateNew, Access::Buffered).unwrap();
    while filler.allocate(filler.size().unwrap(), 1 << 20).is_ok() {}
    let refused = file.allocate(0, BYTES).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
}

const CHILD_LIMITED: &str = "CHELONIA_TEST_FILE_LIMIT";

/// Not a test: the next one runs it under a limit on the length of files.
#[test]
fn fills_what_a_limit_on_files_allows() {
    let Ok(engine) = std::env::var(CHILD_LIMITED) else { return };
    let engine = EngineKind::from_name(&engine).unwrap();
    let place = tempfile::tempdir().unwrap();
    let builder = Database::builder(place.path().join("database"));
    let database = builder.memory(32 << 20).open().unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new().engine(engine)).unwrap();
    let put = |key: u64| keyspace.insert(key.to_be_bytes(), [7; 1000]);
    let refused = (0..).map(put).find_map(Result::err).unwrap();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    let stored = keyspace.len().unwrap();
    // A page of `bminus` takes three times its size.
    let least = if engine == EngineKind::Bminus { 10_000 } else { 20_000 };
    assert!(stored > least, "{stored} stored");
    for key in 0..stored {
        keyspace.remove(key.to_be_bytes()).unwrap();
    }
    (0..stored / 2).try_for_each(put).unwrap();
    assert_eq!(keyspace.len().unwrap(), stored / 2);
    database.close().unwrap();
}

#[test]
fn deletes_free_space_if_the_length_of_files_is_limited() {
    for engine in EngineKind::ALL {
        // A write beyond the limit (48 MiB) is an error, not a signal that ends the process.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; ulimit -f 98304; exec \"$0\" \"$@\""]);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "--nocapture"]);
        command.arg("log_space::fills_what_a_limit_on_files_allows");
        let output = command.env(CHILD_LIMITED, engine.name()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{engine:?}: {text} {errors}");
        assert!(text.contains("1 passed"), "{text}");
    }
}

#[test]
fn an_empty_database_is_small() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    Database::builder(&path).memory(MEMORY_BYTES_MIN).open().unwrap().close().unwrap();
    let sizes =
        std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    let total: u64 = sizes.sum();
    assert!(total <= 64 << 10, "{total} bytes");
}
