//! The reads of a transaction: keys and ranges, which must not have changed at its commit.
//!
//! A range is recorded as far as an iterator went, from either end:
//!
//! ```text
//!   range     [ lower ........................................ upper ]
//!   recorded  [ front ======>                         <====== back  ]
//! ```

use crate::base::bytes::Key;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::KeyspaceId;
use crate::base::keys::{Direction, KeyRange};
use crate::memory::budget::{Budget, Charge, Use};
use crate::runtime::sync::Arc;
use crate::state::keyspace::KeyspaceCore;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The part of the memory budget that the reads of a transaction may use.
const BUDGET_PART: u64 = 8;

/// Memory of a key beside its bytes, and of a range beside its bounds.
const KEY_EXTRA_BYTES: usize = 96;
const RANGE_EXTRA_BYTES: usize = 2 * size_of::<KeyRange>();

/// Bytes that are charged to the budget at a time.
const STEP_BYTES: u64 = 4 << 10;

/// The reads of a transaction.
pub struct ReadSet {
    keyspaces: BTreeMap<KeyspaceId, KeyspaceReads>,
    bytes: u64,
    charge: Charge,
    budget: Arc<Budget>,
}

/// The reads of one keyspace.
struct KeyspaceReads {
    core: Arc<KeyspaceCore>,
    keys: BTreeSet<Key>,
    /// Two of each iterator, from its ends; sorted and disjoint after [`ReadSet::seal`].
    ranges: Vec<KeyRange>,
}

/// The place of the two ranges that an iterator extends.
#[derive(Clone, Copy)]
pub struct RangeRead {
    keyspace: KeyspaceId,
    front: usize,
}

impl ReadSet {
    /// Creates an empty set.
    pub fn new(budget: &Arc<Budget>) -> Self {
        let charge = budget.charge(Use::Metadata, STEP_BYTES);
        Self { keyspaces: BTreeMap::new(), bytes: 0, charge, budget: Arc::clone(budget) }
    }

    /// True if nothing was read.
    pub fn is_empty(&self) -> bool {
        self.keyspaces.is_empty()
    }

    /// Adds a key.
    pub fn add_key(&mut self, keyspace: &Arc<KeyspaceCore>, key: &[u8]) -> Result<()> {
        let reads = self.of(keyspace);
        if reads.keys.contains(key) {
            return Ok(());
        }
        reads.keys.insert(Key::copy_from(key));
        self.count(key.len() + KEY_EXTRA_BYTES)
    }

    /// Adds the beginning of an iterator over `range`, which has read nothing yet.
    pub fn begin_range(
        &mut self,
        keyspace: &Arc<KeyspaceCore>,
        range: &KeyRange,
    ) -> Result<RangeRead> {
        let nothing = || Bound::Excluded(Vec::new());
        let reads = self.of(keyspace);
        let front = reads.ranges.len();
        reads.ranges.push(KeyRange { lower: range.lower.clone(), upper: nothing() });
        // No key is in it until the lower bound is moved: the end from the back is unread.
        reads.ranges.push(KeyRange { lower: Bound::Unbounded, upper: nothing() });
        self.count(RANGE_EXTRA_BYTES)?;
        Ok(RangeRead { keyspace: keyspace.id, front })
    }

    /// Extends the part of `range` that was read from one end up to `key`.
    pub fn extend(&mut self, read: RangeRead, direction: Direction, range: &KeyRange, key: &[u8]) {
        let Some(reads) = self.keyspaces.get_mut(&read.keyspace) else { return };
        match direction {
            Direction::Ascending => include(&mut reads.ranges[read.front].upper, key),
            Direction::Descending => {
                let back = &mut reads.ranges[read.front + 1];
                if matches!(back.lower, Bound::Unbounded) {
                    back.upper = range.upper.clone();
                }
                include(&mut back.lower, key);
            }
        }
    }

    /// Extends what was read to all of `range`.
    pub fn complete(&mut self, read: RangeRead, range: &KeyRange) {
        let Some(reads) = self.keyspaces.get_mut(&read.keyspace) else { return };
        reads.ranges[read.front] = range.clone();
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

    fn count(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes as u64;
        if self.bytes <= self.charge.bytes() {
            return Ok(());
        }
        self.charge.resize(self.bytes.next_multiple_of(STEP_BYTES));
        let (bytes, limit) = (self.bytes, self.budget.limit() / BUDGET_PART);
        if bytes <= limit {
            return Ok(());
        }
        let text = format!(
            "the keys that a transaction has read take {bytes} bytes of at most {limit}, an eighth \
             of the memory budget: read a range instead of keys, or raise the budget"
        );
        Err(Error::new(ErrorKind::OutOfMemory, text))
    }
}

/// Moves a bound to `key`, reusing its buffer.
fn include(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    let mut buffer = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(buffer) | Bound::Excluded(buffer) => buffer,
        Bound::Unbounded => Vec::new(),
    };
    buffer.clear();
    buffer.extend_from_slice(key);
    *bound = Bound::Included(buffer);
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
