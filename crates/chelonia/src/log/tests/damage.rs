//! Damage: for any change of the bytes, a recovery returns a prefix of the written records, or the
//! error `Corrupt`; and it returns the error exactly if durable records are lost.

use super::sim::SimDirectory;
use super::*;
use crate::base::error::{Error, ErrorKind};
use crate::base::limits::{BLOCK_BYTES, SECTOR_BYTES};
use crate::log::format::{BLOCK_HEADER_BYTES, BlockHeader};
use crate::storage::io::memory::MemoryDirectory;
use std::collections::BTreeMap;

type Files = BTreeMap<String, Vec<u8>>;

/// A log of a few blocks in two segments: some records, a sync, a watermark, some more records.
struct Sample {
    files: Files,
    written: Vec<Vec<u8>>,
    /// The ends of the records.
    ends: Vec<LogPosition>,
    /// The highest durable position that the log itself records.
    witnessed: Lsn,
    /// The headers that record it: file, offset.
    witnesses: Vec<(String, usize)>,
}

fn sample() -> Sample {
    let memory = MemoryDirectory::new();
    let dir: Arc<dyn Directory> = Arc::new(memory.clone());
    let (mut tail, log) = create(&dir, &small());
    let mut written = Vec::new();
    let mut ends = Vec::new();
    for (number, bytes) in [300, 3000, 40, 2500, 60, 90, 5000, 20, 9, 700].into_iter().enumerate() {
        if number == 6 {
            log.sync_through(log.written()).unwrap();
            tail.seal_block().unwrap();
        }
        let bytes = payload(number as u64, bytes);
        ends.push(append(&mut tail, &log, &bytes).unwrap());
        written.push(bytes);
    }
    let witnessed = log.synced();
    assert_eq!(witnessed, ends[5].lsn);
    let files = memory.to_files();
    let mut witnesses = Vec::new();
    for (name, content) in &files {
        for (index, block) in content.chunks_exact(BLOCK_BYTES).enumerate().skip(1) {
            if BlockHeader::decode(block, SALT).is_some_and(|found| found.watermark == witnessed) {
                witnesses.push((name.clone(), index * BLOCK_BYTES));
            }
        }
    }
    assert!(witnesses.len() > 1);
    Sample { files, written, ends, witnessed, witnesses }
}

impl Sample {
    /// True if one of the headers that record the durable position is still in `files`.
    fn bears_witness(&self, files: &Files) -> bool {
        self.witnesses.iter().any(|(name, offset)| {
            let header = *offset..*offset + BLOCK_HEADER_BYTES;
            let found = files.get(name).and_then(|content| content.get(header.clone()));
            found == Some(&self.files[name][header])
        })
    }
}

/// Recovers `files` and returns the number of records (asserts that they are a prefix).
fn outcome(sample: &Sample, files: &Files, durable: Lsn) -> Result<usize, Error> {
    let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(files.clone()));
    let result = recover(&dir, &small(), LogPosition::START, durable, LogMode::ReadOnly);
    let (records, _) = result?;
    let count = records.len();
    assert_eq!(payloads(records), &sample.written[..count], "a record that was not written");
    Ok(count)
}

/// Fails unless the outcome of `files` is right.
fn check(sample: &Sample, files: &Files, what: &str) {
    match outcome(sample, files, Lsn(0)) {
        Ok(count) => {
            let end = count.checked_sub(1).map_or(Lsn(0), |last| sample.ends[last].lsn);
            assert!(end >= sample.witnessed || !sample.bears_witness(files), "{what}: lost");
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_reported_or_cut_and_never_believed() {
    let sample = sample();
    let mut reported = 0;
    for (name, content) in &sample.files {
        for place in 0..content.len() {
            let mut files = sample.files.clone();
            files.get_mut(name).unwrap()[place] ^= 1 << (place % 8);
            let what = format!("{name} {place}");
            check(&sample, &files, &what);
            let error = outcome(&sample, &files, sample.witnessed).err();
            if let Some(error) = error {
                reported += 1;
                let blamed = error.file().map(str::to_owned);
                assert!(blamed.is_none_or(|file| file.starts_with("log-")), "{error}");
            }
            // All of it was durable: the damage is reported or did not affect anything.
            let all = sample.ends[sample.ends.len() - 1].lsn;
            if let Ok(count) = outcome(&sample, &files, all) {
                assert_eq!(count, sample.written.len(), "{what}");
            }
        }
    }
    assert!(reported > 5000, "only {reported} places below the mark were reported");
}

#[test]
fn a_file_cut_at_any_sector_is_reported_or_cut() {
    let sample = sample();
    for (name, content) in &sample.files {
        for size in (0..content.len()).step_by(SECTOR_BYTES) {
            let mut files = sample.files.clone();
            files.get_mut(name).unwrap().truncate(size);
            check(&sample, &files, &format!("{name} cut to {size}"));
            let all = sample.ends[sample.ends.len() - 1].lsn;
            if let Ok(count) = outcome(&sample, &files, all) {
                assert_eq!(count, sample.written.len(), "{name} {size}");
            }
        }
        let mut files = sample.files.clone();
        files.remove(name);
        check(&sample, &files, name);
        let mut files = sample.files.clone();
        files.get_mut(name).unwrap().fill(0);
        check(&sample, &files, name);
    }
}

#[test]
fn noise_instead_of_blocks_is_reported_or_cut() {
    let sample = sample();
    let mut rng = Rng::new(5);
    for round in 0..1500 {
        let mut files = sample.files.clone();
        for content in files.values_mut() {
            let blocks = (content.len() / BLOCK_BYTES) as u64;
            for _ in 0..rng.below(3) {
                let from = usize::try_from(rng.below(blocks * 8)).unwrap() * SECTOR_BYTES;
                let bytes = usize::try_from(rng.below(4)).unwrap() * SECTOR_BYTES;
                let end = (from + bytes).min(content.len());
                match rng.below(3) {
                    0 => content[from..end].fill(0),
                    1 => rng.fill(&mut content[from..end]),
                    _ => content.copy_within(0..end - from, from),
                }
            }
        }
        check(&sample, &files, &format!("round {round}"));
    }
}

#[test]
fn damage_below_the_mark_names_file_and_offset() {
    let sample = sample();
    // Inside the second record, in the first segment.
    let mut files = sample.files.clone();
    files.get_mut("log-0000").unwrap()[BLOCK_BYTES + 600] ^= 1;
    let error = outcome(&sample, &files, Lsn(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.file(), Some("log-0000"));
    assert_eq!(error.offset(), Some(BLOCK_BYTES as u64 + sample.ends[0].lsn.0));
    assert!(error.to_string().contains("durable"), "{error}");
}

#[test]
fn a_cut_by_the_receiver_is_held_to_the_same_mark() {
    let sample = sample();
    for stop in 0..sample.written.len() {
        let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(sample.files.clone()));
        let mut seen = 0;
        let mut replay = |_: LogPosition, _: &[u8]| {
            seen += 1;
            Ok(if seen > stop { Replay::Cut } else { Replay::Continue })
        };
        let (from, durable) = (LogPosition::START, Lsn(0));
        let mode = LogMode::ReadWrite;
        let result = recover_log(&dir, &small(), from, durable, mode, &mut replay);
        if stop < 6 {
            assert_eq!(result.err().unwrap().kind(), ErrorKind::Corrupt);
            continue;
        }
        let recovered = result.unwrap();
        // Cut records stay cut, although their bytes still exist.
        let (mut tail, log) = recovered.writer.unwrap();
        append(&mut tail, &log, b"after").unwrap();
        drop((tail, log));
        let (records, _) = recover(&dir, &small(), from, durable, LogMode::ReadOnly).unwrap();
        let mut expected = sample.written[..stop].to_vec();
        expected.push(b"after".to_vec());
        assert_eq!(payloads(records), expected);
    }
}

#[test]
fn a_log_that_is_only_read_is_not_touched() {
    let sample = sample();
    let mut files = sample.files.clone();
    files.insert("log-0009".to_owned(), Vec::new());
    files.insert("log-12x".to_owned(), vec![1; 5000]);
    files.insert("data".to_owned(), vec![2; 100]);
    let last = sample.ends[8].lsn.0;
    // The second file holds the blocks from 1 on, after its header: positions are offsets.
    files.get_mut("log-0001").unwrap()[usize::try_from(last).unwrap() + 40] ^= 1;
    let sim = SimDirectory::from_files(&files);
    sim.fail(super::sim::Call::Write, 0);
    let dir: Arc<dyn Directory> = Arc::new(sim.clone());
    let from = LogPosition::START;
    let (records, _) = recover(&dir, &small(), from, Lsn(0), LogMode::ReadOnly).unwrap();
    assert!(records.len() < sample.written.len());
    assert_eq!((sim.files_now() == files, sim.syncs()), (true, 0));
    sim.heal();
    // A recovery for writing removes the stray log file and leaves other files alone.
    recover(&dir, &small(), from, Lsn(0), LogMode::ReadWrite).unwrap();
    let files = sim.files_now();
    assert!(files.contains_key("log-12x") && files.contains_key("data"));
    assert!(files.get("log-0009").is_none_or(|content| !content.is_empty()));
}

#[test]
fn a_missing_log_is_reported() {
    let empty: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let far = LogPosition { lsn: Lsn(1 << 30), chain: 3 };
    let sample = sample();
    let there: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(sample.files));
    for (dir, from) in [(&empty, LogPosition::START), (&there, far)] {
        let error = recover(dir, &small(), from, Lsn(0), LogMode::ReadWrite).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    let mut other = small();
    other.identity = LogIdentity::new(0, 1);
    let error = recover(&there, &other, LogPosition::START, Lsn(0), LogMode::ReadWrite).err();
    assert_eq!(error.unwrap().kind(), ErrorKind::Corrupt);
}

#[test]
fn records_out_of_their_order_or_place_are_not_believed() {
    let memory = MemoryDirectory::new();
    let dir: Arc<dyn Directory> = Arc::new(memory.clone());
    let (mut tail, log) = create(&dir, &small());
    let ends: Vec<Lsn> =
        (0..3).map(|number| append(&mut tail, &log, &payload(number, 100)).unwrap().lsn).collect();
    let place = |lsn: Lsn| BLOCK_BYTES + usize::try_from(lsn.0).unwrap();
    let [one, two] = [ends[0], ends[1]].map(place);
    let bytes = two - one;
    let replayed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut files = memory.to_files();
        change(files.get_mut("log-0000").unwrap());
        let dir: Arc<dyn Directory> = Arc::new(MemoryDirectory::from_files(files));
        let from = LogPosition::START;
        recover(&dir, &small(), from, Lsn(0), LogMode::ReadOnly).unwrap().0.len()
    };
    assert_eq!(replayed(&|_| {}), 3);
    // Exchanged, left out, and repeated.
    assert_eq!(replayed(&|content| content[one..two + bytes].rotate_left(bytes)), 1);
    assert_eq!(replayed(&|content| content.copy_within(two..two + bytes, one)), 1);
    assert_eq!(replayed(&|content| content.copy_within(one..two, two)), 2);
}
