//! Keyspaces whose values are compressed, through the public interface.

use chelonia::{
    Compression, Database, EngineKind, EngineOptions, ErrorKind, Keyspace, KeyspaceOptions, Result,
    Salvage,
};
use std::collections::BTreeMap;

/// Engines that compress.
const ENGINES: [EngineKind; 3] = [EngineKind::Turtle, EngineKind::Autumn, EngineKind::Splinter];

/// A document, different for each number and version.
fn document(number: u64, version: u64) -> Vec<u8> {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version;
    let tags = "[\"alpha\",\"beta\"]";
    let text = format!(
        r#"{{"identifier":{mixed},"version":{version},"kind":"measurement","tags":{tags},"note":""#
    );
    let mut document = text.into_bytes();
    // A few are long, one in 970 is a large value.
    let filler = match number % 970 {
        0 => 40_000,
        1..30 => 9_000,
        _ => usize::try_from(mixed % 200).unwrap(),
    };
    document.extend(mixed.to_string().bytes().cycle().take(filler));
    document
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn write(keyspace: &Keyspace, model: &mut Model, numbers: std::ops::Range<u64>, version: u64) {
    for number in numbers {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
        let value = document(number, version);
        keyspace.insert(&key, &value).unwrap();
        model.insert(key, value);
    }
}

fn check(keyspace: &Keyspace, model: &Model) {
    let entries: Result<Vec<_>> = keyspace.iter().collect();
    let entries = entries.unwrap();
    assert_eq!(entries.len(), model.len());
    for ((key, value), (expected_key, expected)) in entries.iter().zip(model) {
        assert!(key == expected_key && value == expected);
    }
    let last = keyspace.iter().next_back().unwrap().unwrap();
    assert!(model.last_key_value().is_some_and(|(key, value)| last.0 == *key && last.1 == *value));
    for (key, value) in model.iter().step_by(7) {
        assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&value[..]));
    }
    let keys: Vec<_> = model.keys().step_by(11).collect();
    for (key, found) in keys.iter().zip(keyspace.multi_get(&keys).unwrap()) {
        assert_eq!(found.as_deref(), Some(&model[*key][..]));
    }
}

fn disk_bytes(database: &Database) -> u64 {
    database.stats().keyspaces[0].engine_stats.disk_bytes
}

#[test]
fn values_take_less_space_and_come_back_as_they_were() {
    for engine in ENGINES {
        let directory = tempfile::tempdir().unwrap();
        let sizes = Compression::ALL.map(|compression| {
            let path = directory.path().join(compression.name());
            let database = Database::builder(&path).memory(64 << 20).open().unwrap();
            let options = KeyspaceOptions::new().engine(engine).compression(compression);
            let keyspace = database.keyspace("k", options).unwrap();
            let mut model = Model::new();
            write(&keyspace, &mut model, 0..6_000, 1);
            database.checkpoint().unwrap();
            write(&keyspace, &mut model, 0..900, 2);
            database.checkpoint().unwrap();
            check(&keyspace, &model);
            assert!(database.verify().unwrap().is_clean());
            let bytes = disk_bytes(&database);
            drop(keyspace);
            database.close().unwrap();
            let database = Database::builder(&path).memory(64 << 20).open().unwrap();
            let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
            assert_eq!(keyspace.compression(), compression, "it is stored");
            check(&keyspace, &model);
            bytes
        });
        let [none, fast, small] = sizes;
        assert!(fast * 3 < none * 2 && small < fast, "{engine:?}: {sizes:?}");
    }
}

#[test]
fn merges_of_background_jobs_compress_values_too() {
    for engine in ENGINES {
        let directory = tempfile::tempdir().unwrap();
        let sizes = [Compression::None, Compression::Fast].map(|compression| {
            let path = directory.path().join(compression.name());
            let database = Database::builder(&path).memory(64 << 20).open().unwrap();
            // Runs that are merged often, and are large beside a dictionary.
            let options = KeyspaceOptions::new()
                .engine(EngineOptions::tiny(engine, 512 << 10))
                .checkpoint_distance(100_000)
                .compression(compression);
            let keyspace = database.keyspace("k", options).unwrap();
            let mut model = Model::new();
            (0..3).for_each(|version| write(&keyspace, &mut model, 0..6_000, version));
            database.checkpoint().unwrap();
            check(&keyspace, &model);
            disk_bytes(&database)
        });
        assert!(sizes[1] * 3 < sizes[0] * 2, "{engine:?}: {sizes:?}");
    }
}

#[test]
fn compression_is_switched_on_and_off_while_data_is_there() {
    for engine in ENGINES {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d");
        let mut model = Model::new();
        let modes = [
            Compression::None,
            Compression::Fast,
            Compression::Small,
            Compression::Small,
            Compression::None,
        ];
        for (round, mode) in (1..).zip(modes) {
            // Each round opens anew: a dictionary is made for each process.
            let database = Database::builder(&path).memory(64 << 20).open().unwrap();
            let options = KeyspaceOptions::new().engine(engine);
            let keyspace = database.keyspace("k", options).unwrap();
            let snapshot = database.snapshot();
            let before = model.clone();
            keyspace.set_compression(mode).unwrap();
            write(&keyspace, &mut model, 0..3_000, round);
            database.checkpoint().unwrap();
            write(&keyspace, &mut model, 2_000..3_500, round + 100);
            database.checkpoint().unwrap();
            check(&keyspace, &model);
            let seen: Result<Vec<_>> = snapshot.iter(&keyspace).collect();
            assert!(
                seen.unwrap().iter().map(|(key, value)| (key.to_vec(), value.to_vec())).eq(before)
            );
            assert!(database.verify().unwrap().is_clean());
            assert_eq!(database.stats().keyspaces[0].compression, mode);
        }
        let saved = directory.path().join("saved");
        let report = Salvage::new(&path, &saved).memory(64 << 20).run().unwrap();
        assert!(report.keyspaces.iter().all(|keyspace| keyspace.losses.is_empty()));
        let database = Database::builder(&saved).memory(64 << 20).open().unwrap();
        check(&database.keyspace("k", KeyspaceOptions::new()).unwrap(), &model);
    }
}

#[test]
fn engines_that_update_in_place_refuse_compression() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path().join("d")).unwrap();
    for engine in [EngineKind::Treeline, EngineKind::Bminus] {
        let options = KeyspaceOptions::new().engine(engine);
        let compressed = options.clone().compression(Compression::Fast);
        let refused = database.keyspace(engine.name(), compressed.clone()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("turtle, autumn and splinter"), "{refused}");
        let keyspace = database.keyspace(engine.name(), options).unwrap();
        assert!(database.keyspace(engine.name(), compressed).is_err());
        assert!(keyspace.set_compression(Compression::Fast).is_err());
        keyspace.set_compression(Compression::None).unwrap();
    }
}
