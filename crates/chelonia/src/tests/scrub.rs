//! Scrub: the blocks it reads, the damage it finds, and its schedule.

use crate::api::builder::DatabaseBuilder;
use crate::api::database::Database;
use crate::base::error::Error;
use crate::base::ids::Extent;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::{EngineKind, EngineOptions, ExtentKind, OwnedExtent};
use crate::integrity::scrub::PIECE_BLOCKS_MAX;
use crate::options::keyspace::KeyspaceOptions;
use crate::runtime::clock::Clock;
use crate::runtime::sync::Arc;
use crate::storage::block::{BlockKind, DATA_FILE};
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::io::{Access, Directory, OpenMode};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(100);

fn open(directory: &MemoryDirectory, clock: &Clock) -> Database {
    let mut builder = DatabaseBuilder::new(Path::new("in memory")).scrub_interval(Some(INTERVAL));
    builder.settings.internals.directory = Some(Arc::new(directory.clone()));
    builder.settings.internals.stepped = true;
    builder.settings.internals.clock = clock.clone();
    builder.open().unwrap()
}

fn fill(database: &Database) {
    fill_keyspace(database, "default", EngineKind::Turtle);
}

fn fill_keyspace(database: &Database, name: &str, engine: EngineKind) {
    let options = KeyspaceOptions::new().engine(EngineOptions::tiny(engine, 16 << 10));
    let keyspace = database.keyspace(name, options).unwrap();
    keyspace.set_checkpoint_distance(30_000).unwrap();
    for number in 0..3_000_u64 {
        keyspace.insert(number.wrapping_mul(0x9e37_79b9).to_be_bytes(), [7; 90]).unwrap();
    }
    keyspace.insert("large", vec![1; 100_000]).unwrap();
    database.checkpoint().unwrap();
}

fn flip(directory: &MemoryDirectory, place: u64) {
    let file = directory.open(DATA_FILE, OpenMode::Write, Access::Buffered).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, place).unwrap();
    file.write_at(&[byte[0] ^ 1], place).unwrap();
}

/// The extents of one keyspace whose blocks are of this kind.
fn extents_of(
    database: &Database,
    directory: &MemoryDirectory,
    name: &str,
    kind: BlockKind,
) -> Vec<Extent> {
    let keyspace = database.keyspace(name, KeyspaceOptions::new()).unwrap();
    let file = directory.open(DATA_FILE, OpenMode::Write, Access::Buffered).unwrap();
    let mut extents = Vec::new();
    let mut visit = |owned: OwnedExtent| {
        let mut byte = [0];
        file.read_at(&mut byte, owned.extent.offset() + 8).unwrap();
        if byte[0] == kind as u8 {
            extents.push(owned.extent);
        }
        Ok(())
    };
    keyspace.core.engine.version().extents(&mut visit).unwrap();
    extents
}

/// Lets `passed` elapse in ticks.
fn wait(database: &Database, clock: &Clock, passed: Duration) {
    for _ in 0..100 {
        clock.advance(passed / 100);
        database.handle.core().scrub_tick();
    }
}

#[test]
fn a_scrub_pass_reads_everything_once_per_interval() {
    let (directory, clock) = (MemoryDirectory::new(), Clock::manual());
    let database = open(&directory, &clock);
    fill(&database);
    wait(&database, &clock, INTERVAL / 2);
    let half = database.stats().scrub;
    wait(&database, &clock, INTERVAL);
    let stats = database.stats();
    let used = stats.disk.data_used_bytes / BLOCK_BYTES_U64;
    assert!(half.passes == 0 && half.blocks.abs_diff(used / 2) < used / 10, "{half:?}, {used}");
    assert!(stats.scrub.passes == 1 && stats.scrub.blocks > used, "{:?}", stats.scrub);
    assert_eq!(stats.scrub.damaged_blocks, 0, "{:?}", stats.scrub);
}

#[test]
fn bit_rot_is_found_and_rewritten_blocks_are_not_reported() {
    let (directory, clock) = (MemoryDirectory::new(), Clock::manual());
    let database = open(&directory, &clock);
    fill(&database);
    // A leg is listed, then everything in it is rewritten.
    wait(&database, &clock, INTERVAL / 10);
    fill(&database);
    wait(&database, &clock, 2 * INTERVAL);
    let healthy = database.stats().scrub;
    assert_eq!(healthy.damaged_blocks, 0, "{healthy:?}");
    let mut extents = Vec::new();
    database.handle.core().walk_newest(&mut |owned| extents.push(owned.extent));
    let place = extents[extents.len() / 2].start.0 * BLOCK_BYTES_U64 + 77;
    flip(&directory, place);
    wait(&database, &clock, 2 * INTERVAL);
    let scrub = database.stats().scrub;
    assert!(scrub.damaged_blocks >= 1, "{scrub:?}");
    assert!(scrub.findings.iter().all(|error| error.offset() == Some(place - 77)), "{scrub:?}");
    assert_eq!(scrub.findings.len(), 1, "{scrub:?}");
}

#[test]
fn an_unreadable_node_is_reported_once_and_hides_nothing_else() {
    let (directory, clock) = (MemoryDirectory::new(), Clock::manual());
    let engines = [("0", EngineKind::Turtle), ("1", EngineKind::Autumn)];
    let database = open(&directory, &clock);
    for (name, engine) in engines {
        // More entries than one leg has; the last ones have a node of their own.
        fill_keyspace(&database, name, engine);
        let keyspace = database.keyspace(name, KeyspaceOptions::new()).unwrap();
        for number in 0..90_u64 {
            keyspace.insert(number.to_be_bytes(), vec![1; 1 << 20]).unwrap();
        }
        database.checkpoint().unwrap();
        keyspace.insert("last", "of all").unwrap();
        database.checkpoint().unwrap();
    }
    let mut damaged = BTreeSet::new();
    for (name, _) in engines {
        let of = |kind| extents_of(&database, &directory, name, kind);
        // The first node below the root, the last entries, and the last large value.
        let nodes = of(BlockKind::Engine);
        assert!(nodes.len() > 2, "{name}: {nodes:?}");
        damaged.insert(nodes[1].offset());
        damaged.extend(
            [BlockKind::Data, BlockKind::LargeValue].map(|kind| of(kind).last().unwrap().offset()),
        );
    }
    damaged.iter().for_each(|offset| flip(&directory, offset + 77));
    // The nodes are no longer in memory.
    let storage = &database.handle.core().storage;
    let limit = storage.budget().limit();
    storage.budget().set_limit(0);
    storage.node_clock().trim();
    storage.budget().set_limit(limit);
    while database.stats().scrub.passes == 0 {
        clock.advance(INTERVAL / 100);
        database.handle.core().scrub_tick();
    }
    let scrub = database.stats().scrub;
    let offsets: Vec<_> = scrub.findings.iter().filter_map(Error::offset).collect();
    assert_eq!(BTreeSet::from_iter(offsets.iter().copied()), damaged, "{scrub:?}");
    assert_eq!((offsets.len(), scrub.damaged_blocks), (damaged.len(), damaged.len() as u64));
}

#[test]
fn bit_rot_at_the_end_of_a_long_extent_is_found() {
    let (directory, clock) = (MemoryDirectory::new(), Clock::manual());
    let database = open(&directory, &clock);
    let keyspace = database.keyspace("default", KeyspaceOptions::new()).unwrap();
    keyspace.insert("large", vec![1; 3_000_000]).unwrap();
    database.checkpoint().unwrap();
    let mut extents = Vec::new();
    database.handle.core().walk_newest(&mut |owned| extents.push(owned.extent));
    let longest = extents.iter().max_by_key(|extent| extent.blocks).unwrap();
    assert!(longest.blocks > 10 * PIECE_BLOCKS_MAX, "{longest:?}");
    // A block beyond one piece, and the last block.
    let places = [PIECE_BLOCKS_MAX, longest.blocks - 1];
    let places = places.map(|at| (longest.start.0 + u64::from(at)) * BLOCK_BYTES_U64);
    places.iter().for_each(|place| flip(&directory, place + 77));
    wait(&database, &clock, 2 * INTERVAL);
    let scrub = database.stats().scrub;
    let found: Vec<_> = scrub.findings.iter().map(|error| error.offset().unwrap()).collect();
    assert_eq!(found, places, "{scrub:?}");
}

#[test]
fn a_damaged_page_without_a_sealed_extent_is_found_and_rewritten_pages_are_not_reported() {
    let (directory, clock) = (MemoryDirectory::new(), Clock::manual());
    let database = open(&directory, &clock);
    // Pages of the second keyspace come after those of the first.
    for name in ["0", "1"] {
        fill_keyspace(&database, name, EngineKind::Bminus);
    }
    fill(&database);
    while database.stats().scrub.passes < 2 {
        clock.advance(INTERVAL / 100);
        database.handle.core().scrub_tick();
        let keyspace = database.keyspace("0", KeyspaceOptions::new()).unwrap();
        keyspace.insert(clock.now().as_nanos().to_be_bytes(), [7; 90]).unwrap();
        database.checkpoint().unwrap();
    }
    let healthy = database.stats().scrub;
    assert_eq!(healthy.damaged_blocks, 0, "{healthy:?}");
    let keyspace = database.keyspace("1", KeyspaceOptions::new()).unwrap();
    let mut regions = Vec::new();
    let mut visit = |owned: OwnedExtent| {
        if owned.kind == ExtentKind::PageGroup {
            regions.push(owned.extent);
        }
        Ok(())
    };
    keyspace.core.engine.version().extents(&mut visit).unwrap();
    let region = regions.last().unwrap();
    for block in 0..u64::from(region.blocks) {
        flip(&directory, region.offset() + block * BLOCK_BYTES_U64 + 77);
    }
    wait(&database, &clock, 3 * INTERVAL);
    let scrub = database.stats().scrub;
    assert!(scrub.damaged_blocks >= 1 && !scrub.findings.is_empty(), "{scrub:?}");
    let bytes = region.offset()..region.offset() + u64::from(region.blocks) * BLOCK_BYTES_U64;
    let is_there = |error: &Error| error.offset().is_some_and(|offset| bytes.contains(&offset));
    assert!(scrub.findings.iter().all(is_there), "{scrub:?}");
}
