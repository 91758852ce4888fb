//! Free extents and ranges against naive bitmaps.

use super::*;
use crate::runtime::rng::Rng;

/// The runs of set bits of a bitmap.
fn runs(bits: &[bool]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (at, _) in bits.iter().enumerate().filter(|(_, bit)| **bit) {
        let at = at as u64;
        match runs.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

fn fill(bits: &mut [bool], range: Range<u64>, value: bool) {
    let index = |at: u64| usize::try_from(at).unwrap();
    bits[index(range.start)..index(range.end)].fill(value);
}

fn all_of(bits: &[bool], range: &Range<u64>, value: bool) -> bool {
    (range.start..range.end)
        .all(|at| bits.get(usize::try_from(at).unwrap()).is_some_and(|bit| *bit == value))
}

#[test]
fn classes_grow_with_the_length_and_are_narrow() {
    let mut before = 0;
    for length in 1..10_000_u64 {
        let class = class_of(length);
        assert!(class == before || class == before + 1);
        assert!(length > 15 || u64::from(class) == length);
        before = class;
    }
    assert_eq!(class_of(u64::MAX), 60 * 8 + 15);
}

#[test]
fn it_does_what_a_bitmap_does() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut free = FreeExtents::new(200);
        let mut bits = vec![true; 200];
        bits[..2].fill(false);
        for _ in 0..1_000 {
            let start = rng.below(bits.len() as u64 + 4);
            let range = start..start + rng.below(20);
            match rng.below(10) {
                0 => {
                    let length = bits.len() as u64 + rng.below(50);
                    free.extend(length);
                    bits.resize(usize::try_from(length).unwrap(), true);
                }
                1 => {
                    let cut = bits.len() as u64 - rng.below(30).min(bits.len() as u64 - 10);
                    let right =
                        cut < bits.len() as u64 && all_of(&bits, &(cut..bits.len() as u64), true);
                    assert_eq!(free.cut(cut), right);
                    if right {
                        bits.truncate(usize::try_from(cut).unwrap());
                    }
                }
                2..=4 => {
                    let right = !range.is_empty() && all_of(&bits, &range, true);
                    assert_eq!(free.take(range.clone()), right);
                    if right {
                        fill(&mut bits, range, false);
                    }
                }
                5..=7 => {
                    let right = !range.is_empty() && start >= 2 && all_of(&bits, &range, false);
                    assert_eq!(free.give(range.clone()), right, "{range:?}");
                    if right {
                        fill(&mut bits, range, true);
                    }
                }
                _ => {
                    let wanted = u32::try_from(rng.below(40) + 1).unwrap();
                    let there =
                        runs(&bits).iter().any(|run| run.end - run.start >= u64::from(wanted));
                    let found = free.find(wanted);
                    assert_eq!(found.is_some(), there);
                    if let Some(start) = found {
                        assert!(all_of(&bits, &(start..start + u64::from(wanted)), true));
                    }
                }
            }
            let right = runs(&bits);
            let ours: Vec<_> = free.by_start.iter().map(|(s, l)| *s..s + l).collect();
            assert_eq!(ours, right);
            assert_eq!(free.by_class.len(), right.len());
            assert_eq!(free.free_blocks(), right.iter().map(|run| run.end - run.start).sum());
            assert_eq!(
                free.largest(),
                right.iter().map(|run| run.end - run.start).max().unwrap_or(0)
            );
        }
    }
}

#[test]
fn low_addresses_first_and_the_end_of_the_file_last() {
    let mut free = FreeExtents::new(1_000);
    assert!(free.take(2..1_000));
    for range in [900..1_000, 10..20, 100..110, 300..340] {
        assert!(free.give(range));
    }
    assert_eq!(free.find(10), Some(10));
    assert_eq!(free.find(9), Some(10));
    assert_eq!(free.find(11), Some(300));
    assert_eq!(free.find(41), Some(900));
    assert_eq!(free.find(101), None);
    assert_eq!(free.used_end(), 900);
}

#[test]
fn a_fit_hidden_behind_many_of_its_class_is_found() {
    // 64 to 71 blocks are one class; only the last of many is long enough.
    let mut free = FreeExtents::new(100_000);
    assert!(free.take(2..100_000));
    for at in 0..100_u64 {
        let length = if at == 99 { 70 } else { 64 };
        assert!(free.give(100 + at * 100..100 + at * 100 + length));
    }
    assert_eq!(free.find(64), Some(100));
    assert_eq!(free.find(70), Some(100 + 99 * 100));
    assert_eq!(free.find(71), None);
}

#[test]
fn range_sets_do_what_a_bitmap_does() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut set = RangeSet::default();
        let mut bits = vec![false; 120];
        for _ in 0..400 {
            let start = rng.below(100);
            let range = start..start + rng.below(20);
            match rng.below(8) {
                0..=3 => {
                    fill(&mut bits, range.clone(), true);
                    set.insert(range);
                }
                4..=6 => {
                    fill(&mut bits, range.clone(), false);
                    set.remove(&range);
                }
                _ => {
                    let last = runs(&bits).pop();
                    assert_eq!(set.pop_last(), last);
                    if let Some(last) = last {
                        fill(&mut bits, last, false);
                    }
                }
            }
            let whole = 0..120;
            assert_eq!(set.within(&whole), runs(&bits));
            assert_eq!(set.blocks(), runs(&bits).iter().map(|run| run.end - run.start).sum());
            let start = rng.below(100);
            let window = start..start + rng.below(20);
            let index = |at: u64| usize::try_from(at).unwrap();
            let mut part = vec![false; 120];
            let mut rest = part.clone();
            for at in index(window.start)..index(window.end) {
                part[at] = bits[at];
                rest[at] = !bits[at];
            }
            assert_eq!(set.within(&window), runs(&part));
            assert_eq!(set.gaps(&window), runs(&rest));
        }
    }
}
