//! Maintenance that failed, and when it is tried again.
//!
//! A failed unit may have written much for nothing. It is tried again after the engine absorbed
//! something, or after a wait that doubles with each failure; on a full disk only once there is
//! space.

use crate::admission::headroom::{RETRY_INTERVAL, RETRY_INTERVAL_MAX};
use crate::base::ids::SeqNo;
use std::time::Duration;

/// A unit of maintenance that failed and is not tried for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Postponed {
    /// Writes up to this seqno had been absorbed.
    absorbed: SeqNo,
    /// The free blocks of the data file then, if there was no space.
    full: Option<u64>,
    /// How long it is postponed.
    wait: Duration,
    /// Until this time.
    until: Duration,
}

/// The state of a keyspace and of the disk when a postponed unit could be tried again.
pub struct Now<'a> {
    /// Writes up to this seqno have been absorbed.
    pub absorbed: SeqNo,
    /// The free blocks of the data file.
    pub free_blocks: u64,
    /// `None` in a stepped database, where no time passes so that runs can be replayed. There only
    /// absorbed writes count: when blocks are freed depends on readers.
    pub time: Option<Duration>,
    /// Whether the disk has space; takes a system call.
    pub has_space: &'a dyn Fn() -> bool,
}

impl Postponed {
    /// After a failure, for lack of space or not, that follows the failure `before`.
    pub fn new(before: Option<Self>, is_full: bool, now: &Now<'_>) -> Self {
        let wait = before.map_or(RETRY_INTERVAL, |before| 2 * before.wait).min(RETRY_INTERVAL_MAX);
        let full = is_full.then_some(now.free_blocks);
        let until = now.time.unwrap_or_default() + wait;
        Self { absorbed: now.absorbed, full, wait, until }
    }

    /// True if it is not to be tried yet.
    pub fn lasts(&mut self, now: &Now<'_>) -> bool {
        if self.absorbed != now.absorbed {
            return false;
        }
        let Some(time) = now.time else { return true };
        if time < self.until {
            return true;
        }
        let has_more = self.full.is_some_and(|free_blocks| now.free_blocks > free_blocks);
        if self.full.is_some() && !has_more && !(now.has_space)() {
            self.until = time + self.wait;
            return true;
        }
        // The next caller gets the same answer.
        self.full = None;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time at which nothing else has changed.
    fn at(millis: u64) -> Now<'static> {
        let time = Some(Duration::from_millis(millis));
        Now { absorbed: SeqNo(7), free_blocks: 10, time, has_space: &|| false }
    }

    #[test]
    fn what_found_no_room_waits_for_some_and_longer_each_time() {
        let mut postponed = Postponed::new(None, true, &at(1000));
        let with_space = |millis| Now { has_space: &|| true, ..at(millis) };
        assert!(postponed.lasts(&with_space(1199)), "it is not even asked");
        assert!(postponed.lasts(&at(1200)));
        assert!(postponed.lasts(&with_space(1399)), "it was asked");
        let mut other = postponed;
        assert!(!other.lasts(&Now { free_blocks: 11, ..at(1400) }));
        assert!(!postponed.lasts(&with_space(1400)));
        assert!(!postponed.lasts(&at(1401)), "a second caller gets the same answer");
        let mut again = postponed;
        for wait in [400, 800, 1600, 3200, 6400, 12_000, 12_000] {
            again = Postponed::new(Some(again), true, &at(0));
            assert_eq!((again.wait, again.until), (Duration::from_millis(wait), again.wait));
        }
        assert!(again.lasts(&at(11_999)));
        assert!(!again.lasts(&Now { absorbed: SeqNo(8), ..at(1) }), "an absorb begins anew");
    }

    #[test]
    fn what_could_not_be_read_is_only_a_matter_of_time() {
        let mut postponed = Postponed::new(None, false, &at(0));
        assert!(postponed.lasts(&Now { free_blocks: 99, ..at(199) }));
        assert!(!postponed.lasts(&at(200)));
        // No time passes: only what was absorbed counts.
        let mut full = Postponed::new(None, true, &at(0));
        for postponed in [&mut postponed, &mut full] {
            assert!(postponed.lasts(&Now { time: None, free_blocks: 99, ..at(0) }));
            assert!(!postponed.lasts(&Now { time: None, absorbed: SeqNo(8), ..at(0) }));
        }
    }
}
