//! Backups: they equal a snapshot of their moment, whatever happens meanwhile, and are databases
//! like any other.

use crate::support::tiny_options;
use chelonia::internals::{
    Call, CrashDirectory, Directory, Fault, FaultDirectory, FaultPlan, MemoryDirectory, Rng,
    Survivors, backup_into,
};
use chelonia::{
    Compression, Database, EngineKind, EngineOptions, ErrorKind, Keyspace, KeyspaceOptions,
    LogLayout, Snapshot,
};
use std::collections::BTreeMap;
use std::sync::Arc;

type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn open_in(directory: Arc<dyn Directory>, layout: LogLayout) -> chelonia::Result<Database> {
    let builder = Database::builder("memory").memory(48 << 20).log_layout(layout);
    builder.internals(|internals| internals.directory = Some(directory)).open()
}

fn options(engine: EngineKind, number: u64) -> KeyspaceOptions {
    let compression = match engine {
        EngineKind::Turtle | EngineKind::Autumn | EngineKind::Splinter if number % 2 == 1 => {
            Compression::Fast
        }
        _ => Compression::None,
    };
    let options = KeyspaceOptions::new().engine(EngineOptions::tiny(engine, 4 << 10));
    options.compression(compression).checkpoint_distance(6_000)
}

fn keyspaces(database: &Database, number: u64) -> Vec<Keyspace> {
    let keyspace = |engine: EngineKind| database.keyspace(engine.name(), options(engine, number));
    EngineKind::ALL.into_iter().map(|engine| keyspace(engine).unwrap()).collect()
}

/// Random updates of all keyspaces, with large values and removals.
fn update(rng: &mut Rng, database: &Database, keyspaces: &[Keyspace], count: u64) {
    for _ in 0..count {
        let mut batch = database.batch();
        for keyspace in keyspaces {
            let key = (rng.below(800) as u32).to_be_bytes();
            match rng.below(40) {
                0 => batch.insert(keyspace, key, vec![rng.below(9) as u8; 40_000]),
                1..8 => batch.remove(keyspace, key),
                _ => batch.insert(keyspace, key, format!("{:x}", rng.next_u64()).repeat(4)),
            };
        }
        batch.commit().unwrap();
    }
}

fn content(snapshot: &Snapshot, database: &Database, names: &[String]) -> Content {
    let of = |name: &String| {
        let keyspace = database.keyspace(name, KeyspaceOptions::new()).unwrap();
        let entries = snapshot.iter(&keyspace).map(|entry| entry.unwrap());
        (name.clone(), entries.map(|(key, value)| (key.into(), value.into())).collect())
    };
    names.iter().map(of).collect()
}

fn content_now(database: &Database) -> Content {
    content(&database.snapshot(), database, &database.keyspaces())
}

#[test]
fn a_backup_equals_a_snapshot_of_its_moment_while_everything_changes() {
    for (number, layout) in [LogLayout::Shared, LogLayout::PerThread { logs: 3 }, LogLayout::Sparse]
        .into_iter()
        .enumerate()
    {
        let number = number as u64;
        let mut rng = Rng::new(number);
        let database = open_in(Arc::new(MemoryDirectory::new()), layout).unwrap();
        let own = keyspaces(&database, number);
        update(&mut rng, &database, &own, 1_500);
        database.keyspace("dropped", tiny_options()).unwrap().insert("a", "1").unwrap();
        let (expected, seqno) = (content_now(&database), database.snapshot().seqno());

        let target: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
        let mut steps = 0;
        let report = backup_into(&database, &target, |progress| {
            steps += 1;
            assert!(progress.bytes_done <= progress.bytes_total);
            if steps % 3 == 0 {
                update(&mut rng, &database, &own, 40);
            }
            match steps {
                2 => database.drop_keyspace("dropped").unwrap(),
                5 => drop(database.keyspace("new", tiny_options()).unwrap()),
                7 => database.checkpoint().unwrap(),
                _ => {}
            }
        });
        let report = report.unwrap();
        assert!(steps > 20 && report.bytes > 100_000, "{steps} steps, {report:?}");
        assert_eq!((report.seqno, report.keyspaces), (seqno, expected.len()));
        assert!(content_now(&database) != expected, "it went on");

        let copy = open_in(Arc::clone(&target), LogLayout::Shared).unwrap();
        assert_eq!(copy.snapshot().seqno(), seqno);
        assert_eq!(content_now(&copy), expected);
        assert!(copy.verify().unwrap().is_clean());
        // It lives on, and so does a backup of it.
        let restored = keyspaces(&copy, number);
        update(&mut rng, &copy, &restored, 800);
        copy.close().unwrap();
        let copy = open_in(target, LogLayout::Shared).unwrap();
        let expected = content_now(&copy);
        let second: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
        backup_into(&copy, &second, |_| {}).unwrap();
        drop(copy);
        assert_eq!(content_now(&open_in(second, LogLayout::Shared).unwrap()), expected);
        assert!(database.verify().unwrap().is_clean());
        assert_eq!(database.stats().background.pins, 0);
    }
}

#[test]
fn a_backup_beside_writers_has_a_prefix_of_their_commits() {
    let database = open_in(Arc::new(MemoryDirectory::new()), LogLayout::Shared).unwrap();
    let own = keyspaces(&database, 0);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_u8 {
            let (own, database, is_done) = (&own, &database, &is_done);
            scope.spawn(move || {
                for number in 0_u64.. {
                    if is_done.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    let mut batch = database.batch();
                    for keyspace in own {
                        batch.insert(keyspace, [thread], number.to_be_bytes());
                        let key = [&[thread][..], &number.to_be_bytes()].concat();
                        batch.insert(keyspace, key, [7; 50]);
                    }
                    batch.commit().unwrap();
                }
            });
        }
        for _ in 0..5 {
            let before = database.snapshot();
            let target: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
            let report = backup_into(&database, &target, |_| {}).unwrap();
            assert!(report.seqno >= before.seqno());
            let copy = open_in(target, LogLayout::Shared).unwrap();
            let copied = keyspaces(&copy, 0);
            for thread in 0..3_u8 {
                let last = copied[0].get([thread]).unwrap();
                for keyspace in &copied {
                    assert_eq!(keyspace.get([thread]).unwrap(), last);
                    let last =
                        last.as_ref().map(|last| u64::from_be_bytes(last[..].try_into().unwrap()));
                    let commits = last.map_or(0, |last| last + 1);
                    assert_eq!(
                        keyspace.prefix([thread]).count() as u64,
                        commits + u64::from(commits > 0)
                    );
                }
                assert!(copied[0].get([thread]).unwrap() >= before.get(&own[0], [thread]).unwrap());
            }
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_backup_that_a_crash_cut_off_is_never_opened() {
    let database = open_in(Arc::new(MemoryDirectory::new()), LogLayout::Shared).unwrap();
    let own = keyspaces(&database, 1);
    update(&mut Rng::new(1), &database, &own, 400);
    let expected = content_now(&database);
    let target = CrashDirectory::new();
    let directory: Arc<dyn Directory> = Arc::new(target.clone());
    backup_into(&database, &directory, |_| {}).unwrap();
    let end = target.boundary();
    let (mut complete, mut refused) = (0, 0);
    // The moment from which on its first file is there after a power cut.
    let mut is_begun = end + 1;
    for boundary in 0..=end {
        for survivors in [Survivors::None, Survivors::All, Survivors::Subset(boundary as u64)] {
            let image = target.journal().image(boundary, survivors);
            if survivors == Survivors::None && !image.is_empty() && is_begun > end {
                is_begun = boundary;
            }
            match open_in(Arc::new(MemoryDirectory::from_files(image)), LogLayout::Shared) {
                Ok(copy) if copy.keyspaces().is_empty() => {
                    assert!(boundary < is_begun, "at {boundary} of {end}: it was replaced");
                }
                Ok(copy) => {
                    assert_eq!(content_now(&copy), expected, "at {boundary} of {end}");
                    complete += 1;
                }
                Err(error) => {
                    let kind = error.kind();
                    assert!(
                        matches!(kind, ErrorKind::InvalidArgument | ErrorKind::Corrupt),
                        "{error}"
                    );
                    refused += 1;
                }
            }
        }
    }
    assert!(complete > 0 && refused > 10, "{complete} complete, {refused} refused");
    let image = target.journal().image(end, Survivors::None);
    let copy = open_in(Arc::new(MemoryDirectory::from_files(image)), LogLayout::Shared).unwrap();
    assert_eq!(content_now(&copy), expected, "durable when it returned");
}

#[test]
fn backups_to_one_place_do_not_destroy_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let database = open_in(Arc::new(MemoryDirectory::new()), LogLayout::Shared).unwrap();
    let own = keyspaces(&database, 0);
    update(&mut Rng::new(5), &database, &own, 100);
    for round in 0..12 {
        let path = directory.path().join(format!("{round}"));
        let made = std::thread::scope(|scope| {
            let backup = || database.backup(&path);
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(backup)).collect();
            let results = threads.into_iter().map(|thread| thread.join().unwrap());
            results.filter(|result| result.is_ok()).count()
        });
        assert_eq!(made, 1);
        let copy = Database::builder(&path).create(false).open().unwrap();
        assert_eq!(content_now(&copy), content_now(&database));
    }
}

#[test]
fn a_backup_beside_keyspaces_that_come_and_go() {
    let database = open_in(Arc::new(MemoryDirectory::new()), LogLayout::Shared).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in ["one", "two"] {
            let (database, is_done) = (&database, &is_done);
            scope.spawn(move || {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    let keyspace = database.keyspace(name, tiny_options()).unwrap();
                    for number in 0..200_u32 {
                        keyspace.insert(number.to_be_bytes(), [7; 50]).unwrap();
                    }
                    drop(keyspace);
                    database.drop_keyspace(name).unwrap();
                }
            });
        }
        for _ in 0..40 {
            let target: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
            backup_into(&database, &target, |_| {}).unwrap();
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn damage_ends_a_backup_and_leaves_none() {
    let memory = MemoryDirectory::new();
    let database = open_in(Arc::new(memory.clone()), LogLayout::Shared).unwrap();
    let own = keyspaces(&database, 0);
    update(&mut Rng::new(2), &database, &own, 600);
    database.close().unwrap();
    let files = memory.to_files();
    // A block that the open does not need, and that is in use.
    let damaged = (2..files["data"].len() / 4096).find_map(|block| {
        let mut files = files.clone();
        files.get_mut("data").unwrap()[block * 4096 + 2_000] ^= 1;
        let memory = Arc::new(MemoryDirectory::from_files(files));
        let opened = open_in(memory, LogLayout::Shared).ok();
        opened.filter(|database| !database.verify().unwrap().is_clean())
    });
    let database = damaged.expect("no block is in use");
    let target: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let error = backup_into(&database, &target, |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(target.list().unwrap(), [""; 0]);
}

#[test]
fn a_disk_that_fails_ends_a_backup_and_nothing_else() {
    let database = open_in(Arc::new(MemoryDirectory::new()), LogLayout::Shared).unwrap();
    let own = keyspaces(&database, 0);
    update(&mut Rng::new(3), &database, &own, 300);
    let mut failed = 0;
    let calls = [Call::Open, Call::Write, Call::Sync, Call::Allocate, Call::SyncDirectory];
    for number in 0..60_u64 {
        let plan = FaultPlan::new();
        plan.fail(Fault::once(calls[number as usize % calls.len()], number / calls.len() as u64));
        let target: Arc<dyn Directory> =
            Arc::new(FaultDirectory::new(Arc::new(MemoryDirectory::new()), plan.clone()).unwrap());
        match backup_into(&database, &target, |_| {}) {
            Ok(_) => {}
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace), "{error}");
                failed += 1;
            }
        }
        own[0].insert("goes", "on").unwrap();
    }
    assert!(failed > 5);
}

#[test]
fn backups_that_make_no_sense_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let database = Database::open(path("d")).unwrap();
    database.keyspace("k", KeyspaceOptions::new()).unwrap().insert("a", "1").unwrap();
    let kind = |error: chelonia::Result<chelonia::BackupReport>| error.unwrap_err().kind();
    assert_eq!(kind(database.backup(path("d"))), ErrorKind::AlreadyOpen);
    assert_eq!(kind(database.backup(path("no/where"))), ErrorKind::NotFound);
    std::fs::create_dir(path("full")).unwrap();
    std::fs::write(path("full").join("file"), "x").unwrap();
    assert_eq!(kind(database.backup(path("full"))), ErrorKind::InvalidArgument);
    database.backup(path("backup")).unwrap();
    assert_eq!(kind(database.backup(path("backup"))), ErrorKind::InvalidArgument);
    database.close().unwrap();
    let reader = Database::builder(path("backup")).read_only(true).open().unwrap();
    assert_eq!(kind(reader.backup(path("second"))), ErrorKind::ReadOnly);
    assert!(!path("second").exists());
}
