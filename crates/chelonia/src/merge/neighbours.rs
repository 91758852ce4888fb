//! Small neighbours in a list of sorted sequences, which are merged into one.
//!
//! A memtable that is cut at hundreds of snapshots is absorbed in hundreds of parts. If four parts
//! of similar size are merged as soon as they exist, each entry is rewritten at most once per
//! power of four of the number of parts.

use std::ops::Range;

/// Minimum number of neighbours to merge.
pub const GATHERED_MIN: usize = 4;

/// Maximum size ratio of two sequences that count as similar.
const LIKE_TIMES: u64 = 2;

/// Finds the first [`GATHERED_MIN`] or more neighbours of similar size that together weigh at most
/// `most`.
#[must_use]
pub fn small_neighbours(weights: &[u64], most: u64) -> Option<Range<usize>> {
    let mut start = 0;
    while start < weights.len() {
        let one = weights[start];
        let mut sum = 0;
        let joins = |other: &&u64| {
            sum += **other;
            sum <= most && one <= LIKE_TIMES * **other && **other <= LIKE_TIMES * one
        };
        let count = weights[start..].iter().take_while(joins).count();
        let group = start..start + count.max(1);
        if count >= GATHERED_MIN {
            return Some(group);
        }
        start = group.end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::small_neighbours;

    #[test]
    fn small_neighbours_of_like_size_are_found() {
        let of = |weights: &[u64]| small_neighbours(weights, 100);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[1, 1, 1]), None);
        assert_eq!(of(&[1, 2, 2, 1]), Some(0..4));
        assert_eq!(of(&[1, 2, 2, 1, 8, 8]), Some(0..4));
        assert_eq!(of(&[1, 8, 9, 9, 8, 9, 90]), Some(1..6));
        assert_eq!(of(&[30, 30, 30, 30]), None);
        // Equal parts: each entry is merged once per power of four.
        let (mut weights, mut written) = (Vec::new(), 0);
        for _ in 0..1_000 {
            if let Some(group) = small_neighbours(&weights, 10_000) {
                let sum: u64 = weights[group.clone()].iter().sum();
                written += sum;
                weights.splice(group, [sum]);
            }
            weights.insert(0, 1);
        }
        assert!(weights.len() <= 16, "{weights:?}");
        assert!(written <= 5 * 1_000, "{written}");
    }
}
