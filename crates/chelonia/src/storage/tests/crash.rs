//! Power cuts at every moment of a workload of checkpoints, and of the opens after them.
//!
//! Each round of the workload writes an extent, makes a root that refers to it durable, frees the
//! previous extent and returns space to the file system. After any cut, an open must find the root
//! of a round that was begun, at least the last acknowledged one, and everything it refers to.

use crate::base::ids::{KeyspaceId, Lsn, SeqNo};
use crate::base::limits::BLOCK_BYTES;
use crate::base::logs::{LogMark, LogPosition, PerLog};
use crate::base::stream::LargeRef;
use crate::runtime::rng::Rng;
use crate::storage::data_file::catalog::CatalogEntry;
use crate::storage::io::crash::CrashDirectory;
use crate::storage::io::crash::Survivors;
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::*;
use std::collections::BTreeMap;

const MEMORY: u64 = 32 << 20;

/// The root of a round: it refers to a large value made of the round's number.
fn catalog_of(round: u8, reference: &LargeRef) -> Catalog {
    let mut root = Vec::new();
    reference.encode(&mut root);
    let entry = CatalogEntry {
        id: KeyspaceId(0),
        name: "default".to_owned(),
        engine: round,
        options: vec![],
        root,
        absorbed: SeqNo(u64::from(round)),
    };
    Catalog { next_keyspace: 1, keyspaces: vec![entry] }
}

fn value_of(round: u8) -> Vec<u8> {
    let blocks = 3 + usize::from(round) * 5 % 11;
    (0..blocks * BLOCK_BYTES).map(|at| round ^ u8::try_from(at % 251).unwrap()).collect()
}

/// Does one round; the extent of the round before is `old`.
fn work(storage: &Storage, round: u8, old: Option<Extent>) -> Result<LargeRef> {
    let reference = storage.write_large(&value_of(round))?;
    let lsn = Lsn(u64::from(round));
    let begin = PerLog::one(LogPosition { lsn, chain: 0 });
    let log = LogMark { begin, durable: PerLog::one(lsn), seqno: SeqNo(u64::from(round)) };
    storage.checkpoint(&catalog_of(round, &reference), log)?;
    if let Some(old) = old {
        storage.free(old)?;
    }
    while storage.give_back(if round.is_multiple_of(2) { 0 } else { 40_000 })? {}
    if round.is_multiple_of(3) {
        storage.mark_log(log)?;
    }
    Ok(reference)
}

/// Checks everything that the recovered root refers to; returns its round, 0 for none.
fn check(opened: &Opened) -> (u8, Option<Extent>) {
    let Some(entry) = opened.catalog.keyspaces.first() else { return (0, None) };
    let mut decoder = crate::base::codec::Decoder::new(&entry.root, "the root of a test");
    let reference = LargeRef::decode(&mut decoder).unwrap();
    opened.storage.mark_used(reference.extent).unwrap();
    assert_eq!(opened.storage.read_large(&reference).unwrap(), value_of(entry.engine));
    assert_eq!(opened.superblock.log.begin[0].lsn, Lsn(u64::from(entry.engine)));
    (entry.engine, Some(reference.extent))
}

/// Opens an image for writing, under a directory that records what the open does.
fn open(files: &BTreeMap<String, Vec<u8>>) -> (CrashDirectory, Result<Opened>) {
    let dir = CrashDirectory::from_files(files);
    let opened = Storage::open(&dir, &Budget::new(MEMORY), false);
    (dir, opened)
}

fn some_survivors(pending: usize, rng: &mut Rng) -> Vec<Survivors> {
    let mut all = vec![Survivors::None, Survivors::All, Survivors::Subset(rng.next_u64())];
    if pending <= 3 {
        all.extend((0..1 << pending).map(Survivors::Mask));
    } else {
        let one = usize::try_from(rng.below(pending as u64)).unwrap();
        all.extend([Survivors::AllBut(one), Survivors::Only(one), Survivors::Prefix(one)]);
        all.extend((0..4).map(|_| Survivors::Subset(rng.next_u64())));
    }
    all
}

#[test]
fn a_cut_at_any_moment_leaves_a_whole_checkpoint() {
    let dir = CrashDirectory::new();
    let mut rng = Rng::new(11);
    let storage = Storage::create(&dir, &Budget::new(MEMORY), 5).unwrap().storage;
    // The boundary after which each round is acknowledged; round 0 is the creation.
    let mut acknowledged = vec![dir.boundary()];
    let mut old = None;
    for round in 1..=7 {
        old = Some(work(&storage, round, old).unwrap().extent);
        acknowledged.push(dir.boundary());
    }
    let journal = dir.journal();
    let mut opens = 0;
    for boundary in 0..=journal.boundaries() {
        let done = acknowledged.iter().filter(|at| **at <= boundary).count();
        for survivors in some_survivors(journal.pending(boundary), &mut rng) {
            let image = journal.image(boundary, survivors);
            let place = || format!("{} {survivors:?}", journal.describe(boundary));
            let (second, opened) = open(&image);
            if done == 0 {
                // Not created yet: a database or none, but never damage.
                let kind = opened.err().map(|error| error.kind());
                assert!(matches!(kind, None | Some(ErrorKind::NotFound)), "{kind:?} {}", place());
                continue;
            }
            let opened = opened.unwrap_or_else(|error| panic!("{error}: {}", place()));
            let (round, extent) = check(&opened);
            let range = done - 1..=done;
            assert!(range.contains(&usize::from(round)), "{round} {}", place());
            opens += 1;
            // Sometimes the power is cut again, during the open and during the round after it.
            if opens % 16 == 0 {
                work(&opened.storage, round + 1, extent).unwrap();
                cut_again(&second, round, &mut rng);
            }
        }
    }
    assert!(opens > 300, "{opens}");
}

fn cut_again(dir: &CrashDirectory, round: u8, rng: &mut Rng) {
    let journal = dir.journal();
    for boundary in 0..=journal.boundaries() {
        for survivors in [Survivors::None, Survivors::All, Survivors::Subset(rng.next_u64())] {
            let opened = open(&journal.image(boundary, survivors)).1;
            let opened = opened.unwrap_or_else(|error| {
                panic!("{error}: second cut, {} {survivors:?}", journal.describe(boundary))
            });
            let (found, _) = check(&opened);
            assert!(found == round || found == round + 1);
        }
    }
}

#[test]
fn a_creation_that_was_cut_off_can_be_done_again() {
    let dir = CrashDirectory::new();
    drop(Storage::create(&dir, &Budget::new(MEMORY), 5).unwrap());
    let journal = dir.journal();
    for boundary in 0..=journal.boundaries() {
        for survivors in some_survivors(journal.pending(boundary), &mut Rng::new(3)) {
            let dir = MemoryDirectory::from_files(journal.image(boundary, survivors));
            if Storage::open(&dir, &Budget::new(MEMORY), true).is_err() {
                drop(Storage::create(&dir, &Budget::new(MEMORY), 6).unwrap());
            }
            let opened = Storage::open(&dir, &Budget::new(MEMORY), false).unwrap();
            assert_eq!(opened.catalog, Catalog::default());
        }
    }
}
