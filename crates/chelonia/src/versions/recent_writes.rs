//! The keys of recent commits, kept while somebody watches: so that a transaction finds out at its
//! commit whether anything that it read was written since.
//!
//! A *watch* begins at a seqno. While there are watches, every commit appends its keys here, under
//! the commit lock. A commit that depends on what was read checks the keys of all commits since its
//! watch began: first those of earlier commits without the commit lock, then, under it, the rest.
//! Memory is bounded: the oldest keys are dropped when there are too many, and a watch that began
//! before them learns that it does not know.
//!
//! ```text
//!   full chunks (4 KiB)                          open chunk
//!   [ commit commit ... ] [ commit ... ]  ...    [ commit ... ]
//!
//!   commit   u64     its last seqno
//!            u32     bytes of its keys
//!            key*    varint keyspace id, varint length, bytes
//! ```
//!
//! Invariants:
//! 1. Seqnos ascend from commit to commit.
//! 2. Every write after [`State::missing`] whose seqno was taken while a watch existed is here,
//!    unless no watch that exists began before it.

use crate::base::codec::{get_varint, put_bytes, put_varint};
use crate::base::ids::{KeyspaceId, SeqNo};
use crate::memory::budget::{Budget, Charge, Use};
use crate::memory::fork::ForkMark;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, AtomicBool, Mutex, Ordering};
use std::collections::{BTreeMap, VecDeque};

/// A chunk is full when it has at least as many bytes.
const CHUNK_BYTES: usize = 4 << 10;

/// The part of the memory budget that keys may use, and its bounds.
const BUDGET_PART: u64 = 128;
const BYTES_MIN: u64 = 256 << 10;
const BYTES_MAX: u64 = 16 << 20;

/// Bytes before the keys of a commit.
const HEAD_BYTES: usize = 8 + 4;

/// About as many bytes are before each key.
const KEY_HEAD_BYTES: usize = 4;

/// Chunks that are checked under the commit lock at most.
const REST_CHUNKS_MAX: usize = 32;

/// Memory of a chunk beside its bytes.
const CHUNK_EXTRA_BYTES: u64 = 96;

/// The keys of recent commits.
pub struct RecentWrites {
    budget: Arc<Budget>,
    /// In a child process no lock is taken.
    process: Arc<ForkMark>,
    /// There is a watch. Changed under the commit lock or towards false, so that a commit which
    /// sees false under that lock has no watch that began before it.
    is_watched: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where watches began, and how many at each place.
    watches: BTreeMap<SeqNo, usize>,
    full: VecDeque<Arc<Chunk>>,
    full_bytes: u64,
    /// The newest commits.
    open: Vec<u8>,
    /// The last seqno in `open`.
    open_last: SeqNo,
    /// Writes up to this one may be missing.
    missing: SeqNo,
}

/// Commits that no longer change.
struct Chunk {
    bytes: Vec<u8>,
    last: SeqNo,
    _charge: Charge,
}

/// A place in the order of writes from which on all keys are kept; ends when dropped.
pub struct Watch {
    recent: Arc<RecentWrites>,
    from: SeqNo,
    is_registered: bool,
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checked {
    /// No write of interest with a seqno up to this one.
    Unchanged(SeqNo),
    /// The first write of interest is in this keyspace.
    Changed(KeyspaceId),
    /// The keys of some of the writes are no longer known, or too many to check them now.
    Unknown,
}

impl RecentWrites {
    /// Creates an empty list.
    pub fn new(budget: Arc<Budget>, process: Arc<ForkMark>) -> Arc<Self> {
        let (is_watched, state) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { budget, process, is_watched, state })
    }

    /// Begins a watch of all writes after `from`, the last seqno that was taken. Called under the
    /// commit lock.
    pub fn watch(self: &Arc<Self>, from: SeqNo) -> Watch {
        let recent = Arc::clone(self);
        if !self.process.is_this_process() {
            return Watch { recent, from, is_registered: false };
        }
        let mut state = self.state.lock();
        if state.watches.is_empty() {
            state.missing = from;
        }
        *state.watches.entry(from).or_insert(0) += 1;
        self.is_watched.store(true, Ordering::Relaxed);
        Watch { recent, from, is_registered: true }
    }

    /// True if commits have to call [`RecentWrites::push`]. Called under the commit lock.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Appends the keys of a commit whose last seqno is `last`. Called under the commit lock.
    #[cold]
    pub fn push<'k, I: Iterator<Item = (KeyspaceId, &'k [u8])>>(
        &self,
        last: SeqNo,
        keys: impl Fn() -> I,
    ) {
        let mut state = self.state.lock();
        if state.watches.is_empty() {
            return;
        }
        let bytes: usize = keys().map(|(_, key)| key.len() + KEY_HEAD_BYTES).sum();
        if bytes as u64 > self.bytes_max() {
            // Not even alone; so all that is kept is too old to be of use.
            mark(Mark::RecentWritesDropped);
            state.forget(last);
            return;
        }
        let State { open, open_last, .. } = &mut *state;
        open.extend_from_slice(&last.0.to_le_bytes());
        let length_at = open.len();
        open.extend_from_slice(&[0; 4]);
        for (keyspace, key) in keys() {
            put_varint(open, u64::from(keyspace.0));
            put_bytes(open, key);
        }
        let length = u32::try_from(open.len() - length_at - 4).unwrap_or(u32::MAX);
        open[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
        *open_last = last;
        if open.len() >= CHUNK_BYTES {
            state.seal(&self.budget);
            state.limit(self.bytes_max());
        }
    }

    /// Looks for a write after `after` that `is_read` says was read, in the commits whose chunks
    /// are full. `Unchanged` has the last seqno that was looked at.
    pub fn check_full(
        &self,
        after: SeqNo,
        mut is_read: impl FnMut(KeyspaceId, &[u8]) -> bool,
    ) -> Checked {
        let chunks: Vec<Arc<Chunk>> = {
            let state = self.state.lock();
            if state.missing > after {
                return Checked::Unknown;
            }
            state.full.iter().filter(|chunk| chunk.last > after).cloned().collect()
        };
        for chunk in &chunks {
            if let Some(keyspace) = first_read(&chunk.bytes, after, &mut is_read) {
                return Checked::Changed(keyspace);
            }
        }
        Checked::Unchanged(chunks.last().map_or(after, |chunk| chunk.last))
    }

    /// Looks for a write after `after` in all commits so far. Called under the commit lock, after
    /// [`RecentWrites::check_full`], so that little is left; if it is much all the same, that is
    /// not known, and the caller begins again.
    pub fn check_rest(
        &self,
        after: SeqNo,
        mut is_read: impl FnMut(KeyspaceId, &[u8]) -> bool,
    ) -> Checked {
        let state = self.state.lock();
        if state.missing > after {
            return Checked::Unknown;
        }
        let newest = state.full.iter().rev().take_while(|chunk| chunk.last > after);
        if newest.clone().count() > REST_CHUNKS_MAX {
            return Checked::Unknown;
        }
        let parts = newest.map(|chunk| &chunk.bytes).chain([&state.open]);
        for bytes in parts {
            if let Some(keyspace) = first_read(bytes, after, &mut is_read) {
                return Checked::Changed(keyspace);
            }
        }
        Checked::Unchanged(state.open_last.max(after))
    }

    fn bytes_max(&self) -> u64 {
        (self.budget.limit() / BUDGET_PART).clamp(BYTES_MIN, BYTES_MAX)
    }

    fn end(&self, from: SeqNo) {
        let mut state = self.state.lock();
        let Some(count) = state.watches.get_mut(&from) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        state.watches.remove(&from);
        let Some(oldest) = state.watches.keys().next().copied() else {
            // Commits that still see the watch find none under the lock of the state.
            self.is_watched.store(false, Ordering::Relaxed);
            *state = State::default();
            return;
        };
        while state.full.front().is_some_and(|chunk| chunk.last <= oldest) {
            state.drop_oldest();
        }
    }
}

impl State {
    /// Makes the open chunk a full one.
    fn seal(&mut self, budget: &Arc<Budget>) {
        let bytes = std::mem::replace(&mut self.open, Vec::with_capacity(2 * CHUNK_BYTES));
        let charged = bytes.capacity() as u64 + CHUNK_EXTRA_BYTES;
        self.full_bytes += charged;
        let _charge = budget.charge(Use::Metadata, charged);
        self.full.push_back(Arc::new(Chunk { bytes, last: self.open_last, _charge }));
    }

    /// Drops the oldest chunks while there are more than `bytes_max` bytes.
    fn limit(&mut self, bytes_max: u64) {
        while self.full_bytes > bytes_max && !self.full.is_empty() {
            mark(Mark::RecentWritesDropped);
            self.drop_oldest();
        }
    }

    /// Drops all keys up to `last`.
    fn forget(&mut self, last: SeqNo) {
        (self.full, self.full_bytes) = (VecDeque::new(), 0);
        self.open.clear();
        (self.open_last, self.missing) = (last, last);
    }

    fn drop_oldest(&mut self) {
        if let Some(chunk) = self.full.pop_front() {
            self.full_bytes -= chunk.bytes.capacity() as u64 + CHUNK_EXTRA_BYTES;
            self.missing = self.missing.max(chunk.last);
        }
    }
}

impl Watch {
    /// The seqno after which all writes are known, unless there were too many.
    pub fn from(&self) -> SeqNo {
        self.from
    }

    /// The list that it is a watch of.
    pub fn recent(&self) -> &RecentWrites {
        &self.recent
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.is_registered && self.recent.process.is_this_process() {
            self.recent.end(self.from);
        }
    }
}

/// The keyspace of the first key in `commits` that was written after `after` and read.
fn first_read(
    mut commits: &[u8],
    after: SeqNo,
    is_read: &mut impl FnMut(KeyspaceId, &[u8]) -> bool,
) -> Option<KeyspaceId> {
    while let Some((head, rest)) = commits.split_first_chunk::<HEAD_BYTES>() {
        let (last, length) = head.split_at(8);
        let last = u64::from_le_bytes(last.try_into().unwrap_or_default());
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default());
        let (mut keys, rest) = rest.split_at_checked(length as usize)?;
        commits = rest;
        if last <= after.0 {
            continue;
        }
        while let Some((keyspace, key)) = next_key(&mut keys) {
            if is_read(keyspace, key) {
                return Some(keyspace);
            }
        }
    }
    None
}

/// Takes the next key off `keys`; `None` at the end.
fn next_key<'k>(keys: &mut &'k [u8]) -> Option<(KeyspaceId, &'k [u8])> {
    let (keyspace, bytes) = get_varint(keys)?;
    *keys = &keys[bytes..];
    let (length, bytes) = get_varint(keys)?;
    let (key, rest) = keys[bytes..].split_at_checked(usize::try_from(length).ok()?)?;
    *keys = rest;
    Some((KeyspaceId(u32::try_from(keyspace).ok()?), key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEOPLE: KeyspaceId = KeyspaceId(3);

    fn recent(budget_bytes: u64) -> Arc<RecentWrites> {
        RecentWrites::new(Budget::new(budget_bytes), Arc::new(ForkMark::new().unwrap()))
    }

    fn push(recent: &RecentWrites, last: u64, keys: &[&str]) {
        assert!(recent.is_watched(), "only then a commit pushes");
        recent.push(SeqNo(last), || keys.iter().map(|key| (PEOPLE, key.as_bytes())));
    }

    fn check(watch: &Watch, read: &str) -> Checked {
        let is_read = |_, key: &[u8]| key == read.as_bytes();
        match watch.recent().check_full(watch.from(), is_read) {
            Checked::Unchanged(upto) => watch.recent().check_rest(upto, is_read),
            other => other,
        }
    }

    #[test]
    fn a_watch_sees_the_writes_after_it_and_no_earlier_ones() {
        let recent = recent(64 << 20);
        let first = recent.watch(SeqNo(10));
        push(&recent, 11, &["ada"]);
        let second = recent.watch(SeqNo(11));
        push(&recent, 14, &["bob", "", "grace"]);
        for (key, by_first, by_second) in [
            ("ada", Checked::Changed(PEOPLE), Checked::Unchanged(SeqNo(14))),
            ("grace", Checked::Changed(PEOPLE), Checked::Changed(PEOPLE)),
            ("", Checked::Changed(PEOPLE), Checked::Changed(PEOPLE)),
            ("alan", Checked::Unchanged(SeqNo(14)), Checked::Unchanged(SeqNo(14))),
        ] {
            assert_eq!((check(&first, key), check(&second, key)), (by_first, by_second), "{key}");
        }
        drop(first);
        assert_eq!(check(&second, "grace"), Checked::Changed(PEOPLE));
        drop(second);
        assert!(!recent.is_watched());
        let later = recent.watch(SeqNo(20));
        assert_eq!(check(&later, "grace"), Checked::Unchanged(SeqNo(20)));
    }

    #[test]
    fn many_writes_are_found_in_all_chunks_and_their_memory_is_counted_and_returned() {
        let recent = recent(64 << 20);
        let before = recent.budget.used_by(Use::Metadata);
        let old = recent.watch(SeqNo(0));
        let keys: Vec<String> = (0..3_000).map(|number| format!("key {number}")).collect();
        for (key, seqno) in keys.iter().zip(1..) {
            push(&recent, seqno, &[key]);
        }
        for key in ["key 0", "key 1500", "key 2999"] {
            assert_eq!(check(&old, key), Checked::Changed(PEOPLE), "{key}");
        }
        assert_eq!(check(&old, "other"), Checked::Unchanged(SeqNo(3_000)));
        let new = recent.watch(SeqNo(2_900));
        let most = recent.budget.used_by(Use::Metadata);
        assert!(most > before + 40_000, "{before} {most}");
        drop(old);
        assert!(recent.budget.used_by(Use::Metadata) < before + 20_000);
        assert_eq!(check(&new, "key 2899"), Checked::Unchanged(SeqNo(3_000)));
        assert_eq!(check(&new, "key 2900"), Checked::Changed(PEOPLE));
        drop(new);
        assert_eq!(recent.budget.used_by(Use::Metadata), before);
    }

    #[test]
    fn a_watch_that_began_before_dropped_keys_does_not_know() {
        let recent = recent(16 << 20);
        let old = recent.watch(SeqNo(0));
        let key = "k".repeat(1_000);
        for seqno in 1..=1_000 {
            push(&recent, seqno, &[&key]);
        }
        let new = recent.watch(SeqNo(1_000));
        push(&recent, 1_001, &["ada"]);
        assert!(recent.state.lock().full_bytes <= BYTES_MIN);
        assert_eq!(check(&old, "ada"), Checked::Unknown);
        assert_eq!(check(&new, "ada"), Checked::Changed(PEOPLE));
        assert_eq!(check(&new, "bob"), Checked::Unchanged(SeqNo(1_001)));
        // A commit of more keys than may be kept is not kept either.
        let keys = vec![(PEOPLE, key.as_bytes()); 1_000];
        recent.push(SeqNo(2_001), || keys.iter().copied());
        assert_eq!(check(&new, "bob"), Checked::Unknown);
        let newest = recent.watch(SeqNo(2_001));
        assert_eq!(check(&newest, &key), Checked::Unchanged(SeqNo(2_001)));
    }
}
