//! Several reads or writes in flight from one thread, and from many.

use super::*;

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

/// Disjoint ranges below `bytes` that `count` writes cover, in random order: up to three blocks
/// each, some with parts of blocks and some empty.
fn scattered(rng: &mut Rng, count: usize) -> Vec<(usize, usize)> {
    let mut ranges: Vec<_> = (0..count)
        .map(|at| {
            let place = 4 * at * BLOCK_BYTES;
            let blocks = usize::try_from(rng.below(4)).unwrap() * BLOCK_BYTES;
            match rng.below(8) {
                0 => (place + 77, blocks),
                1 => (place, blocks + 700),
                _ => (place, blocks),
            }
        })
        .collect();
    for at in (1..count).rev() {
        ranges.swap(at, usize::try_from(rng.below(at as u64 + 1)).unwrap());
    }
    ranges
}

/// Checks batches of writes to the files of `directory` against a byte vector.
fn check_writes(directory: &dyn Directory) {
    for access in ACCESSES {
        let name = format!("{access:?}");
        let file = directory.open(&name, OpenMode::CreateNew, access).unwrap();
        let mut model = Vec::new();
        let mut rng = Rng::new(8);
        for count in [0, 1, 2, RING_ENTRIES, RING_ENTRIES + 1, 3 * RING_ENTRIES + 7] {
            let content = random_bytes(count as u64, 4 * BLOCK_BYTES * count);
            // From an aligned address, and from an unaligned one.
            let skip = usize::from(rng.one_in(2));
            let ranges = scattered(&mut rng, count);
            let requests: Vec<_> = ranges
                .iter()
                .map(|&(start, bytes)| {
                    let from = start / BLOCK_BYTES * BLOCK_BYTES + skip;
                    WriteRequest { offset: start as u64, bytes: &content[from..from + bytes] }
                })
                .collect();
            file.write_many(&requests).unwrap();
            for request in &requests {
                let start = usize::try_from(request.offset).unwrap();
                let end = start + request.bytes.len();
                if !request.bytes.is_empty() {
                    model.resize(model.len().max(end), 0);
                    model[start..end].copy_from_slice(request.bytes);
                }
            }
            assert_eq!(file.size().unwrap(), model.len() as u64);
            assert!(read(&*file, 0, model.len()) == model, "{access:?}, {count} writes");
        }
    }
}

#[test]
fn many_writes_are_the_same_as_one_after_the_other() {
    over_all(check_writes);
}

#[test]
fn without_rings_writes_go_one_by_one() {
    let rings = Rings::refused();
    let requests = [WriteRequest { offset: 0, bytes: &[1; 10] }; 2];
    let mut written = [9; RING_ENTRIES];
    let file = tempfile::tempfile().unwrap();
    rings.write(std::os::fd::AsFd::as_fd(&file), &requests, &mut written, |_| true);
    assert_eq!(written, [0; RING_ENTRIES]);
    assert_eq!(file.metadata().unwrap().len(), 0);
    over_real(|path, _| {
        let directory = DirectDirectory::open(path, false).unwrap().without_rings();
        check_writes(&directory);
    });
}

#[test]
fn a_write_beyond_all_files_fails_its_batch() {
    over_all(|directory| {
        for access in ACCESSES {
            let name = format!("{access:?}");
            let file = directory.open(&name, OpenMode::CreateNew, access).unwrap();
            let content = random_bytes(5, 2 * BLOCK_BYTES);
            file.write_at(&content, 0).unwrap();
            let other = random_bytes(6, BLOCK_BYTES);
            for offset in [u64::MAX, u64::MAX - 4095] {
                let first = WriteRequest { offset: BLOCK_BYTES_U64, bytes: &other };
                let requests = [first, WriteRequest { offset, bytes: &other }];
                file.write_many(&requests).unwrap_err();
                assert!(read(&*file, 0, BLOCK_BYTES) == content[..BLOCK_BYTES]);
                assert_eq!(file.size().unwrap(), 2 * BLOCK_BYTES_U64);
            }
        }
    });
}

#[test]
fn a_power_cut_may_come_between_the_writes_of_a_batch() {
    let directory = CrashDirectory::new();
    let file = directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
    let before = directory.boundary();
    let requests: Vec<_> =
        (0..5).map(|at| WriteRequest { offset: at * 8192, bytes: &[7; 4096] }).collect();
    file.write_many(&requests).unwrap();
    assert_eq!(directory.boundary(), before + requests.len());
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
