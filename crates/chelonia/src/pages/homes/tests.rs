//! Tests of pages and homes: records, what hostile bytes do, and how long knowledge is valid.

use super::places::Places;
use super::slotted::{page_bytes, taken_bytes};
use super::{Changed, HomeLayout, Page, PageBytes, PageMut, Region, View};
use crate::base::ids::{Extent, Generation};
use crate::base::stream::{LargeRef, Update};
use crate::runtime::rng::Rng;
use crate::storage::Storage;
use std::collections::BTreeMap;
use std::sync::Arc;

fn below(rng: &mut Rng, count: usize) -> usize {
    usize::try_from(rng.below(count as u64)).unwrap()
}

#[test]
fn a_page_is_a_map_until_it_is_full() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let blocks = 1 + u32::try_from(seed % 3).unwrap();
        let mut bytes = vec![0; page_bytes(blocks)];
        PageMut::empty(&mut bytes);
        let mut model: BTreeMap<Vec<u8>, (Vec<u8>, bool)> = BTreeMap::new();
        let (mut scratch, mut full) = (Vec::new(), 0);
        for _ in 0..3_000 {
            let key = format!("{:0>width$}", rng.below(150), width = 3 + below(&mut rng, 2));
            let key = key.into_bytes();
            let value = vec![u8::try_from(seed).unwrap(); below(&mut rng, 90)];
            let large = LargeRef {
                extent: Extent::new(rng.below(1 << 30), 9),
                generation: Generation(rng.next_u64()),
                bytes: 33_000,
            };
            let mut encoded = Vec::new();
            large.encode(&mut encoded);
            let (update, entry) = match rng.below(10) {
                0..3 => (Update::Delete, None),
                3 => (Update::PutLarge(large), Some((encoded, true))),
                _ => (Update::Put(&value), Some((value.clone(), false))),
            };
            let mut page = PageMut::parse(&mut bytes).unwrap();
            let before = page.live_bytes();
            match page.change(&key, update, &mut scratch).unwrap() {
                Changed::Done(large) => {
                    let was_large = model.get(&key).is_some_and(|(_, is_large)| *is_large);
                    assert_eq!(large.is_some(), was_large);
                    match entry {
                        Some(entry) => model.insert(key, entry),
                        None => model.remove(&key),
                    };
                }
                Changed::Full => {
                    full += 1;
                    let (payload, _) = entry.unwrap();
                    let old = model.get(&key);
                    let old = old.map_or(0, |(old, _)| taken_bytes(key.len(), old.len()));
                    let new = before - old + taken_bytes(key.len(), payload.len());
                    assert!(32 + new > page_bytes(blocks), "it would have fitted");
                }
            }
            check(&bytes, &model);
        }
        assert!(full > 0 || blocks > 1);
    }
}

fn check(bytes: &[u8], model: &BTreeMap<Vec<u8>, (Vec<u8>, bool)>) {
    let parts: Vec<&[u8]> = bytes.chunks(super::PART_BYTES).collect();
    for bytes in [PageBytes::Whole(bytes), PageBytes::Parts(&parts)] {
        let page = Page::parse(bytes).unwrap();
        assert_eq!(page.count(), model.len());
        let mut user = 0;
        for (index, (key, (payload, is_large))) in model.iter().enumerate() {
            assert_eq!(*page.key(index).unwrap(), *key);
            let (found, large) = page.payload(index).unwrap();
            assert_eq!((&*found, large), (&payload[..], *is_large));
            assert_eq!(page.find(key).unwrap(), Ok(index));
            user += key.len() + if large { 24 } else { payload.len() };
        }
        let taken = model.iter().map(|(key, (payload, _))| taken_bytes(key.len(), payload.len()));
        assert_eq!(page.live_bytes(), taken.sum::<usize>());
        let large = model.values().filter(|(_, is_large)| *is_large).count();
        let (totals, counted) = page.totals();
        assert_eq!((totals.bytes, counted as usize), (user as u64, large));
    }
}

#[test]
fn noise_in_a_page_is_an_error_and_no_panic() {
    let mut scratch = Vec::new();
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let mut bytes = vec![0; page_bytes(1)];
        let mut page = PageMut::empty(&mut bytes);
        for number in 0..20_u32 {
            page.append(&number.to_be_bytes(), &[7; 20], false);
        }
        for _ in 0..1 + rng.below(4) {
            let at = if rng.below(2) == 0 { below(&mut rng, 40) } else { below(&mut rng, 4064) };
            bytes[at] = u8::try_from(rng.below(256)).unwrap();
        }
        if let Ok(page) = Page::parse(PageBytes::Whole(&bytes)) {
            let _ = page.find(&7_u32.to_be_bytes());
            for index in 0..page.count() {
                let _ = (page.spans(index), page.large(index), page.payload(index));
            }
        }
        if let Ok(mut page) = PageMut::parse(&mut bytes) {
            for number in 0..30_u32 {
                let key = number.to_be_bytes();
                if page.change(&key, Update::Put(&[1; 30]), &mut scratch).is_err() {
                    break;
                }
            }
        }
    }
}

#[test]
fn what_is_known_of_a_home_is_too_old_once_its_node_was_changed() {
    let (storage, _directory) = Storage::testing(16 << 20);
    let layout = HomeLayout { page_blocks: 2, shadow: true };
    let extent = Extent::new(64, 2 * layout.home_blocks());
    let region = Region::open(&storage, extent, (Generation(3), Generation(10)), layout);
    let view = |stamp| View { stamp: Generation(stamp), dead: Arc::default() };
    let known = |changed, stamp| {
        let image = region.image(0, &view(stamp), Generation(changed));
        (image.map(|image| image.stamp.0), region.places(0, Generation(changed)).is_some())
    };
    assert_eq!(known(10, 40), (None, false));
    region.learn(0, Places([20, 23, 0, 0]), &view(40));
    assert_eq!(known(23, 40), (Some(23), true));
    // The absorb with stamp 50 changed the node, and maybe this home, through another region.
    assert_eq!(known(50, 50), (None, false));
    region.learn(0, Places([20, 23, 50, 0]), &view(50));
    assert_eq!(known(50, 60), (Some(50), true));
    // The one with stamp 60 changed another home, through this region.
    region.carry_over(Generation(50), Generation(60));
    assert_eq!(known(60, 60), (Some(50), true));
    assert_eq!(known(61, 61), (None, false));
}

#[test]
fn a_forged_count_of_live_bytes_loses_no_record() {
    for forged in (0..4064_u32).step_by(61).chain([u32::MAX, 1 << 31]) {
        let mut bytes = vec![0; page_bytes(1)];
        let mut page = PageMut::empty(&mut bytes);
        let mut expected = BTreeMap::new();
        for number in 0..30_u32 {
            let value = vec![u8::try_from(number).unwrap(); 90];
            assert!(page.append(&number.to_be_bytes(), &value, false));
            expected.insert(number, value);
        }
        bytes[4..8].copy_from_slice(&forged.to_le_bytes());
        let (mut refused, mut scratch) = (0, Vec::new());
        for number in 0..60_u32 {
            let value = vec![9; 120];
            let Ok(mut page) = PageMut::parse(&mut bytes) else { break };
            match page.change(&number.to_be_bytes(), Update::Put(&value), &mut scratch) {
                Ok(Changed::Done(_)) => drop(expected.insert(number, value)),
                Ok(Changed::Full) | Err(_) => refused += 1,
            }
        }
        assert!(refused > 0);
        let page = Page::parse(PageBytes::Whole(&bytes)).unwrap();
        for (number, value) in &expected {
            let index = page.find(&number.to_be_bytes()).unwrap().unwrap();
            assert_eq!(&*page.payload(index).unwrap().0, &value[..], "{forged}");
        }
    }
}
