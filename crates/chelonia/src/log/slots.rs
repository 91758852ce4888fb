//! The files of a log in their directory.
//!
//! A slot is a file name: segment files are named `log-0000`, `log-0001` and so on, with more
//! digits where four do not suffice; those of further logs `log-01-0000` and so on, with the log's
//! number. Slots are reused; no other file in the directory has such a name.

use crate::base::checksum::identity;
use crate::base::error::{Error, Result};
use crate::base::limits::{BLOCK_BYTES, LOGS_MAX};
use crate::log::format::{index, looks_like_header};
use crate::storage::io::{Access, Directory, OpenMode};
use std::collections::BTreeSet;

/// Size of the pieces in which files are read, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Purpose of an identity, mixed into it: the salt of a further log.
const KIND_LOG: u64 = 0x6c6f_6773;

/// A log of a database: its number, with which its files are named, and the salt of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogIdentity {
    number: u8,
    salt: u64,
}

impl LogIdentity {
    /// The log `number` of the database with this salt. Each log has a salt of its own, so that no
    /// file can be taken for one of another log.
    #[must_use]
    pub fn new(number: u8, database_salt: u64) -> Self {
        let salt = match number {
            0 => database_salt,
            _ => identity([database_salt, KIND_LOG, u64::from(number)]),
        };
        Self { number, salt }
    }

    /// The seed of its checksums.
    pub fn salt(self) -> u64 {
        self.salt
    }

    /// The name of the file in `slot`.
    pub fn name(self, slot: u32) -> String {
        match self.number {
            0 => format!("log-{slot:04}"),
            number => format!("log-{number:02}-{slot:04}"),
        }
    }

    /// The slot of the file `name`, if it is one of this log.
    pub fn slot_of(self, name: &str) -> Option<u32> {
        let digits = name.rsplit('-').next()?;
        let slot = digits.parse().ok()?;
        (self.name(slot) == name).then_some(slot)
    }
}

/// True if `name` is the name of a file of any log.
pub fn is_name(name: &str) -> bool {
    let number = match name.split('-').count() {
        3 => name.get(4..6).and_then(|digits| digits.parse().ok()),
        _ => Some(0),
    };
    number.is_some_and(|number: u8| {
        usize::from(number) < LOGS_MAX && LogIdentity { number, salt: 0 }.slot_of(name).is_some()
    })
}

/// The lowest slot without a file.
pub fn unused_slot(slots: &BTreeSet<u32>) -> u32 {
    let mut slot = 0;
    for used in slots {
        if *used != slot {
            break;
        }
        slot += 1;
    }
    slot
}

/// Fails if `dir` has a segment file that an unfinished creation of the database cannot have left:
/// a creation leaves at most a header and nothing after it. A file with more content is the log of
/// a database that lost its data file, or a foreign file.
pub fn check_none_in_use(dir: &dyn Directory) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    for name in dir.list()?.into_iter().filter(|name| is_name(name)) {
        let file = dir.open(&name, OpenMode::Read, Access::Buffered)?;
        let (size, mut from) = (file.size()?, 0);
        while let Some(place) = file.data_from(from)? {
            let offset = place - place % BLOCK_BYTES as u64;
            let length = index((size - offset).min(CHUNK_BYTES as u64));
            let bytes = &mut chunk[..length];
            file.read_at(bytes, offset)?;
            if offset == 0 && looks_like_header(bytes) {
                let header = BLOCK_BYTES.min(length);
                bytes[..header].fill(0);
            }
            if let Some(place) = bytes.iter().position(|byte| *byte != 0) {
                let text = "the data file is missing or empty, but a log exists: \
                            restore the data file, or move the log away";
                return Err(Error::corrupt(text).at(&name, offset + place as u64));
            }
            from = offset + length as u64;
        }
    }
    Ok(())
}

/// True if `dir` has a file with a segment's name that begins with a segment header.
pub fn is_there(dir: &dyn Directory) -> Result<bool> {
    for name in dir.list()?.into_iter().filter(|name| is_name(name)) {
        let file = dir.open(&name, OpenMode::Read, Access::Buffered)?;
        let mut block = vec![0; index(file.size()?.min(BLOCK_BYTES as u64))];
        file.read_at(&mut block, 0)?;
        if looks_like_header(&block) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Total size of all log files in `dir`.
pub fn bytes_in(dir: &dyn Directory) -> Result<u64> {
    let names = dir.list()?.into_iter().filter(|name| is_name(name));
    names.map(|name| dir.open(&name, OpenMode::Read, Access::Buffered)?.size()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_slots_are_slots() {
        for number in [0, 1, 15] {
            let log = LogIdentity::new(number, 9);
            for slot in [0, 7, 9999, 10_000] {
                assert_eq!(log.slot_of(&log.name(slot)), Some(slot));
                assert_eq!(LogIdentity::new(number ^ 2, 9).slot_of(&log.name(slot)), None);
                assert!(is_name(&log.name(slot)));
            }
        }
        let names = ["log-", "log-1", "log-00001", "log-0001.old", "log-+001", "LOG-0001", "data"];
        let numbered = ["log-00-0001", "log-16-0001", "log-1-0001", "log-01-001", "log-01-01-0001"];
        for name in names.into_iter().chain(numbered) {
            assert_eq!(LogIdentity::new(0, 9).slot_of(name), None, "{name}");
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn the_lowest_unused_slot_is_taken() {
        assert_eq!(unused_slot(&BTreeSet::new()), 0);
        assert_eq!(unused_slot(&BTreeSet::from([0, 1, 3])), 2);
        assert_eq!(unused_slot(&BTreeSet::from([1])), 0);
    }
}
