//! Tests of pages: reads of a lookup, slots, snapshots.

use super::{TreelineConfig, World, sweep, tiny};
use crate::engine::Engine;
use crate::engine::tests::{key_of, uniform, value};
use crate::runtime::rng::Rng;

/// A tree with all entries in pages, opened again.
fn settled(rng: &mut Rng, count: usize) -> World {
    let mut world = World::new(tiny(), 1);
    world.tree.expect_updates(false);
    world.absorb(uniform(rng, count));
    world.maintain();
    world
}

#[test]
fn a_lookup_reads_one_page() {
    let mut rng = Rng::new(21);
    let mut world = settled(&mut rng, 4_000);
    world.reopen();
    let version = world.tree.version();
    let keys: Vec<Vec<u8>> = world.model.keys().step_by(97).cloned().collect();
    // The nodes, not the pages.
    version.extents(&mut |_| Ok(())).unwrap();
    for key in keys {
        let before = world.storage.stats().file.reads;
        let found = version.get(&key, world.storage.key_hash(&key)).unwrap().found;
        assert!(found.is_some());
        let reads = world.storage.stats().file.reads - before;
        assert!(reads <= 1, "{reads} reads");
    }
}

#[test]
fn few_updates_write_few_pages_in_their_groups() {
    let mut rng = Rng::new(22);
    let mut world = settled(&mut rng, 4_000);
    let keys: Vec<Vec<u8>> = world.model.keys().cloned().collect();
    let disk_bytes = world.tree.stats().disk_bytes;
    let (in_place, rewritten) = (world.event("pages_in_place"), world.event("groups_rewritten"));
    for round in 0..50 {
        let key = keys[round * 79 % keys.len()].clone();
        world.absorb([(key, value(&mut rng, 92))].into());
        sweep(&mut world);
        world.check(&mut rng);
    }
    assert_eq!(world.event("pages_in_place"), in_place + 50);
    assert_eq!(world.event("groups_rewritten"), rewritten);
    assert_eq!(world.tree.stats().disk_bytes, disk_bytes);
}

#[test]
fn a_snapshot_keeps_the_slots_it_sees() {
    let mut rng = Rng::new(23);
    let mut world = settled(&mut rng, 400);
    let keys: Vec<Vec<u8>> = world.model.keys().cloned().collect();
    let one_page = |world: &mut World, rng: &mut Rng| {
        world.absorb([(keys[0].clone(), value(rng, 92))].into());
        sweep(world);
        world.check(rng);
    };
    let before = world.event("groups_rewritten");
    world.hold();
    one_page(&mut world, &mut rng);
    // The group has one spare slot, and the snapshot has the other image of the page.
    one_page(&mut world, &mut rng);
    assert_eq!(world.event("groups_rewritten"), before + 1);
    world.release(0);
    for _ in 0..5 {
        one_page(&mut world, &mut rng);
    }
    assert_eq!(world.event("groups_rewritten"), before + 1);
}

#[test]
fn sequential_keys_fill_pages() {
    let mut rng = Rng::new(24);
    let mut world = World::new(tiny(), 1);
    for batch in 0..40_u64 {
        let keys = batch * 80..batch * 80 + 80;
        world.absorb(keys.map(|n| (key_of(n), value(&mut rng, 92))).collect());
        world.maintain();
    }
    world.tree.expect_updates(false);
    world.maintain();
    world.check(&mut rng);
    let stats = world.tree.stats();
    let space = stats.disk_bytes as f64 / stats.leaf_bytes as f64;
    assert!(space < 2.0, "{space}");
}

#[test]
fn a_full_page_is_divided_within_its_group() {
    let mut rng = Rng::new(25);
    let options = TreelineConfig { group_pages: 16, fill_percent: 100, ..tiny() };
    let mut world = World::new(options, 1);
    world.tree.expect_updates(false);
    world.absorb((0..2_000_u64).map(|n| (key_of(n << 8), value(&mut rng, 92))).collect());
    world.maintain();
    let (before, disk_bytes) = (world.event("groups_rewritten"), world.tree.stats().disk_bytes);
    for batch in 0..3 {
        world.absorb((1..4_u64).map(|n| (key_of(batch << 16 | n), value(&mut rng, 92))).collect());
        sweep(&mut world);
        world.check(&mut rng);
    }
    assert_eq!((world.event("page_splits"), world.event("groups_rewritten")), (3, before));
    assert_eq!(world.tree.stats().disk_bytes, disk_bytes);
}

#[test]
fn a_page_that_begins_with_a_large_record_is_divided_behind_it() {
    let mut rng = Rng::new(26);
    let mut world = World::new(TreelineConfig { group_pages: 16, ..tiny() }, 1);
    world.tree.expect_updates(false);
    // One record in each page: it takes more than a part of a divided page does.
    world.absorb((0..16_u64).map(|n| (key_of(n << 8), value(&mut rng, 3_500))).collect());
    world.maintain();
    let before = world.event("groups_rewritten");
    world.absorb([(key_of(5 << 8 | 1), value(&mut rng, 900))].into());
    sweep(&mut world);
    world.check(&mut rng);
    assert_eq!((world.event("page_splits"), world.event("groups_rewritten")), (1, before));
    world.reopen();
    world.check(&mut rng);
}

#[test]
fn nodes_of_large_pages_have_no_more_bytes_than_is_kept_for_a_sweep_of_one() {
    let mut rng = Rng::new(27);
    let options = TreelineConfig { checkpoint_distance: 1 << 20, sweep_bytes: 1 << 20, ..tiny() };
    let mut world = World::new(options, 1);
    world.tree.expect_updates(false);
    // Pages of several blocks.
    world.absorb((0..120_u64).map(|n| (key_of(n << 8), value(&mut rng, 3_000))).collect());
    world.maintain();
    world.check(&mut rng);
    let version = world.tree.newest();
    let mut groups_most = 0;
    for listed in &version.parts.directory.nodes {
        let node = version.shared.node_cache.load_owned(&listed.slot).unwrap();
        let bytes: u64 = node.items.iter().map(super::super::node::Item::disk_bytes).sum();
        let groups = node.items.len();
        assert!(groups == 1 || bytes <= options.node_bytes_max(), "{groups} groups, {bytes}");
        groups_most = groups_most.max(groups);
    }
    assert!((1..options.node_groups).contains(&groups_most), "{groups_most}");
    assert!(world.tree.stats().leaves > options.node_groups as u64);
}
