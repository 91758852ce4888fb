//! Slabs handed out by a budget: within its limit, or beyond it where a write must go on.

use super::purpose::Use;
use super::{Budget, LEFT_FOR_OTHERS, Reclaimed};
use crate::base::error::Error;
use crate::base::limits::SLAB_BYTES;
use crate::memory::slab::OwnedSlab;
use crate::runtime::sync::{Arc, Ordering};
use std::alloc::{Layout, handle_alloc_error};

/// Slabs that one commit or flush takes beyond those its bytes fill: one for each part that it is
/// divided into.
pub(super) const READY_SLABS: usize = 8;

/// Why no slab is available.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// All memory is in use.
    Full,
    /// One will be free when the current readers are gone.
    Yet,
}

impl Budget {
    /// Takes a slab within the limit: a free one, else a new one. When memory is short, a cache
    /// below its share gets slabs that the other can give up; memory that becomes free meanwhile
    /// does not go to the cache above its share.
    pub fn take_slab(self: &Arc<Self>, purpose: Use) -> Result<OwnedSlab, Refused> {
        let Some(side) = purpose.side() else {
            let slab = if self.is_short(0) { None } else { self.hand_out(purpose) };
            return slab.ok_or(Refused::Full);
        };
        let larger = self.larger_side();
        let [own, other] = [side, side.other()].map(|side| &self.wanting[side as usize]);
        let yields = larger == Some(side) && other.load(Ordering::Relaxed);
        let left = self.left_for_work();
        let mut refused = Refused::Full;
        if self.is_short(left)
            && larger == Some(side.other())
            && self.reclaim(side.other()) == Reclaimed::Soon
        {
            refused = Refused::Yet;
        }
        let is_short = self.is_short(left + if yields { LEFT_FOR_OTHERS } else { 0 });
        own.store(is_short, Ordering::Relaxed);
        if is_short { Err(refused) } else { self.hand_out(purpose).ok_or(Refused::Full) }
    }

    /// Takes a slab for writes: within the limit if possible or if a cache gives one up, else
    /// beyond it. Callers bound how often that happens by their own share. A refusal of memory by
    /// the system aborts the process, so callers use [`Budget::make_ready`] before.
    pub fn take_slab_forced(self: &Arc<Self>, purpose: Use) -> OwnedSlab {
        self.make_room();
        let slab = self.hand_out(purpose).or_else(|| {
            let alone = self.free.lock().alone()?;
            self.count_slab(purpose);
            Some(OwnedSlab::new(alone, Arc::clone(self), purpose))
        });
        slab.unwrap_or_else(|| handle_alloc_error(Layout::new::<[u8; SLAB_BYTES]>()))
    }

    /// Like [`Budget::take_slab_forced`], for work; fails if the system refuses memory.
    pub fn take_work_slab(self: &Arc<Self>) -> Result<OwnedSlab, Error> {
        self.make_room();
        self.hand_out(Use::Work).ok_or_else(Error::out_of_memory)
    }

    /// Fails if the system refuses memory for `bytes` bytes of entries plus one slab for each
    /// part that takes them; call it where an error can be returned. Unless the system refused
    /// memory before, small requests are not checked.
    #[inline]
    pub fn make_ready(&self, bytes: u64) -> Result<(), Error> {
        let is_little = bytes < SLAB_BYTES as u64;
        if is_little && !self.is_refused.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.map_ahead(bytes)
    }

    #[cold]
    fn map_ahead(&self, bytes: u64) -> Result<(), Error> {
        let slabs = bytes.saturating_mul(2).div_ceil(SLAB_BYTES as u64);
        let count = usize::try_from(slabs).unwrap_or(usize::MAX).saturating_add(READY_SLABS);
        let is_ready = self.free.lock().make_ready(count, self.limit());
        self.is_refused.store(!is_ready, Ordering::Relaxed);
        if is_ready { Ok(()) } else { Err(Error::out_of_memory()) }
    }

    /// Hands out a slab; `None` if the system refuses memory.
    fn hand_out(self: &Arc<Self>, purpose: Use) -> Option<OwnedSlab> {
        self.count_slab(purpose);
        let mut free = self.free.lock();
        let warm = free.take_warm();
        if warm.is_some() {
            self.free_bytes.fetch_sub(SLAB_BYTES as u64, Ordering::Relaxed);
        }
        let slab = warm.or_else(|| free.without_memory(self.limit()));
        drop(free);
        if slab.is_none() {
            self.used[purpose as usize].fetch_sub(SLAB_BYTES as u64, Ordering::Relaxed);
            self.is_refused.store(true, Ordering::Relaxed);
        }
        Some(OwnedSlab::new(slab?, Arc::clone(self), purpose))
    }

    fn count_slab(&self, purpose: Use) {
        let used = &self.used[purpose as usize];
        let before = used.fetch_add(SLAB_BYTES as u64, Ordering::Relaxed);
        if purpose == Use::Work {
            self.work_peak.fetch_max(before + SLAB_BYTES as u64, Ordering::Relaxed);
        }
    }
}
