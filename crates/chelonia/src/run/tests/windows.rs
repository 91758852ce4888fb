//! The memory of many scans at once.

use super::{Model, Owned, build, options};
use crate::base::keys::{Direction, KeyRange};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::stream::SortedStream;
use crate::filters::FilterKind;
use crate::memory::budget::Use;
use crate::run::{Run, RunCursor};
use crate::storage::Storage;
use crate::storage::block::BlockKind;

#[test]
fn windows_share_a_part_of_the_budget_and_shrink_as_there_are_more() {
    let storage = Storage::testing(8 << 20).0;
    let model: Model = (0..20_000_u32)
        .map(|number| (number.to_be_bytes().to_vec(), Owned::Put(vec![7; 100])))
        .collect();
    let reference = build(&storage, &model, options(FilterKind::Bloom));
    let run = Run::open(&storage, reference);
    let mut cursors: Vec<RunCursor> = (0..1_000)
        .map(|_| RunCursor::new(&run, KeyRange::all(), Direction::Ascending).unwrap())
        .collect();
    let budget = storage.budget();
    for round in 0..20 {
        for cursor in &mut cursors {
            (0..40).for_each(|_| cursor.advance().unwrap());
        }
        // A block of each is needed, and a little more for the cursor itself.
        let least = cursors.len() as u64 * (BLOCK_BYTES_U64 + 1024);
        let used = budget.used_by(Use::Scans);
        assert!(used <= budget.limit() / 8 + least, "round {round}: {used} bytes");
    }
    // One alone reads ahead.
    cursors.truncate(1);
    (0..4_000).for_each(|_| cursors[0].advance().unwrap());
    assert!(budget.used_by(Use::Scans) > 2 * BLOCK_BYTES_U64);
}

#[test]
fn scans_of_values_that_overflow_read_each_block_once() {
    let model: Model = (0..3_000_u32)
        .map(|number| (number.to_be_bytes().to_vec(), Owned::Put(vec![7; 1_000])))
        .collect();
    for direction in [Direction::Ascending, Direction::Descending] {
        let storage = Storage::testing(64 << 20).0;
        let run = Run::open(&storage, build(&storage, &model, options(FilterKind::Bloom)));
        let read = || {
            let file = storage.stats().file;
            let of = |kind: BlockKind| file.blocks_read[kind as usize];
            (file.reads, of(BlockKind::Data) + of(BlockKind::DataOverflow))
        };
        let (reads, blocks) = read();
        let mut cursor = RunCursor::new(&run, KeyRange::all(), direction).unwrap();
        let mut entries = 0;
        while cursor.key().is_some() {
            entries += 1;
            cursor.advance().unwrap();
        }
        assert_eq!(entries, model.len());
        let (reads, blocks) = (read().0 - reads, read().1 - blocks);
        assert_eq!(blocks, u64::from(run.reference().data_blocks), "{direction:?}");
        assert!(reads <= blocks / 16, "{direction:?}: {reads} reads of {blocks} blocks");
    }
}
