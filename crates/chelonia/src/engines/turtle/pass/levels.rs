//! Which levels of a buffer a new level takes in.
//!
//! A level is a sorted run over the pivots of a node. Merging levels costs writes and saves reads,
//! so it follows who pays: without reads few levels are merged, by size; reads pay for more.

use crate::engines::turtle::pass::geometry::Geometry;

/// The levels of a buffer that are merged with incoming updates.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::engines::turtle) struct LevelMerge {
    /// Number of levels, newest first.
    pub levels: usize,
    /// Those merged only because there would be too many.
    pub forced: usize,
    /// Bytes rewritten only because reads paid for it.
    pub paid_bytes: u64,
}

/// Returns how many of the levels in use, of these `sizes`, newest first, are merged with the
/// incoming updates. Without reads a level is merged when it is at most half as large as all newer
/// ones together, or there would be too many. Reads paid for `paid_bytes` of additional merging:
/// of levels up to as large as the newer ones, and of those beyond the number that suits reads.
pub(in crate::engines::turtle) fn levels_to_merge(
    incoming: u64,
    sizes: &[u64],
    geometry: &Geometry,
    paid_bytes: u64,
) -> LevelMerge {
    let gathered_max = geometry.gathered_max(incoming);
    let mut merge = LevelMerge::default();
    let mut gathered = incoming;
    let left = |levels: usize| 1 + sizes.len() - levels;
    loop {
        while let Some(size) = sizes.get(merge.levels)
            && gathered + size <= gathered_max
        {
            let is_small = *size <= gathered / 2;
            let suits_reads = *size <= gathered || left(merge.levels) > geometry.levels_read;
            let is_paid = suits_reads && merge.paid_bytes + size <= paid_bytes;
            if !is_small && !is_paid {
                break;
            }
            merge.paid_bytes += if is_small { 0 } else { *size };
            gathered += size;
            merge.levels += 1;
        }
        if left(merge.levels) <= geometry.levels_left().max(1) {
            assert!(
                merge.forced <= merge.levels && merge.levels <= sizes.len(),
                "levels that exist are merged"
            );
            return merge;
        }
        gathered += sizes[merge.levels];
        merge.levels += 1;
        merge.forced += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer_tree::codec::LEVEL_MAX;
    use crate::engines::turtle::pass::geometry::Pace;
    use crate::engines::turtle::pass::plan::tests::GEOMETRY;

    #[test]
    fn levels_merge_by_size_and_stay_below_the_limit() {
        let levels_to_merge = |incoming, sizes: &[u64]| {
            let merge = levels_to_merge(incoming, sizes, &GEOMETRY, 0);
            (merge.levels, merge.forced)
        };
        assert_eq!(levels_to_merge(10, &[]), (0, 0));
        assert_eq!(levels_to_merge(10, &[6, 1]), (0, 0));
        assert_eq!(levels_to_merge(10, &[5, 7, 12]), (2, 0));
        assert_eq!(levels_to_merge(10, &[20; 6]), (1, 1));
        // A large level merged by force leaves the next ones small.
        assert_eq!(levels_to_merge(10, &[10; 6]), (6, 1));
        let mut sizes = Vec::new();
        for _ in 0..1000 {
            let (merged, _) = levels_to_merge(10, &sizes);
            let sum: u64 = sizes.drain(..merged).sum();
            sizes.insert(0, 10 + sum);
            assert!(sizes.len() <= 6);
        }
    }

    #[test]
    fn reads_pay_for_fewer_levels() {
        let merge = |sizes: &[u64], paid| {
            let merge = levels_to_merge(10, sizes, &GEOMETRY, paid);
            assert_eq!(merge.forced, 0);
            (merge.levels, merge.paid_bytes)
        };
        // Levels as large as the newer ones together, as far as the payment goes.
        assert_eq!(merge(&[10, 20, 40], 0), (0, 0));
        assert_eq!(merge(&[10, 20, 40], 69), (2, 30));
        assert_eq!(merge(&[10, 20, 40], 70), (3, 70));
        // Larger ones only while there are more than suits reads.
        assert_eq!(merge(&[30, 100], 1000), (0, 0));
        assert_eq!(merge(&[30, 100, 300], 1000), (1, 30));
        assert_eq!(merge(&[30, 100, 300], 29), (0, 0));
        // A level that is merged without payment is not charged.
        assert_eq!(merge(&[5, 15, 15], 1000), (3, 15));
    }

    #[test]
    fn on_a_full_device_a_level_takes_in_no_more_than_comes_in() {
        for pace in [Pace::Incoming, Pace::OneLeaf] {
            let geometry = Geometry { pace, ..GEOMETRY };
            let levels_to_merge = |sizes: &[u64]| {
                let merge = levels_to_merge(10, sizes, &geometry, 1000);
                (merge.levels, merge.forced)
            };
            assert_eq!(levels_to_merge(&[5, 5, 1]), (2, 0));
            assert_eq!(levels_to_merge(&[5, 7, 11, 16]), (1, 0));
            // A node has no more levels than can be encoded.
            let most = usize::from(LEVEL_MAX) + 1;
            assert_eq!(levels_to_merge(&vec![20; most - 1]), (0, 0));
            assert_eq!(levels_to_merge(&vec![20; most]), (1, 1));
        }
    }
}
