//! Regions of files that are written by copying memory.

use super::*;

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
