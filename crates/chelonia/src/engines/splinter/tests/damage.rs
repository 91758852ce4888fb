//! Unreadable blocks stop neither absorbs nor merges, and hide no more than their contents.

use super::{World, tiny};
use crate::engine::Engine;
use crate::engine::tests::uniform;
use crate::engine::tests::world::Model;
use crate::runtime::rng::Rng;
use crate::storage::block::BlockKind;
use crate::storage::io::{Access, Directory, OpenMode};

/// Damages a data block of one run in `every`; returns their number.
pub fn damage_every(world: &World, every: usize, rng: &mut Rng) -> usize {
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    let mut count = 0;
    for owned in world.owned.iter().step_by(every) {
        let offset = owned.extent.offset();
        let mut byte = [0];
        file.read_at(&mut byte, offset + 8).unwrap();
        if byte[0] == BlockKind::Data as u8 {
            let place = offset + 100 + rng.below(3_000);
            file.read_at(&mut byte, place).unwrap();
            file.write_at(&[byte[0] ^ 0x40], place).unwrap();
            count += 1;
        }
    }
    count
}

#[test]
fn a_damaged_tree_takes_updates_and_merges_around_the_damage() {
    let mut rng = Rng::new(81);
    let mut world = World::new(tiny(), 1);
    for _ in 0..20 {
        world.absorb(uniform(&mut rng, 120));
        world.maintain();
    }
    assert!(damage_every(&world, 3, &mut rng) > 3);
    world.is_damaged = true;
    world.model = Model::new();
    world.reopen();
    for round in 0..60 {
        world.absorb(uniform(&mut rng, 60));
        if round % 4 == 0 {
            world.maintain();
        }
    }
    assert!(world.event("merges_done") > 60);
    // Everything that was written since is there.
    let version = world.tree.version();
    for (key, item) in &world.model {
        let hash = world.storage.key_hash(key);
        let found = version.get(key, hash).unwrap().found;
        assert_eq!(found, Some(crate::engine::tests::world::found(item)));
    }
}
