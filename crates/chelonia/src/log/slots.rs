//! The files of a log in their directory.
//!
//! A slot is a file name: segment files are named `log-0000`, `log-0001` and so on, with more
//! digits where four do not suffice. Slots are reused; no other file in the directory has such a
//! name.

use crate::base::error::{Error, Result};
use crate::base::limits::BLOCK_BYTES;
use crate::log::format::{index, looks_like_header};
use crate::storage::io::{Access, Directory, OpenMode};
use std::collections::BTreeSet;

/// Size of the pieces in which files are read, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The name of the file in `slot`.
pub fn slot_name(slot: u32) -> String {
    format!("log-{slot:04}")
}

/// The slot of the file `name`, if it is a log file.
pub fn slot_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("log-")?;
    let slot = digits.parse().ok()?;
    (slot_name(slot) == name).then_some(slot)
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
    for name in dir.list()?.into_iter().filter(|name| slot_of(name).is_some()) {
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
    for name in dir.list()?.into_iter().filter(|name| slot_of(name).is_some()) {
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
    let names = dir.list()?.into_iter().filter(|name| slot_of(name).is_some());
    names.map(|name| dir.open(&name, OpenMode::Read, Access::Buffered)?.size()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_slots_are_slots() {
        for slot in [0, 7, 9999, 10_000] {
            assert_eq!(slot_of(&slot_name(slot)), Some(slot));
        }
        for name in ["log-", "log-1", "log-00001", "log-0001.old", "log-+001", "LOG-0001", "data"] {
            assert_eq!(slot_of(name), None, "{name}");
        }
    }

    #[test]
    fn the_lowest_unused_slot_is_taken() {
        assert_eq!(unused_slot(&BTreeSet::new()), 0);
        assert_eq!(unused_slot(&BTreeSet::from([0, 1, 3])), 2);
        assert_eq!(unused_slot(&BTreeSet::from([1])), 0);
    }
}
