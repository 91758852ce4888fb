//! Tests of every directory implementation, and of behavior specific to the real one.

use super::crash::CrashDirectory;
use super::direct::DirectDirectory;
use super::fault::{FaultDirectory, FaultPlan};
use super::memory::MemoryDirectory;
use super::ring::{RING_ENTRIES, Rings};
use super::*;
use crate::base::error::ErrorKind;
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::runtime::rng::Rng;
use crate::runtime::sync::{AtomicBool, Ordering};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;

mod batches;
mod real;
mod regions;

const ACCESSES: [Access; 2] = [Access::Direct, Access::Buffered];

/// Runs `test` over an empty directory of each kind. The real one is tested in the build directory,
/// which is on a disk, and in memory where the system has such a file system.
fn over_all(test: impl Fn(&dyn Directory)) {
    test(&MemoryDirectory::new());
    test(&CrashDirectory::new());
    let plan = FaultPlan::new();
    test(&FaultDirectory::new(Arc::new(MemoryDirectory::new()), plan).unwrap());
    over_real(|_, directory| test(directory));
}

fn over_real(test: impl Fn(&Path, &DirectDirectory)) {
    let built = std::env::current_exe().unwrap();
    for parent in [built.parent().unwrap(), Path::new("/dev/shm")] {
        let Ok(place) = tempfile::tempdir_in(parent) else { continue };
        let path = place.path().join("database");
        test(&path, &DirectDirectory::open(&path, true).unwrap());
    }
}

fn random_bytes(seed: u64, bytes: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(bytes);
    Rng::new(seed).fill(&mut buffer);
    buffer
}

fn read(file: &dyn File, offset: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    file.read_at(&mut buffer, offset).unwrap();
    buffer
}

#[test]
fn names_come_and_go() {
    over_all(|directory| {
        assert!(directory.list().unwrap().is_empty());
        for name in ["b", "a", "c"] {
            directory.open(name, OpenMode::CreateNew, Access::Direct).unwrap();
        }
        directory.sync().unwrap();
        assert_eq!(directory.list().unwrap(), ["a", "b", "c"]);
        let again = directory.open("a", OpenMode::CreateNew, Access::Buffered).unwrap_err();
        assert_eq!((again.kind(), again.file()), (ErrorKind::Io, Some("a")));
        directory.remove("b").unwrap();
        assert_eq!(directory.remove("b").unwrap_err().kind(), ErrorKind::NotFound);
        for mode in [OpenMode::Read, OpenMode::Write] {
            let error = directory.open("b", mode, Access::Direct).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        assert_eq!(directory.list().unwrap(), ["a", "c"]);
        for name in ["", ".", "..", "x/y", "/x", "x\0", LOCK_FILE] {
            assert!(directory.open(name, OpenMode::CreateNew, Access::Direct).is_err());
        }
    });
}

#[test]
fn random_writes_reads_and_sizes_are_those_of_a_byte_vector() {
    over_all(|directory| {
        for access in ACCESSES {
            let name = format!("{access:?}");
            let file = directory.open(&name, OpenMode::CreateNew, access).unwrap();
            let (mut rng, mut model) = (Rng::new(3), Vec::<u8>::new());
            for round in 0..400 {
                let limit = if rng.one_in(8) { 3 << 20 } else { 20_000 };
                let (mut offset, mut bytes) = (rng.below(30_000), rng.below(limit));
                if rng.one_in(2) {
                    offset = offset / BLOCK_BYTES_U64 * BLOCK_BYTES_U64;
                    bytes = bytes / BLOCK_BYTES_U64 * BLOCK_BYTES_U64;
                }
                let (start, bytes) =
                    (usize::try_from(offset).unwrap(), usize::try_from(bytes).unwrap());
                let end = start + bytes;
                // From an aligned address, and from an unaligned one.
                let skip = usize::from(rng.one_in(2));
                match rng.below(7) {
                    0 => {
                        file.set_size(end as u64).unwrap();
                        model.resize(end, 0);
                    }
                    1 => {
                        file.punch_hole(offset, bytes as u64).unwrap();
                        let end = end.min(model.len());
                        model[start.min(end)..end].fill(0);
                    }
                    2 => {
                        file.allocate(offset, bytes as u64).unwrap();
                        if bytes > 0 {
                            model.resize(model.len().max(end), 0);
                        }
                    }
                    3 => {
                        file.write_zeros(offset, bytes as u64).unwrap();
                        if bytes > 0 {
                            model.resize(model.len().max(end), 0);
                            model[start..end].fill(0);
                        }
                    }
                    _ => {
                        let content = random_bytes(round, skip + bytes);
                        file.write_at(&content[skip..], offset).unwrap();
                        if bytes > 0 {
                            model.resize(model.len().max(end), 0);
                            model[start..end].copy_from_slice(&content[skip..]);
                        }
                    }
                }
                assert_eq!(file.size().unwrap(), model.len() as u64);
                let start = start.min(model.len());
                let end = end.min(model.len());
                let mut buffer = AlignedBuffer::new(skip + end - start);
                file.read_at(&mut buffer[skip..], start as u64).unwrap();
                assert!(buffer[skip..] == model[start..end], "round {round}");
            }
            file.sync().unwrap();
            drop(file);
            for access in ACCESSES {
                let file = directory.open(&name, OpenMode::Read, access).unwrap();
                assert!(read(&*file, 0, model.len()) == model);
                assert_eq!(file.name(), name);
            }
        }
    });
}

#[test]
fn scratch_files_have_no_name_and_share_nothing() {
    over_all(|dir| {
        let before = dir.list().unwrap();
        let (one, other) = (
            dir.scratch(ScratchPlace::Anywhere).unwrap(),
            dir.scratch(ScratchPlace::Anywhere).unwrap(),
        );
        one.allocate(0, 3 * BLOCK_BYTES_U64).unwrap();
        let bytes = random_bytes(9, 2 * BLOCK_BYTES);
        one.write_at(&bytes, BLOCK_BYTES_U64).unwrap();
        other.write_at(&[1; 10], 5).unwrap();
        assert_eq!(read(&*one, BLOCK_BYTES_U64, 2 * BLOCK_BYTES), bytes[..]);
        assert_eq!(read(&*one, 0, BLOCK_BYTES), [0; BLOCK_BYTES]);
        assert_eq!(read(&*other, 0, 15), [[0; 5], [1; 5], [1; 5]].concat());
        assert_eq!(dir.list().unwrap(), before);
    });
}

#[test]
fn reads_past_the_end_name_the_place() {
    over_all(|directory| {
        for access in ACCESSES {
            let name = format!("{access:?}");
            let file = directory.open(&name, OpenMode::CreateNew, access).unwrap();
            file.write_at(&random_bytes(1, 5_000), 0).unwrap();
            for (offset, bytes) in [(0, 8192), (4096, 4096), (4999, 2), (5000, 1), (1 << 30, 4096)]
            {
                let mut buffer = AlignedBuffer::new(bytes);
                let error = file.read_at(&mut buffer, offset).unwrap_err();
                assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some(name.as_str())));
                assert!(error.offset().is_some_and(|at| at >= offset && at <= offset.max(5000)));
                let mut other = AlignedBuffer::new(BLOCK_BYTES);
                let first = ReadRequest { offset: 0, buffer: &mut other };
                let mut requests = [first, ReadRequest { offset, buffer: &mut buffer }];
                let error = file.read_many(&mut requests).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
            assert_eq!(read(&*file, 5000, 0), []);
        }
    });
}

#[test]
fn a_file_opened_to_read_is_not_changed() {
    over_all(|directory| {
        directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap().set_size(8192).unwrap();
        let aligned = random_bytes(1, BLOCK_BYTES);
        for access in ACCESSES {
            let file = directory.open("a", OpenMode::Read, access).unwrap();
            let outcomes = [
                file.write_at(&[1], 0),
                file.write_many(&[WriteRequest { offset: 0, bytes: &[1] }]),
                file.write_many(&[WriteRequest { offset: 0, bytes: &aligned }; 2]),
                file.write_zeros(0, 4096),
                file.set_size(1),
                file.allocate(0, 100_000),
                file.punch_hole(0, 4096),
                file.map(0, 4096).map(drop),
            ];
            for outcome in outcomes {
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
            assert_eq!(read(&*file, 0, 8192), [0; 8192]);
            assert_eq!(file.size().unwrap(), 8192);
        }
    });
}

#[test]
fn the_lock_excludes_within_the_process() {
    over_all(|directory| {
        let refused = |exclusive| {
            directory.lock(exclusive, false).unwrap_err().kind() == ErrorKind::AlreadyOpen
        };
        let writer = directory.lock(true, true).unwrap();
        assert!(refused(true) && refused(false));
        drop(writer);
        let readers = [directory.lock(false, false).unwrap(), directory.lock(false, true).unwrap()];
        assert!(refused(true));
        drop(readers);
        directory.lock(true, false).unwrap();
        assert!(directory.list().unwrap().is_empty());
    });
}

#[test]
fn allocated_space_is_counted_and_given_back() {
    over_real(|_, directory| {
        let file = directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
        file.set_size(64 << 20).unwrap();
        let sparse = file.allocated_bytes().unwrap();
        assert!(sparse < 1 << 20);
        file.allocate(0, 8 << 20).unwrap();
        let allocated = file.allocated_bytes().unwrap();
        assert!(allocated >= sparse + (8 << 20));
        file.write_at(&random_bytes(1, 1 << 20), 0).unwrap();
        file.write_zeros(0, 8 << 20).unwrap();
        assert_eq!(read(&*file, 0, 8 << 20), vec![0; 8 << 20]);
        assert!(file.allocated_bytes().unwrap() >= sparse + (8 << 20));
        file.punch_hole(0, 8 << 20).unwrap();
        assert!(file.allocated_bytes().unwrap() < allocated);
        assert_eq!(file.size().unwrap(), 64 << 20);
    });
}
