//! Tests of every damage to the copies, and of every crash while they are written.

use super::*;
use crate::runtime::rng::Rng;
use crate::runtime::sync::Ordering;
use crate::storage::testing::LimitedFile;

const BLOCK: u64 = BLOCK_BYTES_U64;

fn sample() -> Superblock {
    Superblock {
        salt: 77,
        generation: 5,
        opens: 6,
        catalog: Some(CatalogLocation {
            extent: Extent::new(2, 2),
            generation: Generation(9),
            bytes: 5_000,
        }),
        log: LogMark {
            begin: PerLog::one(LogPosition { lsn: Lsn(1 << 40), chain: 3 }),
            durable: PerLog::one(Lsn(1 << 41)),
            seqno: SeqNo(8),
        },
        file_blocks: 4,
    }
}

fn database() -> (LimitedFile, Superblocks) {
    let file = LimitedFile::new(u64::MAX);
    let mut superblocks = Superblocks::create(&file, 77).unwrap();
    file.set_size(4 * BLOCK).unwrap();
    superblocks.write(&file, sample()).unwrap();
    (file, superblocks)
}

fn read(file: &LimitedFile) -> Result<Superblocks> {
    match Superblocks::read(file)? {
        Found::Database(superblocks) => Ok(*superblocks),
        Found::Unfinished => Err(Error::new(ErrorKind::NotFound, "unfinished")),
    }
}

/// Writes `block` with a valid checksum for `copy`.
fn reseal(block: &mut [u8], copy: usize) {
    let sum = checksum(&block[MAGIC_AT..], copy_seed(copy)).to_le_bytes();
    block[..MAGIC_AT].copy_from_slice(&sum);
}

#[test]
fn a_superblock_comes_back() {
    for copy in 0..COPIES {
        assert_eq!(Superblock::decode(&sample().encode(copy), copy).unwrap(), sample());
        let none = Superblock { catalog: None, ..sample() };
        assert_eq!(Superblock::decode(&none.encode(copy), copy).unwrap(), none);
        let several = with_logs(LOGS_MAX);
        assert_eq!(Superblock::decode(&several.encode(copy), copy).unwrap(), several);
    }
    let (file, superblocks) = database();
    assert_eq!(read(&file).unwrap().current(), superblocks.current());
    assert_eq!(superblocks.current().generation, 2);
}

#[test]
fn every_flipped_byte_is_seen_and_the_other_copy_taken() {
    let (file, superblocks) = database();
    let mut byte = [0];
    for at in 0..FIRST_BLOCK * BLOCK {
        file.read_at(&mut byte, at).unwrap();
        file.write_at(&[byte[0] ^ 0x10], at).unwrap();
        let found = read(&file).unwrap();
        assert_eq!(found.current(), superblocks.current());
        assert_eq!(found.older_copy, usize::from(at >= BLOCK), "the damaged copy is repaired");
        assert!(Superblocks::verify(&file).is_err());
        file.write_at(&byte, at).unwrap();
    }
    Superblocks::verify(&file).unwrap();
    // Both damaged.
    file.write_at(&[0xaa], 100).unwrap();
    file.write_at(&[0xaa], BLOCK + 100).unwrap();
    let error = read(&file).unwrap_err();
    assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some(DATA_FILE)));
    assert_eq!(error.offset(), Some(0));
}

#[test]
fn copies_in_each_others_place_are_refused() {
    let (file, _) = database();
    let (a, b) = (sample().encode(0), sample().encode(1));
    assert!(Superblock::decode(&a, 1).is_err() && Superblock::decode(&b, 0).is_err());
    let mut lying = a.clone();
    reseal(&mut lying, 1);
    assert_eq!(Superblock::decode(&lying, 1).unwrap_err().kind(), ErrorKind::Corrupt);
    file.write_at(&b, 0).unwrap();
    file.write_at(&a, BLOCK).unwrap();
    assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_crash_at_any_call_leaves_the_old_or_the_new() {
    // Two writes and two syncs: cut after each number of calls, and again during the repair.
    for (cut, second_cut) in (0..4).flat_map(|cut| (0..=4).map(move |second| (cut, second))) {
        let (file, mut superblocks) = database();
        let old = *superblocks.current();
        let new = Superblock { opens: 9, ..old };
        file.calls_left.store(cut, Ordering::Relaxed);
        assert!(superblocks.write(&file, new).is_err());
        file.calls_left.store(u64::MAX, Ordering::Relaxed);
        let found = read(&file).unwrap();
        let opens = found.current().opens;
        assert!(opens == 9 || opens == 6);
        // Once the first copy is durable the new state holds, whatever follows.
        assert!(cut < 2 || opens == 9);
        // An open writes again; it may crash too.
        let mut repair = found;
        file.calls_left.store(second_cut, Ordering::Relaxed);
        let next = Superblock { opens: opens + 1, ..*repair.current() };
        let repaired = repair.write(&file, next);
        file.calls_left.store(u64::MAX, Ordering::Relaxed);
        let again = read(&file).unwrap();
        assert!(again.current().opens == opens || again.current().opens == opens + 1);
        if repaired.is_ok() {
            assert_eq!(again.current().opens, opens + 1);
            Superblocks::verify(&file).unwrap();
        }
    }
}

#[test]
fn the_copy_that_is_not_being_written_is_always_durable() {
    for damaged in 0..COPIES {
        let (file, _) = database();
        file.write_at(&[0xaa], copy_offset(damaged) + 60).unwrap();
        let mut found = read(&file).unwrap();
        file.log.lock().clear();
        let next = *found.current();
        found.write(&file, next).unwrap();
        let write = |copy| ("write", copy_offset(copy), BLOCK);
        let (first, then) = (write(damaged), write(1 - damaged));
        assert_eq!(*file.log.lock(), vec![first, ("sync", 0, 0), then, ("sync", 0, 0)]);
    }
}

/// The sample, with several logs.
fn with_logs(count: usize) -> Superblock {
    let each = || (1..).take(count);
    let position = |lsn: u32| LogPosition { lsn: Lsn(lsn.into()), chain: lsn };
    let log = LogMark {
        begin: PerLog::collect(each().map(position)),
        durable: PerLog::collect(each().map(|lsn| Lsn(1_000 + u64::from(lsn)))),
        seqno: SeqNo(8),
    };
    Superblock { log, ..sample() }
}

#[test]
fn several_logs_are_a_feature_and_their_number_is_checked() {
    for count in [1, 2, LOGS_MAX] {
        let mut block = with_logs(count).encode(0);
        assert_eq!(block[FEATURES_AT], u8::from(count > 1));
        block[FEATURES_AT] ^= 1;
        reseal(&mut block, 0);
        assert_eq!(Superblock::decode(&block, 0).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    // Fewer than there are, so that bytes follow, and more than there may be.
    for further in [1, LOGS_MAX] {
        let mut block = with_logs(4).encode(0);
        block[FURTHER_LOGS_AT] = u8::try_from(further).unwrap();
        reseal(&mut block, 0);
        let decoded = Superblock::decode(&block, 0);
        assert_eq!(decoded.unwrap_err().kind(), ErrorKind::Corrupt, "{further}");
    }
}

#[test]
fn newer_formats_are_refused_and_untouched() {
    for (at, what) in [(FORMAT_AT, "format"), (FEATURES_AT, "features")] {
        for copy in 0..COPIES {
            let (file, superblocks) = database();
            let mut block = superblocks.current().encode(copy);
            block[at] |= 2;
            reseal(&mut block, copy);
            file.write_at(&block, copy_offset(copy)).unwrap();
            let error = read(&file).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(what), "{error}");
        }
    }
    // Damage is not mistaken for a newer format.
    let (file, _) = database();
    file.write_at(&[9], FORMAT_AT as u64).unwrap();
    read(&file).unwrap();
}

#[test]
fn other_files_and_unfinished_creations_are_reported() {
    let with = |bytes: &[u8]| {
        let file = LimitedFile::new(u64::MAX);
        file.write_at(bytes, 0).unwrap();
        read(&file).unwrap_err().kind()
    };
    let block = BLOCK_BYTES;
    assert_eq!(with(&[]), ErrorKind::NotFound);
    assert_eq!(with(&vec![0; 2 * block]), ErrorKind::NotFound);
    assert_eq!(with(b"a text"), ErrorKind::InvalidArgument);
    assert_eq!(with(&vec![b'x'; 3 * block]), ErrorKind::InvalidArgument);
    assert_eq!(with(&vec![0; 3 * block]), ErrorKind::InvalidArgument);
    // A creation interrupted at each call.
    for calls in 0..4 {
        let file = LimitedFile::new(u64::MAX);
        file.calls_left.store(calls, Ordering::Relaxed);
        assert!(Superblocks::create(&file, 1).is_err());
        match Superblocks::read(&file).unwrap() {
            Found::Database(_) => assert!(calls >= 1),
            Found::Unfinished => assert!(calls < 2),
        }
    }
    // A truncated database.
    let (file, _) = database();
    file.set_size(3 * BLOCK).unwrap();
    assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn copies_that_contradict_each_other_are_corruption() {
    let (file, superblocks) = database();
    let other = Superblock { opens: 40, ..*superblocks.current() };
    file.write_at(&other.encode(1), BLOCK).unwrap();
    assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::Corrupt);
    let other = Superblock { salt: 1, generation: 50, ..*superblocks.current() };
    file.write_at(&other.encode(1), BLOCK).unwrap();
    assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn hostile_fields_with_right_checksums_are_checked() {
    let mut rng = Rng::new(3);
    let mut decoded = 0;
    for _ in 0..20_000 {
        let mut block = sample().encode(0);
        for _ in 0..=rng.below(2) {
            let at = usize::try_from(rng.below(CONTENT_END as u64 + 8)).unwrap();
            let value = [0, 1, 0x7f, 0x80, 0xff, rng.next_u64().to_le_bytes()[0]];
            block[at.max(MAGIC_AT)] = value[usize::try_from(rng.below(6)).unwrap()];
        }
        reseal(&mut block, 0);
        if let Ok(superblock) = Superblock::decode(&block, 0) {
            decoded += 1;
            assert!(superblock.opens <= OPENS_MAX);
            if let Some(catalog) = superblock.catalog {
                assert!(catalog.extent.start.0 >= FIRST_BLOCK);
                assert!(catalog.extent.end().0 <= superblock.file_blocks);
            }
        }
    }
    assert!(decoded > 0);
}
