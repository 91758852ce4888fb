//! Content of blocks, and lookups compared with a search of the plain keys.

use super::{Model, Owned, build, storage};
use crate::base::check::CheckReport;
use crate::base::error::Error;
use crate::base::limits::{KEY_BYTES_MAX, LARGE_VALUE_BYTES_MIN};
use crate::filters::{BLOCK_KIND_FILTER, FilterKind};
use crate::memory::budget::{Budget, Use};
use crate::run::{Run, RunOptions};
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::block::BlockKind;

#[test]
fn a_block_holds_32_usual_records() {
    let storage = storage();
    let mut rng = Rng::new(1);
    let model: Model = (0..30_000)
        .map(|_| (rng.next_u64().to_be_bytes().to_vec(), Owned::Put(vec![7; 120])))
        .collect();
    let reference = build(&storage, &model, RunOptions::default());
    let blocks = u64::from(reference.data_blocks);
    // In a few blocks the keys share no prefix.
    assert!(reference.entries * 100 > blocks * 3160, "{} in {blocks}", reference.entries);
    // Index, filter and all take less than 3% on top.
    assert!(u64::from(reference.extent.blocks) * 100 <= blocks * 103);
    assert_eq!(reference.index_levels, 2);
}

#[test]
fn medium_values_waste_little() {
    let storage = storage();
    let mut rng = Rng::new(2);
    for value in [
        400_usize, 700, 1000, 1500, 2100, 3000, 4000, 4200, 5000, 7000, 9000, 13_000, 20_000,
        32_000,
    ] {
        let model: Model = (0..600)
            .map(|_| (rng.next_u64().to_be_bytes().to_vec(), Owned::Put(vec![7; value])))
            .collect();
        let reference = build(&storage, &model, RunOptions::default());
        let used = reference.user_bytes as f64;
        let taken = f64::from(reference.data_blocks) * 4096.0;
        // Small values may leave an eighth of each block unused, for then one block has all of a
        // value.
        let most = if value < 1000 { 1.15 } else { 1.06 };
        assert!(taken <= used * most, "{value}: {taken} for {used}");
        storage.free(reference.extent).unwrap();
    }
}

#[test]
fn a_get_reads_the_blocks_of_its_value_alone() {
    let storage = storage();
    let mut rng = Rng::new(4);
    for (value, most) in
        [(120_usize, 1.0), (400, 1.0), (1000, 1.3), (2100, 1.6), (4000, 2.0), (16_000, 5.0)]
    {
        let model: Model = (0..600)
            .map(|_| (rng.next_u64().to_be_bytes().to_vec(), Owned::Put(vec![7; value])))
            .collect();
        let run = Run::open(&storage, build(&storage, &model, RunOptions::default()));
        let spans = model.keys().map(|key| run.locate(key).unwrap().unwrap().blocks);
        let mean = f64::from(spans.sum::<u32>()) / model.len() as f64;
        assert!(mean <= most, "{value}: {mean} blocks for a get");
        storage.free(run.reference().extent).unwrap();
    }
}

#[test]
fn the_largest_entries_in_any_order_keep_spans_within_their_limit() {
    let storage = storage();
    let mut rng = Rng::new(3);
    for round in 0..30 {
        let sizes = [1, 500, 5000, KEY_BYTES_MAX / 2, KEY_BYTES_MAX];
        let values = [0, 3000, 20_000, LARGE_VALUE_BYTES_MIN - 1];
        let model: Model = (0..40_u8)
            .map(|number| {
                let mut key = vec![number];
                key.resize(sizes[super::below(&mut rng, sizes.len())], number);
                let value = values[super::below(&mut rng, values.len())];
                (key, Owned::Put(vec![number; value]))
            })
            .collect();
        let reference = build(&storage, &model, RunOptions::default());
        let findings = super::verify(&Run::open(&storage, reference)).findings;
        assert!(findings.is_empty(), "{round}: {findings:?}");
        storage.free(reference.extent).unwrap();
    }
}

#[test]
fn a_single_block_has_no_index_and_no_filter() {
    let storage = storage();
    let model: Model = (0..20_u8).map(|key| (vec![key], Owned::Put(vec![key; 50]))).collect();
    for filter in [FilterKind::Bloom, FilterKind::Quotient] {
        let reference = build(&storage, &model, super::options(filter));
        assert_eq!(reference.extent.blocks, 1);
        assert_eq!(reference.index_levels, 0);
        let _ = Run::open(&storage, reference);
    }
}

#[test]
fn filters_and_storage_agree_on_the_kind_of_a_block() {
    assert_eq!(BLOCK_KIND_FILTER, BlockKind::Filter as u8);
}

/// Records the peak memory of the check.
struct Watch {
    budget: Arc<Budget>,
    most: u64,
}

impl CheckReport for Watch {
    fn blocks(&mut self, _count: u64) {
        self.most = self.most.max(self.budget.used_by(Use::Work));
    }

    fn entries(&mut self, _count: u64) {
        self.blocks(0);
    }

    fn finding(&mut self, error: Error) {
        panic!("{error}");
    }
}

#[test]
fn what_a_check_remembers_is_counted() {
    let storage = storage();
    let model: Model =
        (0..40_000_u64).map(|n| (n.to_be_bytes().to_vec(), Owned::Put(vec![7; 20]))).collect();
    let reference = build(&storage, &model, RunOptions::default());
    let budget = storage.budget();
    let mut watch = Watch { budget: Arc::clone(budget), most: 0 };
    let before = budget.used_by(Use::Work);
    Run::open(&storage, reference).verify(&mut watch).unwrap();
    // One hash per entry, and 256 KiB of blocks.
    let least = 8 * reference.entries + (256 << 10);
    assert!(watch.most - before >= least, "{} bytes, not {least}", watch.most - before);
    assert_eq!(budget.used_by(Use::Work), before);
}
