//! Large values, and walks over everything that a tree refers to.

use super::*;

#[test]
fn large_values_live_as_long_as_a_run_lists_them() {
    let mut rng = Rng::new(6);
    let mut world = World::new(tiny(), 1);
    let large = |world: &World| Item::Large(world.storage.write_large(&[7; 5000]).unwrap());
    let mut batch = uniform(&mut rng, 600);
    for number in 0..50 {
        batch.insert(key_of(number << 56), large(&world));
    }
    world.absorb(batch);
    for round in 0..60 {
        let mut batch = uniform(&mut rng, 60);
        batch.insert(key_of(rng.below(50) << 56), large(&world));
        batch.insert(key_of(rng.below(50) << 56), Item::Deleted);
        world.absorb(batch);
        if round % 10 == 0 {
            world.reopen();
            world.check(&mut rng);
        }
    }
    for _ in 0..2 {
        let mut keys: Vec<_> = world.model.keys().cloned().collect();
        keys.push(key_of(5));
        world.absorb(keys.into_iter().map(|key| (key, Item::Deleted)).collect());
    }
    assert_eq!(world.owned.len(), 0);
}

#[test]
fn a_walk_over_references_remembers_only_what_it_can_meet_twice() {
    let mut rng = Rng::new(15);
    let mut world = World::new(tiny(), 1);
    let walk = |world: &World, window: u64| {
        let (mut runs, mut large) = (0, Vec::new());
        let (shared, root) = (&world.tree.shared, &world.tree.newest().root);
        let memory = walk_references(&shared.node_cache, root, window, &mut |met| {
            match met {
                Met::Run(_) => runs += 1,
                Met::Large(value, is_first) => large.push((value.extent.start, is_first)),
                Met::Node(_) => {}
            }
            Ok(())
        });
        large.sort_unstable();
        (memory.unwrap(), runs, large)
    };
    for _ in 0..10 {
        world.absorb(uniform(&mut rng, 300));
    }
    let (memory, runs, _) = walk(&world, 4096);
    assert!(runs > 100 && memory.shared.len() < runs / 5, "{} of {runs}", memory.shared.len());
    assert_eq!((memory.chunks_max, memory.walks), (0, 1));
    for round in 0..30 {
        let mut batch = uniform(&mut rng, 40);
        for number in 0..100 {
            let large = world.storage.write_large(&[7; 200_000]).unwrap();
            batch.insert(key_of(rng.below(1000) << 54 | number), Item::Large(large));
        }
        world.absorb(batch);
        if round % 10 == 9 {
            let (whole, _, all) = walk(&world, 1 << 40);
            assert_eq!(whole.walks, 1);
            let (memory, _, again) = walk(&world, 4096);
            assert_eq!(memory.chunks_max, 1);
            assert!(memory.walks > 5, "{} walks", memory.walks);
            assert_eq!(memory.shared, whole.shared);
            assert_eq!(again, all);
        }
    }
}
