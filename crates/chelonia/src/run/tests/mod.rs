//! Runs compared with ordered maps, and damaged or forged.

mod compressed;
mod hostile;
mod layout;
mod model;
mod windows;

use crate::base::check::CheckReport;
use crate::base::checksum::KeyHash;
use crate::base::error::{Error, Result};
use crate::base::ids::{Extent, Generation};
use crate::base::keys::KeyRange;
use crate::base::stream::Found;
use crate::base::stream::{LargeRef, SortedStream, Update};
use crate::filters::FilterKind;
use crate::run::{Run, RunBuilder, RunHit, RunOptions, RunRef};
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::cache::Priority;
use crate::storage::quota::UNLIMITED;
use std::collections::BTreeMap;

/// The update of a model entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Owned {
    Put(Vec<u8>),
    Large(LargeRef),
    Delete,
}

impl Owned {
    pub fn borrow(&self) -> Update<'_> {
        match self {
            Owned::Put(value) => Update::Put(value),
            Owned::Large(large) => Update::PutLarge(*large),
            Owned::Delete => Update::Delete,
        }
    }

    pub fn of(update: Update<'_>) -> Self {
        match update {
            Update::Put(value) => Owned::Put(value.to_vec()),
            Update::PutCompressed(value) => Owned::Put(value.to_value().unwrap().to_vec()),
            Update::PutLarge(large) => Owned::Large(large),
            Update::Delete => Owned::Delete,
        }
    }

    pub fn is_hit(&self, hit: &RunHit) -> bool {
        match (self, hit) {
            (Owned::Put(value), RunHit::Found(Found::Value(found))) => {
                found.as_slice() == value.as_slice()
            }
            (Owned::Large(large), RunHit::Found(Found::Large(found))) => large == found,
            (Owned::Delete, RunHit::Tombstone) => true,
            _ => false,
        }
    }
}

pub type Model = BTreeMap<Vec<u8>, Owned>;

pub fn storage() -> Arc<Storage> {
    Storage::testing(64 << 20).0
}

pub fn options(filter: FilterKind) -> RunOptions {
    RunOptions { filter, bits_per_key: 12 }
}

pub fn build(storage: &Arc<Storage>, model: &Model, options: RunOptions) -> RunRef {
    let mut builder = RunBuilder::new(storage, options);
    add_all(&mut builder, model);
    builder.finish(&UNLIMITED).unwrap()
}

pub fn add_all(builder: &mut RunBuilder, model: &Model) {
    for (key, update) in model {
        builder.add(key, update.borrow()).unwrap();
    }
}

pub fn large(rng: &mut Rng) -> LargeRef {
    LargeRef {
        extent: Extent::new(rng.next_u64() >> 20, 9),
        generation: Generation(rng.next_u64() >> 3),
        bytes: 40_000,
    }
}

/// Findings of a verification.
#[derive(Default)]
pub struct Report {
    pub blocks: u64,
    pub entries: u64,
    pub findings: Vec<Error>,
}

impl CheckReport for Report {
    fn blocks(&mut self, count: u64) {
        self.blocks += count;
    }
    fn entries(&mut self, count: u64) {
        self.entries += count;
    }
    fn finding(&mut self, error: Error) {
        self.findings.push(error);
    }
}

pub fn verify(run: &Run) -> Report {
    let mut report = Report::default();
    run.verify(&mut report).unwrap();
    report
}

/// A point lookup: filter, index, one data span.
pub fn get(run: &Run, key: &[u8], hash: KeyHash) -> Result<Option<RunHit>> {
    if let Some(block) = run.filter().block_of(hash) {
        let bytes = run.cached().load(block, Priority::Filter)?;
        if !run.filter().may_contain_in(hash, &bytes) {
            return Ok(None);
        }
    }
    match run.locate(key)? {
        Some(span) => run.find_in(span, key),
        None => Ok(None),
    }
}

/// Collects all entries of a stream.
pub fn drain(stream: &mut dyn SortedStream) -> Vec<(Vec<u8>, Owned)> {
    let mut entries = Vec::new();
    while let Some(key) = stream.key() {
        entries.push((key.to_vec(), Owned::of(stream.update())));
        stream.advance().unwrap();
    }
    entries
}

pub fn expected(model: &Model, range: &KeyRange) -> Vec<(Vec<u8>, Owned)> {
    let within = model.iter().filter(|(key, _)| range.contains(key));
    within.map(|(key, update)| (key.clone(), update.clone())).collect()
}

pub fn below(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(bound as u64)).unwrap()
}
