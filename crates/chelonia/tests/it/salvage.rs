//! Salvage: everything readable of a damaged database is copied, nothing else, and entries that may
//! be out of date are separate.

use chelonia::internals::{
    Call, CrashDirectory, Directory, Fault, FaultDirectory, FaultPlan, MemoryDirectory, Survivors,
    tick,
};
use chelonia::limits::KEYSPACES_MAX;
use chelonia::{
    AutumnOptions, Database, Durability, EngineKind, EngineOptions, ErrorKind, KeyspaceOptions,
    LevelOptions, Result, Salvage, SalvageReport,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

const BLOCK: usize = 4096;
const KEYSPACES: [&str; 2] = ["left", "right"];
const ENGINES: [EngineKind; 5] = EngineKind::ALL;

/// The kinds of blocks in their headers: entries, and nodes.
const DATA: u8 = 1;
/// The kind of a block of a page of `bminus`.
const PAGE: u8 = 9;
const NODE: u8 = 7;

/// Commits that are only in the log.
const LOGGED: u64 = 400;

/// The content of a keyspace.
type Space = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store with a history.
struct Store {
    files: BTreeMap<String, Vec<u8>>,
    /// The content.
    newest: BTreeMap<&'static str, Space>,
    /// Every value that a key ever had.
    ever: BTreeMap<(&'static str, Vec<u8>), BTreeSet<Vec<u8>>>,
}

fn open(directory: &MemoryDirectory) -> Result<Database> {
    let directory: Arc<dyn Directory> = Arc::new(directory.clone());
    let builder = Database::builder("in memory").memory(32 << 20).internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
        internals.log_segment_bytes = Some(16 << 10);
    });
    builder.open()
}

fn options(engine: EngineKind) -> KeyspaceOptions {
    let few = LevelOptions::new().size_ratio(2);
    KeyspaceOptions::new().engine(match engine {
        EngineKind::Autumn => AutumnOptions::new().table_bytes(4 << 10).levels(few).into(),
        _ => EngineOptions::tiny(engine, 4 << 10),
    })
}

/// Salvages `files`; returns the new database and the report.
fn save(files: BTreeMap<String, Vec<u8>>) -> Result<(SalvageReport, BTreeMap<String, Space>)> {
    let source = Arc::new(MemoryDirectory::from_files(files));
    let destination = MemoryDirectory::new();
    let salvage = Salvage::new("source", "destination").memory(32 << 20);
    let report = salvage.directories(source, Arc::new(destination.clone())).run()?;
    let database = open(&destination)?;
    assert!(database.verify()?.is_clean());
    let mut saved = BTreeMap::new();
    for name in database.keyspaces() {
        let entries = database.keyspace(&name, KeyspaceOptions::new())?.iter();
        let owned = entries.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())));
        saved.insert(name, owned.collect::<Result<Space>>()?);
    }
    Ok((report, saved))
}

impl Store {
    /// Trees of two levels and more with buffers, tombstones, large values, and a synced log.
    fn new(engine: EngineKind) -> Self {
        let directory = MemoryDirectory::new();
        let database = open(&directory).unwrap();
        let mut store = Self {
            files: BTreeMap::new(),
            newest: KEYSPACES.iter().map(|name| (*name, Space::new())).collect(),
            ever: BTreeMap::new(),
        };
        for name in KEYSPACES {
            let keyspace = database.keyspace(name, options(engine)).unwrap();
            keyspace.set_checkpoint_distance(3_000).unwrap();
        }
        for number in 0..1_200 {
            store.change(&database, number).unwrap();
        }
        database.checkpoint().unwrap();
        for keyspace in database.stats().keyspaces {
            let (stats, least) =
                (keyspace.engine_stats, if keyspace.name == "left" { 2 } else { 1 });
            // Updates of `bminus` do not wait in buffers.
            let is_buffered = stats.buffered_runs > 0 || engine == EngineKind::Bminus;
            assert!(stats.height >= least && is_buffered, "{stats:?}");
        }
        for name in KEYSPACES {
            let keyspace = database.keyspace(name, options(engine)).unwrap();
            keyspace.set_checkpoint_distance(1 << 20).unwrap();
        }
        for number in 1_200..1_200 + LOGGED {
            store.change(&database, number).unwrap();
        }
        database.sync().unwrap();
        tick(&database).unwrap();
        store.files = directory.to_files();
        store
    }

    fn change(&mut self, database: &Database, number: u64) -> Result<()> {
        let name = KEYSPACES[usize::from(number % 7 > 4)];
        let keyspace = database.keyspace(name, KeyspaceOptions::new())?;
        let key = (number.wrapping_mul(0x9e37_79b9) % 500).to_be_bytes()[6..].to_vec();
        if number % 6 == 5 {
            self.newest.get_mut(name).unwrap().remove(&key);
            return keyspace.remove(&key);
        }
        let length = if number % 200 == 7 { 40_000 } else { number % 150 };
        let mut value = number.to_le_bytes().to_vec();
        value.resize(8 + usize::try_from(length).unwrap(), 0xa5);
        keyspace.insert_with(&key, &value, Durability::Process)?;
        self.ever.entry((name, key.clone())).or_default().insert(value.clone());
        self.newest.get_mut(name).unwrap().insert(key, value);
        Ok(())
    }

    /// Compares a salvage with the content, if only the data file was damaged.
    fn check(&self, report: &SalvageReport, saved: &BTreeMap<String, Space>, what: &str) {
        for keyspace in &report.keyspaces {
            let name = KEYSPACES.into_iter().find(|name| *name == keyspace.name).unwrap();
            let newest = &self.newest[name];
            for (key, value) in &saved[name] {
                assert_eq!(newest.get(key), Some(value), "{what}: {name} has an entry out of date");
            }
            for key in newest.keys().filter(|key| !saved[name].contains_key(*key)) {
                let mut losses = keyspace.losses.iter();
                let is_reported = losses.any(|loss| contains((&loss.lower, &loss.upper), key));
                assert!(is_reported, "{what}: {key:?} is missing and not reported");
            }
            let suspect = keyspace.suspect.as_ref().map(|(suspect, _)| &saved[suspect]);
            for (key, value) in suspect.into_iter().flatten() {
                let ever = self.ever.get(&(name, key.clone()));
                assert!(ever.is_some_and(|ever| ever.contains(value)), "{what}: what never was");
                assert!(!saved[name].contains_key(key), "{what}: a key is certain and suspect");
            }
        }
    }

    fn is_all_of(&self, saved: &BTreeMap<String, Space>) -> bool {
        saved.len() == KEYSPACES.len()
            && KEYSPACES.iter().all(|name| saved[*name] == self.newest[name])
    }
}

fn contains(range: (&Bound<Vec<u8>>, &Bound<Vec<u8>>), key: &[u8]) -> bool {
    let slice = |bound: &Bound<Vec<u8>>| bound.clone();
    (slice(range.0), slice(range.1)).contains(&key.to_vec())
}

#[test]
fn a_healthy_database_is_copied_completely() {
    for engine in ENGINES {
        let store = Store::new(engine);
        let (report, saved) = save(store.files.clone()).unwrap();
        assert!(report.is_complete() && report.log_records == LOGGED, "{report:?}");
        assert!(store.is_all_of(&saved), "{engine:?}");
    }
}

#[test]
fn everything_readable_of_a_damaged_data_file_is_copied_and_nothing_out_of_date() {
    for engine in ENGINES {
        let store = Store::new(engine);
        let blocks = store.files["data"].len() / BLOCK;
        let (mut lost, mut doubted, mut refused, mut nodes) = (0, 0, 0, [0; 2]);
        for block in 0..blocks {
            let what = format!("{engine:?}, block {block}");
            let mut files = store.files.clone();
            let bytes = &mut files.get_mut("data").unwrap()[block * BLOCK..][..BLOCK];
            let is_node = bytes[8] == NODE;
            bytes[100..164].fill(0x5a);
            let Ok((report, saved)) = save(files) else {
                refused += 1;
                continue;
            };
            store.check(&report, &saved, &what);
            // A lost entry may be older than the one found.
            assert!(store.is_all_of(&saved) || !report.is_complete(), "{what}: {report:?}");
            let is_doubted = report.keyspaces.iter().any(|one| one.suspect.is_some());
            lost += usize::from(!report.is_complete());
            doubted += usize::from(is_doubted);
            nodes[0] += usize::from(is_node && !report.is_complete());
            nodes[1] += usize::from(is_node && is_doubted);
        }
        assert!(refused <= 1, "only the catalog is needed for all: {refused} of {blocks} blocks");
        assert!(lost > blocks / 4 && doubted > 0, "{engine:?}, {blocks}: {lost} {doubted}");
        // A turtle tree reports the keys of a lost node by its pivots.
        let least = if engine == EngineKind::Autumn { [1, 1] } else { [1, 0] };
        assert!(nodes[0] >= least[0] && nodes[1] >= least[1], "{engine:?}: {nodes:?}");
    }
}

#[test]
fn each_loss_names_its_own_block() {
    for engine in ENGINES {
        let directory = MemoryDirectory::new();
        let database = open(&directory).unwrap();
        let options = KeyspaceOptions::new().engine(EngineOptions::tiny(engine, 1 << 20));
        let keyspace = database.keyspace("k", options).unwrap();
        for number in 0..2_000_u64 {
            keyspace.insert(number.to_be_bytes(), [7; 100]).unwrap();
        }
        database.checkpoint().unwrap();
        database.close().unwrap();
        let healthy = directory.to_files();
        let kind = if engine == EngineKind::Bminus { PAGE } else { DATA };
        let is_data = |block: &usize| healthy["data"][block * BLOCK + 8] == kind;
        let blocks: Vec<usize> = (2..healthy["data"].len() / BLOCK).filter(is_data).collect();
        assert!(blocks.len() > 40, "{engine:?}: {} blocks", blocks.len());
        let mut files = healthy.clone();
        let damaged = [blocks[10], blocks[11], blocks[20], blocks[30]];
        for block in damaged {
            files.get_mut("data").unwrap()[block * BLOCK + 1_000] ^= 1;
        }
        let (report, _) = save(files).unwrap();
        let losses = &report.keyspaces[0].losses;
        let mut named: Vec<Option<u64>> = losses.iter().map(|loss| loss.cause.offset()).collect();
        // An engine may salvage its runs in another order than it wrote them.
        named.sort_unstable();
        // Losses of neighbouring blocks are one loss with the location of the first, unless each
        // is a page.
        let mut expected = damaged.to_vec();
        if engine != EngineKind::Bminus {
            expected.remove(1);
        }
        let place = |block: &usize| Some((block * BLOCK) as u64);
        assert_eq!(named, expected.iter().map(place).collect::<Vec<_>>(), "{losses:?}");
    }
}

#[test]
fn the_rest_of_a_truncated_data_file_is_copied() {
    let store = Store::new(EngineKind::Turtle);
    let mut losses = 0;
    for part in 4..8 {
        let mut files = store.files.clone();
        let data = files.get_mut("data").unwrap();
        data.truncate(data.len() * part / 8 / BLOCK * BLOCK);
        assert!(open(&MemoryDirectory::from_files(files.clone())).is_err());
        if let Ok((report, saved)) = save(files) {
            store.check(&report, &saved, &format!("{part} of eight parts"));
            losses += usize::from(!report.is_complete());
        }
    }
    assert!(losses > 0);
}

#[test]
fn the_log_after_a_damaged_part_is_copied() {
    let store = Store::new(EngineKind::Turtle);
    let log: Vec<&String> = store.files.keys().filter(|name| name.starts_with("log-")).collect();
    let mut saved_behind = 0;
    for name in log {
        for block in 1..store.files[name].len() / BLOCK {
            let mut files = store.files.clone();
            files.get_mut(name).unwrap()[block * BLOCK + 500..][..64].fill(0x5a);
            let refused = open(&MemoryDirectory::from_files(files.clone())).is_err();
            let (report, saved) = save(files).unwrap();
            assert_eq!(refused, !report.log_damage.is_empty(), "{name}, {block}: {report:?}");
            for (keyspace, entries) in &saved {
                let of = KEYSPACES.into_iter().find(|of| *of == keyspace).unwrap();
                for (key, value) in entries {
                    let ever = store.ever.get(&(of, key.clone()));
                    assert!(ever.is_some_and(|ever| ever.contains(value)), "what never was");
                }
            }
            saved_behind += usize::from(refused && (1..LOGGED).contains(&report.log_records));
        }
    }
    assert!(saved_behind > 3, "{saved_behind}");
}

#[test]
fn unreadable_blocks_are_lost_with_an_io_error() {
    let store = Store::new(EngineKind::Turtle);
    let mut losses = 0;
    for after in 0..60 {
        let plan = FaultPlan::new();
        let source = Arc::new(MemoryDirectory::from_files(store.files.clone()));
        let source = Arc::new(FaultDirectory::new(source, plan.clone()).unwrap());
        plan.fail(Fault::once(Call::Read, after).on("data"));
        let salvage = Salvage::new("damaged", "saved").memory(32 << 20);
        let saved = salvage.directories(source, Arc::new(MemoryDirectory::new())).run();
        let Ok(report) = saved else { continue };
        for loss in report.keyspaces.iter().flat_map(|keyspace| &keyspace.losses) {
            assert_eq!(loss.cause.kind(), ErrorKind::Io, "read {after}: {}", loss.cause);
            losses += 1;
        }
    }
    assert!(losses > 10, "{losses}");
}

#[test]
fn a_salvage_needs_an_empty_destination_and_a_closed_source() {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("a"), directory.path().join("b"));
    let kind = || Salvage::new(&source, &destination).run().map_err(|error| error.kind());
    assert_eq!(kind().err(), Some(ErrorKind::NotFound));
    let database = Database::open(&source).unwrap();
    database.keyspace("k", KeyspaceOptions::new()).unwrap().insert("key", "value").unwrap();
    assert_eq!(kind().err(), Some(ErrorKind::AlreadyOpen));
    database.close().unwrap();
    assert!(kind().unwrap().is_complete());
    assert_eq!(kind().err(), Some(ErrorKind::InvalidArgument));
    let saved = Database::open(&destination).unwrap();
    let keyspace = saved.keyspace("k", KeyspaceOptions::new()).unwrap();
    assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn an_unfinished_creation_is_not_a_database() {
    let crashing = CrashDirectory::new();
    let directory: Arc<dyn Directory> = Arc::new(crashing.clone());
    let builder = Database::builder("in memory").memory(32 << 20);
    drop(builder.internals(|internals| internals.directory = Some(directory)).open().unwrap());
    let journal = crashing.journal();
    let mut complete = 0;
    for boundary in 0..=journal.boundaries() {
        match save(journal.image(boundary, Survivors::All)) {
            Ok((report, found)) => {
                assert!(report.is_complete() && found.is_empty(), "at {boundary}: {report:?}");
                complete += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "at {boundary}: {error}");
                assert_eq!(complete, 0, "at {boundary}: there was a database before");
            }
        }
    }
    assert!(complete > 0);
}

#[test]
fn an_inaccessible_destination_is_reported_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    Database::builder(&source).open().unwrap().close().unwrap();
    let salvage = |name: &str| Salvage::new(&source, directory.path().join(name)).run();
    // A name that no file system accepts.
    let error = salvage(&"x".repeat(5000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    // The destination is not empty.
    assert_eq!(salvage("source").unwrap_err().kind(), ErrorKind::InvalidArgument);
    // The source is not changed, and no files are added to it.
    std::os::unix::fs::symlink(&source, directory.path().join("link")).unwrap();
    let names = || std::fs::read_dir(&source).unwrap().count();
    let before = names();
    for inside in ["source/saved", "source/a/b", "link/saved", "./source/../source/saved"] {
        let error = salvage(inside).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{inside}: {error}");
    }
    assert_eq!(names(), before);
    assert!(salvage("free").unwrap().is_complete());
}

/// A store of `count` keyspaces: the files, with damage to newer values of the first and the last.
fn full_of_keyspaces(count: usize) -> BTreeMap<String, Vec<u8>> {
    let directory = MemoryDirectory::new();
    let database = open(&directory).unwrap();
    let options = KeyspaceOptions::new().engine(EngineKind::Autumn);
    let keyspaces: Vec<_> = (0..count)
        .map(|number| database.keyspace(&format!("{number:04}"), options.clone()).unwrap())
        .collect();
    for (value, keys) in [(b'o', 0..1_000_u32), (b'n', 300..500)] {
        for keyspace in [&keyspaces[0], &keyspaces[count - 1]] {
            keys.clone().for_each(|key| keyspace.insert(key.to_be_bytes(), [value; 100]).unwrap());
        }
        database.checkpoint().unwrap();
    }
    drop(keyspaces);
    database.close().unwrap();
    let mut files = directory.to_files();
    for block in files.get_mut("data").unwrap().chunks_mut(BLOCK) {
        if block.windows(60).any(|bytes| bytes == [b'n'; 60]) {
            block[2_000] ^= 1;
        }
    }
    files
}

#[test]
fn suspect_entries_without_a_keyspace_are_reported_as_lost() {
    for free in [0, 1] {
        let (report, saved) = save(full_of_keyspaces(KEYSPACES_MAX - free)).unwrap();
        assert_eq!(report.keyspaces.len(), KEYSPACES_MAX - free);
        assert_eq!(saved.len(), KEYSPACES_MAX);
        let damaged = [&report.keyspaces[0], &report.keyspaces[KEYSPACES_MAX - free - 1]];
        for (place, keyspace) in damaged.into_iter().enumerate() {
            let certain = &saved[&keyspace.name];
            assert!(certain.values().all(|value| *value == [b'o'; 100]));
            assert_eq!(certain.len() as u64, keyspace.entries);
            let is_lost = |key: &u32| {
                let mut losses = keyspace.losses.iter();
                losses.any(|loss| contains((&loss.lower, &loss.upper), &key.to_be_bytes()))
            };
            let intact = (0..1_000).filter(|key| !is_lost(key)).count();
            assert!(certain.len() == intact && (700..=800).contains(&intact), "{intact}");
            let has_place = free == 1 && place == 0;
            assert_eq!(keyspace.suspect.is_some(), has_place, "{free} free");
            let reasons = keyspace.losses.iter().map(|loss| loss.cause.kind());
            let is_reported = reasons.clone().any(|kind| kind == ErrorKind::InvalidArgument);
            assert_eq!(is_reported, !has_place, "{:?}", keyspace.losses);
            assert!(reasons.clone().any(|kind| kind == ErrorKind::Corrupt));
        }
    }
}
