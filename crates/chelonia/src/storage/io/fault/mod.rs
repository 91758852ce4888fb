//! A directory wrapper that injects planned faults.
//!
//! A [`FaultDirectory`] forwards every call, unless the [`FaultPlan`] that it shares with the test
//! fails the call, or the device that the plan describes is full. Over a `CrashDirectory` it
//! combines faults with power cuts.
//!
//! Writes through a region never need space: the range was allocated before.
//!
//! Thread-safety: as the directory below.

mod plan;
mod space;
#[cfg(test)]
mod tests;

pub use plan::{Call, Failure, Fault, FaultPlan};

use super::{
    Access, Directory, File, IoFacts, LockGuard, OpenMode, ReadRequest, Region, SCRATCH_FILE,
    ScratchPlace,
};
use crate::base::error::Result;
use crate::runtime::sync::Arc;
use std::cell::RefCell;
use std::path::Path;

/// A directory whose calls may fail.
#[derive(Clone, Debug)]
pub struct FaultDirectory {
    inner: Arc<dyn Directory>,
    plan: FaultPlan,
}

impl FaultDirectory {
    /// Wraps `inner` with the faults of `plan`. Existing files take space of the plan's device.
    pub fn new(inner: Arc<dyn Directory>, plan: FaultPlan) -> Result<Self> {
        for name in inner.list()? {
            let size = inner.open(&name, OpenMode::Read, Access::Buffered)?.size()?;
            let mut space = plan.space();
            space.create(&name);
            space.take(&name, 0, size);
        }
        Ok(Self { inner, plan })
    }
}

/// Runs `call` unless the plan fails it; `half` is the effect of a half done call.
fn attempt<T>(
    plan: &FaultPlan,
    kind: Call,
    what: &str,
    file: &str,
    half: impl FnOnce() -> Result<()>,
    call: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Some(failure) = plan.decide(kind, file) else { return call() };
    match failure {
        Failure::Io
        | Failure::NoSpace
        | Failure::TooManyFiles
        | Failure::FileTooLarge
        | Failure::IoForgetting => {}
        Failure::IoHalfDone | Failure::NoSpaceHalfDone => half()?,
        Failure::IoAllDone => drop(call()?),
    }
    Err(failure.error(what, file))
}

/// For a call that cannot be half done.
fn whole() -> Result<()> {
    Ok(())
}

impl Directory for FaultDirectory {
    fn open(&self, name: &str, mode: OpenMode, access: Access) -> Result<Arc<dyn File>> {
        attempt(&self.plan, Call::Open, "open", name, whole, || {
            let inner = self.inner.open(name, mode, access)?;
            if mode == OpenMode::CreateNew {
                self.plan.space().create(name);
            }
            let plan = self.plan.clone();
            Ok(Arc::new(FaultFile { inner, plan, is_scratch: false }) as Arc<dyn File>)
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        attempt(&self.plan, Call::Remove, "remove", name, whole, || {
            self.inner.remove(name)?;
            self.plan.space().remove(name);
            Ok(())
        })
    }

    fn list(&self) -> Result<Vec<String>> {
        attempt(&self.plan, Call::List, "list", ".", whole, || self.inner.list())
    }

    fn sync(&self) -> Result<()> {
        let what = "sync the directory";
        attempt(&self.plan, Call::SyncDirectory, what, ".", whole, || self.inner.sync())
    }

    fn lock(&self, exclusive: bool, create: bool) -> Result<Box<dyn LockGuard>> {
        attempt(&self.plan, Call::Lock, "lock", super::LOCK_FILE, whole, || {
            self.inner.lock(exclusive, create)
        })
    }

    fn scratch(&self, place: ScratchPlace) -> Result<Arc<dyn File>> {
        attempt(&self.plan, Call::Open, "create", SCRATCH_FILE, whole, || {
            let inner = self.inner.scratch(place)?;
            // All scratch files count as one file.
            self.plan.space().make(SCRATCH_FILE);
            let plan = self.plan.clone();
            Ok(Arc::new(FaultFile { inner, plan, is_scratch: true }) as Arc<dyn File>)
        })
    }

    fn facts(&self) -> IoFacts {
        self.inner.facts()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.plan.space().free_bytes().or_else(|| self.inner.free_bytes())
    }

    fn file_bytes_max(&self) -> Option<u64> {
        self.inner.file_bytes_max()
    }

    fn path(&self) -> Option<&Path> {
        self.inner.path()
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Arc<dyn File>,
    plan: FaultPlan,
    is_scratch: bool,
}

impl Drop for FaultFile {
    fn drop(&mut self) {
        if self.is_scratch {
            self.plan.space().give_back(self.inner.name(), 0, u64::MAX);
        }
    }
}

impl FaultFile {
    /// Runs a call that cannot be half done.
    fn attempt<T>(&self, kind: Call, what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        attempt(&self.plan, kind, what, self.inner.name(), whole, call)
    }

    /// Takes the blocks of a range from the device.
    fn take(&self, what: &str, offset: u64, bytes: u64) -> Result<()> {
        if self.plan.space().take(self.inner.name(), offset, bytes) {
            return Ok(());
        }
        Err(Failure::NoSpace.error(what, self.inner.name()))
    }

    fn write_taking(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.take("write", offset, bytes.len() as u64)?;
        self.inner.write_at(bytes, offset)
    }

    fn zero_taking(&self, offset: u64, bytes: u64) -> Result<()> {
        self.take("write zeros", offset, bytes)?;
        self.inner.write_zeros(offset, bytes)
    }
}

impl File for FaultFile {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.attempt(Call::Read, "read", || self.inner.read_at(buffer, offset))
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        for _ in requests.iter() {
            self.attempt(Call::Read, "read", || Ok(()))?;
        }
        self.inner.read_many(requests)
    }

    fn read_many_while(
        &self,
        requests: &mut [ReadRequest<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        for _ in requests.iter() {
            self.attempt(Call::Read, "read", || Ok(()))?;
        }
        self.inner.read_many_while(requests, meanwhile)
    }

    fn data_from(&self, offset: u64) -> Result<Option<u64>> {
        self.attempt(Call::Read, "read", || self.inner.data_from(offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let half = || self.write_taking(&bytes[..bytes.len() / 2], offset);
        let all = || self.write_taking(bytes, offset);
        attempt(&self.plan, Call::Write, "write", self.inner.name(), half, all)
    }

    fn write_zeros(&self, offset: u64, bytes: u64) -> Result<()> {
        let half = || self.zero_taking(offset, bytes / 2);
        let all = || self.zero_taking(offset, bytes);
        attempt(&self.plan, Call::Write, "write zeros", self.inner.name(), half, all)
    }

    fn sync(&self) -> Result<()> {
        self.attempt(Call::Sync, "sync", || {
            if self.plan.is_forgotten(self.inner.name()) {
                return Ok(());
            }
            self.inner.sync()
        })
    }

    fn size(&self) -> Result<u64> {
        self.attempt(Call::Size, "get the size", || self.inner.size())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.attempt(Call::SetSize, "set the size", || {
            self.inner.set_size(size)?;
            self.plan.space().give_back(self.inner.name(), size, u64::MAX);
            Ok(())
        })
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.attempt(Call::Allocate, "allocate", || {
            self.take("allocate", offset, bytes)?;
            self.inner.allocate(offset, bytes)
        })
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.attempt(Call::PunchHole, "free", || {
            self.inner.punch_hole(offset, bytes)?;
            let end = offset.saturating_add(bytes);
            self.plan.space().give_back(self.inner.name(), offset, end);
            Ok(())
        })
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.attempt(Call::Size, "get the size", || {
            Ok(self.plan.space().file_bytes(self.inner.name()))
        })
    }

    fn lock(&self, exclusive: bool) -> Result<Box<dyn LockGuard>> {
        self.attempt(Call::Lock, "lock", || self.inner.lock(exclusive))
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>> {
        self.attempt(Call::Map, "map", || {
            let inner = self.inner.map(offset, bytes)?;
            let (name, plan) = (self.inner.name().to_owned(), self.plan.clone());
            Ok(Box::new(FaultRegion { inner, name, plan }) as Box<dyn Region>)
        })
    }
}

#[derive(Debug)]
struct FaultRegion {
    inner: Box<dyn Region>,
    name: String,
    plan: FaultPlan,
}

impl Region for FaultRegion {
    fn size(&self) -> usize {
        self.inner.size()
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        // Only one of the two is called.
        let inner = RefCell::new(&mut self.inner);
        let half = || inner.borrow_mut().write(offset, &bytes[..bytes.len() / 2]);
        let all = || inner.borrow_mut().write(offset, bytes);
        attempt(&self.plan, Call::RegionWrite, "write", &self.name, half, all)
    }
}
