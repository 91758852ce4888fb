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
                match rng.below(6) {
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
        for access in ACCESSES {
            let file = directory.open("a", OpenMode::Read, access).unwrap();
            let outcomes = [
                file.write_at(&[1], 0),
                file.set_size(1),
                file.allocate(0, 100_000),
                file.punch_hole(0, 4096),
                file.map(0, 4096).map(drop),
            ];
            for outcome in outcomes {
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
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
fn what_a_region_wrote_is_read_back() {
    over_all(|directory| {
        for access in ACCESSES {
            let name = format!("{access:?}");
            let file = directory.open(&name, OpenMode::CreateNew, access).unwrap();
            file.allocate(0, 1 << 20).unwrap();
            file.write_at(&AlignedBuffer::new(1 << 20), 0).unwrap();
            file.sync().unwrap();
            // Not page-aligned: windows may begin at any byte.
            let start = (64 << 10) + 512;
            let mut region = file.map(start as u64, 512 << 10).unwrap();
            assert_eq!(region.size(), 512 << 10);
            let content = random_bytes(9, 512 << 10);
            for (step, record) in content.chunks(144).enumerate() {
                region.write(step * 144, record).unwrap();
            }
            assert!(read(&*file, start as u64, 512 << 10) == *content);
            for (offset, bytes) in [(512 << 10, 1), (0, (512 << 10) + 1), (usize::MAX, 2)] {
                assert!(region.write(offset, &vec![1; bytes]).is_err());
            }
            file.sync().unwrap();
            drop(region);
            assert!(read(&*file, 0, start).iter().all(|byte| *byte == 0));
            let end = start + (512 << 10);
            let rest = read(&*file, end as u64, (1 << 20) - end);
            assert!(rest.iter().all(|byte| *byte == 0));
            assert!(file.map((1 << 20) - 4096, 4097).is_err());
            assert!(file.map(u64::MAX, 4096).is_err());
        }
    });
}

#[test]
fn what_a_region_wrote_stays_whatever_is_synced_meanwhile() {
    const BYTES: usize = 1 << 20;
    over_all(|directory| {
        let file = directory.open("log", OpenMode::CreateNew, Access::Buffered).unwrap();
        file.allocate(0, BYTES as u64).unwrap();
        let mut region = file.map(0, BYTES).unwrap();
        let content = random_bytes(11, BYTES);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    file.sync().unwrap();
                }
            });
            // As the log does: a block is cleared, filled, and its head comes last.
            for (block, bytes) in content.chunks(4096).enumerate() {
                region.write(block * 4096, &[0; 4096]).unwrap();
                for at in (1000..4096).step_by(129) {
                    let end = (at + 129).min(4096);
                    region.write(block * 4096 + at, &bytes[at..end]).unwrap();
                }
                region.write(block * 4096, &bytes[..1000]).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        assert!(read(&*file, 0, BYTES) == *content);
        file.sync().unwrap();
        // Unmapped pages can be written again.
        region.write(5, &[7; 9000]).unwrap();
        file.sync().unwrap();
        drop(region);
        let after = read(&*file, 0, BYTES);
        assert!(after[5..9005].iter().all(|byte| *byte == 7));
        assert!(after[..5] == content[..5] && after[9005..] == content[9005..]);
    });
}

#[test]
fn many_reads_are_the_same_as_one_after_the_other() {
    over_all(|directory| {
        for access in ACCESSES {
            let name = format!("{access:?}");
            let file = directory.open(&name, OpenMode::CreateNew, access).unwrap();
            let content = random_bytes(4, 1 << 20);
            file.write_at(&content, 0).unwrap();
            let mut rng = Rng::new(8);
            for count in [0, 1, 2, RING_ENTRIES, RING_ENTRIES + 1, 3 * RING_ENTRIES + 7] {
                let mut buffers: Vec<_> = (0..count)
                    .map(|_| {
                        AlignedBuffer::new(usize::try_from(rng.below(4)).unwrap() * BLOCK_BYTES)
                    })
                    .collect();
                let skip = usize::from(rng.one_in(2));
                let mut requests: Vec<_> = buffers
                    .iter_mut()
                    .map(|buffer| {
                        let skip = skip.min(buffer.len());
                        let aligned = rng.below(250) * BLOCK_BYTES_U64;
                        let offset = if rng.one_in(8) { aligned + 77 } else { aligned };
                        ReadRequest { offset, buffer: &mut buffer[skip..] }
                    })
                    .collect();
                let mut called = 0;
                file.read_many_while(&mut requests, &mut || called += 1).unwrap();
                assert_eq!(called, 1);
                for request in &requests {
                    let start = usize::try_from(request.offset).unwrap();
                    assert!(*request.buffer == content[start..start + request.buffer.len()]);
                }
            }
        }
    });
}

#[test]
fn without_rings_reads_go_one_by_one() {
    let rings = Rings::refused();
    let mut buffer = vec![0; 10];
    let mut requests = [ReadRequest { offset: 0, buffer: &mut buffer }];
    let mut filled = [9; RING_ENTRIES];
    let file = tempfile::tempfile().unwrap();
    let file = std::os::fd::AsFd::as_fd(&file);
    rings.read(file, &mut requests, &mut filled, |_| true, &mut || {});
    assert_eq!(filled, [0; RING_ENTRIES]);
}

#[test]
fn many_threads_read_at_a_time() {
    over_real(|_, directory| {
        let file = directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
        let content = random_bytes(4, 1 << 20);
        file.write_at(&content, 0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (file, content) = (&*file, &*content);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    for _ in 0..50 {
                        let mut buffers = vec![AlignedBuffer::new(BLOCK_BYTES); 20];
                        let mut requests: Vec<_> = buffers
                            .iter_mut()
                            .map(|buffer| ReadRequest { offset: rng.below(256) << 12, buffer })
                            .collect();
                        file.read_many(&mut requests).unwrap();
                        for request in requests {
                            let start = usize::try_from(request.offset).unwrap();
                            assert!(*request.buffer == content[start..start + BLOCK_BYTES]);
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn only_the_owner_may_look() {
    over_real(|path, directory| {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(path), 0o700);
        directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
        let _lock = directory.lock(true, true).unwrap();
        assert_eq!(mode(&path.join("a")), 0o600);
        assert_eq!(mode(&path.join(LOCK_FILE)), 0o600);
    });
}

#[test]
fn links_and_directories_are_not_files() {
    over_real(|path, directory| {
        directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
        std::os::unix::fs::symlink("a", path.join("link")).unwrap();
        std::fs::create_dir(path.join("sub")).unwrap();
        for name in ["link", "sub"] {
            for mode in [OpenMode::Read, OpenMode::Write, OpenMode::CreateNew] {
                assert!(directory.open(name, mode, Access::Direct).is_err(), "{name} {mode:?}");
            }
        }
        assert_eq!(directory.list().unwrap(), ["a"]);
        std::os::unix::fs::symlink("a", path.join(LOCK_FILE)).unwrap();
        assert!(directory.lock(true, true).is_err());
    });
}

#[test]
fn pipes_are_refused_without_waiting_for_their_other_end() {
    over_real(|path, directory| {
        for name in ["a", LOCK_FILE] {
            let path = path.join(name);
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
        }
        let mut ends = Vec::new();
        thread::scope(|scope| {
            let (said, told) = std::sync::mpsc::channel();
            scope.spawn(move || {
                for mode in [OpenMode::Read, OpenMode::Write] {
                    for access in ACCESSES {
                        let refused = directory.open("a", mode, access).unwrap_err();
                        assert!(refused.to_string().contains("not a regular file"), "{refused}");
                    }
                }
                assert!(directory.lock(false, false).is_err());
                assert!(directory.lock(true, true).is_err());
                said.send(()).unwrap();
            });
            let over = told.recv_timeout(std::time::Duration::from_secs(60));
            if over.is_err() {
                // Open the other end of each pipe, so that the blocked thread continues and fails.
                for name in ["a", LOCK_FILE] {
                    let end = std::fs::File::options().read(true).write(true).open(path.join(name));
                    ends.push(end);
                }
            }
            over.unwrap();
        });
        assert_eq!(directory.list().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_path_that_cannot_be_the_directory_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let kind = |path: &Path, create| DirectDirectory::open(path, create).unwrap_err().kind();
    assert_eq!(kind(&place.path().join("none"), false), ErrorKind::NotFound);
    assert_eq!(kind(&place.path().join("none/below"), true), ErrorKind::NotFound);
    let file = place.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    for create in [false, true] {
        assert_eq!(kind(&file, create), ErrorKind::InvalidArgument);
    }
    let directory = DirectDirectory::open(&place.path().join("new"), true).unwrap();
    assert_eq!(directory.lock(false, false).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(directory.lock(true, false).unwrap_err().kind(), ErrorKind::NotFound);
    DirectDirectory::open(&place.path().join("new"), true).unwrap();
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
        file.punch_hole(0, 8 << 20).unwrap();
        assert!(file.allocated_bytes().unwrap() < allocated);
        assert_eq!(file.size().unwrap(), 64 << 20);
    });
}

#[test]
fn a_real_file_outlives_its_directory() {
    let place = tempfile::tempdir().unwrap();
    let content = random_bytes(6, 100_000);
    for round in 0..2 {
        let directory = DirectDirectory::open(place.path(), true).unwrap();
        let _lock = directory.lock(true, true).unwrap();
        if round == 0 {
            let file = directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
            file.write_at(&content, 0).unwrap();
            file.sync().unwrap();
            directory.sync().unwrap();
        } else {
            let file = directory.open("a", OpenMode::Read, Access::Buffered).unwrap();
            assert!(read(&*file, 0, 100_000) == *content);
        }
    }
}

#[test]
fn an_open_reads_what_the_device_has_and_not_what_the_system_has_cached() {
    let place = tempfile::tempdir().unwrap();
    let directory = DirectDirectory::open(place.path(), true).unwrap();
    if directory.facts().name == "tmpfs" {
        // There is nothing but the cache.
        return;
    }
    let path = place.path().join("data");
    std::fs::write(&path, vec![7; 16 * BLOCK_BYTES]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    let cached = || {
        use rustix::io::ReadWriteFlags;
        let mut bytes = vec![0; 16 * BLOCK_BYTES];
        let into = &mut [std::io::IoSliceMut::new(&mut bytes)];
        rustix::io::preadv2(&file, into, 0, ReadWriteFlags::NOWAIT).unwrap_or(0)
    };
    assert_eq!(cached(), 16 * BLOCK_BYTES);
    let opened = directory.open("data", OpenMode::Write, Access::Direct).unwrap();
    assert_eq!(cached(), 0);
    let mut block = vec![0; BLOCK_BYTES];
    opened.read_at(&mut block, 0).unwrap();
    assert!(block.iter().all(|byte| *byte == 7));
}
