//! How much is somewhere.

use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::stream::Update;
use crate::run::Run;
use std::fmt;
use std::ops::{AddAssign, SubAssign};

/// What an entry costs in a run besides its key and value: place, head and lengths, in bytes.
const ENTRY_OVERHEAD: u64 = 8;

/// How much is somewhere.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Entries, tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Key and inline value bytes.
    pub bytes: u64,
}

impl Totals {
    /// What a run holds.
    pub fn of_run(run: &Run) -> Self {
        let reference = run.reference();
        Self {
            entries: reference.entries,
            tombstones: reference.tombstones,
            bytes: reference.user_bytes,
        }
    }

    /// Counts one entry.
    #[inline]
    pub fn add_entry(&mut self, key: &[u8], update: &Update<'_>) {
        self.entries += 1;
        self.tombstones += u64::from(update.is_delete());
        self.bytes += (key.len() + update.inline_bytes()) as u64;
    }

    /// The size that all decisions go by, in bytes: close to what it takes on disk.
    pub fn weight(&self) -> u64 {
        weight(self.entries, self.bytes)
    }

    /// Appends the numbers: three varints.
    pub fn encode(&self, out: &mut Vec<u8>) {
        [self.entries, self.tombstones, self.bytes].into_iter().for_each(|n| put_varint(out, n));
    }

    /// Reads what [`Totals::encode`] wrote.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let (entries, tombstones) = (decoder.varint()?, decoder.varint()?);
        let totals = Self { entries, tombstones, bytes: decoder.varint()? };
        // Sums of totals stay far from the end of numbers.
        let bound = 1 << 56;
        if tombstones > entries || entries > bound || totals.bytes > bound {
            return Err(decoder.damaged("totals are out of bounds"));
        }
        Ok(totals)
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entries, tombstones, bytes } = self;
        write!(f, "{entries} entries ({tombstones} tombstones), {bytes} bytes")
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.entries += other.entries;
        self.tombstones += other.tombstones;
        self.bytes += other.bytes;
    }
}

impl SubAssign for Totals {
    fn sub_assign(&mut self, other: Self) {
        self.entries = self.entries.saturating_sub(other.entries);
        self.tombstones = self.tombstones.saturating_sub(other.tombstones);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}

/// The size that decisions go by, of `entries` with `bytes` of keys and inline values.
pub fn weight(entries: u64, bytes: u64) -> u64 {
    bytes.saturating_add(entries.saturating_mul(ENTRY_OVERHEAD))
}
