//! Tests of what a power cut can leave, and what it cannot.

use super::*;
use crate::base::error::ErrorKind;
use crate::runtime::rng::Rng;

const SECTOR: usize = SECTOR_BYTES;

fn create(directory: &CrashDirectory, name: &str) -> Arc<dyn File> {
    directory.open(name, OpenMode::CreateNew, Access::Direct).unwrap()
}

/// A directory with a durable file "a" of four sectors of ones.
fn with_a_durable_file() -> (CrashDirectory, Arc<dyn File>) {
    let files = BTreeMap::from([("a".to_owned(), vec![1; 4 * SECTOR])]);
    let directory = CrashDirectory::from_files(&files);
    let file = directory.open("a", OpenMode::Write, Access::Direct).unwrap();
    (directory, file)
}

/// The images of all subsets of the currently pending atoms.
fn all_images(directory: &CrashDirectory) -> Vec<BTreeMap<String, Vec<u8>>> {
    let journal = directory.journal();
    let boundary = journal.boundaries();
    let pending = journal.pending(boundary);
    assert!(pending < 12, "too many subsets");
    (0..1 << pending).map(|mask| journal.image(boundary, Survivors::Mask(mask))).collect()
}

#[test]
fn unsynced_sectors_survive_one_by_one() {
    let (directory, file) = with_a_durable_file();
    file.write_at(&[2; 3 * SECTOR], 100).unwrap();
    let journal = directory.journal();
    assert_eq!((journal.boundaries(), journal.pending(0), journal.pending(1)), (1, 0, 4));
    let images = all_images(&directory);
    assert_eq!(images.len(), 16);
    for (mask, image) in images.iter().enumerate() {
        for (index, sector) in image["a"].chunks(SECTOR).enumerate() {
            let mut right = [1; SECTOR];
            if mask & (1 << index) != 0 {
                let written = match index {
                    0 => 100..SECTOR,
                    3 => 0..100,
                    _ => 0..SECTOR,
                };
                right[written].fill(2);
            }
            assert_eq!(sector, right, "sector {index} of mask {mask}");
        }
    }
    assert_eq!(journal.image(1, Survivors::None), images[0]);
    assert_eq!(journal.image(1, Survivors::All), images[15]);
    assert_eq!(journal.image(1, Survivors::AllBut(1)), images[0b1101]);
    assert_eq!(journal.image(1, Survivors::Only(2)), images[0b0100]);
    assert_eq!(journal.image(1, Survivors::Prefix(3)), images[0b0111]);
    assert_eq!(journal.image(1, Survivors::Suffix(3)), images[0b1000]);
    assert_eq!(journal.image_process_death(1), images[15]);
    let torn = &journal.image(1, Survivors::TornFrom(1))["a"];
    assert_eq!(torn[..SECTOR], images[15]["a"][..SECTOR]);
    for (index, sector) in torn.chunks(SECTOR).enumerate().skip(1) {
        assert_eq!(sector[..64], images[15]["a"][index * SECTOR..][..64], "sector {index}");
        assert_eq!(sector[64..], [1; SECTOR - 64], "sector {index}");
    }
    assert_eq!(journal.image(0, Survivors::All)["a"], vec![1; 4 * SECTOR]);
}

#[test]
fn a_sync_is_of_one_file_and_not_of_its_name() {
    let directory = CrashDirectory::new();
    let (a, b) = (create(&directory, "a"), create(&directory, "b"));
    a.write_at(&[1; 10], 0).unwrap();
    b.write_at(&[2; 10], 0).unwrap();
    a.sync().unwrap();
    let journal = directory.journal();
    // Two names, and a sector and the size of "b".
    assert_eq!(journal.pending(journal.boundaries()), 4);
    assert!(journal.image(journal.boundaries(), Survivors::None).is_empty());
    directory.sync().unwrap();
    let journal = directory.journal();
    let image = journal.image(journal.boundaries(), Survivors::None);
    assert_eq!(image["a"], [1; 10]);
    assert_eq!(image["b"], [0; 0]);
    assert_eq!(journal.pending(journal.boundaries()), 2);
}

#[test]
fn sizes_lag_behind_content() {
    let (directory, file) = with_a_durable_file();
    file.write_at(&[2; SECTOR], 4 * SECTOR as u64).unwrap();
    // Neither, the sector alone, the size alone, both.
    let tails: Vec<_> = all_images(&directory)
        .iter()
        .map(|image| image["a"].get(4 * SECTOR..).map(<[u8]>::to_vec).unwrap_or_default())
        .collect();
    assert_eq!(tails, [vec![], vec![], vec![0; SECTOR], vec![2; SECTOR]]);
}

#[test]
fn a_sector_keeps_the_state_after_one_of_its_writes() {
    let (directory, file) = with_a_durable_file();
    let mut region = file.map(0, 2 * SECTOR).unwrap();
    region.write(0, &[2; 10]).unwrap();
    region.write(10, &[3; 10]).unwrap();
    for image in all_images(&directory) {
        let head = &image["a"][..20];
        let whole = [[1; 20], [[2; 10], [1; 10]].concat().try_into().unwrap()];
        let last = [[2; 10], [3; 10]].concat();
        assert!(whole.iter().any(|state| head == state) || head == last);
    }
    // A drawn subset may tear a sector that a copy was changing.
    region.write(0, &[4; SECTOR]).unwrap();
    let journal = directory.journal();
    let torn = (0..500).any(|seed| {
        let image = journal.image(journal.boundaries(), Survivors::Subset(seed));
        let sector = &image["a"][..SECTOR];
        sector[0] == 4 && sector[SECTOR - 1] == 1
    });
    assert!(torn);
}

#[test]
fn names_survive_apart_from_content() {
    let (directory, _) = with_a_durable_file();
    directory.remove("a").unwrap();
    let file = create(&directory, "a");
    file.write_at(&[5; 3], 0).unwrap();
    file.sync().unwrap();
    let old = vec![1; 4 * SECTOR];
    let contents: Vec<_> =
        all_images(&directory).into_iter().map(|mut image| image.remove("a")).collect();
    // Neither, the removal alone, the creation alone, both.
    assert_eq!(contents, [Some(old), None, Some(vec![5; 3]), Some(vec![5; 3])]);
    directory.sync().unwrap();
    let images = all_images(&directory);
    assert_eq!(images, [BTreeMap::from([("a".to_owned(), vec![5; 3])])]);
}

#[test]
fn what_a_removed_file_did_is_not_pending() {
    let (directory, file) = with_a_durable_file();
    directory.remove("a").unwrap();
    file.write_at(&[2; SECTOR], 0).unwrap();
    let journal = directory.journal();
    assert_eq!(journal.pending(journal.boundaries()), 2);
    directory.sync().unwrap();
    file.write_at(&[3; SECTOR], 0).unwrap();
    file.sync().unwrap();
    let journal = directory.journal();
    assert_eq!(journal.pending(journal.boundaries()), 0);
    let mut sector = [0; SECTOR];
    file.read_at(&mut sector, 0).unwrap();
    assert_eq!(sector, [3; SECTOR]);
}

#[test]
fn cuts_and_holes_may_be_lost() {
    let (directory, file) = with_a_durable_file();
    file.punch_hole(0, SECTOR as u64).unwrap();
    file.set_size(2 * SECTOR as u64).unwrap();
    file.allocate(0, 3 * SECTOR as u64).unwrap();
    let journal = directory.journal();
    assert_eq!(journal.pending(3), 3);
    let cut = journal.image(3, Survivors::AllBut(0));
    assert_eq!(cut["a"], [vec![1; 2 * SECTOR], vec![0; SECTOR]].concat());
    let hole = journal.image(3, Survivors::Only(0));
    assert_eq!(hole["a"], [vec![0; SECTOR], vec![1; 3 * SECTOR]].concat());
    // If the truncation before it is lost, a growth truncates the file.
    assert_eq!(journal.image(3, Survivors::Only(2))["a"], vec![1; 3 * SECTOR]);
    file.sync().unwrap();
    let journal = directory.journal();
    assert_eq!(journal.image(4, Survivors::None), journal.image(3, Survivors::All));
}

#[test]
fn after_the_fuse_nothing_works_and_nothing_changes() {
    let (directory, file) = with_a_durable_file();
    directory.fail_after(directory.boundary() + 2);
    file.write_at(&[2], 0).unwrap();
    assert!(!directory.power_is_gone());
    let mut region = file.map(0, SECTOR).unwrap();
    region.write(1, &[2]).unwrap();
    assert!(directory.power_is_gone());
    let outcomes = [
        region.write(2, &[2]),
        file.write_at(&[2], 2),
        file.sync(),
        file.read_at(&mut [0], 0),
        file.size().map(drop),
        file.set_size(0),
        file.allocate(0, 1 << 20),
        file.punch_hole(0, 4096),
        file.map(0, 10).map(drop),
        directory.sync(),
        directory.remove("a"),
        directory.list().map(drop),
        directory.open("b", OpenMode::CreateNew, Access::Direct).map(drop),
        directory.lock(true, true).map(drop),
    ];
    assert!(
        outcomes
            .iter()
            .all(|outcome| { outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Io) })
    );
    assert_eq!(directory.boundary(), 2);
    assert_eq!(directory.journal().image_process_death(2)["a"][..3], [2, 2, 1]);
}

/// Makes random calls, and keeps the files as they are after each effect.
fn random_run(seed: u64, calls: usize) -> (CrashDirectory, Vec<BTreeMap<String, Vec<u8>>>) {
    let directory = CrashDirectory::new();
    let mut rng = Rng::new(seed);
    let mut states = vec![BTreeMap::new()];
    let mut files: Vec<Arc<dyn File>> = Vec::new();
    for _ in 0..calls {
        let pick = usize::try_from(rng.below(files.len().max(1) as u64)).unwrap();
        let offset = rng.below(6_000);
        match (rng.below(16), files.get(pick)) {
            (0, _) | (_, None) => {
                let name = format!("file {}", rng.below(6));
                if let Ok(file) = directory.open(&name, OpenMode::CreateNew, Access::Direct) {
                    files.push(file);
                }
            }
            (1, Some(file)) => {
                let _ = directory.remove(file.name());
            }
            (2, _) => directory.sync().unwrap(),
            (3 | 4, Some(file)) => file.sync().unwrap(),
            (5, Some(file)) => file.set_size(offset).unwrap(),
            (6, Some(file)) => file.punch_hole(offset, rng.below(5_000)).unwrap(),
            (7, Some(file)) => file.allocate(offset, rng.below(5_000)).unwrap(),
            (_, Some(file)) => {
                let mut bytes = vec![0; usize::try_from(rng.below(3_000)).unwrap()];
                rng.fill(&mut bytes);
                file.write_at(&bytes, offset).unwrap();
            }
        }
        if directory.boundary() == states.len() {
            states.push(files_of(&directory));
        }
    }
    (directory, states)
}

fn files_of(directory: &CrashDirectory) -> BTreeMap<String, Vec<u8>> {
    let content = |name: &str| {
        let file = directory.open(name, OpenMode::Read, Access::Direct).unwrap();
        let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    directory.list().unwrap().into_iter().map(|name| (name.clone(), content(&name))).collect()
}

#[test]
fn the_death_of_the_process_leaves_what_it_saw_at_any_boundary_in_any_order() {
    for seed in 0..8 {
        let (directory, states) = random_run(seed, 700);
        let journal = directory.journal();
        assert_eq!(journal.boundaries() + 1, states.len());
        let mut rng = Rng::new(seed);
        for round in 0..600 {
            let boundary = match round % 3 {
                0 => usize::try_from(rng.below(states.len() as u64)).unwrap(),
                _ => round.min(journal.boundaries()),
            };
            let image = journal.image_process_death(boundary);
            let last = journal.describe(boundary);
            assert!(image == states[boundary], "seed {seed}, boundary {boundary}, after {last}");
        }
    }
}

#[test]
fn after_a_sync_of_everything_every_image_is_the_same() {
    for seed in 0..8 {
        let (directory, states) = random_run(seed, 200);
        for name in directory.list().unwrap() {
            directory.open(&name, OpenMode::Write, Access::Direct).unwrap().sync().unwrap();
        }
        directory.sync().unwrap();
        let journal = directory.journal();
        let boundary = journal.boundaries();
        assert_eq!(journal.pending(boundary), 0);
        for survivors in [Survivors::None, Survivors::All, Survivors::Subset(seed)] {
            assert!(journal.image(boundary, survivors) == *states.last().unwrap());
        }
    }
}

#[test]
fn an_image_is_a_directory_to_cut_the_power_of_again() {
    let (directory, _) = random_run(3, 100);
    let journal = directory.journal();
    let image = journal.image(journal.boundaries(), Survivors::Subset(7));
    let second = CrashDirectory::from_files(&image);
    assert!(second.journal().image(0, Survivors::None) == image);
    assert!(files_of(&second) == image);
    let same = journal.image(journal.boundaries(), Survivors::Subset(7));
    assert!(same == image, "a seed draws the same subset again");
}

#[test]
fn the_death_of_the_process_leaves_everything_pending_and_the_lock_free() {
    let (directory, file) = with_a_durable_file();
    let _lock = directory.lock(true, true).unwrap();
    file.write_at(&[2; SECTOR], 0).unwrap();
    let next = directory.after_process_death();
    // The dead do not write.
    file.write_at(&[3; SECTOR], 0).unwrap();
    directory.remove("a").unwrap();
    let _next_lock = next.lock(true, true).unwrap();
    let found = next.open("a", OpenMode::Write, Access::Direct).unwrap();
    let mut sector = [0; SECTOR];
    found.read_at(&mut sector, 0).unwrap();
    assert_eq!(sector, [2; SECTOR]);
    // Its writes are as little durable as before, until somebody syncs them.
    assert_eq!(all_images(&next).len(), 2);
    assert_eq!(next.journal().image(1, Survivors::None)["a"], vec![1; 4 * SECTOR]);
    found.sync().unwrap();
    assert_eq!(next.journal().image(2, Survivors::None)["a"][..SECTOR], [2; SECTOR]);
    assert_eq!(next.boundary(), 2);
}
