//! What was taken out of the cells of a database and is not dropped yet: `Epochs::settle` waits for
//! it. A collector says when a function is called, not when it has returned; so contents count
//! themselves.
//!
//! ```text
//!   round 7                round 8                 settle: rounds up to 7 are over
//!   taken out: 7 + 1  ...  taken out: 8 + 1  ...   dropped: 7 - 1
//! ```
//!
//! Thread-safety: anything may be called from any thread.

use crate::runtime::sync::{Arc, AtomicU64, Ordering};

/// Rounds of `Epochs::settle` that are told apart.
const ROUNDS: usize = 64;

/// The contents of cells that were taken out and are not dropped yet, by rounds.
pub(super) struct Rounds {
    /// How often `Epochs::settle` was called: what is taken out now belongs to this round.
    current: AtomicU64,
    undropped: [AtomicU64; ROUNDS],
}

impl Default for Rounds {
    fn default() -> Self {
        Self { current: AtomicU64::new(0), undropped: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Rounds {
    /// Ends the current round; gives its number.
    pub fn begin(&self) -> u64 {
        self.current.fetch_add(1, Ordering::AcqRel)
    }

    fn undropped(&self, round: u64) -> &AtomicU64 {
        &self.undropped[usize::try_from(round % ROUNDS as u64).unwrap_or(0)]
    }

    /// True if nothing is left of `round` and those before it.
    pub fn are_dropped_before(&self, round: u64) -> bool {
        let mut earlier = (0..ROUNDS as u64 - 1).map(|back| round.wrapping_sub(back));
        earlier.all(|round| self.undropped(round).load(Ordering::Acquire) == 0)
    }
}

/// Counts a content that was taken out, from then until it was dropped.
pub(super) struct TakenOut {
    rounds: Arc<Rounds>,
    /// The round, and one; 0 before it is taken out.
    since: AtomicU64,
}

impl TakenOut {
    /// For a content that is not taken out yet.
    pub fn new(rounds: &Arc<Rounds>) -> Self {
        Self { rounds: Arc::clone(rounds), since: AtomicU64::new(0) }
    }

    /// It is taken out now.
    pub fn begin(&self) {
        let round = self.rounds.current.load(Ordering::Acquire);
        self.rounds.undropped(round).fetch_add(1, Ordering::AcqRel);
        self.since.store(round + 1, Ordering::Release);
    }
}

impl Drop for TakenOut {
    fn drop(&mut self) {
        if let Some(round) = self.since.load(Ordering::Acquire).checked_sub(1) {
            self.rounds.undropped(round).fetch_sub(1, Ordering::AcqRel);
        }
    }
}
