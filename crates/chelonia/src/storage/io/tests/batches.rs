//! Several reads in flight from one thread, and from many.

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
