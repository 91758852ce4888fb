//! Unreadable blocks stop neither absorbs nor merges, and hide no more than their contents.

use super::{World, tiny};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::tests::world::{Item, Model};
use crate::engine::tests::{key_of, uniform};
use crate::engine::{Engine, OwnedExtent};
use crate::engines::splinter::SplinterConfig;
use crate::runtime::rng::Rng;
use crate::storage::block::BlockKind;
use crate::storage::io::fault::{Call, Fault};
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

/// Damages the dictionary of one run in `every`; returns their number.
fn damage_dictionaries(world: &World, every: usize) -> usize {
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    let last_block = |owned: &OwnedExtent| {
        let blocks = owned.extent.start.0 + u64::from(owned.extent.blocks);
        (blocks - 1) * BLOCK_BYTES_U64
    };
    let mut byte = [0];
    let places = world.owned.iter().map(last_block).filter(|block| {
        file.read_at(&mut byte, block + 8).unwrap();
        byte[0] == BlockKind::Dictionary as u8
    });
    let places: Vec<u64> = places.step_by(every).collect();
    for place in &places {
        file.write_at(&[0xee], place + 30).unwrap();
    }
    places.len()
}

#[test]
fn a_damaged_tree_takes_updates_and_merges_around_the_damage() {
    take_updates_around(false, &|world, rng| damage_every(world, 3, rng));
}

#[test]
fn damaged_dictionaries_are_merged_around() {
    take_updates_around(true, &|world, _| damage_dictionaries(world, 2));
}

fn take_updates_around(compresses: bool, damage: &dyn Fn(&World, &mut Rng) -> usize) {
    let mut rng = Rng::new(81);
    let mut world = World::new(tiny(), 1);
    world.compresses = compresses;
    for _ in 0..20 {
        world.absorb(uniform(&mut rng, 120));
        world.maintain();
    }
    assert!(damage(&world, &mut rng) > 3);
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

/// Looking whether a branch lies beside older ones reads these; an absorb does not need to know.
#[test]
fn a_device_that_cannot_read_fails_no_absorb() {
    for readable in [true, false] {
        let mut world = World::new(SplinterConfig { branch_bytes: 1 << 20, ..tiny() }, 1);
        let absorb = |world: &mut World, first: u64| {
            let value = Item::Value(vec![7; 92]);
            let keys = first..first + 40;
            world.absorb(keys.map(|number| (key_of(number), value.clone())).collect());
        };
        absorb(&mut world, 0);
        world.reopen();
        absorb(&mut world, 100);
        assert_eq!(world.event("trivial_moves"), 1);
        if !readable {
            world.faults.fail(Fault::sticky(Call::Read, 0));
        }
        absorb(&mut world, 200);
        world.faults.heal();
        assert_eq!(world.event("trivial_moves"), 1 + u64::from(readable));
        world.check(&mut Rng::new(82));
    }
}
