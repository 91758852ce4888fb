//! Fault plans: which calls fail, and how; shared by a test and its fault directory.
//!
//! Every call is counted by its kind and file. A test runs its workload once to learn the counts,
//! and then once for each number below them, failing that call.
//!
//! Thread-safety: any thread may call; one mutex.

use super::space::Space;
use crate::base::error::Error;
use crate::runtime::sync::{Arc, Mutex, MutexGuard};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};

/// A kind of call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Call {
    /// `Directory::open`, whatever the mode.
    Open,
    /// `File::read_at`, and each read of `File::read_many`.
    Read,
    /// `File::write_at`, `File::write_zeros`, and each write of `File::write_many`.
    Write,
    /// `File::sync`.
    Sync,
    /// `File::set_size`.
    SetSize,
    /// `File::allocate`.
    Allocate,
    /// `File::punch_hole`.
    PunchHole,
    /// `File::map`.
    Map,
    /// `Region::write`.
    RegionWrite,
    /// `Directory::remove`.
    Remove,
    /// `Directory::list`; its file is ".".
    List,
    /// `Directory::sync`; its file is ".".
    SyncDirectory,
    /// `Directory::lock` and `File::lock`.
    Lock,
    /// `File::size` and `File::allocated_bytes`.
    Size,
}

impl Call {
    /// All kinds.
    pub const ALL: [Call; 14] = [
        Call::Open,
        Call::Read,
        Call::Write,
        Call::Sync,
        Call::SetSize,
        Call::Allocate,
        Call::PunchHole,
        Call::Map,
        Call::RegionWrite,
        Call::Remove,
        Call::List,
        Call::SyncDirectory,
        Call::Lock,
        Call::Size,
    ];
}

/// How a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// EIO, and nothing was done.
    Io,
    /// ENOSPC, and nothing was done.
    NoSpace,
    /// EMFILE, and nothing was done.
    TooManyFiles,
    /// EFBIG, and nothing was done.
    FileTooLarge,
    /// EIO, after the first half of a write was done; of other calls nothing.
    IoHalfDone,
    /// ENOSPC, after the first half of a write was done; of other calls nothing.
    NoSpaceHalfDone,
    /// EIO, although the call was done.
    IoAllDone,
    /// EIO, and nothing was done. After such a sync failure, later syncs of the file succeed
    /// without doing anything, until [`FaultPlan::heal`]: like a kernel that marks pages clean
    /// which it could not write.
    IoForgetting,
}

impl Failure {
    pub(super) fn error(self, what: &str, file: &str) -> Error {
        let number = match self {
            Failure::NoSpace | Failure::NoSpaceHalfDone => Errno::NOSPC,
            Failure::TooManyFiles => Errno::MFILE,
            Failure::FileTooLarge => Errno::FBIG,
            Failure::Io | Failure::IoHalfDone | Failure::IoAllDone | Failure::IoForgetting => {
                Errno::IO
            }
        };
        Error::io(what, file, number.into())
    }
}

/// A planned failure of a call.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The kind of call; any if `None`.
    pub call: Option<Call>,
    /// Calls of files whose names begin with this; empty for all.
    pub file_prefix: String,
    /// How many matching calls succeed before the one that fails, from when the fault was planned.
    pub after: u64,
    /// Whether all later matching calls fail too.
    pub sticky: bool,
    /// How the call fails.
    pub failure: Failure,
}

impl Fault {
    /// Fails one call of a kind, on any file, after `after` others, with EIO.
    #[must_use]
    pub fn once(call: Call, after: u64) -> Self {
        let (file_prefix, failure) = (String::new(), Failure::Io);
        Self { call: Some(call), file_prefix, after, sticky: false, failure }
    }

    /// Like [`Fault::once`], but every later call of the kind fails too.
    #[must_use]
    pub fn sticky(call: Call, after: u64) -> Self {
        Self { sticky: true, ..Self::once(call, after) }
    }

    /// Limits the fault to files whose names begin with `prefix`.
    #[must_use]
    pub fn on(self, prefix: &str) -> Self {
        Self { file_prefix: prefix.to_owned(), ..self }
    }

    /// Sets how the call fails.
    #[must_use]
    pub fn with(self, failure: Failure) -> Self {
        Self { failure, ..self }
    }

    fn matches(&self, call: Call, file: &str) -> bool {
        self.call.is_none_or(|kind| kind == call) && file.starts_with(&self.file_prefix)
    }
}

/// The planned faults, the calls so far, and the device size. Clones share the plan.
#[derive(Clone, Default)]
pub struct FaultPlan {
    state: Arc<Mutex<State>>,
}

impl Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultPlan").field("faults", &self.state.lock().faults).finish()
    }
}

/// Called on every call, before it is done.
type Observer = Arc<dyn Fn(Call, &str) + Send + Sync>;

#[derive(Default)]
struct State {
    observer: Option<Observer>,
    /// The faults, each with the number of matching calls seen.
    faults: Vec<(Fault, u64)>,
    calls: BTreeMap<(Call, String), u64>,
    failures: u64,
    /// Files whose syncs do nothing.
    forgotten: BTreeSet<String>,
    space: Space,
}

impl FaultPlan {
    /// An empty plan.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `observe` to see every call and its file, on the calling thread, before the call
    /// is done or fails.
    pub fn on_call(&self, observe: impl FnMut(Call, &str) + Send + 'static) {
        let observe = Mutex::new(observe);
        self.before_call(move |call, file| observe.lock()(call, file));
    }

    /// Like [`FaultPlan::on_call`], for an observer that may be called concurrently: one thread may
    /// wait in it while others continue.
    pub fn before_call(&self, observe: impl Fn(Call, &str) + Send + Sync + 'static) {
        self.state.lock().observer = Some(Arc::new(observe));
    }

    /// Adds a fault.
    pub fn fail(&self, fault: Fault) {
        self.state.lock().faults.push((fault, 0));
    }

    /// Removes all planned faults. Capacity and counts stay.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.faults.clear();
        state.forgotten.clear();
    }

    /// The number of calls of a kind, including failed ones.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.calls_on(call, "")
    }

    /// The number of calls for files whose names begin with `prefix`.
    #[must_use]
    pub fn calls_on(&self, call: Call, prefix: &str) -> u64 {
        let state = self.state.lock();
        let matching = state
            .calls
            .iter()
            .filter(|((kind, file), _)| *kind == call && file.starts_with(prefix));
        matching.map(|(_, count)| count).sum()
    }

    /// The number of calls failed by a planned fault.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    /// Limits the device to `bytes` bytes (unlimited if `None`): calls that would take more fail
    /// with ENOSPC. Taken space stays.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().space.set_capacity(bytes);
    }

    /// The device space used by files, in bytes.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.state.lock().space.taken_bytes()
    }

    /// Counts a call and returns its planned failure, if any.
    pub(super) fn decide(&self, call: Call, file: &str) -> Option<Failure> {
        let observer = self.state.lock().observer.clone();
        if let Some(observe) = observer {
            observe(call, file);
        }
        let mut state = self.state.lock();
        *state.calls.entry((call, file.to_owned())).or_default() += 1;
        let mut failure = None;
        for (fault, seen) in &mut state.faults {
            if fault.matches(call, file) {
                let hit = *seen == fault.after || (fault.sticky && *seen > fault.after);
                *seen += 1;
                if hit && failure.is_none() {
                    failure = Some(fault.failure);
                }
            }
        }
        state.failures += u64::from(failure.is_some());
        if call == Call::Sync && failure == Some(Failure::IoForgetting) {
            state.forgotten.insert(file.to_owned());
        }
        failure
    }

    /// True if syncs of the file do nothing.
    pub(super) fn is_forgotten(&self, file: &str) -> bool {
        self.state.lock().forgotten.contains(file)
    }

    pub(super) fn space(&self) -> SpaceGuard<'_> {
        SpaceGuard { state: self.state.lock() }
    }
}

/// The device, locked.
pub(super) struct SpaceGuard<'a> {
    state: MutexGuard<'a, State>,
}

impl std::ops::Deref for SpaceGuard<'_> {
    type Target = Space;
    fn deref(&self) -> &Space {
        &self.state.space
    }
}

impl std::ops::DerefMut for SpaceGuard<'_> {
    fn deref_mut(&mut self) -> &mut Space {
        &mut self.state.space
    }
}
