//! Tests of growing, shrinking, holes, and a full device.

use super::*;
use crate::runtime::rng::Rng;
use crate::runtime::sync::{Arc, Ordering};
use crate::storage::data_file::superblock::FIRST_BLOCK;
use crate::storage::io::fault::{Call, Fault, FaultDirectory, FaultPlan};
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::io::{Access, Directory, OpenMode};
use crate::storage::testing::LimitedFile;

const BLOCK: u64 = BLOCK_BYTES_U64;

fn empty(bytes_max: u64) -> (LimitedFile, Space) {
    let file = LimitedFile::new(bytes_max);
    file.allocate(0, FIRST_BLOCK * BLOCK).unwrap();
    (file, Space::new(FIRST_BLOCK, FIRST_BLOCK, 3))
}

/// Returns free space except `keep_blocks` of it, in as many pieces as that takes.
fn give_back(space: &mut Space, file: &dyn File, keep_blocks: u64) {
    while space.give_back(file, keep_blocks).unwrap() {}
}

#[test]
fn generations_are_unique_and_small_databases_small() {
    let (file, mut space) = empty(u64::MAX);
    let first = space.allocate(&file, 3).unwrap();
    let second = space.allocate(&file, 3).unwrap();
    assert_eq!(first.extent, Extent::new(2, 3));
    assert_eq!(second.extent, Extent::new(5, 3));
    assert_eq!(first.generation, Generation((3 << 40) | 1));
    assert_eq!(second.generation, Generation((3 << 40) | 2));
    assert_eq!(file.size().unwrap(), 10 * BLOCK);
    // Growth is proportional, and a request larger than the chunk gets its size.
    space.allocate(&file, 5_000).unwrap();
    assert_eq!(file.size().unwrap(), 5_008 * BLOCK);
    space.allocate(&file, 1).unwrap();
    assert_eq!(file.size().unwrap(), (5_008 + 5_008 / 16) * BLOCK);
    assert_eq!(space.stats().used_blocks, 5_009);
}

#[test]
fn a_full_device_changes_nothing() {
    let (file, mut space) = empty(40 * BLOCK);
    space.allocate(&file, 10).unwrap();
    let before = (space.stats(), file.size().unwrap());
    assert_eq!(space.allocate(&file, 31).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!((space.stats(), file.size().unwrap()), before);
    // A fitting allocation succeeds, although the chunk does not fit.
    let last = space.allocate(&file, 28).unwrap();
    assert_eq!(last.extent, Extent::new(12, 28));
    assert_eq!(space.allocate(&file, 1).unwrap_err().kind(), ErrorKind::NoSpace);
    // Freed space is used without a reopen.
    space.free(last.extent).unwrap();
    assert_eq!(space.allocate(&file, 28).unwrap().extent, last.extent);
}

#[test]
fn device_blocks_of_space_that_was_free_at_open_are_found_on_a_full_device() {
    let plan = FaultPlan::new();
    let directory = FaultDirectory::new(Arc::new(MemoryDirectory::new()), plan.clone()).unwrap();
    let file = directory.open("data", OpenMode::CreateNew, Access::Direct).unwrap();
    file.allocate(0, 100 * BLOCK).unwrap();
    file.punch_hole(FIRST_BLOCK * BLOCK, (50 - FIRST_BLOCK) * BLOCK).unwrap();
    // The device has 8 free blocks, and the file 50 free ones at its end.
    plan.set_capacity(Some(60 * BLOCK));
    let mut space = Space::new(100, FIRST_BLOCK, 1);
    assert_eq!(space.stats().hole_blocks, 98);
    assert_eq!(space.stats().solid_blocks(file.allocated_bytes().unwrap()), 50);
    // If the file system does not say what it has, nothing is known beyond what the map says.
    let before = space.stats();
    plan.fail(Fault::once(Call::Size, 0));
    assert_eq!(space.allocate(&*file, 20).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!((plan.failures(), space.stats()), (1, before));
    plan.heal();
    assert_eq!(space.allocate(&*file, 20).unwrap().extent.start, BlockNo(FIRST_BLOCK));
    assert_eq!(space.allocate(&*file, 38).unwrap().extent.blocks, 38);
    assert_eq!(space.allocate(&*file, 1).unwrap_err().kind(), ErrorKind::NoSpace);
}

#[test]
fn misuse_is_reported() {
    let (file, mut space) = empty(u64::MAX);
    assert_eq!(space.allocate(&file, 0).unwrap_err().kind(), ErrorKind::Internal);
    let extent = space.allocate(&file, 8).unwrap().extent;
    space.free(extent).unwrap();
    for extent in [extent, Extent::new(4, 1), Extent::new(0, 1), Extent::new(5_000, 1)] {
        assert_eq!(space.free(extent).unwrap_err().kind(), ErrorKind::Internal);
    }
    let error = space.mark_used(Extent::new(2, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
}

#[test]
fn marks_that_overlap_or_lie_outside_are_corruption() {
    let mut space = Space::new(100, 2, 1);
    space.mark_used(Extent::new(10, 10)).unwrap();
    space.mark_used(Extent::new(20, 80)).unwrap();
    for (start, blocks) in [(19, 1), (5, 6), (1, 1), (99, 2), (3, 0), (u64::MAX, 3), (100, 1)] {
        let error = space.mark_used(Extent::new(start, blocks)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{start} {blocks}");
        assert!(error.offset().is_some());
    }
    assert_eq!(space.stats().free_blocks, 8);
}

#[test]
fn space_is_given_back_and_asked_for_again() {
    let (file, mut space) = empty(u64::MAX);
    let extents: Vec<_> = (0..8).map(|_| space.allocate(&file, 100).unwrap().extent).collect();
    space.free(extents[1]).unwrap();
    space.free(extents[2]).unwrap();
    space.free(extents[7]).unwrap();
    file.log.lock().clear();
    // All that may stay stays.
    give_back(&mut space, &file, 300);
    let used_end = extents[6].end().0;
    assert!(file.log.lock().iter().all(|(what, ..)| *what != "punch"));
    file.log.lock().clear();
    give_back(&mut space, &file, 0);
    assert_eq!(file.size().unwrap(), used_end * BLOCK);
    let punched = ("punch", extents[1].start.0 * BLOCK, 200 * BLOCK);
    assert!(file.log.lock().contains(&punched));
    assert_eq!(space.stats().hole_blocks, 200);
    // One call is enough.
    file.log.lock().clear();
    give_back(&mut space, &file, 0);
    assert!(file.log.lock().is_empty());
    // A hole gets its device blocks again before it is allocated; if that fails, nothing changes.
    let before = space.stats();
    file.bytes_max.store(0, Ordering::Relaxed);
    assert_eq!(space.allocate(&file, 50).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(space.stats(), before);
    file.bytes_max.store(u64::MAX, Ordering::Relaxed);
    let again = space.allocate(&file, 50).unwrap().extent;
    assert_eq!(again.start, extents[1].start);
    assert_eq!(*file.log.lock(), vec![("allocate", again.start.0 * BLOCK, 200 * BLOCK)]);
    // The rest of the hole was filled with it: no call for the next one, and it can be punched.
    space.allocate(&file, 50).unwrap();
    assert_eq!(file.log.lock().len(), 1);
    give_back(&mut space, &file, 0);
    assert_eq!(space.stats().hole_blocks, 100);
}

#[test]
fn much_space_is_given_back_in_pieces_which_keep_nobody_waiting() {
    const PIECE: u32 = 1 << 10;
    let (file, mut space) = empty(u64::MAX);
    let sizes = [3 * PIECE + 7, 10, 2 * PIECE, 10, 5 * PIECE];
    let extents = sizes.map(|blocks| space.allocate(&file, blocks).unwrap().extent);
    for index in [0, 2, 4] {
        space.free(extents[index]).unwrap();
    }
    file.log.lock().clear();
    let (mut calls, mut size) = (1, file.size().unwrap());
    while space.give_back(&file, 0).unwrap() {
        calls += 1;
        let now = file.size().unwrap();
        assert!(size - now <= u64::from(PIECE) * BLOCK);
        size = now;
    }
    assert_eq!(size, extents[3].end().0 * BLOCK);
    let punched = file.log.lock().iter().filter(|(what, ..)| *what == "punch").cloned().collect();
    let punched: Vec<(&str, u64, u64)> = punched;
    assert!(punched.iter().all(|(.., bytes)| *bytes <= u64::from(PIECE) * BLOCK));
    let bytes: u64 = punched.iter().map(|(.., bytes)| bytes).sum();
    assert_eq!(bytes, u64::from(sizes[0] + sizes[2]) * BLOCK);
    assert_eq!(space.stats().hole_blocks, u64::from(sizes[0] + sizes[2]));
    assert!((10..=13).contains(&calls), "{calls} calls");
}

#[test]
fn the_file_is_never_shorter_than_a_superblock_says() {
    let (file, mut space) = empty(u64::MAX);
    let first = space.allocate(&file, 50).unwrap().extent;
    let second = space.allocate(&file, 50).unwrap().extent;
    let length = space.superblock_length();
    assert_eq!(length, second.end().0);
    space.free(second).unwrap();
    give_back(&mut space, &file, 0);
    assert_eq!(file.size().unwrap(), length * BLOCK);
    space.superblock_written(length);
    give_back(&mut space, &file, 0);
    assert_eq!(file.size().unwrap(), length * BLOCK);
    // The next superblock names less, but only when both copies do.
    let shorter = space.superblock_length();
    assert_eq!(shorter, first.end().0);
    give_back(&mut space, &file, 0);
    assert_eq!(file.size().unwrap(), length * BLOCK);
    space.superblock_written(shorter);
    give_back(&mut space, &file, 0);
    assert_eq!(file.size().unwrap(), shorter * BLOCK);
}

#[test]
fn owners_never_share_a_block() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let (file, mut space) = empty(3_000 * BLOCK);
        let mut owned: Vec<Extent> = Vec::new();
        let mut owner = vec![false; 3_000];
        let mut full = 0;
        for _ in 0..2_000 {
            let index = |at: u64| usize::try_from(at).unwrap();
            match rng.below(12) {
                0..=6 => match space.allocate(&file, u32::try_from(rng.below(60) + 1).unwrap()) {
                    Ok(Allocation { extent, .. }) => {
                        assert!(extent.end().0 * BLOCK <= file.size().unwrap());
                        let bits = &mut owner[index(extent.start.0)..index(extent.end().0)];
                        assert!(bits.iter().all(|bit| !*bit));
                        bits.fill(true);
                        owned.push(extent);
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NoSpace);
                        full += 1;
                    }
                },
                7..=10 if !owned.is_empty() => {
                    let extent = owned.swap_remove(index(rng.below(owned.len() as u64)));
                    owner[index(extent.start.0)..index(extent.end().0)].fill(false);
                    space.free(extent).unwrap();
                }
                _ => give_back(&mut space, &file, rng.below(200)),
            }
            let used = owned.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>();
            assert_eq!(space.stats().used_blocks, used + FIRST_BLOCK);
            assert!(space.stats().hole_blocks <= space.stats().free_blocks);
            assert_eq!(space.file_blocks() * BLOCK, file.size().unwrap());
        }
        assert!(full > 0, "the device was never full");
        for extent in owned {
            space.free(extent).unwrap();
        }
        give_back(&mut space, &file, 0);
        assert_eq!(file.size().unwrap(), FIRST_BLOCK * BLOCK);
    }
}
