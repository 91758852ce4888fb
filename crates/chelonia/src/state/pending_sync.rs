//! Syncs that somebody waits for without blocking a thread.
//!
//! ```text
//!   sync_later -> [ slot slot slot ] --taken--> log thread: one sync --> all of them are done
//!                      ^ further ones, for the next sync
//! ```
//!
//! A sync covers everything that was written before it begins, so the log thread takes all slots,
//! syncs, and completes them, whatever each of them waits for. Slots that come meanwhile wait for
//! the next sync.
//!
//! Thread-safety: everything may be called from any thread. Callbacks and wakers run on the log
//! thread, or that of a close, without a lock of this file. One that drops the last handle closes
//! the database there.

use crate::base::error::{Error, ErrorKind, Result};
use crate::runtime::sync::{Arc, Condvar, Mutex};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The slots that wait for the next sync.
#[derive(Default)]
pub struct PendingSyncs {
    slots: Mutex<Vec<Arc<Slot>>>,
}

/// Slots that a thread syncs for; dropped without a result, e.g. by a panic, they fail.
pub struct TakenSyncs {
    slots: Vec<Arc<Slot>>,
}

/// A sync that was requested by [`crate::Database::sync_later`], and is done in the background.
///
/// It is a `Future` for programs with asynchronous code, of any runtime; others wait for it, ask
/// for it, or give it a function to call. Dropping it changes nothing.
#[must_use = "it shows when the commits are durable"]
pub struct PendingSync {
    slot: Arc<Slot>,
}

#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    done: Condvar,
}

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
struct State {
    result: Option<Result<()>>,
    waker: Option<Waker>,
    callback: Option<Callback>,
}

impl Slot {
    fn complete(&self, result: &Result<()>) {
        let (waker, callback) = {
            let mut state = self.state.lock();
            if state.result.is_some() {
                return;
            }
            state.result = Some(result.clone());
            self.done.notify_all();
            (state.waker.take(), state.callback.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(callback) = callback {
            callback(result.clone());
        }
    }
}

impl PendingSyncs {
    /// Adds a sync.
    pub fn add(&self) -> PendingSync {
        let slot = Arc::new(Slot::default());
        self.slots.lock().push(Arc::clone(&slot));
        PendingSync { slot }
    }

    /// Takes all that wait now.
    pub fn take(&self) -> TakenSyncs {
        TakenSyncs { slots: std::mem::take(&mut *self.slots.lock()) }
    }
}

impl TakenSyncs {
    /// True if nobody waits.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Completes them.
    pub fn complete(mut self, result: &Result<()>) {
        std::mem::take(&mut self.slots).iter().for_each(|slot| slot.complete(result));
    }
}

impl Drop for TakenSyncs {
    fn drop(&mut self) {
        let lost = || Error::new(ErrorKind::Stopped, "a background sync was aborted by a panic");
        self.slots.iter().for_each(|slot| slot.complete(&Err(lost())));
    }
}

impl PendingSync {
    /// A sync that is done already.
    pub(crate) fn done(result: &Result<()>) -> Self {
        let slot = Arc::new(Slot::default());
        slot.complete(result);
        Self { slot }
    }

    /// Returns whether the sync is done, successfully or not.
    ///
    /// ```
    /// # let database = chelonia::Database::in_memory()?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let pending = database.sync_later();
    /// while !pending.is_done() {
    ///     std::thread::yield_now(); // Something useful.
    /// }
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.slot.state.lock().result.is_some()
    }

    /// Waits until the sync is done.
    ///
    /// ```
    /// # let database = chelonia::Database::in_memory()?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let pending = database.sync_later();
    /// people.insert("grace", "admiral")?; // Not what is waited for.
    /// pending.wait()?;
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::Database::sync`].
    pub fn wait(self) -> Result<()> {
        let mut state = self.slot.state.lock();
        loop {
            if let Some(result) = &state.result {
                return result.clone();
            }
            self.slot.done.wait(&mut state);
        }
    }

    /// Calls `callback` with the result when the sync is done: at once if it is, otherwise on a
    /// thread of the database, or the one that closes it. It should be short, as further syncs wait
    /// for it; if it panics on a thread of the database, all writes stop.
    ///
    /// ```
    /// # let database = chelonia::Database::in_memory()?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// for number in 0..100_u32 {
    ///     people.insert(number.to_be_bytes(), "request")?;
    ///     let sender = sender.clone();
    ///     database.sync_later().on_done(move |result| sender.send((number, result)).unwrap());
    /// }
    /// for _ in 0..100 {
    ///     let (_number, result) = receiver.recv().unwrap();
    ///     result?; // Answer the request.
    /// }
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn on_done(self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        let result = {
            let mut state = self.slot.state.lock();
            match &state.result {
                Some(result) => result.clone(),
                None => {
                    state.callback = Some(Box::new(callback));
                    return;
                }
            }
        };
        callback(result);
    }
}

impl Future for PendingSync {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.state.lock();
        match &state.result {
            Some(result) => Poll::Ready(result.clone()),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl std::fmt::Debug for PendingSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingSync").field("is_done", &self.is_done()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sync::{AtomicU64, Ordering};

    #[test]
    fn every_kind_of_waiting_gets_the_result_once() {
        let pending = PendingSyncs::default();
        let (polled, waited, dropped) = (pending.add(), pending.add(), pending.add());
        let calls = Arc::new(AtomicU64::new(0));
        let called = Arc::clone(&calls);
        let count = move |result: Result<()>| {
            result.unwrap();
            called.fetch_add(1, Ordering::Relaxed);
        };
        pending.add().on_done(count.clone());
        drop(dropped);
        let mut polled = std::pin::pin!(polled);
        let mut context = Context::from_waker(Waker::noop());
        assert!(polled.as_mut().poll(&mut context).is_pending() && !waited.is_done());
        let taken = pending.take();
        let later = pending.add();
        taken.complete(&Ok(()));
        assert!(matches!(polled.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
        waited.wait().unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert!(!later.is_done());
        drop(pending.take());
        assert_eq!(later.wait().unwrap_err().kind(), ErrorKind::Stopped);
        PendingSync::done(&Ok(())).on_done(count);
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}
