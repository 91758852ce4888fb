//! The reads of a transaction: keys and ranges, which must not have changed at its commit.
//!
//! A range is recorded as far as an iterator went, from either end:
//!
//! ```text
//!   range     [ lower ........................................ upper ]
//!   recorded  [ front ======>                         <====== back  ]
//! ```

use crate::api::transaction::memory::Memory;
use crate::base::bytes::Key;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::KeyspaceId;
use crate::base::keys::{Direction, KeyRange, move_bound};
use crate::memory::budget::Budget;
use crate::runtime::sync::Arc;
use crate::state::keyspace::KeyspaceCore;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The part of the memory budget that the reads of a transaction may use.
const BUDGET_PART: u64 = 8;

/// Memory of a key beside its bytes, and of a range beside its bounds.
const KEY_EXTRA_BYTES: usize = 96;
const RANGE_EXTRA_BYTES: usize = 2 * size_of::<KeyRange>();

/// The reads of a transaction.
pub struct ReadSet {
    keyspaces: BTreeMap<KeyspaceId, KeyspaceReads>,
    memory: Memory,
}

/// The reads of one keyspace.
struct KeyspaceReads {
    core: Arc<KeyspaceCore>,
    keys: BTreeSet<Key>,
    /// Two of each iterator, from its ends; sorted and disjoint after [`ReadSet::seal`].
    ranges: Vec<KeyRange>,
}

/// The place of the two ranges that an iterator extends.
pub struct RangeRead {
    keyspace: KeyspaceId,
    front: usize,
    /// Bytes of the longest key that it has ended with, from either end.
    counted: [usize; 2],
}

impl ReadSet {
    /// Creates an empty set.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self { keyspaces: BTreeMap::new(), memory: Memory::new(budget) }
    }

    /// True if nothing was read.
    pub fn is_empty(&self) -> bool {
        self.keyspaces.is_empty()
    }

    /// Adds a key of a keyspace of this database.
    pub fn add_key(&mut self, keyspace: &Arc<KeyspaceCore>, key: &[u8]) -> Result<()> {
        let known = self.keyspaces.get(&keyspace.id);
        if known.is_some_and(|reads| reads.keys.contains(key)) {
            return Ok(());
        }
        self.count(key.len() + KEY_EXTRA_BYTES)?;
        self.of(keyspace).keys.insert(Key::copy_from(key));
        Ok(())
    }

    /// Adds the beginning of an iterator over `range` of a keyspace of this database, which has
    /// read nothing yet.
    pub fn begin_range(
        &mut self,
        keyspace: &Arc<KeyspaceCore>,
        range: &KeyRange,
    ) -> Result<RangeRead> {
        let length = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.len(),
            Bound::Unbounded => 0,
        };
        // At its end it has both bounds, or the first and the last key that was read.
        self.count(RANGE_EXTRA_BYTES + 2 * (length(&range.lower) + length(&range.upper)))?;
        let nothing = || Bound::Excluded(Vec::new());
        let reads = self.of(keyspace);
        let front = reads.ranges.len();
        reads.ranges.push(KeyRange { lower: range.lower.clone(), upper: nothing() });
        // No key is in it until the lower bound is moved: the end from the back is unread.
        reads.ranges.push(KeyRange { lower: Bound::Unbounded, upper: nothing() });
        Ok(RangeRead { keyspace: keyspace.id, front, counted: [0; 2] })
    }

    /// Extends the part of `range` that was read from one end up to `key`.
    pub fn extend(
        &mut self,
        read: &mut RangeRead,
        direction: Direction,
        range: &KeyRange,
        key: &[u8],
    ) -> Result<()> {
        let counted = &mut read.counted[usize::from(direction == Direction::Descending)];
        let more = key.len().saturating_sub(*counted);
        *counted += more;
        // Counted or not, what was read is recorded: the caller ends the iterator then.
        let has_memory = self.count(more);
        if let Some(reads) = self.keyspaces.get_mut(&read.keyspace) {
            match direction {
                Direction::Ascending => {
                    move_bound(&mut reads.ranges[read.front].upper, key, Bound::Included);
                }
                Direction::Descending => {
                    let back = &mut reads.ranges[read.front + 1];
                    if matches!(back.lower, Bound::Unbounded) {
                        back.upper = range.upper.clone();
                    }
                    move_bound(&mut back.lower, key, Bound::Included);
                }
            }
        }
        has_memory
    }

    /// Extends the part that was read to all of `range`.
    pub fn complete(&mut self, read: &RangeRead, range: &KeyRange) {
        let Some(reads) = self.keyspaces.get_mut(&read.keyspace) else { return };
        reads.ranges[read.front] = range.clone();
        reads.ranges[read.front + 1].upper = Bound::Excluded(Vec::new());
        reads.ranges[read.front + 1].lower = Bound::Unbounded;
    }

    /// Prepares for [`ReadSet::has`]; nothing is read any more.
    pub fn seal(&mut self) {
        for reads in self.keyspaces.values_mut() {
            reads.ranges.retain(|range| !range.is_empty());
            reads.ranges.sort_by(|a, b| compare_lower(&a.lower, &b.lower));
            reads.ranges.dedup_by(|next, range| join(range, next));
        }
    }

    /// True if `key` of `keyspace`, or a range that contains it, was read.
    pub fn has(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        let Some(reads) = self.keyspaces.get(&keyspace) else { return false };
        if reads.keys.contains(key) {
            return true;
        }
        let begun = reads.ranges.partition_point(|range| range.reaches(key));
        begun > 0 && reads.ranges[begun - 1].admits(key)
    }

    /// Fails if a keyspace that was read has been dropped.
    pub fn check_keyspaces(&self) -> Result<()> {
        self.keyspaces.values().try_for_each(|reads| reads.core.check_exists())
    }

    /// The name of a keyspace that was read.
    pub fn name(&self, keyspace: KeyspaceId) -> &str {
        self.keyspaces.get(&keyspace).map_or("", |reads| &reads.core.name)
    }

    /// Each keyspace with the keys and the ranges that were read.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<KeyspaceCore>, &BTreeSet<Key>, &[KeyRange])> {
        self.keyspaces.values().map(|reads| (&reads.core, &reads.keys, &reads.ranges[..]))
    }

    fn of(&mut self, keyspace: &Arc<KeyspaceCore>) -> &mut KeyspaceReads {
        self.keyspaces.entry(keyspace.id).or_insert_with(|| KeyspaceReads {
            core: Arc::clone(keyspace),
            keys: BTreeSet::new(),
            ranges: Vec::new(),
        })
    }

    /// Counts memory before it is used.
    fn count(&mut self, bytes: usize) -> Result<()> {
        let (wanted, limit) =
            ((self.memory.bytes() + bytes) as u64, self.memory.budget().limit() / BUDGET_PART);
        if wanted <= limit {
            return self.memory.add(bytes);
        }
        let text = format!(
            "the keys that a transaction has read would take {wanted} bytes of at most {limit}, an \
             eighth of the memory budget: read a range instead of keys, or raise the budget"
        );
        Err(Error::new(ErrorKind::OutOfMemory, text))
    }
}

/// The order of two lower bounds.
fn compare_lower(a: &Bound<Vec<u8>>, b: &Bound<Vec<u8>>) -> std::cmp::Ordering {
    // An excluded key begins behind the same key included.
    fn place(bound: &Bound<Vec<u8>>) -> Option<(&[u8], bool)> {
        match bound {
            Bound::Unbounded => None,
            Bound::Included(key) => Some((key, false)),
            Bound::Excluded(key) => Some((key, true)),
        }
    }
    place(a).cmp(&place(b))
}

/// Extends `range` by `next`, which begins no earlier, if no key lies between them; false if there
/// may be one.
fn join(range: &mut KeyRange, next: &KeyRange) -> bool {
    let touches = match &next.lower {
        Bound::Unbounded => true,
        Bound::Included(key) | Bound::Excluded(key) => match &range.upper {
            Bound::Unbounded => true,
            Bound::Included(upper) | Bound::Excluded(upper) => key < upper,
        },
    };
    if !touches {
        return false;
    }
    let is_longer = match (&next.upper, &range.upper) {
        (_, Bound::Unbounded) => false,
        (Bound::Unbounded, _) => true,
        (Bound::Included(next), Bound::Excluded(upper)) => next >= upper,
        (
            Bound::Included(next) | Bound::Excluded(next),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => next > upper,
    };
    if is_longer {
        range.upper = next.upper.clone();
    }
    true
}
