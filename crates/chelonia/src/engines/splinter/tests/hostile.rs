//! Damaged and forged trees, and awkward updates.

use super::{World, tiny};
use crate::base::error::ErrorKind;
use crate::buffer_tree::codec::{RootBlob, encode_node};
use crate::buffer_tree::node::Node;
use crate::engine::Engine;
use crate::engine::tests::jobs::work;
use crate::engine::tests::world::absorb_into;
use crate::engine::tests::{hostile, uniform, value};
use crate::engines::splinter::{Splinter, SplinterConfig};
use crate::runtime::rng::Rng;
use crate::storage::block::BlockKind;
use crate::storage::io::{Access, Directory, OpenMode};
use crate::storage::quota::UNLIMITED;
use crate::structure::NodeRef;

#[test]
fn damaged_and_forged_trees_are_reported() {
    hostile::battery::<Splinter>(SplinterConfig { branch_bytes: 1_200, ..tiny() });
}

/// One run lies in two levels of a pivot.
#[test]
fn a_forged_node_is_not_merged_for_ever() {
    let mut rng = Rng::new(9);
    let mut world = World::new(tiny(), 1);
    let workers = world.workers;
    for count in [1, 30, 1, 1, 1, 1, 1, 1, 1, 1, 1] {
        world.absorb(uniform(&mut rng, count));
    }
    let version = world.tree.newest();
    let root = version.shared.node_cache.load_owned(&version.root).unwrap();
    let mut pivots = root.pivots.clone();
    let oldest = pivots[0].parts.len() - 1;
    assert_eq!((root.height, pivots.len(), oldest), (1, 1, 10));
    pivots[0].parts.edit(|parts| parts[oldest] = parts[0].at_level(10));
    let node = Node::new(1, pivots);
    let bytes = encode_node(&node);
    let reference = NodeRef::write(&world.storage, &UNLIMITED, &bytes, |_| {}).unwrap();
    let blob = RootBlob {
        height: 1,
        reference: Some(reference),
        summary: node.summary(),
        disk_blocks: version.disk_blocks,
    };
    let tree = Splinter::open(&world.storage, world.options, Some(&blob.encode())).unwrap();
    let mut dropped = 0;
    while let Ok(Some(mut job)) = tree.plan(&work(&workers)) {
        if job.run(&work(&workers)).is_err() {
            break;
        }
        dropped += u64::from(job.install(&work(&workers)).is_ok_and(|done| done.is_none()));
        assert!(dropped < 100, "the same job is planned again and again");
    }
}

/// Fewer updates than pieces of a merge.
#[test]
fn few_heavy_updates_are_cut() {
    let mut rng = Rng::new(5);
    let mut world = World::new(SplinterConfig { branch_bytes: 1024, ..tiny() }, 4);
    for round in 0..10 {
        let key = |n: u8| [&[n; 60_000][..], &[round]].concat();
        world.absorb((0..3_u8).map(|n| (key(n), value(&mut rng, 30_000))).collect());
    }
    world.check(&mut rng);
}

/// The background, which plans merges, must not fail for a node that nobody reads.
#[test]
fn an_unreadable_node_stops_no_plan() {
    let mut rng = Rng::new(7);
    let mut world = World::new(tiny(), 1);
    let workers = world.workers;
    for _ in 0..30 {
        world.absorb(uniform(&mut rng, 100));
        world.maintain();
    }
    assert!(world.tree.stats().height > 1);
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    let blob = world.tree.root().unwrap();
    let root = RootBlob::decode(&blob).unwrap().reference.unwrap().extent;
    for owned in &world.owned {
        let mut byte = [0];
        file.read_at(&mut byte, owned.extent.offset() + 8).unwrap();
        if byte[0] == BlockKind::Engine as u8 && owned.extent != root {
            file.write_at(&[0xff; 100], owned.extent.offset() + 1_000).unwrap();
        }
    }
    let tree = Splinter::open(&world.storage, world.options, Some(&blob)).unwrap();
    assert!(tree.wants_maintenance());
    assert!(tree.plan(&work(&workers)).unwrap().is_none());
    assert!(!tree.wants_maintenance(), "or it would be planned again and again");
    let batch = uniform(&mut rng, 10);
    let error = absorb_into(&tree, batch, &workers).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
