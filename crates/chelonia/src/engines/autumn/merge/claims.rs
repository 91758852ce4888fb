//! Claims: what outstanding merges read and replace, so that no other merge is planned there.
//!
//! ```text
//!   level 1      [ a ][ b ]............[ c ]      claim of a merge of `b`: `b` to `Y` in levels
//!   level 2   [ X ]    [ Y ]      [ Z ]           1 and 2; `c` may be merged beside it
//! ```
//!
//! A claim covers a key range of the level that a merge takes from, and of the level below it. Two
//! merges whose ranges overlap may not have a level in common: so neither replaces a table of the
//! other, puts a table into its range, or brings newer entries below older ones. In level 0 tables
//! of all sequences overlap, and only one merge at a time takes from it. Memtables may be absorbed
//! meanwhile, and further sequences of level 0 may begin to sink: they are newer than all claims.
//! Levels are neither added nor removed while there is a claim.

use crate::engines::autumn::check::damage::Damage;
use crate::engines::autumn::table::Table;
use crate::structure::SharedKey;

/// The key range of a merge, and the level that it takes from.
pub(in crate::engines::autumn) struct Claim {
    /// 0 for level 0.
    pub level: usize,
    /// Its bounds, inclusive.
    pub first: SharedKey,
    pub last: SharedKey,
    /// Weight of the tables that it takes from the level.
    pub bytes: u64,
}

impl Claim {
    /// Returns the claim of a merge of the tables `upper` of `level`, and `lower` below.
    pub fn of<'t>(level: usize, upper: &[&'t Table], lower: &'t [Table]) -> Option<Self> {
        let tables = || upper.iter().copied().chain(lower);
        let first = tables().map(|table| &table.first).min()?.clone();
        let last = tables().map(|table| &table.last).max()?.clone();
        let bytes = upper.iter().map(|table| table.live.weight()).sum();
        Some(Self { level, first, last, bytes })
    }

    fn meets(&self, level: usize, first: &SharedKey, last: &SharedKey) -> bool {
        self.level.abs_diff(level) <= 1 && *first <= self.last && self.first <= *last
    }
}

/// The claims of all outstanding merges.
#[derive(Default)]
pub(in crate::engines::autumn) struct Claims {
    next: u64,
    claims: Vec<(u64, Claim)>,
}

impl Claims {
    /// Adds a claim, and returns its number; `None` if it overlaps another one.
    pub fn add(&mut self, claim: Claim) -> Option<u64> {
        let takes_both_from_0 = claim.level == 0 && self.has_level0();
        if takes_both_from_0 || self.meets(claim.level, &claim.first, &claim.last) {
            return None;
        }
        self.next += 1;
        self.claims.push((self.next, claim));
        Some(self.next)
    }

    /// Removes the claim with this number.
    pub fn remove(&mut self, number: u64) {
        self.claims.retain(|(other, _)| *other != number);
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Returns true if a merge takes from level 0.
    pub fn has_level0(&self) -> bool {
        self.claims.iter().any(|(_, claim)| claim.level == 0)
    }

    /// Returns the weight of what outstanding merges take from `level`.
    pub fn bytes_of(&self, level: usize) -> u64 {
        let of_level = self.claims.iter().filter(|(_, claim)| claim.level == level);
        of_level.map(|(_, claim)| claim.bytes).sum()
    }

    /// Returns true if a merge from `level` may not touch these keys.
    fn meets(&self, level: usize, first: &SharedKey, last: &SharedKey) -> bool {
        self.claims.iter().any(|(_, claim)| claim.meets(level, first, last))
    }
}

/// Tables that a merge avoids: unreadable ones, and those in the range of another merge.
pub(in crate::engines::autumn) struct Avoided<'a> {
    pub damage: &'a Damage,
    /// The claims, and the level that the merge takes from.
    pub claims: Option<(&'a Claims, usize)>,
}

impl Avoided<'_> {
    /// Returns true if `table` is to be avoided.
    pub fn has(&self, table: &Table) -> bool {
        let is_claimed =
            |(claims, level): (&Claims, usize)| claims.meets(level, &table.first, &table.last);
        self.damage.has(table) || self.claims.is_some_and(is_claimed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_side_by_side_have_no_level_or_no_keys_in_common() {
        let claim = |level, first: &str, last: &str| {
            let [first, last] = [first, last].map(|key| SharedKey::whole(key.as_bytes()));
            Claim { level, first, last, bytes: 10 }
        };
        let mut claims = Claims::default();
        let number = claims.add(claim(1, "d", "k")).unwrap();
        for (level, first, last) in [(1, "a", "d"), (0, "e", "f"), (2, "k", "z"), (1, "a", "z")] {
            assert!(claims.add(claim(level, first, last)).is_none(), "{level} {first} {last}");
        }
        assert!(claims.add(claim(3, "e", "f")).is_some(), "it shares no level");
        assert!(claims.add(claim(1, "l", "m")).is_some(), "it shares no keys");
        assert!(claims.add(claim(0, "a", "b")).is_some());
        assert!(claims.add(claim(0, "x", "z")).is_none(), "tables of level 0 overlap");
        assert_eq!([0, 1, 2, 3].map(|level| claims.bytes_of(level)), [10, 20, 0, 10]);
        claims.remove(number);
        assert!(claims.add(claim(2, "e", "f")).is_none(), "the claim of level 3 overlaps it");
        assert!(claims.add(claim(1, "c", "k")).is_some());
    }
}
