//! Damaged and forged bytes, failing devices, little memory: invalid data is never accepted,
//! nothing panics, and only damaged data is lost. For any engine.

use super::world::{Item, Model, Report, Tried, Updates, World, check_scans};
use super::{key_of, uniform};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{NewValues, SortedStream, Update};
use crate::engine::{OwnedExtent, Salvaged, Work, WriteBudget};
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::block::BlockKind;
use crate::storage::io::fault::{Call, Fault};
use crate::storage::io::{Access, Directory, OpenMode};
use crate::storage::quota::UNLIMITED;

/// Runs all of these tests for trees of these options.
pub fn battery<E: Tried>(options: E::Options) {
    noise_in_the_root_blob_is_not_believed::<E>(options);
    noise_in_the_structure_is_not_believed::<E>(options);
    every_damaged_block_is_found::<E>(options);
    a_verification_goes_on_behind_what_cannot_be_read::<E>(options);
    what_is_salvaged_is_right_and_what_is_lost_is_reported::<E>(options);
    nodes_are_dropped_from_memory_and_come_back::<E>(options);
}

/// A tree of several levels, with buffered updates and large values.
fn grown<E: Tried>(options: E::Options, rng: &mut Rng) -> World<E> {
    let mut world = World::<E>::new(options, 1);
    for round in 0..15 {
        let mut batch = uniform(rng, 120);
        let large = world.storage.write_large(&[7; 9000]).unwrap();
        batch.insert(key_of(rng.next_u64()), Item::Large(large));
        let gone = world.model.keys().step_by(20).take(5).cloned();
        batch.extend(gone.map(|key| (key, Item::Deleted)).collect::<Vec<_>>());
        world.absorb(batch);
        if round < 12 {
            world.maintain();
        }
    }
    let stats = world.tree.stats();
    assert!((stats.buffered_runs > 0) == E::HAS_BUFFERS && stats.height >= 2, "{stats:?}");
    world
}

/// Its extents whose first block is of this kind.
fn extents_of_kind<E: Tried>(world: &World<E>, kind: BlockKind) -> Vec<OwnedExtent> {
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    let is_of = |owned: &&OwnedExtent| {
        let mut byte = [0];
        file.read_at(&mut byte, owned.extent.offset() + 8).unwrap();
        byte[0] == kind as u8
    };
    world.owned.iter().filter(is_of).copied().collect()
}

/// Flips a bit at `place` of the data file; a second call restores it.
fn flip<E: Tried>(world: &World<E>, place: u64) {
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, place).unwrap();
    file.write_at(&[byte[0] ^ 0x10], place).unwrap();
}

fn walk(stream: Result<Box<dyn SortedStream + Send>>) -> Result<()> {
    let mut stream = stream?;
    for _ in 0..1 << 20 {
        if stream.key().is_none() {
            return Ok(());
        }
        let _ = stream.update();
        stream.advance()?;
    }
    panic!("a walk goes on for ever");
}

/// Uses a tree with forged content in every way; returns whether an error was found.
fn use_up<E: Tried>(world: &World<E>, tree: &E, keys: &[Vec<u8>]) -> bool {
    let version = tree.version();
    let hashed = |key: &'_ Vec<u8>| world.storage.key_hash(key);
    let mut results: Vec<Result<()>> = Vec::new();
    results.extend(keys.iter().map(|key| version.get(key, hashed(key)).map(drop)));
    let asked: Vec<_> = keys.iter().map(|key| (key.as_slice(), hashed(key))).collect();
    results.push(version.multi_get(&asked).map(drop));
    for direction in [Direction::Ascending, Direction::Descending] {
        results.push(walk(Arc::clone(&version).cursor(KeyRange::all(), direction)));
    }
    results.push(version.extents(&mut |_| Ok(())));
    let mut report = Report::default();
    results.push(version.verify(&mut report));
    results.extend(report.findings.into_iter().map(Err));
    version.salvage(&mut Found::default()).unwrap();
    let _ = version.describe(&mut String::new());
    tree.stats();
    // A forged tree may write pages of the healthy one where they are.
    let file = world.dir.open("data", OpenMode::Write, Access::Buffered).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    write_on(world, tree, keys);
    file.write_at(&bytes, 0).unwrap();
    let wrongs: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    wrongs.iter().for_each(check_kind);
    !wrongs.is_empty()
}

/// Absorbs and merges: forged content may stop that, as damage or as a contradiction.
fn write_on<E: Tried>(world: &World<E>, tree: &E, keys: &[Vec<u8>]) {
    let work = Work {
        workers: &world.workers,
        progress: &|_| {},
        quota: &UNLIMITED,
        values: NewValues::Plain,
    };
    let batch = Updates::new(keys.iter().map(|key| (key.clone(), Item::Deleted)).collect());
    let mut written = tree.absorb(&batch, WriteBudget::Usual, &work).map(Some);
    for _ in 0..20 {
        match &written {
            Ok(Some(_)) => written = crate::engine::do_job(tree, &work),
            Ok(None) => return,
            Err(error) => {
                let expected = [ErrorKind::Corrupt, ErrorKind::Internal];
                assert!(expected.contains(&error.kind()), "{error:?}");
                return;
            }
        }
    }
}

fn check_kind(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert_eq!(error.file(), Some("data"), "{error:?}");
}

fn noise_in_the_root_blob_is_not_believed<E: Tried>(options: E::Options) {
    let mut rng = Rng::new(2);
    let world = grown::<E>(options, &mut rng);
    let blob = world.tree.root().unwrap();
    let keys: Vec<_> = world.model.keys().step_by(97).cloned().collect();
    let open = |blob: &[u8]| E::open_tried(&world.storage, options, Some(blob));
    assert!((0..blob.len()).all(|end| open(&blob[..end]).is_err()));
    for round in 0..4_000 {
        let mut damaged = blob.clone();
        let place = rng.below(damaged.len() as u64) as usize;
        damaged[place] = rng.next_u64() as u8;
        match open(&damaged) {
            Ok(tree) if damaged == blob || round % 8 == 0 => {
                let is_reported = use_up(&world, &tree, &keys);
                // The blob ends with the number of blocks, which is recorded nowhere else.
                if place + 3 < blob.len() || damaged == blob {
                    assert_eq!(is_reported, damaged != blob, "byte {place} is {}", damaged[place]);
                }
            }
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}"),
        }
    }
}

/// With valid checksums.
fn noise_in_the_structure_is_not_believed<E: Tried>(options: E::Options) {
    let mut rng = Rng::new(3);
    let world = grown::<E>(options, &mut rng);
    let blob = world.tree.root().unwrap();
    let keys: Vec<_> = world.model.keys().step_by(97).cloned().collect();
    let nodes = extents_of_kind(&world, BlockKind::Engine);
    let (mut changed, mut unseen) = (0, 0);
    for owned in &nodes {
        let (first, generation) = (owned.extent.start, owned.generation);
        let mut good = vec![0; owned.extent.bytes() as usize];
        world.storage.read_blocks(first, generation, &mut good).unwrap();
        let used = good.iter().rposition(|byte| *byte != 0).unwrap_or(16) as u64 + 1;
        for round in 0..1200 / nodes.len() {
            let mut bad = good.clone();
            match round {
                0 => rng.fill(&mut bad[16..4096]),
                1 => bad[17..4096].fill(0),
                2 => bad[17..4096].fill(255),
                _ => {
                    for _ in 0..1 + rng.below(3) {
                        let place = (16 + rng.below(used - 16)) as usize;
                        let some = [0, 1, 0x7f, 0x80, 0xff, rng.next_u64() as u8];
                        // The bytes before the node in each block do not belong to the engine.
                        if place % 4096 >= 16 {
                            bad[place] = some[rng.below(6) as usize];
                        }
                    }
                }
            }
            let is_changed = bad != good;
            world.storage.write_blocks(first, generation, &mut bad).unwrap();
            let is_reported = match E::open_tried(&world.storage, options, Some(&blob)) {
                Ok(tree) => use_up(&world, &tree, &keys),
                Err(error) => {
                    check_kind(&error);
                    true
                }
            };
            assert!(is_changed || !is_reported);
            changed += usize::from(is_changed);
            unseen += usize::from(is_changed && !is_reported);
        }
        world.storage.write_blocks(first, generation, &mut good).unwrap();
    }
    assert!(changed > 500 && unseen <= changed / 10, "{unseen} of {changed} changes are not seen");
    let tree = E::open_tried(&world.storage, options, Some(&blob)).unwrap();
    assert!(!use_up(&world, &tree, &keys));
}

fn every_damaged_block_is_found<E: Tried>(options: E::Options) {
    let mut rng = Rng::new(4);
    let world = grown::<E>(options, &mut rng);
    let blob = world.tree.root().unwrap();
    // Slots without a page may hold anything.
    for owned in world.owned.iter().filter(|owned| owned.is_sealed()).step_by(3) {
        let block = owned.extent.start.0 + rng.below(u64::from(owned.extent.blocks));
        let place = block * 4096 + rng.below(4096);
        flip(&world, place);
        let mut report = Report::default();
        match E::open_tried(&world.storage, options, Some(&blob)) {
            Ok(tree) => tree.version().verify(&mut report).unwrap(),
            Err(error) => report.findings.push(error),
        }
        let offsets: Vec<_> = report.findings.iter().filter_map(Error::offset).collect();
        assert_eq!(offsets, [block * 4096], "block {block}: {:?}", report.findings);
        flip(&world, place);
    }
}

/// Once, or from then on.
fn a_verification_goes_on_behind_what_cannot_be_read<E: Tried>(options: E::Options) {
    let mut rng = Rng::new(5);
    let world = grown::<E>(options, &mut rng);
    let verify = |fault: Option<Fault>| {
        let before = world.faults.calls(Call::Read);
        fault.into_iter().for_each(|fault| world.faults.fail(fault));
        let mut report = Report::default();
        world.tree.version().verify(&mut report).unwrap();
        world.faults.heal();
        (world.faults.calls(Call::Read) - before, report)
    };
    let (reads, whole) = verify(None);
    assert!(whole.findings.is_empty() && reads > 100, "{reads}: {:?}", whole.findings);
    for after in 0..reads {
        let (_, report) = verify(Some(Fault::once(Call::Read, after)));
        let findings = &report.findings;
        assert!(findings.len() <= 1, "read {after}: {findings:?}");
        assert!(findings.iter().all(|error| error.kind() == ErrorKind::Io), "{findings:?}");
        if after % 20 == 0 {
            let (_, report) = verify(Some(Fault::sticky(Call::Read, after)));
            assert!(!report.findings.is_empty());
        }
    }
}

/// The salvaged content: certain entries, and lost keys.
#[derive(Default)]
struct Found {
    certain: Model,
    lost: Vec<KeyRange>,
}

impl Salvaged for Found {
    fn update(&mut self, key: &[u8], update: Update<'_>) -> Result<()> {
        match update {
            Update::Delete => self.certain.remove(key),
            put => self.certain.insert(key.to_vec(), Item::of(put)),
        };
        Ok(())
    }

    fn lost(&mut self, keys: KeyRange, cause: Error) -> Result<()> {
        check_kind(&cause);
        self.certain.retain(|key, _| !keys.contains(key));
        self.lost.push(keys);
        Ok(())
    }
}

fn what_is_salvaged_is_right_and_what_is_lost_is_reported<E: Tried>(options: E::Options) {
    let mut rng = Rng::new(6);
    let mut saved = 0;
    for kind in [E::ENTRIES, BlockKind::Engine] {
        for count in [0, 1, 2, 9] {
            let world = grown::<E>(options, &mut rng);
            let extents = extents_of_kind(&world, kind);
            let mut damaged = 0;
            while damaged < count {
                // The root and the directory are needed to open.
                let owned = &extents[rng.below(extents.len() as u64) as usize];
                let place = owned.extent.offset() + rng.below(owned.extent.bytes());
                flip(&world, place);
                let blob = world.tree.root().unwrap();
                match E::open_tried(&world.storage, options, Some(&blob)) {
                    Ok(_) => damaged += 1,
                    Err(_) => flip(&world, place),
                }
            }
            let blob = world.tree.root().unwrap();
            let tree = E::open_tried(&world.storage, options, Some(&blob)).unwrap();
            let mut found = Found::default();
            tree.version().salvage(&mut found).unwrap();
            let is_right = |(key, item): (&Vec<u8>, &Item)| world.model.get(key) == Some(item);
            assert!(found.certain.iter().all(is_right), "{kind:?} {count}");
            let is_reported = |key: &Vec<u8>| found.lost.iter().any(|range| range.contains(key));
            let mut missing = world.model.keys().filter(|key| !found.certain.contains_key(*key));
            assert!(missing.all(is_reported), "{kind:?} {count}");
            assert!(count > 0 || found.certain == world.model);
            saved += found.certain.len() * 100 / world.model.len();
        }
    }
    assert!(saved / 8 > 50, "{}%", saved / 8);
}

fn nodes_are_dropped_from_memory_and_come_back<E: Tried>(options: E::Options) {
    let mut rng = Rng::new(7);
    let mut world = World::<E>::with_memory(options, 1, 1 << 20);
    for _ in 0..10 {
        world.absorb(uniform(&mut rng, 600));
        world.maintain();
    }
    world.reopen();
    let (version, model) = (world.tree.version(), world.model.clone());
    check_scans(&version, &model);
    world.check_reads(&version, &model, &mut rng, 200);
    assert!(world.event("nodes_evicted") > 0 && world.event("nodes_loaded") > 50);
    let resident = world.storage.node_clock();
    assert!(resident.bytes() <= resident.share() + 16_384, "{}", resident.bytes());
}
