//! Which call fails, and how: what a test and the directory it broke share.
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
    /// `File::write_at`.
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
    /// EIO, and nothing was done. After a sync that fails so, later syncs of the file succeed
    /// without doing anything, until [`FaultPlan::heal`]: as a kernel does that takes pages for
    /// clean which it could not write.
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

/// A call that is going to fail.
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
    /// How.
    pub failure: Failure,
}

impl Fault {
    /// Fails one call of a kind, on whatever file, after `after` others, with EIO.
    #[must_use]
    pub fn once(call: Call, after: u64) -> Self {
        let (file_prefix, failure) = (String::new(), Failure::Io);
        Self { call: Some(call), file_prefix, after, sticky: false, failure }
    }

    /// The same, and every later call of the kind.
    #[must_use]
    pub fn sticky(call: Call, after: u64) -> Self {
        Self { sticky: true, ..Self::once(call, after) }
    }

    /// The same for files whose names begin with `prefix`.
    #[must_use]
    pub fn on(self, prefix: &str) -> Self {
        Self { file_prefix: prefix.to_owned(), ..self }
    }

    /// The same, failing in this way.
    #[must_use]
    pub fn with(self, failure: Failure) -> Self {
        Self { failure, ..self }
    }

    fn matches(&self, call: Call, file: &str) -> bool {
        self.call.is_none_or(|kind| kind == call) && file.starts_with(&self.file_prefix)
    }
}

/// What fails, what was called, and how large the device is. Clones are the same plan.
#[derive(Clone, Default)]
pub struct FaultPlan {
    state: Arc<Mutex<State>>,
}

impl Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultPlan").field("faults", &self.state.lock().faults).finish()
    }
}

/// Called with every call, before it is done.
type Observer = Arc<dyn Fn(Call, &str) + Send + Sync>;

#[derive(Default)]
struct State {
    observer: Option<Observer>,
    /// With the number of matching calls seen.
    faults: Vec<(Fault, u64)>,
    calls: BTreeMap<(Call, String), u64>,
    failures: u64,
    /// Files whose syncs do nothing.
    forgotten: BTreeSet<String>,
    space: Space,
}

impl FaultPlan {
    /// A plan by which nothing fails.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on `observe` sees every call and its file, on the thread that calls, before it is
    /// done or fails.
    pub fn on_call(&self, observe: impl FnMut(Call, &str) + Send + 'static) {
        let observe = Mutex::new(observe);
        self.before_call(move |call, file| observe.lock()(call, file));
    }

    /// The same for an observer that several threads may call at a time: one of them may wait in it
    /// while others go on.
    pub fn before_call(&self, observe: impl Fn(Call, &str) + Send + Sync + 'static) {
        self.state.lock().observer = Some(Arc::new(observe));
    }

    /// Plans a failure.
    pub fn fail(&self, fault: Fault) {
        self.state.lock().faults.push((fault, 0));
    }

    /// Drops all failures that are planned. Capacity and counts stay.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.faults.clear();
        state.forgotten.clear();
    }

    /// How many calls of a kind there were, those that failed included.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.calls_on(call, "")
    }

    /// The same of files whose names begin with `prefix`.
    #[must_use]
    pub fn calls_on(&self, call: Call, prefix: &str) -> u64 {
        let state = self.state.lock();
        let matching = state
            .calls
            .iter()
            .filter(|((kind, file), _)| *kind == call && file.starts_with(prefix));
        matching.map(|(_, count)| count).sum()
    }

    /// How many calls failed by a planned fault.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    /// Makes the device hold at most `bytes` (any number, if `None`): what would take more fails
    /// with ENOSPC. What is taken stays.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().space.set_capacity(bytes);
    }

    /// The bytes that files take of the device.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.state.lock().space.taken_bytes()
    }

    /// Counts a call and says how it fails, if it does.
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

    /// Whether syncs of a file do nothing.
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
