//! The ordered effects on a directory, and the possible outcomes of a power cut at any moment.
//!
//! Every call that changes something and every sync is an [`Effect`]. A *boundary* is a moment
//! between two of them: boundary `b` is after the first `b`. At a boundary some changes are durable
//! and some are *pending*; the unit of a pending change is an *atom*, which survives completely or
//! not at all:
//!
//! | atom | from | durable after |
//! | --- | --- | --- |
//! | the state of one sector of 512 bytes | a write, also through a region | sync of the file |
//! | the size of a file | a write that grows it, `set_size`, `allocate` | sync of the file |
//! | a hole | `punch_hole` | sync of the file |
//! | that a name exists, or no longer | `open` with `CreateNew`, `remove` | sync of the directory |
//!
//! Any subset of the pending atoms may survive, in whatever order they were made; survivors are
//! applied in order. So a sector holds the state after any one write to it since the last sync, or
//! its previous content; a size may lag behind the content, which then loses everything past it; a
//! removed file may come back, and a new one may vanish or be empty.
//!
//! [`Replay`] is the durable and pending state at one boundary, and advances effect by effect. A
//! [`Journal`] keeps copies of it at intervals (their content is shared), so that images of
//! neighboring boundaries cost only the changes between them.

use super::sparse::Sparse;
use crate::base::limits::SECTOR_BYTES;
use crate::runtime::rng::Rng;
use crate::runtime::sync::{Arc, Mutex};
use std::collections::{BTreeMap, BTreeSet};

/// A file that exists or existed, numbered by creation. Names change, files stay.
pub type FileNumber = usize;

/// A recorded change or sync.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A write of complete sectors, with their content after it.
    Write {
        file: FileNumber,
        /// A multiple of [`SECTOR_BYTES`].
        offset: u64,
        sectors: Arc<[u8]>,
        /// The new size, if the write grew the file.
        grown: Option<u64>,
        /// Through a region: the kernel may have written back a sector in the middle of the copy.
        mapped: bool,
    },
    Size {
        file: FileNumber,
        size: u64,
    },
    Hole {
        file: FileNumber,
        offset: u64,
        bytes: u64,
    },
    Create {
        name: Arc<str>,
        file: FileNumber,
    },
    Remove {
        name: Arc<str>,
    },
    Sync {
        file: FileNumber,
    },
    SyncDirectory,
}

/// The pending atoms that survive a power cut. Atoms are numbered from 0 to [`Journal::pending`],
/// in the order in which they were made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survivors {
    /// Only synced changes.
    None,
    /// All atoms, as after the death of the process alone.
    All,
    /// A subset drawn from this seed: sparse, even or dense. Sectors written through a region may
    /// also be torn.
    Subset(u64),
    /// All atoms except this one.
    AllBut(usize),
    /// Only this atom.
    Only(usize),
    /// The first atoms, as many as given.
    Prefix(usize),
    /// All atoms except the first ones, as many as given: the last moments without the earlier
    /// ones.
    Suffix(usize),
    /// Atom `i` if bit `i` is set; those from 64 on are lost.
    Mask(u64),
    /// All atoms, but of each sector from this one on only the first 64 bytes, followed by its
    /// previous content.
    TornFrom(usize),
}

/// The bytes of a sector that [`Survivors::TornFrom`] leaves.
const TORN_BYTES: usize = 64;

/// A pending change: a part of an effect. Field order is the order of application.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Atom {
    effect: usize,
    part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    /// The sector of this index within a write.
    Sector(usize),
    /// The rest of a write, or any other effect completely.
    Rest,
}

/// The outcome of one atom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Lost,
    Kept,
    /// Only the first bytes of a sector.
    Torn(usize),
}

/// The initial files of a directory.
pub type Base = BTreeMap<Arc<str>, Sparse>;

/// The state of the device at one boundary.
#[derive(Clone, Debug)]
struct Replay {
    /// The boundary: how many effects are applied.
    boundary: usize,
    files: BTreeMap<FileNumber, FileState>,
    /// The durable names.
    names: BTreeMap<Arc<str>, FileNumber>,
    pending_names: Vec<Atom>,
}

#[derive(Clone, Debug, Default)]
struct FileState {
    durable: Sparse,
    pending: Vec<Atom>,
}

impl Replay {
    fn new(base: &Base) -> Self {
        let names = base.keys().cloned().zip(0..).collect();
        let files = base
            .values()
            .map(|content| FileState { durable: content.clone(), pending: Vec::new() });
        Self { boundary: 0, files: (0..).zip(files).collect(), names, pending_names: Vec::new() }
    }

    /// Applies the next effect, which is `effects[self.boundary]`.
    fn step(&mut self, effects: &[Effect]) {
        let number = self.boundary;
        let rest = Atom { effect: number, part: Part::Rest };
        self.boundary += 1;
        match &effects[number] {
            Effect::Write { file, sectors, grown, .. } => {
                // An unreachable file has no state.
                let Some(state) = self.files.get_mut(file) else { return };
                let parts = (0..sectors.len() / SECTOR_BYTES).map(Part::Sector);
                state.pending.extend(parts.map(|part| Atom { effect: number, part }));
                if grown.is_some() {
                    state.pending.push(rest);
                }
            }
            Effect::Size { file, .. } | Effect::Hole { file, .. } => {
                if let Some(state) = self.files.get_mut(file) {
                    state.pending.push(rest);
                }
            }
            Effect::Create { file, .. } => {
                self.files.insert(*file, FileState::default());
                self.pending_names.push(rest);
            }
            Effect::Remove { .. } => self.pending_names.push(rest),
            Effect::Sync { file } => {
                if let Some(state) = self.files.get_mut(file) {
                    for atom in std::mem::take(&mut state.pending) {
                        apply(&mut state.durable, effects, atom, Fate::Kept);
                    }
                }
            }
            Effect::SyncDirectory => {
                for atom in std::mem::take(&mut self.pending_names) {
                    apply_name(&mut self.names, effects, atom);
                }
                let named: BTreeSet<_> = self.names.values().copied().collect();
                self.files.retain(|file, _| named.contains(file));
            }
        }
    }

    /// All pending atoms, in order, with the file whose content they change.
    fn atoms(&self) -> Vec<(Atom, Option<FileNumber>)> {
        let mut atoms: Vec<_> = self.pending_names.iter().map(|atom| (*atom, None)).collect();
        for (file, state) in &self.files {
            atoms.extend(state.pending.iter().map(|atom| (*atom, Some(*file))));
        }
        atoms.sort_unstable();
        atoms
    }

    /// The directory content if the pending atoms survive according to `survivors`.
    fn image(&self, effects: &[Effect], survivors: Survivors) -> BTreeMap<String, Vec<u8>> {
        let mut names = self.names.clone();
        let mut contents: BTreeMap<FileNumber, Sparse> = BTreeMap::new();
        let mut fates = Fates::new(survivors);
        for (atom, file) in self.atoms() {
            let fate = fates.next(&effects[atom.effect], atom.part);
            if fate == Fate::Lost {
                continue;
            }
            match file {
                Some(file) => {
                    let content =
                        contents.entry(file).or_insert_with(|| self.files[&file].durable.clone());
                    apply(content, effects, atom, fate);
                }
                None => apply_name(&mut names, effects, atom),
            }
        }
        let bytes = |file| match contents.get(&file) {
            Some(content) => content.to_bytes(),
            None => self.files[&file].durable.to_bytes(),
        };
        names.into_iter().map(|(name, file)| (name.to_string(), bytes(file))).collect()
    }
}

/// Applies an atom to the content of its file.
fn apply(content: &mut Sparse, effects: &[Effect], atom: Atom, fate: Fate) {
    match (&effects[atom.effect], atom.part) {
        (Effect::Write { offset, sectors, .. }, Part::Sector(index)) => {
            let bytes = if let Fate::Torn(bytes) = fate { bytes } else { SECTOR_BYTES };
            let start = index * SECTOR_BYTES;
            content.write(offset + start as u64, &sectors[start..start + bytes]);
        }
        (Effect::Write { grown: Some(size), .. } | Effect::Size { size, .. }, Part::Rest) => {
            content.set_size(*size);
        }
        (Effect::Hole { offset, bytes, .. }, Part::Rest) => content.clear(*offset, *bytes),
        _ => {}
    }
}

/// Applies an atom that changes a name.
fn apply_name(names: &mut BTreeMap<Arc<str>, FileNumber>, effects: &[Effect], atom: Atom) {
    match &effects[atom.effect] {
        Effect::Create { name, file } => {
            names.insert(Arc::clone(name), *file);
        }
        Effect::Remove { name } => {
            names.remove(name);
        }
        _ => {}
    }
}

/// Determines the outcome of each atom, in order.
struct Fates {
    survivors: Survivors,
    /// The number of the next atom.
    index: usize,
    rng: Rng,
    /// The number of survivors among 16 atoms of a drawn subset.
    kept_of_16: u64,
}

impl Fates {
    fn new(survivors: Survivors) -> Self {
        let mut rng = Rng::new(if let Survivors::Subset(seed) = survivors { seed } else { 0 });
        // Nearly all, nearly none and half find different faults.
        let kept_of_16 = [8, 8, 1, 15, 4, 12][usize::try_from(rng.below(6)).unwrap_or(0)];
        Self { survivors, index: 0, rng, kept_of_16 }
    }

    fn next(&mut self, effect: &Effect, part: Part) -> Fate {
        let index = self.index;
        self.index += 1;
        let kept = match self.survivors {
            Survivors::None => false,
            Survivors::All | Survivors::TornFrom(_) => true,
            Survivors::AllBut(lost) => index != lost,
            Survivors::Only(kept) => index == kept,
            Survivors::Prefix(count) => index < count,
            Survivors::Suffix(count) => index >= count,
            Survivors::Mask(mask) => index < 64 && mask & (1 << index) != 0,
            Survivors::Subset(_) => self.rng.below(16) < self.kept_of_16,
        };
        let drawn = matches!(self.survivors, Survivors::Subset(_));
        let torn = matches!(self.survivors, Survivors::TornFrom(first) if index >= first);
        match (kept, part, effect) {
            (false, ..) => Fate::Lost,
            (true, Part::Sector(_), _) if torn => Fate::Torn(TORN_BYTES),
            (true, Part::Sector(_), Effect::Write { mapped: true, .. })
                if drawn && self.rng.one_in(4) =>
            {
                // Copies proceed word by word.
                let words = self.rng.below(SECTOR_BYTES as u64 / 8);
                Fate::Torn(usize::try_from(words).unwrap_or(0) * 8)
            }
            _ => Fate::Kept,
        }
    }
}

/// The number of effects between copies of the replay.
const EFFECTS_PER_COPY: usize = 256;

/// All effects on a directory up to a moment.
#[derive(Debug)]
pub struct Journal {
    effects: Vec<Effect>,
    replays: Mutex<Replays>,
}

/// Cached replays, guarded by the journal's mutex.
#[derive(Debug)]
struct Replays {
    /// The replay of the last query.
    current: Replay,
    /// Copy `i` is at boundary `i * EFFECTS_PER_COPY`; up to the furthest boundary of `current`.
    copies: Vec<Replay>,
}

impl Journal {
    pub(super) fn new(base: &Base, effects: Vec<Effect>) -> Self {
        let current = Replay::new(base);
        let replays = Replays { copies: vec![current.clone()], current };
        Self { effects, replays: Mutex::new(replays) }
    }

    /// The last boundary; the first is 0.
    #[must_use]
    pub fn boundaries(&self) -> usize {
        self.effects.len()
    }

    /// The number of pending atoms at a boundary.
    #[must_use]
    pub fn pending(&self, boundary: usize) -> usize {
        self.at(boundary, |replay| {
            let files = replay.files.values().map(|file| file.pending.len());
            replay.pending_names.len() + files.sum::<usize>()
        })
    }

    /// The files left by a power cut at `boundary` if exactly `survivors` of the pending atoms
    /// survive.
    #[must_use]
    pub fn image(&self, boundary: usize, survivors: Survivors) -> BTreeMap<String, Vec<u8>> {
        self.at(boundary, |replay| replay.image(&self.effects, survivors))
    }

    /// The files left by the death of the process at `boundary`.
    #[must_use]
    pub fn image_process_death(&self, boundary: usize) -> BTreeMap<String, Vec<u8>> {
        self.image(boundary, Survivors::All)
    }

    /// The last effects before `boundary`, for the message of a failing test.
    #[must_use]
    pub fn describe(&self, boundary: usize) -> String {
        let first_names = self.replays.lock().copies[0].names.clone();
        let name_of = |file: &FileNumber| {
            let created = self.effects.iter().find_map(|effect| match effect {
                Effect::Create { name, file: created } if created == file => Some(name),
                _ => None,
            });
            let first = first_names.iter().find(|(_, number)| *number == file);
            created.or(first.map(|(name, _)| name)).map_or("a file", |name| name)
        };
        match boundary.checked_sub(1).and_then(|last| self.effects.get(last)) {
            None => "nothing yet".to_owned(),
            Some(Effect::Write { file, offset, sectors, mapped, .. }) => {
                let how = if *mapped { "region write" } else { "write" };
                format!(
                    "{how} to {} at {offset}, sectors of {} bytes",
                    name_of(file),
                    sectors.len()
                )
            }
            Some(Effect::Size { file, size }) => format!("size of {} to {size}", name_of(file)),
            Some(Effect::Hole { file, offset, bytes }) => {
                format!("hole in {} at {offset} of {bytes} bytes", name_of(file))
            }
            Some(Effect::Create { name, .. }) => format!("creation of {name}"),
            Some(Effect::Remove { name }) => format!("removal of {name}"),
            Some(Effect::Sync { file }) => format!("sync of {}", name_of(file)),
            Some(Effect::SyncDirectory) => "sync of the directory".to_owned(),
        }
    }

    /// Runs a query at a boundary.
    fn at<T>(&self, boundary: usize, question: impl FnOnce(&Replay) -> T) -> T {
        assert!(boundary <= self.effects.len(), "the journal ends before this boundary");
        let mut replays = self.replays.lock();
        let replays = &mut *replays;
        let copy = (boundary / EFFECTS_PER_COPY).min(replays.copies.len() - 1);
        let current = replays.current.boundary;
        if current > boundary || current < replays.copies[copy].boundary {
            replays.current = replays.copies[copy].clone();
        }
        while replays.current.boundary < boundary {
            replays.current.step(&self.effects);
            if replays.current.boundary == replays.copies.len() * EFFECTS_PER_COPY {
                replays.copies.push(replays.current.clone());
            }
        }
        question(&replays.current)
    }
}
