//! Empty ranges: ranges of keys without live entries, remembered so that scans skip tombstones.
//!
//! A queue leaves a tombstone for every entry taken from its head, until a flush and the engine
//! have moved the tombstones to the bottom. Each search for the head would pass over all of them.
//! So when an iterator passes over many hidden entries in a row, the empty range is *learned*, and
//! later iterators skip it. An empty range describes the content of the keyspace, not where it is
//! stored: flushes do not affect it, and a write into it splits it.
//!
//! ```text
//!                watch                  confirm(seqno)                  cut by a write, evicted
//!   (nothing) --------> watched [a, b) ---------------> known [a', b') --------------> (nothing)
//!                          | a write lands in it: cut, the parts remain
//! ```
//!
//! How an empty range is learned ([`crate::state::reads::Reads::learn_empty_range`]), and why it is
//! correct:
//! 1. The range is watched: from now on a write into it cuts it.
//! 2. The last assigned seqno is noted, and the learner waits until it is visible. Every commit
//!    takes its seqnos under the commit lock and checks the empty ranges afterwards. So a commit
//!    with a newer seqno sees the watched range, and splits it if it writes there.
//! 3. The range is read at a pin made now: writes in flight in 1 are visible. A part found empty
//!    and not cut is empty for every reader from the pin's seqno on.
//!
//! A reader checks the empty ranges after it has its seqno: a write that it must see was visible
//! before, and has split its range.
//!
//! Thread-safety: everything may be called from any thread. Nothing here waits.

use crate::base::ids::SeqNo;
use crate::base::keys::{Direction, KeyRange};
use crate::runtime::sync::{AtomicUsize, Mutex, Ordering};
use std::ops::Bound;

/// Hidden entries in a row after which learning the empty range pays off.
pub const HIDDEN_MIN: u32 = 64;

/// Most empty ranges of a keyspace; the least recently used one is replaced.
const EMPTY_RANGES_MAX: usize = 8;

/// Longest key at an end of a remembered range, to bound the memory.
const KEY_BYTES_MAX: usize = 128;

/// A position between keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Cut {
    /// Just before the key, or (`true`) just after it.
    At(Vec<u8>, bool),
    /// After all keys.
    End,
}

impl Cut {
    fn of_lower(bound: &Bound<Vec<u8>>) -> Self {
        match bound {
            Bound::Included(key) => Cut::At(key.clone(), false),
            Bound::Excluded(key) => Cut::At(key.clone(), true),
            Bound::Unbounded => Cut::At(Vec::new(), false),
        }
    }

    fn of_upper(bound: &Bound<Vec<u8>>) -> Self {
        match bound {
            Bound::Included(key) => Cut::At(key.clone(), true),
            Bound::Excluded(key) => Cut::At(key.clone(), false),
            Bound::Unbounded => Cut::End,
        }
    }

    /// This position as a lower bound; `None` at the end of all keys.
    fn to_lower(&self) -> Option<Bound<Vec<u8>>> {
        match self {
            Cut::At(key, false) => Some(Bound::Included(key.clone())),
            Cut::At(key, true) => Some(Bound::Excluded(key.clone())),
            Cut::End => None,
        }
    }

    /// This position as an upper bound.
    fn to_upper(&self) -> Bound<Vec<u8>> {
        match self {
            Cut::At(key, false) => Bound::Excluded(key.clone()),
            Cut::At(key, true) => Bound::Included(key.clone()),
            Cut::End => Bound::Unbounded,
        }
    }

    fn is_before(&self, key: &[u8]) -> bool {
        match self {
            Cut::At(at, behind) => at.as_slice() < key || (at == key && !behind),
            Cut::End => false,
        }
    }

    fn is_long(&self) -> bool {
        matches!(self, Cut::At(key, _) if key.len() > KEY_BYTES_MAX)
    }
}

#[derive(Clone, Debug)]
struct Gap {
    lower: Cut,
    upper: Cut,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Watched by the watcher of this number.
    Watched(u64),
    /// Empty for every reader from this seqno on, until a write cuts it.
    Known(SeqNo),
}

impl Gap {
    fn holds(&self, key: &[u8]) -> bool {
        self.lower.is_before(key) && !self.upper.is_before(key)
    }

    fn is_known_at(&self, at: SeqNo) -> bool {
        matches!(self.state, State::Known(since) if since <= at)
    }
}

/// The empty ranges of one keyspace.
#[derive(Default)]
pub struct EmptyRanges {
    /// The number of ranges, which writers check first.
    count: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// The ranges, least recently used first.
    gaps: Vec<Gap>,
    watchers: u64,
}

/// A watched range.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub struct Watch(u64);

impl EmptyRanges {
    /// Cuts the ranges that contain `key`, before a commit that has its seqno writes it.
    #[inline]
    pub fn cut(&self, key: &[u8]) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.cut_slowly(key);
        }
    }

    #[cold]
    fn cut_slowly(&self, key: &[u8]) {
        let mut table = self.table.lock();
        // Known ranges do not overlap, but watched ones may overlap others.
        while let Some(index) = table.gaps.iter().position(|gap| gap.holds(key)) {
            let whole = table.gaps.remove(index);
            let (before, behind) = (Cut::At(key.to_vec(), false), Cut::At(key.to_vec(), true));
            // The part after the key is evicted first: an appender cuts the end again and again.
            let rests = [(index, whole.lower, before), (0, behind, whole.upper)];
            for (place, lower, upper) in rests {
                if lower < upper && !lower.is_long() && !upper.is_long() {
                    table.gaps.insert(place, Gap { lower, upper, state: whole.state });
                }
            }
        }
        table.crowd_out();
        self.count.store(table.gaps.len(), Ordering::Relaxed);
    }

    /// Moves the near end of `range`, as seen by a reader at `at`, past the empty range that it
    /// lies in. True if it was moved.
    pub fn jump(&self, range: &mut KeyRange, direction: Direction, at: SeqNo) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let (lower, upper) = (Cut::of_lower(&range.lower), Cut::of_upper(&range.upper));
        let mut table = self.table.lock();
        let place = table.gaps.iter().position(|gap| {
            gap.is_known_at(at)
                && match direction {
                    Direction::Ascending => gap.lower <= lower && lower < gap.upper,
                    Direction::Descending => upper <= gap.upper && gap.lower < upper,
                }
        });
        let Some(place) = place else { return false };
        let gap = table.gaps.remove(place);
        match direction {
            Direction::Ascending => match gap.upper.to_lower() {
                Some(bound) => range.lower = bound,
                // Nothing is left to read.
                None => range.upper = Bound::Excluded(Vec::new()),
            },
            Direction::Descending => range.upper = gap.lower.to_upper(),
        }
        table.gaps.push(gap);
        true
    }

    /// Watches `range`, unless all of it is known or watched, or too long keys bound it.
    pub fn watch(&self, range: &KeyRange) -> Option<Watch> {
        let (lower, upper) = (Cut::of_lower(&range.lower), Cut::of_upper(&range.upper));
        if lower >= upper || lower.is_long() || upper.is_long() {
            return None;
        }
        let mut table = self.table.lock();
        let covers = |gap: &Gap| gap.lower <= lower && upper <= gap.upper;
        if table.gaps.iter().any(covers) {
            return None;
        }
        table.watchers += 1;
        let watch = Watch(table.watchers);
        table.gaps.push(Gap { lower, upper, state: State::Watched(watch.0) });
        table.crowd_out();
        self.count.store(table.gaps.len(), Ordering::Relaxed);
        Some(watch)
    }

    /// Makes the remaining parts of a watched range known as empty for every reader from `since`
    /// on: the parts before the live entry `alive`, or all if there is none.
    pub fn confirm(&self, watch: Watch, alive: Option<&[u8]>, since: SeqNo) {
        let mut table = self.table.lock();
        let end = alive.map_or(Cut::End, |key| Cut::At(key.to_vec(), false));
        let mut learned = Vec::new();
        table.gaps.retain(|gap| {
            let is_mine = gap.state == State::Watched(watch.0);
            if is_mine {
                let upper = gap.upper.clone().min(end.clone());
                let state = State::Known(since);
                learned.push(Gap { lower: gap.lower.clone(), upper, state });
            }
            !is_mine
        });
        for gap in learned {
            table.join(gap);
        }
        table.crowd_out();
        self.count.store(table.gaps.len(), Ordering::Relaxed);
    }

    /// Drops the remaining parts of a watched range.
    pub fn give_up(&self, watch: Watch) {
        let mut table = self.table.lock();
        table.gaps.retain(|gap| gap.state != State::Watched(watch.0));
        self.count.store(table.gaps.len(), Ordering::Relaxed);
    }
}

impl Table {
    /// Adds a known range, merged with the known ones that it touches.
    fn join(&mut self, mut gap: Gap) {
        if gap.lower >= gap.upper || gap.upper.is_long() {
            return;
        }
        self.gaps.retain(|other| {
            let (State::Known(since), State::Known(mine)) = (other.state, gap.state) else {
                return true;
            };
            if other.upper < gap.lower || gap.upper < other.lower {
                return true;
            }
            gap.lower = gap.lower.clone().min(other.lower.clone());
            gap.upper = gap.upper.clone().max(other.upper.clone());
            gap.state = State::Known(mine.max(since));
            false
        });
        self.gaps.push(gap);
    }

    fn crowd_out(&mut self) {
        let surplus = self.gaps.len().saturating_sub(EMPTY_RANGES_MAX);
        self.gaps.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{Ascending, Descending};

    const NOW: SeqNo = SeqNo(10);

    fn range(lower: &str, upper: &str) -> KeyRange {
        KeyRange::half_open(lower.as_bytes(), Some(upper.as_bytes()))
    }

    fn known(gaps: &EmptyRanges, lower: &str, upper: &str) {
        let watch = gaps.watch(&range(lower, upper)).unwrap();
        gaps.confirm(watch, None, NOW);
    }

    /// The range in which a reader continues from `key`.
    fn from(gaps: &EmptyRanges, key: &str, direction: Direction, at: SeqNo) -> KeyRange {
        let mut range = match direction {
            Ascending => KeyRange::half_open(key.as_bytes(), None),
            Descending => KeyRange {
                lower: Bound::Unbounded,
                upper: Bound::Included(key.as_bytes().to_vec()),
            },
        };
        while gaps.jump(&mut range, direction, at) {}
        range
    }

    #[test]
    fn known_gaps_are_jumped_over_both_ways_and_grow_together() {
        let gaps = EmptyRanges::default();
        known(&gaps, "b", "d");
        known(&gaps, "d", "f");
        assert_eq!(gaps.table.lock().gaps.len(), 1);
        let to = |key: &str| Bound::Included(key.as_bytes().to_vec());
        assert_eq!(from(&gaps, "b", Ascending, NOW).lower, to("f"));
        assert_eq!(from(&gaps, "e", Ascending, NOW).lower, to("f"));
        assert_eq!(from(&gaps, "f", Ascending, NOW).lower, to("f"));
        assert_eq!(from(&gaps, "a", Ascending, NOW).lower, to("a"));
        let behind = Bound::Excluded(b"b".to_vec());
        assert_eq!(from(&gaps, "e", Descending, NOW).upper, behind);
        assert_eq!(from(&gaps, "f", Descending, NOW).upper, to("f"));
        // A reader of an older seqno may see what was alive then.
        assert_eq!(from(&gaps, "b", Ascending, SeqNo(9)).lower, to("b"));
        assert!(gaps.watch(&range("c", "e")).is_none(), "it is known");
    }

    #[test]
    fn a_write_cuts_what_is_known_and_what_is_watched() {
        let gaps = EmptyRanges::default();
        known(&gaps, "b", "f");
        gaps.cut(b"d");
        let to = |key: &str| Bound::Included(key.as_bytes().to_vec());
        assert_eq!(from(&gaps, "b", Ascending, NOW).lower, to("d"));
        assert_eq!(from(&gaps, "d", Ascending, NOW).lower, to("d"));
        assert_eq!(from(&gaps, "da", Ascending, NOW).lower, to("f"));
        let watch = gaps.watch(&range("p", "t")).unwrap();
        gaps.cut(b"q");
        gaps.cut(b"s");
        // A part cut after it was read does not count: the reader may have passed it before.
        gaps.confirm(watch, Some(b"r"), NOW);
        assert_eq!(from(&gaps, "p", Ascending, NOW).lower, to("q"));
        assert_eq!(from(&gaps, "qa", Ascending, NOW).lower, to("r"));
        assert_eq!(from(&gaps, "sa", Ascending, NOW).lower, to("sa"));
    }

    #[test]
    fn everything_may_be_a_gap() {
        let gaps = EmptyRanges::default();
        let watch = gaps.watch(&KeyRange::all()).unwrap();
        gaps.confirm(watch, None, NOW);
        for direction in [Ascending, Descending] {
            let mut all = KeyRange::all();
            assert!(gaps.jump(&mut all, direction, NOW));
            assert!(all.is_empty());
        }
        // An appender cuts the end off; the head stays known, and little else is kept.
        for number in 0..1000_u64 {
            gaps.cut(&number.to_be_bytes());
        }
        assert!(gaps.count.load(Ordering::Relaxed) <= EMPTY_RANGES_MAX);
        let mut all = KeyRange::all();
        assert!(gaps.jump(&mut all, Ascending, NOW));
        assert_eq!(all.lower, Bound::Included(0_u64.to_be_bytes().to_vec()));
    }

    #[test]
    fn what_is_given_up_crowded_out_or_ends_at_long_keys_is_not_known() {
        let gaps = EmptyRanges::default();
        let watch = gaps.watch(&range("a", "b")).unwrap();
        gaps.give_up(watch);
        assert_eq!(gaps.count.load(Ordering::Relaxed), 0);
        let watch = gaps.watch(&range("a", "b")).unwrap();
        for number in 0..EMPTY_RANGES_MAX {
            known(&gaps, &format!("m{number}a"), &format!("m{number}b"));
        }
        gaps.confirm(watch, None, NOW);
        assert_eq!(from(&gaps, "a", Ascending, NOW).lower, Bound::Included(b"a".to_vec()));
        assert_eq!(gaps.table.lock().gaps.len(), EMPTY_RANGES_MAX);
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        assert!(gaps.watch(&range(&long, "y")).is_none());
    }
}
