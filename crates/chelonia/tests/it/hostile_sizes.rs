//! Keys and values of unusual sizes and shapes: at every limit and one beyond, at the ends of
//! blocks, with nothing or everything in common.

use chelonia::internals::{Directory, MemoryDirectory, Rng, forged};
use chelonia::limits::{
    BATCH_BYTES_MAX, BATCH_ENTRY_BYTES, KEY_BYTES_MAX, LARGE_VALUE_BYTES_MIN, VALUE_BYTES_MAX,
};
use chelonia::{
    Batch, Database, ErrorKind, FilterKind, Keyspace, KeyspaceOptions, Result, TurtleOptions,
};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

const CHILD_COUNTS: &str = "CHELONIA_TEST_FORGED_COUNTS";

/// The largest structure that a reference may name.
const STRUCTURE_BYTES: usize = 64 << 20;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(directory: &MemoryDirectory) -> Database {
    let directory: Arc<dyn Directory> = Arc::new(directory.clone());
    let builder = Database::builder("in memory").memory(64 << 20).internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
    });
    builder.open().unwrap()
}

fn keyspace(database: &Database) -> Keyspace {
    let engine = TurtleOptions::new().leaf_bytes(64 << 10).pivots_max(4);
    let options = KeyspaceOptions::new().engine(engine).filter(FilterKind::Bloom);
    database.keyspace("k", options).unwrap()
}

/// Writes `entries` in a random order, some twice, through flushes, and compares everything with
/// them, before and after a reopen.
fn check(entries: &[(Vec<u8>, Vec<u8>)]) {
    let directory = MemoryDirectory::new();
    let database = open(&directory);
    let space = keyspace(&database);
    space.set_checkpoint_distance(200_000).unwrap();
    let mut rng = Rng::new(entries.len() as u64);
    let mut order: Vec<usize> = (0..entries.len()).collect();
    for place in (1..order.len()).rev() {
        order.swap(place, usize::try_from(rng.below(place as u64 + 1)).unwrap());
    }
    let mut model = Model::new();
    for place in order.iter().chain(&order[..order.len() / 4]) {
        let (key, value) = &entries[*place];
        if rng.one_in(9) {
            space.remove(key).unwrap();
            model.remove(key);
        } else {
            space.insert(key, value).unwrap();
            model.insert(key.clone(), value.clone());
        }
    }
    compare(&space, &model);
    database.checkpoint().unwrap();
    compare(&space, &model);
    assert!(database.verify().unwrap().is_clean());
    drop((space, database));
    compare(&keyspace(&open(&directory)), &model);
}

fn compare(keyspace: &Keyspace, model: &Model) {
    let ours: Model = keyspace
        .iter()
        .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
        .collect::<Result<_>>()
        .unwrap();
    assert!(ours == *model, "{} entries instead of {}", ours.len(), model.len());
    let backward = keyspace.iter().rev().map(|entry| entry.unwrap().0.to_vec());
    assert!(backward.eq(model.keys().rev().cloned()));
    for (key, value) in model {
        assert!(keyspace.get(key).unwrap().as_deref() == Some(value), "{} bytes", key.len());
    }
    let absent = keyspace.multi_get(model.keys().map(|key| [key, &b"\0"[..]].concat())).unwrap();
    for (key, found) in model.keys().zip(absent) {
        let next = [key, &b"\0"[..]].concat();
        assert_eq!(found.as_deref(), model.get(&next).map(Vec::as_slice));
    }
}

#[test]
fn keys_with_long_prefixes_in_common() {
    let entry = |number: u32| {
        let shared = [1_000, 4_080, 4_096, 9_000][number as usize % 4];
        let mut key = vec![b'p'; shared];
        key.extend_from_slice(&(number / 4).to_be_bytes());
        (key, number.to_le_bytes().to_vec())
    };
    check(&(0..600).map(entry).collect::<Vec<_>>());
}

#[test]
fn keys_of_one_byte_value_and_of_every_length() {
    let mut entries = Vec::new();
    for byte in [0, 1, 0x7f, 0xff] {
        entries.extend((0..80).map(|length| (vec![byte; length], vec![byte; length * 3])));
    }
    entries
        .extend([255, 256, 4_095, 4_096, 4_097, KEY_BYTES_MAX].map(|n| (vec![0xff; n], vec![1])));
    check(&entries);
}

#[test]
fn values_that_end_at_block_boundaries() {
    let mut sizes: Vec<usize> = vec![0, 1];
    for edge in [512, 4_064, 4_080, 4_096, 8_160, 8_192, 12_288, LARGE_VALUE_BYTES_MIN, 65_536] {
        sizes.extend(edge - 20..edge + 3);
    }
    let entry = |(number, size): (u32, usize)| (number.to_be_bytes().to_vec(), vec![7; size]);
    check(&(0..).zip(sizes).map(entry).collect::<Vec<_>>());
}

#[test]
fn the_largest_keys_and_values() {
    let entry = |number: usize| {
        let mut key = vec![b'k'; KEY_BYTES_MAX - number];
        key[KEY_BYTES_MAX / 2] = number.to_le_bytes()[0];
        (key, vec![9; LARGE_VALUE_BYTES_MIN - 1])
    };
    check(&(0..40).map(entry).collect::<Vec<_>>());
    check(&[(b"largest".to_vec(), vec![5; VALUE_BYTES_MAX]), (Vec::new(), Vec::new())]);
}

#[test]
fn a_batch_of_a_million_entries_is_refused_and_one_at_the_limit_is_not() {
    let database = open(&MemoryDirectory::new());
    let space = keyspace(&database);
    let mut batch = database.batch();
    for number in 0..1_000_000_u32 {
        batch.insert(&space, number.to_be_bytes(), "");
    }
    assert_eq!(batch.commit().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(space.first_key_value().unwrap().is_none());
    let mut batch = database.batch();
    let fitting = u32::try_from(BATCH_BYTES_MAX / (4 + BATCH_ENTRY_BYTES)).unwrap();
    for number in 0..fitting {
        batch.insert(&space, number.to_be_bytes(), "");
    }
    batch.commit().unwrap();
    assert_eq!(space.iter().count(), fitting as usize);
}

#[test]
fn an_inline_value_of_a_large_size_in_the_log_is_damage() {
    let directory = MemoryDirectory::new();
    let database = open(&directory);
    keyspace(&database).insert("key", "value").unwrap();
    // One put of the keyspace numbered 1, with a value of 32,768 bytes in the record.
    let head = [1, 1 << 2, 1, b'k', 0x80, 0x80, 0x02];
    forged::append_to_log(&database, &[&head[..], &[7; LARGE_VALUE_BYTES_MIN]].concat(), 0)
        .unwrap();
    let files = directory.to_files();
    for read_only in [false, true] {
        let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(files.clone()));
        let builder = Database::builder("in memory").read_only(read_only).memory(64 << 20);
        let opened = builder.internals(|internals| internals.directory = Some(directory)).open();
        assert_eq!(opened.err().map(|error| error.kind()), Some(ErrorKind::Corrupt));
    }
}

/// The limit equals `size`, to the byte, with values of every kind.
#[test]
fn a_batch_at_the_limit_is_accepted_and_one_byte_more_is_refused() {
    let database = open(&MemoryDirectory::new());
    let space = keyspace(&database);
    let mut batch = database.batch();
    let value = [7; 1_000];
    let each = 4 + value.len() + BATCH_ENTRY_BYTES;
    let fitting = (Batch::limit() - 2 * (1 + BATCH_ENTRY_BYTES)) / each;
    for number in 0..fitting {
        batch.insert(&space, u32::try_from(number).unwrap().to_be_bytes(), value);
    }
    // Stored separately, and counted without its value.
    batch.insert(&space, "l", vec![7; LARGE_VALUE_BYTES_MIN]);
    let rest = Batch::limit() - batch.size() - 1 - BATCH_ENTRY_BYTES;
    batch.insert(&space, "f", vec![7; rest]);
    assert_eq!(batch.size(), Batch::limit());

    // An entry with an empty key and no value is enough to exceed the limit.
    batch.remove(&space, "");
    let (size, len) = (batch.size(), batch.len());
    assert_eq!((size, len), (Batch::limit() + BATCH_ENTRY_BYTES, fitting + 3));
    let refused = batch.commit().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert_eq!((batch.size(), batch.len()), (size, len));
    assert!(space.is_empty().unwrap());

    batch.clear();
    assert_eq!((batch.size(), batch.len()), (0, 0));
    for number in 0..fitting {
        batch.insert(&space, u32::try_from(number).unwrap().to_be_bytes(), value);
    }
    batch.insert(&space, "l", vec![7; LARGE_VALUE_BYTES_MIN]);
    batch.insert(&space, "f", vec![7; rest]);
    batch.commit().unwrap();
    assert!(batch.is_empty() && batch.size() == 0);
    assert_eq!(space.len().unwrap(), fitting as u64 + 2);

    // The batch is as good as new, and so is an unnamed one.
    batch.remove(&space, "l").commit().unwrap();
    database.batch().remove(&space, "f").insert(&space, "n", "").commit().unwrap();
    assert_eq!(space.len().unwrap(), fitting as u64 + 1);
}

/// Structures with counts that the bytes after them do not contain.
#[test]
fn child_that_decodes_forged_counts() {
    if std::env::var_os(CHILD_COUNTS).is_none() {
        return;
    }
    let claimed = STRUCTURE_BYTES as u32 / 8 - 4;
    let [one, two, three, four] = claimed.to_le_bytes();
    // As a varint: 7 bits per byte.
    let varint = [0, 7, 14].map(|shift| (claimed >> shift) as u8 | 0x80);
    let last = (claimed >> 21) as u8;
    let heads: [&[u8]; 4] = [
        // Nodes of turtle, at height 1: 1 pivot and many segments, many pivots and no segment.
        &[1, 1, 1, 0, 0, 0, one, two, three, four],
        &[1, 1, one, two, three, four, 0, 0, 0, 0],
        // A node of autumn with many tables.
        &[1, one, two, three, four],
        // A directory of autumn with one sequence of many nodes.
        &[1, 1, 0, 0, varint[0], varint[1], varint[2], last],
    ];
    let structure = forged::decoders().into_iter().find(|one| one.name == "structure").unwrap();
    let mut bytes = vec![0; STRUCTURE_BYTES];
    for head in heads {
        bytes.fill(0);
        bytes[..head.len()].copy_from_slice(head);
        (structure.decode)(&bytes);
    }
}

#[test]
fn a_forged_count_allocates_no_memory() {
    // Lists of these lengths would take 200 MB and more, beyond the limit of the process.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 280000; exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", "--test-threads=1"]);
    command.arg("hostile_sizes::child_that_decodes_forged_counts");
    let output = command.env(CHILD_COUNTS, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text} {errors}");
}
