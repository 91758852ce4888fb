//! Reads while the tree changes, and reads of many keys together.

use super::*;

#[test]
fn readers_go_on_while_the_tree_changes() {
    let mut rng = Rng::new(10);
    let mut world = World::with_memory(tiny(), 2, 4 << 20);
    world.absorb(uniform(&mut rng, 1500));
    let constant = world.model.clone();
    let done = AtomicBool::new(false);
    let tree = Arc::new(std::mem::replace(
        &mut world.tree,
        super::Turtle::open(&world.storage, tiny(), None).unwrap(),
    ));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (tree, constant, done, storage) = (&tree, &constant, &done, &world.storage);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let keys: Vec<_> = constant.keys().collect();
                while !done.load(Ordering::Relaxed) {
                    let version = tree.version();
                    for _ in 0..50 {
                        let key = keys[rng.below(keys.len() as u64) as usize];
                        let found = version.get(key, storage.key_hash(key)).unwrap();
                        assert_eq!(found.found, Some(world::found(&constant[key])));
                    }
                    let seen = world::count(&version);
                    assert!(seen >= constant.len());
                }
            });
        }
        // Only other keys change, and no space is freed: readers may hold any version.
        for _ in 0..30 {
            let mut batch = uniform(&mut rng, 200);
            batch.retain(|key, _| !constant.contains_key(key));
            world::absorb_into(&*tree, batch, &world.workers).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn neighbours_that_are_got_together_read_each_block_once() {
    let mut rng = Rng::new(14);
    let options = TurtleConfig { leaf_bytes: 256 << 10, ..tiny() };
    let mut world = World::new(options, 1);
    world.absorb((0..2000).map(|n| (key_of(n), value(&mut rng, 92))).collect());
    world.reopen();
    let version = world.tree.version();
    // The nodes, and the path to the leaf; each read prefetches a few adjacent blocks.
    version.get(&key_of(1500), world.storage.key_hash(&key_of(1500))).unwrap();
    let keys: Vec<_> = (100..160).map(key_of).collect();
    let asked: Vec<_> =
        keys.iter().map(|key| (key.as_slice(), world.storage.key_hash(key))).collect();
    let before = world.storage.stats().file.blocks_read;
    assert!(version.multi_get(&asked).unwrap().iter().all(|answer| answer.found.is_some()));
    let after = world.storage.stats().file.blocks_read;
    let read = |kind: BlockKind| after[kind as usize] - before[kind as usize];
    // 60 entries of 100 bytes lie in two or three blocks.
    assert!((2..=3).contains(&read(BlockKind::Data)), "{} data blocks", read(BlockKind::Data));
    assert!(read(BlockKind::Filter) <= 1, "{} filter blocks", read(BlockKind::Filter));
}

#[test]
fn any_number_of_keys_is_got_together_from_a_cold_tree() {
    let mut rng = Rng::new(15);
    // No filters: newer runs are searched unnecessarily, in further rounds.
    let run = RunOptions { filter: FilterKind::Bloom, bits_per_key: 0 };
    for run in [tiny().run, run] {
        let mut world = World::new(TurtleConfig { leaf_bytes: 64 << 10, run, ..tiny() }, 1);
        for step in [1, 3, 7] {
            world.absorb(
                (0..3000).step_by(step).map(|n| (key_of(n), value(&mut rng, 60))).collect(),
            );
        }
        for count in [0, 1, 31, 32, 33, 64, 128, 129, 1000] {
            world.reopen();
            let keys: Vec<_> = (0..count).map(|_| key_of(rng.below(4000))).collect();
            let asked: Vec<_> =
                keys.iter().map(|key| (key.as_slice(), world.storage.key_hash(key))).collect();
            let answers = world.tree.version().multi_get(&asked).unwrap();
            assert_eq!(answers.len(), keys.len());
            for (key, answer) in keys.iter().zip(answers) {
                assert_eq!(answer.found, world.model.get(key).map(found), "{count} of {key:?}");
            }
        }
    }
}
