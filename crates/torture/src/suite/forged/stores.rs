//! Complete stores with forged input: one block is modified, its checksum recomputed, and the store
//! is opened, read, verified, written and salvaged. It must not panic, loop forever, return an
//! internal error, or exceed its memory.
//!
//! Answers may be wrong: a checksum is not a signature.

use super::mutate::mutate;
use crate::suite::support::{LAYOUTS, below, compression_of, engine_of, layout_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{Directory, MemoryDirectory, Rng, forged, stopped_by, tick};
use chelonia::limits::{KEY_BYTES_MAX, LARGE_VALUE_BYTES_MIN};
use chelonia::{
    Database, EngineKind, EngineOptions, Error, KeyspaceOptions, LogLayout, Result, Salvage,
};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

const BLOCK: usize = 4096;
const BLOCK_U64: u64 = 4096;

/// Stores of a unit.
const STORES: u64 = 200;

/// The largest number of entries read: a forged store may look endless.
const ENTRIES_MAX: usize = 20_000;

/// The kinds of blocks of pages with fixed places, and of their deltas.
const PAGE_KINDS: [u8; 2] = [9, 10];

/// Bytes of such a block before the part of the page, or before the delta.
const PAGE_PART: usize = 32;

/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;

/// A valid store, to be modified.
pub struct Sample {
    files: Files,
    /// The generation of each used block of the data file.
    generations: BTreeMap<u64, u64>,
    /// Records of the log.
    records: Vec<Vec<u8>>,
}

/// Opens a store; `layout` is for a new one.
fn open(directory: &MemoryDirectory, layout: LogLayout) -> Result<Database> {
    let directory: Arc<dyn Directory> = Arc::new(directory.clone());
    let builder = Database::builder("forged").memory(32 << 20).log_layout(layout);
    let builder = builder.internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
        internals.salt = Some(forged::SALT);
        internals.log_segment_bytes = Some(16 << 10);
        internals.leave_log = true;
    });
    builder.open()
}

impl Sample {
    /// The sample with one log, created once.
    pub fn get() -> &'static Sample {
        Self::of(LogLayout::Shared)
    }

    /// The sample with this layout of the log, one of [`LAYOUTS`], created once.
    fn of(layout: LogLayout) -> &'static Sample {
        static SAMPLES: [OnceLock<Sample>; LAYOUTS.len()] =
            [const { OnceLock::new() }; LAYOUTS.len()];
        let number = LAYOUTS.iter().position(|one| *one == layout).unwrap();
        SAMPLES[number].get_or_init(|| Self::make(layout).unwrap())
    }

    fn make(layout: LogLayout) -> Result<Self> {
        let directory = MemoryDirectory::new();
        let database = open(&directory, layout)?;
        let options = KeyspaceOptions::new;
        for engine in EngineKind::ALL {
            let tiny = options().engine(EngineOptions::tiny(engine, 8 << 10));
            // Not turtle: compressed runs are so small that they have no index.
            let is_plain = layout != LAYOUTS[0] || engine == EngineKind::Turtle;
            let tiny = tiny.compression(compression_of(engine, is_plain.into()));
            database.keyspace(engine.name(), tiny)?.set_checkpoint_distance(3_000)?;
        }
        let write = |numbers: std::ops::Range<u64>| -> Result<()> {
            for number in numbers {
                let keyspace = database.keyspace(engine_of(number).name(), options())?;
                let key = (number.wrapping_mul(0x9e37_79b9) % 400).to_be_bytes();
                let length = match number {
                    _ if number % 151 == 9 => 40_000,
                    _ if number % 43 == 9 => 6_000,
                    _ => number % 120,
                };
                let value = vec![1; usize::try_from(length).unwrap()];
                keyspace.insert(&key[5..], value)?;
                keyspace.remove((number % 70).to_be_bytes())?;
            }
            Ok(())
        };
        write(0..1600)?;
        database.checkpoint()?;
        for engine in EngineKind::ALL {
            database.keyspace(engine.name(), options())?.set_checkpoint_distance(1 << 20)?;
        }
        write(1600..1640)?;
        tick(&database)?;
        let mut generations = BTreeMap::new();
        for (first, blocks, generation) in forged::extents(&database)? {
            let numbers = first..first + u64::from(blocks);
            generations.extend(numbers.map(|number| (number, generation)));
        }
        let files = directory.to_files();
        // Pages with fixed places: they are sealed with the stamp of their write, which they have.
        for (number, block) in (0_u64..).zip(files["data"].chunks_exact(BLOCK)) {
            if PAGE_KINDS.contains(&block[8]) {
                let stamp = u64::from_le_bytes(block[16..24].try_into().unwrap());
                generations.entry(number).or_insert(stamp);
            }
        }
        let mut records = vec![vec![1, 2, 0, 0], vec![2, 4, 1, b'k', 1, b'v', 5, 1, b'x']];
        records.push([&[1, 4, 1, b'k', 120][..], &[7; 120]].concat());
        // Keys and inline values at their limits, and one beyond.
        for key in [KEY_BYTES_MAX, KEY_BYTES_MAX + 1] {
            records.push([&[1, 4][..], &length(key), &vec![b'k'; key], &[1, b'v']].concat());
        }
        for value in [LARGE_VALUE_BYTES_MIN - 1, LARGE_VALUE_BYTES_MIN] {
            records.push([&[1, 4, 1, b'k'][..], &length(value), &vec![7; value]].concat());
        }
        Ok(Self { files, generations, records })
    }

    /// Valid inputs of the decoder with this name.
    pub fn seeds_of(&self, decoder: &str) -> Vec<Vec<u8>> {
        let data = &self.files["data"];
        let logs = || self.files.iter().filter(|(name, _)| name.starts_with("log-"));
        let kind = |kind: u8| {
            let of_kind = self.generations.keys().map(|number| block_of(data, *number));
            of_kind.filter(move |block| block[8] == kind).map(<[u8]>::to_vec).collect()
        };
        let payload = |kind: u8, from: usize, length: usize| -> Vec<Vec<u8>> {
            let of_kind = self.generations.keys().map(|number| block_of(data, *number));
            let blocks = of_kind.filter(|block| block[8] == kind);
            blocks.map(|block| block[from..][..length].to_vec()).collect()
        };
        match decoder {
            "superblock" => vec![data[..BLOCK].to_vec()],
            "catalog" => payload(8, 16, 300),
            "options" => vec![
                vec![1, 1, 0, 16, 0, 64, 0],
                vec![1, 1, 1, 10, 128, 64, 4, 232, 7],
                vec![17, 1, 0, 16, 0, 64, 0, 1],
            ],
            "root" => vec![
                vec![1, 1, 0],
                [&[1, 2, 1][..], &[9; 40]].concat(),
                [&[1, 1][..], &[9; 40]].concat(),
            ],
            "entries" => self.heads(),
            "index" => kind(3),
            "large values" => kind(5),
            "dictionary" => kind(12),
            // Forty literals; and four, and a match of the dictionary's begin with them.
            "compressed value" => vec![
                [&[40, 0xf0, 25][..], &[b'x'; 40]].concat(),
                vec![40, 0x4f, b'w', b'x', b'y', b'z', 28, 0, 12, 0x50, 1, 2, 3, 4, 5],
            ],
            "structure" => payload(7, 16, BLOCK - 16).iter().map(|part| trimmed(part)).collect(),
            "page" => payload(PAGE_KINDS[0], PAGE_PART, BLOCK - PAGE_PART),
            "delta" => payload(PAGE_KINDS[1], PAGE_PART, BLOCK - PAGE_PART),
            "log segment" => logs().map(|(_, bytes)| bytes[..BLOCK].to_vec()).collect(),
            "log block" => logs()
                .flat_map(|(_, bytes)| bytes.chunks_exact(BLOCK).skip(1))
                .map(<[u8]>::to_vec)
                .collect(),
            _ => self.records.clone(),
        }
    }
}

/// Flag in byte 9 of a block of entries: an overflow begins or ends in it.
const EXTENDED: u8 = 0x40;

impl Sample {
    /// The blocks of entries; those with overflows with the two blocks behind them.
    fn heads(&self) -> Vec<Vec<u8>> {
        let data = &self.files["data"];
        let numbers = self.generations.keys().copied();
        let mut heads: Vec<Vec<u8>> = numbers
            .filter(|number| block_of(data, *number)[8] == 1)
            .map(|number| {
                let overflows = block_of(data, number)[9] & EXTENDED != 0;
                let blocks = (number..).take(if overflows { 3 } else { 1 });
                let used = blocks.filter(|number| self.generations.contains_key(number));
                used.flat_map(|number| block_of(data, number).to_vec()).collect()
            })
            .collect();
        // The first ones become seeds of the fuzzer: both kinds.
        heads.sort_by_key(|bytes| std::cmp::Reverse(bytes.len()));
        let plain = heads.len() - 1;
        heads.swap(1, plain);
        heads
    }
}

/// A length from 16,384 to 2,097,151 as encoded in records: seven bits a byte, the lowest first.
fn length(length: usize) -> [u8; 3] {
    let byte = |shift: u32| u8::try_from(length >> shift & 0x7f).unwrap();
    [byte(0) | 0x80, byte(7) | 0x80, byte(14)]
}

/// Removes the zeros that fill the last block.
fn trimmed(part: &[u8]) -> Vec<u8> {
    let end = part.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    part[..end].to_vec()
}

fn block_of(data: &[u8], number: u64) -> &[u8] {
    let start = usize::try_from(number * BLOCK_U64).unwrap();
    &data[start..start + BLOCK]
}

/// A unit is some stores.
pub struct Stores;

impl Test for Stores {
    fn name(&self) -> &'static str {
        "forged"
    }

    fn about(&self) -> &'static str {
        "opens, reads, verifies, writes and salvages stores with forged input"
    }

    fn short_units(&self) -> u64 {
        6
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "forged stores", count: 100_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let mut rng = unit.rng();
        let mut tally = Tally::default();
        for number in 0..STORES {
            let (files, record) = change(Sample::of(layout_of(number)), &mut rng);
            look(files, record, &mut tally);
            tally.add("forged stores", 1);
        }
        tally
    }
}

/// A record to append to the log of a store.
struct Forged {
    record: Vec<u8>,
    /// How far its first seqno is after the next, in one of several logs.
    ahead: u64,
}

/// A modified store, and a record to append to its log.
fn change(sample: &Sample, rng: &mut Rng) -> (Files, Option<Forged>) {
    let mut files = sample.files.clone();
    let forge = |bytes: &mut [u8], rng: &mut Rng| {
        let mut block = bytes.to_vec();
        mutate(&mut block, rng, true);
        bytes.copy_from_slice(&block);
    };
    match rng.below(10) {
        0 => {
            let copies = rng.below(2);
            for copy in 0..=usize::try_from(copies).unwrap() {
                let block = &mut files.get_mut("data").unwrap()[copy * BLOCK..(copy + 1) * BLOCK];
                forge(&mut block[..120], rng);
                forged::reseal_superblock(block, copy);
            }
        }
        1 | 2 => {
            let names: Vec<String> =
                files.keys().filter(|name| name.starts_with("log-")).cloned().collect();
            let bytes = files.get_mut(&names[below(rng, names.len())]).unwrap();
            let block = below(rng, bytes.len() / BLOCK);
            let block = &mut bytes[block * BLOCK..(block + 1) * BLOCK];
            forge(block, rng);
            forged::reseal_log_block(block, forged::SALT);
        }
        3 => {
            let mut record = sample.records[below(rng, sample.records.len())].clone();
            mutate(&mut record, rng, false);
            let far = rng.next_u64();
            let ahead = [0, 0, 0, 1, u64::MAX, far][below(rng, 6)];
            let forged = (!record.is_empty()).then_some(Forged { record, ahead });
            return (files, forged);
        }
        _ => {
            let numbers: Vec<(u64, u64)> = sample
                .generations
                .iter()
                .map(|(number, generation)| (*number, *generation))
                .collect();
            let data = files.get_mut("data").unwrap();
            // Structure blocks are rarer than blocks of entries, and matter more.
            let structure = [3, 5, 7, 8];
            let is_structure = rng.one_in(2);
            let chosen: Vec<(u64, u64)> = numbers
                .into_iter()
                .filter(|(number, _)| {
                    structure.contains(&block_of(data, *number)[8]) == is_structure
                })
                .collect();
            let (number, generation) = chosen[below(rng, chosen.len())];
            let start = usize::try_from(number * BLOCK_U64).unwrap();
            let block = &mut data[start..start + BLOCK];
            forge(block, rng);
            forged::seal_block(block, forged::SALT, generation, number);
        }
    }
    (files, None)
}

/// One store of `chelonia-fuzz`: of the input, two bytes select a block, two a position in it, and
/// the rest are the new bytes.
pub fn fuzz_store(input: &[u8]) {
    let Some((chosen, rest)) = input.split_first_chunk::<4>() else { return };
    let sample = Sample::get();
    let [block, place] = [[chosen[0], chosen[1]], [chosen[2], chosen[3]]].map(u16::from_le_bytes);
    let numbers: Vec<(&u64, &u64)> = sample.generations.iter().collect();
    let (number, generation) = numbers[usize::from(block) % numbers.len()];
    let mut files = sample.files.clone();
    let start = usize::try_from(number * BLOCK_U64).unwrap();
    let block = &mut files.get_mut("data").unwrap()[start..start + BLOCK];
    // Not the checksum, which is recomputed.
    let place = 8 + usize::from(place) % (BLOCK - 8);
    let length = rest.len().min(BLOCK - place);
    block[place..place + length].copy_from_slice(&rest[..length]);
    forged::seal_block(block, forged::SALT, *generation, *number);
    look(files, None, &mut Tally::default());
}

/// Opens a modified store and uses all functions.
fn look(files: Files, forged: Option<Forged>, tally: &mut Tally) {
    let mut files = files;
    if let Some(Forged { record, ahead }) = forged {
        let directory = MemoryDirectory::from_files(files);
        let database = open(&directory, LogLayout::Shared).unwrap();
        forged::append_to_log(&database, &record, ahead).unwrap();
        files = directory.to_files();
        std::mem::drop(database);
    }
    let directory = MemoryDirectory::from_files(files.clone());
    match open(&directory, LogLayout::Shared) {
        Ok(database) => {
            tally.add("that open", 1);
            use_it(&database);
        }
        Err(error) => check(&error),
    }
    let (source, destination) = (MemoryDirectory::from_files(files), MemoryDirectory::new());
    let salvage = Salvage::new("forged", "saved").memory(32 << 20);
    match salvage.directories(Arc::new(source), Arc::new(destination)).run() {
        Ok(report) => {
            report.log_damage.iter().for_each(check);
            let losses = report.keyspaces.iter().flat_map(|one| &one.losses);
            losses.for_each(|loss| check(&loss.cause));
        }
        Err(error) => check(&error),
    }
}

fn use_it(database: &Database) {
    match database.verify() {
        Ok(report) => report.findings.iter().for_each(check),
        Err(error) => check(&error),
    }
    for name in database.keyspaces() {
        let Ok(keyspace) = database.keyspace(&name, KeyspaceOptions::new()) else { continue };
        for number in 0..20_u64 {
            let key = (number.wrapping_mul(0x9e37_79b9) % 400).to_be_bytes();
            keyspace.get(&key[5..]).err().iter().for_each(check);
        }
        keyspace.multi_get((0..40_u64).map(u64::to_be_bytes)).err().iter().for_each(check);
        for mut iter in [keyspace.iter(), keyspace.iter()] {
            iter.by_ref().take(ENTRIES_MAX).filter_map(Result::err).for_each(|error| check(&error));
            iter.rev().take(ENTRIES_MAX).filter_map(Result::err).for_each(|error| check(&error));
        }
        let backward = keyspace.iter().rev().take(ENTRIES_MAX);
        backward.filter_map(Result::err).for_each(|error| check(&error));
        for number in 0..60_u64 {
            let done = keyspace.insert(number.to_be_bytes(), [5; 90]);
            done.err().iter().for_each(|error| check_write(database, error));
        }
    }
    database.checkpoint().err().iter().for_each(|error| check_write(database, error));
}

fn check(error: &Error) {
    assert!(forged::is_expected_of_forged(error), "{:?}: {error}", error.kind());
}

/// If a flush that met forged input stopped writes, checks the error that stopped them.
fn check_write(database: &Database, error: &Error) {
    if error.kind() == chelonia::ErrorKind::Stopped {
        check(&stopped_by(database).expect("something stopped writes"));
    } else {
        check(error);
    }
}
