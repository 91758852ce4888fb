//! Tests of images in homes: what crashes, failures and the device leave in them.

use super::{Bminus, BminusConfig, World, tiny};
use crate::base::error::{ErrorKind, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::SortedStream;
use crate::engine::tests::world::{Item, Model, Report, Tried, absorb_into, check_scans};
use crate::engine::tests::{key_of, value};
use crate::engine::{Engine, Version};
use crate::pages::homes::PLACES;
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::io::fault::{Call, Fault};
use crate::storage::io::{Access, Directory, OpenMode};

/// Updates of some of 400 keys.
fn some(rng: &mut Rng, count: u64) -> Model {
    let update = |rng: &mut Rng| match rng.below(12) {
        0 => Item::Deleted,
        _ => value(rng, 40),
    };
    (0..count).map(|_| (key_of(rng.below(400)), update(rng))).collect()
}

fn apply(model: &mut Model, batch: &Model) {
    for (key, item) in batch {
        match item {
            Item::Deleted => model.remove(key),
            item => model.insert(key.clone(), item.clone()),
        };
    }
}

/// A tree whose pages have images in all places.
fn grown(options: BminusConfig, rng: &mut Rng) -> World {
    let mut world = World::new(options, 1);
    for _ in 0..12 {
        world.absorb(some(rng, 150));
        world.absorb(some(rng, 5));
    }
    world
}

/// Opens the tree anew beside the other one: nothing is known of its homes.
fn open(world: &World) -> Result<Bminus> {
    Bminus::open_tried(&world.storage, world.options, Some(&world.tree.root().unwrap()))
}

fn scan(version: &Arc<dyn Version>) -> Result<Model> {
    let mut found = Model::new();
    scan_into(version, &mut found).map(|()| found)
}

/// Scans until the end, or the first error.
fn scan_into(version: &Arc<dyn Version>, found: &mut Model) -> Result<()> {
    let mut cursor = Arc::clone(version).cursor(KeyRange::all(), Direction::Ascending)?;
    while let Some(key) = cursor.key() {
        found.insert(key.to_vec(), Item::of(cursor.update()));
        cursor.advance()?;
    }
    Ok(())
}

fn findings(tree: &Bminus) -> usize {
    let mut report = Report::default();
    tree.version().verify(&mut report).unwrap();
    report.findings.len()
}

#[test]
fn nothing_of_a_failed_absorb_is_ever_believed() {
    for options in [tiny(), BminusConfig { shadow: false, ..tiny() }] {
        let mut rng = Rng::new(11);
        let mut world = grown(options, &mut rng);
        let mut failed = 0;
        for after in 0..24 {
            let before = world.storage.stats().space.used_blocks;
            world.faults.fail(Fault::once(Call::Write, after % 12));
            let batch = some(&mut rng, 60);
            let result = world.try_absorb(&batch);
            world.faults.heal();
            match result {
                Ok(absorbed) => world.note(&batch, absorbed),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
                    assert_eq!(world.storage.stats().space.used_blocks, before);
                    failed += 1;
                }
            }
            world.check(&mut rng);
            // A later version is newer than what the failed one has left.
            world.absorb(some(&mut rng, 3));
            let again = open(&world).unwrap();
            check_scans(&again.version(), &world.model);
            assert_eq!(findings(&again), 0);
            if after % 6 == 5 {
                world.reopen();
            }
        }
        assert!(failed > 5, "{failed}");
    }
}

#[test]
fn a_crash_leaves_the_durable_version_and_nothing_else() {
    for (seed, options) in [(1, tiny()), (2, BminusConfig { shadow: false, ..tiny() })] {
        let mut rng = Rng::new(seed);
        let world = grown(options, &mut rng);
        let (mut model, mut tree) = (world.model.clone(), open(&world).unwrap());
        for round in 0..30 {
            let blob = tree.root().unwrap();
            let (durable, kept) = (tree.version(), model.clone());
            for _ in 0..1 + rng.below(4) {
                let batch = some(&mut rng, 40);
                // Nothing is freed: the extents of lost versions stay.
                drop(absorb_into(&tree, batch.clone(), &world.workers).unwrap());
                apply(&mut model, &batch);
            }
            check_scans(&tree.version(), &model);
            check_scans(&durable, &kept);
            if round % 3 == 0 {
                // Nothing is known any more of the absorbs before the crash.
                drop(durable);
                tree = Bminus::open_tried(&world.storage, options, Some(&blob)).unwrap();
                model = kept;
                check_scans(&tree.version(), &model);
                assert_eq!(findings(&tree), 0);
            }
        }
    }
}

#[test]
fn damage_is_found_where_it_matters_and_only_there() {
    let mut rng = Rng::new(5);
    let world = grown(tiny(), &mut rng);
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    let (mut found, mut passed) = (0, 0);
    let newest = world.tree.newest();
    for listed in &newest.parts.directory.nodes {
        let node = newest.shared.node_cache.load_owned(&listed.slot).unwrap();
        for page in 0..node.pages.len() {
            let (region, home) = node.home_of(page);
            for place in 0..u8::try_from(PLACES).unwrap() {
                let block = region.place_of(home, place).start.0;
                let offset = block * 4096 + rng.below(4096);
                let mut byte = [0];
                file.read_at(&mut byte, offset).unwrap();
                file.write_at(&[byte[0] ^ 4], offset).unwrap();
                let tree = open(&world).unwrap();
                match scan(&tree.version()) {
                    Ok(scanned) => {
                        assert_eq!(scanned, world.model);
                        assert_eq!(findings(&tree), 0);
                        passed += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
                        assert_eq!(error.offset().map(|at| at / 4096), Some(block), "{error:?}");
                        assert!(findings(&tree) > 0);
                        let mut before = Model::new();
                        scan_into(&tree.version(), &mut before).unwrap_err();
                        let first = node.pages[page].first.to_bytes().to_vec();
                        let expected = world.model.range(..first);
                        assert!(before.iter().eq(expected), "all before the page, and no more");
                        found += 1;
                    }
                }
                file.write_at(&byte, offset).unwrap();
            }
        }
    }
    assert!(found > 8 && passed > 8, "{found} {passed}");
    assert!(world.tree.shared.counters.settled.load(crate::runtime::sync::Ordering::Relaxed) == 0);
    assert_eq!(findings(&open(&world).unwrap()), 0);
}

#[test]
fn a_write_that_the_device_lost_is_found() {
    let mut rng = Rng::new(6);
    let mut world = grown(tiny(), &mut rng);
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    let mut whole = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    file.read_at(&mut whole, 0).unwrap();
    let batch: Model = (0..400).step_by(50).map(|key| (key_of(key), value(&mut rng, 40))).collect();
    world.absorb(batch.clone());
    let newest = world.tree.newest();
    let mut lost = 0;
    for key in batch.keys() {
        let place = newest.parts.directory.node_of(key).unwrap();
        let listed = &newest.parts.directory.nodes[place];
        let node = newest.shared.node_cache.load_owned(&listed.slot).unwrap();
        let (region, home) = node.home_of(node.page_of(key));
        let image = region.image(home, &newest.parts.view, listed.facts.changed).unwrap();
        if image.stamp != newest.parts.view.stamp {
            continue;
        }
        let blocks = region.layout().blocks_of(image.delta.unwrap_or(image.slot));
        let start = (region.number_of(home).0 + u64::from(blocks.start)) * 4096;
        let mut new = vec![0; blocks.len() * 4096];
        file.read_at(&mut new, start).unwrap();
        let at = usize::try_from(start).unwrap();
        if at + new.len() > whole.len() {
            continue;
        }
        file.write_at(&whole[at..at + new.len()], start).unwrap();
        let again = open(&world).unwrap();
        assert!(findings(&again) > 0, "verify adds the stamps up");
        // The process that wrote it knows what must be there.
        let found = newest.verify_page(key);
        assert_eq!(found.unwrap_err().kind(), ErrorKind::Corrupt);
        file.write_at(&new, start).unwrap();
        newest.verify_page(key).unwrap();
        lost += 1;
    }
    assert!(lost > 3, "{lost}");
}

#[test]
fn a_slot_that_lost_the_base_of_a_delta_is_found_by_the_first_read() {
    let mut rng = Rng::new(7);
    let world = grown(tiny(), &mut rng);
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    let newest = world.tree.newest();
    let mut lost = 0;
    for listed in &newest.parts.directory.nodes {
        let node = newest.shared.node_cache.load_owned(&listed.slot).unwrap();
        for page in 0..node.pages.len() {
            let (region, home) = node.home_of(page);
            let image = region.image(home, &newest.parts.view, listed.facts.changed);
            let Some(image) = image.filter(|image| image.delta.is_some()) else { continue };
            let slot = region.place_of(home, image.slot);
            let mut bytes = vec![0; usize::try_from(slot.bytes()).unwrap()];
            file.read_at(&mut bytes, slot.offset()).unwrap();
            file.write_at(&vec![0; bytes.len()], slot.offset()).unwrap();
            let error = scan(&open(&world).unwrap().version()).unwrap_err();
            assert_eq!(error.offset(), Some(slot.offset()), "{error}");
            file.write_at(&bytes, slot.offset()).unwrap();
            lost += 1;
        }
    }
    assert!(lost > 3, "{lost}");
    assert_eq!(scan(&open(&world).unwrap().version()).unwrap(), world.model);
}

impl super::BminusVersion {
    /// Reads the page of `key` from the device, where it is known to be.
    fn verify_page(&self, key: &[u8]) -> Result<()> {
        use crate::pages::homes::{Wanted, read_bytes, read_homes};
        let listed = &self.parts.directory.nodes[self.parts.directory.node_of(key).unwrap()];
        let node = self.shared.node_cache.load_owned(&listed.slot)?;
        let (region, home) = node.home_of(node.page_of(key));
        let image = region.image(home, &self.parts.view, listed.facts.changed);
        let wanted = Wanted { region, home, view: &self.parts.view, image };
        let mut buffer = crate::storage::io::AlignedBuffer::new(read_bytes(&wanted));
        read_homes(self.storage(), &[wanted], &mut buffer)?.remove(0).map(drop)
    }
}

#[test]
fn what_crashes_left_is_cleared_so_that_the_list_of_dead_stamps_stays_short() {
    for options in [tiny(), BminusConfig { shadow: false, ..tiny() }] {
        let mut rng = Rng::new(8);
        let mut world = grown(options, &mut rng);
        let mut most = 0;
        for round in 0..150 {
            world.faults.fail(Fault::once(Call::Write, 1 + round % 4));
            drop(world.try_absorb(&some(&mut rng, 60)));
            world.faults.heal();
            world.absorb(some(&mut rng, 20));
            most = most.max(world.tree.newest().parts.view.dead.ranges());
            if round % 5 == 4 {
                world.maintain();
                world.reopen();
                check_scans(&world.tree.version(), &world.model);
            }
        }
        assert!((33..60).contains(&most), "{most} ranges");
        world.check(&mut rng);
    }
}

/// Lets absorbs fail until it is due that the dead stamps are cleared.
fn fail_often(world: &mut World, rng: &mut Rng) {
    for after in (1..=4).cycle() {
        if world.tree.is_clearing_due() {
            return;
        }
        world.faults.fail(Fault::once(Call::Write, after));
        drop(world.try_absorb(&some(rng, 60)));
        world.faults.heal();
        world.absorb(some(rng, 3));
    }
}

#[test]
fn clearing_before_the_first_absorb_makes_nothing_believed_that_a_crash_left() {
    for options in [tiny(), BminusConfig { shadow: false, ..tiny() }] {
        let mut rng = Rng::new(9);
        let mut world = grown(options, &mut rng);
        let mut cleared = 0;
        while cleared < 4 {
            fail_often(&mut world, &mut rng);
            // A crash leaves nearly all of an absorb.
            let blob = world.tree.root().unwrap();
            let durable = world.tree.version();
            drop(world.try_absorb(&some(&mut rng, 60)).unwrap());
            drop(durable);
            world.tree = Bminus::open_tried(&world.storage, options, Some(&blob)).unwrap();
            cleared += world.maintain();
            world.absorb(some(&mut rng, 3));
            let again = open(&world).unwrap();
            assert_eq!(scan(&again.version()).unwrap(), world.model);
            assert_eq!(findings(&again), 0);
        }
    }
}

#[test]
fn a_torn_write_that_becomes_whole_after_its_stamp_was_cleared_is_not_believed() {
    let mut rng = Rng::new(10);
    let mut world = grown(tiny(), &mut rng);
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    for round in 0..12 {
        fail_often(&mut world, &mut rng);
        let blob = world.tree.root().unwrap();
        let durable = world.tree.version();
        drop(world.try_absorb(&some(&mut rng, 60)).unwrap());
        let crashed = world.tree.newest();
        // The last sector of each place that it wrote is lost.
        let mut lost = Vec::new();
        for listed in &crashed.parts.directory.nodes {
            let node = crashed.shared.node_cache.load_owned(&listed.slot).unwrap();
            for page in 0..node.pages.len() {
                let (region, home) = node.home_of(page);
                let image = region.image(home, &crashed.parts.view, listed.facts.changed);
                let Some(image) = image.filter(|it| it.stamp == crashed.parts.view.stamp) else {
                    continue;
                };
                let place = region.place_of(home, image.delta.unwrap_or(image.slot));
                let (mut sector, at) = ([0; 512], place.offset() + place.bytes() - 512);
                file.read_at(&mut sector, at).unwrap();
                file.write_at(&[round; 512], at).unwrap();
                lost.push((at, sector));
            }
        }
        drop((durable, crashed));
        world.tree = Bminus::open_tried(&world.storage, world.options, Some(&blob)).unwrap();
        world.absorb(some(&mut rng, 1));
        // Places written since are whole.
        lost.retain(|(at, _)| {
            let mut sector = [0; 512];
            file.read_at(&mut sector, *at).unwrap();
            sector == [round; 512]
        });
        world.reopen();
        assert!(world.maintain() > 0 && !world.tree.is_clearing_due());
        // Later writes to the same places are torn, and leave just these sectors.
        for (at, sector) in lost {
            file.write_at(&sector, at).unwrap();
        }
        let again = open(&world).unwrap();
        assert_eq!(scan(&again.version()).unwrap(), world.model);
        assert_eq!(findings(&again), 0);
        world.reopen();
    }
}
