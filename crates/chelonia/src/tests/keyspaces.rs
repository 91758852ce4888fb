//! Keyspaces dropped while they are damaged or read, and their state after a reopen.

use super::{open, open_faulty, rotate};
use crate::base::error::ErrorKind;
use crate::base::limits::BLOCK_BYTES;
use crate::engine::{
    AutumnOptions, EngineKind, EngineOptions, LevelOptions, LiveOptions, SplinterOptions,
};
use crate::memory::epoch::Guard;
use crate::memory::node_clock::ClockEntry;
use crate::runtime::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::storage::block::{BlockKind, DATA_FILE};
use crate::storage::io::fault::Call;
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::io::{Access, Directory, OpenMode};
use crate::{Database, Keyspace, KeyspaceOptions, Snapshot};

const ENGINES: [EngineKind; 5] = EngineKind::ALL;

/// Takes all the memory of cached nodes.
struct Greedy;

impl ClockEntry for Greedy {
    fn take_used(&self) -> bool {
        true
    }

    fn evict(&self, _guard: &Guard) -> u64 {
        0
    }
}

/// Evicts all nodes of `database`, so that every node has to be read again.
fn forget_nodes(database: &Database) {
    const ALL: u64 = 1 << 40;
    let node_clock = database.handle.core().storage.node_clock();
    let greedy: Arc<dyn ClockEntry> = Arc::new(Greedy);
    node_clock.admit(&Arc::downgrade(&greedy), ALL, &database.handle.core().storage.epochs().pin());
    node_clock.forget(ALL);
}

/// Lets an engine that stages updates move them to where they stay.
fn into_pages(database: &Database, keyspace: &Keyspace) {
    keyspace.core.engine.expect_updates(false);
    database.handle.core().maintain_all().unwrap();
    database.checkpoint().unwrap();
}

/// Flips a bit in every node ever written.
fn damage_nodes(memory: &MemoryDirectory) {
    let file = memory.open(DATA_FILE, OpenMode::Write, Access::Buffered).unwrap();
    let mut bytes = memory.to_files().remove(DATA_FILE).unwrap();
    let mut damaged = 0;
    for (number, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate().skip(2) {
        if block[8] == BlockKind::Engine as u8 {
            file.write_at(&[block[100] ^ 1], (number * BLOCK_BYTES + 100) as u64).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 2, "{damaged}");
}

/// Waits until `done` returns true: background readers retain what they see.
fn eventually(database: &Database, done: impl Fn() -> bool) -> bool {
    (0..100_000).any(|_| {
        database.handle.core().storage.epochs().collect();
        std::thread::yield_now();
        done()
    })
}

#[test]
fn an_unreadable_keyspace_can_be_dropped_completely() {
    for (engine, is_seen) in ENGINES.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let memory = MemoryDirectory::new();
        let database = open(Arc::new(memory.clone()));
        let options = KeyspaceOptions::new().engine(EngineOptions::tiny(engine, 4 << 10));
        let keyspace = database.keyspace("damaged", options.clone()).unwrap();
        keyspace.set_checkpoint_distance(50_000).unwrap();
        for number in 0..10_000_u64 {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            keyspace.insert(key, [7; 50]).unwrap();
        }
        keyspace.insert("large", [8; 50_000]).unwrap();
        database.checkpoint().unwrap();
        keyspace.set_checkpoint_distance(1 << 40).unwrap();
        for number in 0..500_u32 {
            keyspace.insert(number.to_be_bytes(), [9; 10_000]).unwrap();
        }
        keyspace.insert("in memory", [9; 50_000]).unwrap();
        forget_nodes(&database);
        damage_nodes(&memory);
        let snapshot = is_seen.then(|| database.snapshot());
        database.drop_keyspace("damaged").unwrap();
        let again = database.drop_keyspace("damaged").unwrap_err();
        assert_eq!(again.kind(), ErrorKind::NotFound);
        if let Some(snapshot) = &snapshot {
            assert_eq!(snapshot.get(&keyspace, 7_u32.to_be_bytes()).unwrap().unwrap(), [9; 10_000]);
        }
        drop((snapshot, keyspace));
        let memtables = || database.stats().memory.memtable_bytes;
        assert!(
            eventually(&database, || memtables() < 1 << 20),
            "{engine:?}, {is_seen}: {}",
            memtables()
        );
        // Other keyspaces continue to work; the location of orphaned extents is unknown.
        let other = database.keyspace("damaged", options).unwrap();
        other.insert("key", "value").unwrap();
        database.checkpoint().unwrap();
        let hidden = database.stats().disk.orphaned_bytes;
        assert!(hidden > 100 << 10, "{hidden}");
        let lost = || database.handle.core().unreachable_blocks_now().unwrap() * BLOCK_BYTES as u64;
        assert!(
            eventually(&database, || lost() == hidden),
            "{engine:?}, {is_seen}: {} {hidden}",
            lost()
        );
        drop(other);
        database.close().unwrap();
        let database = open(Arc::new(memory));
        assert_eq!(database.keyspaces(), ["damaged"]);
        assert_eq!(database.handle.core().unreachable_blocks().unwrap(), 0);
        assert_eq!(database.stats().disk.orphaned_bytes, 0);
        assert!(database.verify().unwrap().is_clean());
    }
}

#[test]
fn a_pin_of_a_dropped_keyspace_retains_disk_space_but_no_memory() {
    for engine in ENGINES {
        let database = open(Arc::new(MemoryDirectory::new()));
        let options = KeyspaceOptions::new().engine(engine);
        let keyspace = database.keyspace("dropped", options).unwrap();
        keyspace.insert("immutable", "1").unwrap();
        rotate(&database, &keyspace);
        keyspace.insert("changed", "old").unwrap();
        let pins = {
            let reads = database.handle.reads();
            [reads.pin(&keyspace.core).unwrap(), reads.pin_all().unwrap()]
        };
        let snapshot = database.snapshot();
        keyspace.insert("changed", "new").unwrap();
        database.drop_keyspace("dropped").unwrap();
        for pin in &pins {
            let view = keyspace.core.view_at(pin.seqno());
            assert!(view.buffers.is_empty(), "{engine:?}: {} memtables", view.buffers.len());
        }
        assert_eq!(snapshot.get(&keyspace, "changed").unwrap().unwrap(), *b"old");
        assert_eq!(snapshot.get(&keyspace, "immutable").unwrap().unwrap(), *b"1");
        drop((pins, snapshot, keyspace));
        database.checkpoint().unwrap();
        assert_eq!(database.handle.core().unreachable_blocks().unwrap(), 0);
    }
}

#[test]
fn a_handle_of_a_dropped_keyspace_retains_no_space_and_space_of_pins_is_counted() {
    for engine in ENGINES {
        let database = open(Arc::new(MemoryDirectory::new()));
        let used = || database.handle.core().storage.stats().space.used_blocks * BLOCK_BYTES as u64;
        let held = || database.stats().disk.retained_bytes;
        let empty = used();
        let (mut handles, mut pins) = (Vec::new(), Vec::new());
        for round in 0..4 {
            let options = KeyspaceOptions::new().engine(EngineOptions::tiny(engine, 4 << 10));
            let keyspace = database.keyspace("dropped", options).unwrap();
            for number in 0..2_000_u32 {
                keyspace.insert(number.to_be_bytes(), [round; 500]).unwrap();
            }
            keyspace.insert("large", [round; 100_000]).unwrap();
            database.checkpoint().unwrap();
            keyspace.insert("in memory", [round; 100_000]).unwrap();
            assert!(used() > empty + (1 << 20));
            if round == 3 {
                pins.push(database.snapshot());
            }
            database.drop_keyspace("dropped").unwrap();
            assert_eq!(keyspace.get("large").unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(keyspace.multi_get(["large"]).unwrap_err().kind(), ErrorKind::NotFound);
            let listed = keyspace.iter().next().unwrap();
            assert_eq!(listed.unwrap_err().kind(), ErrorKind::NotFound);
            if round < 3 {
                assert!(
                    eventually(&database, || used() < empty + (64 << 10)),
                    "{engine:?}: {}",
                    used()
                );
                assert_eq!(held(), 0);
            }
            handles.push(keyspace);
        }
        assert!(held() > 1 << 20, "{engine:?}: {}", held());
        assert_eq!(pins[0].get(&handles[3], "large").unwrap().unwrap(), [3; 100_000]);
        pins.clear();
        assert!(eventually(&database, || used() < empty + (64 << 10)), "{engine:?}: {}", used());
        assert_eq!(held(), 0);
        assert_eq!(database.handle.core().unreachable_blocks_now().unwrap(), 0);
    }
}

#[test]
fn the_last_shape_of_levels_is_stored() {
    let memory = MemoryDirectory::new();
    let first = LevelOptions::new().size_ratio(3);
    let set = LevelOptions::new().size_ratio(7).scaling_percent(60);
    let set = set.dynamic_sizes(true).allocate_filters_by_level(false);
    let options = KeyspaceOptions::new().engine(AutumnOptions::new().levels(first));
    let database = open(Arc::new(memory.clone()));
    drop(database.keyspace("k", options).unwrap());
    database.close().unwrap();
    for (stored, next) in [(first, set), (set, first), (first, first), (first, set), (set, set)] {
        let database = open(Arc::new(memory.clone()));
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        assert_eq!(keyspace.engine_options().levels(), Some(stored));
        keyspace.set_live_options(next).unwrap();
        if next == first {
            database.checkpoint().unwrap();
        }
        drop(keyspace);
        // A close stores options that no checkpoint has.
        database.close().unwrap();
    }
    let database = open(Arc::new(memory));
    let options = || KeyspaceOptions::new().engine(AutumnOptions::new().levels(set));
    let keyspace = database.keyspace("k", options()).unwrap();
    keyspace.set_checkpoint_distance(77_000).unwrap();
    database.checkpoint().unwrap();
    // Unchanged options are not stored again.
    drop(database.keyspace("k", options().checkpoint_distance(77_000)).unwrap());
    assert!(!database.handle.core().counters.options_changed.load(Ordering::Relaxed));
    drop(database.keyspace("k", options().checkpoint_distance(78_000)).unwrap());
    assert!(database.handle.core().counters.options_changed.load(Ordering::Relaxed));
}

#[test]
fn the_last_space_of_leaves_is_stored() {
    let memory = MemoryDirectory::new();
    let space = |percent| EngineOptions::from(SplinterOptions::new().space_percent(percent));
    let of = |keyspace: &Keyspace| match keyspace.engine_options() {
        EngineOptions::Splinter(options) => options.space_percent,
        other => panic!("{other:?}"),
    };
    let database = open(Arc::new(memory.clone()));
    let keyspace = database.keyspace("k", KeyspaceOptions::new().engine(space(130))).unwrap();
    for refused in [109, 301] {
        let error = keyspace.set_live_options(LiveOptions::SpacePercent(refused)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let error = keyspace.set_live_options(LevelOptions::new()).unwrap_err();
    assert!(error.to_string().contains("engine splinter has no levels"), "{error}");
    let other = database.keyspace("other", KeyspaceOptions::new()).unwrap();
    let error = other.set_live_options(LiveOptions::SpacePercent(130)).unwrap_err();
    assert!(error.to_string().contains("engine turtle has no option space_percent"), "{error}");
    drop((keyspace, other));
    database.close().unwrap();
    for (stored, next) in [(130, 200), (200, 160), (160, 110)] {
        let database = open(Arc::new(memory.clone()));
        let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
        assert_eq!(of(&keyspace), Some(stored));
        keyspace.set_live_options(LiveOptions::SpacePercent(next)).unwrap();
        drop(keyspace);
        database.close().unwrap();
    }
    let database = open(Arc::new(memory));
    assert_eq!(of(&database.keyspace("k", KeyspaceOptions::new()).unwrap()), Some(110));
    // The options of an open change it, too.
    let keyspace = database.keyspace("k", KeyspaceOptions::new().engine(space(140))).unwrap();
    assert_eq!(of(&keyspace), Some(140));
}

/// A snapshot made while a keyspace is being dropped shows it unchanged, or empty, and stays
/// consistent. No memtable is retained for it.
#[test]
fn a_snapshot_taken_during_a_drop_does_not_change() {
    for engine in ENGINES {
        let (database, plan) = open_faulty(&MemoryDirectory::new());
        let options = KeyspaceOptions::new().engine(EngineOptions::tiny(engine, 4 << 10));
        let keyspace = database.keyspace("dropped", options).unwrap();
        for number in 0..10_000_u64 {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            keyspace.insert(key, [7; 50]).unwrap();
        }
        database.checkpoint().unwrap();
        into_pages(&database, &keyspace);
        keyspace.insert("in memory", "value").unwrap();
        forget_nodes(&database);
        // Runs whenever the drop reads a node.
        let made: Arc<Mutex<Vec<_>>> = Arc::default();
        let (makes, core) = (Arc::clone(&made), Arc::clone(&database.handle));
        let (seen, is_busy) = (keyspace.clone(), AtomicBool::new(false));
        plan.before_call(move |call, _| {
            if call != Call::Read || is_busy.swap(true, Ordering::Relaxed) {
                return;
            }
            let snapshot = Snapshot::new(Arc::clone(&core));
            let found = snapshot.get(&seen, "in memory").unwrap();
            makes.lock().push((snapshot, found));
            is_busy.store(false, Ordering::Relaxed);
        });
        database.drop_keyspace("dropped").unwrap();
        plan.before_call(|_, _| {});
        let made = std::mem::take(&mut *made.lock());
        assert!(!made.is_empty(), "{engine:?}");
        for (snapshot, found) in &made {
            let now = snapshot.get(&keyspace, "in memory").unwrap();
            assert_eq!(now.as_deref(), found.as_deref(), "{engine:?}: {snapshot:?}");
        }
        let memtables = || database.stats().memory.memtable_bytes;
        assert!(eventually(&database, || memtables() < 100 << 10), "{engine:?}: {}", memtables());
    }
}
