//! A read-only file continued by a writable scratch file, for replay in a read-only open.
//!
//! ```text
//!   0                    end of the base
//!   | base, only read    | scratch file, without a name, gone with the process ...
//! ```
//!
//! No range straddles the end of the base: extents lie on one side of it.
//! Thread-safety: everything may be called from any thread.

use super::{File, ReadRequest, Region};
use crate::base::error::{Error, ErrorKind, Result};
use crate::runtime::sync::Arc;

/// A continued file; see the head of this file.
#[derive(Debug)]
pub struct ContinuedFile {
    base: Arc<dyn File>,
    /// Where the scratch file begins, in bytes.
    end: u64,
    scratch: Arc<dyn File>,
}

impl ContinuedFile {
    /// Continues `base` from byte `end` on in `scratch`, which is empty.
    #[must_use]
    pub fn new(base: Arc<dyn File>, end: u64, scratch: Arc<dyn File>) -> Self {
        Self { base, end, scratch }
    }

    /// Converts an offset to change into an offset in the scratch file.
    fn changing(&self, offset: u64) -> Result<u64> {
        offset.checked_sub(self.end).ok_or_else(|| {
            Error::new(ErrorKind::ReadOnly, "the database is open read-only")
                .at(self.base.name(), offset)
        })
    }
}

impl File for ContinuedFile {
    fn name(&self) -> &str {
        self.base.name()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        match offset.checked_sub(self.end) {
            None => self.base.read_at(buffer, offset),
            Some(offset) => self.scratch.read_at(buffer, offset),
        }
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        let (mut base, mut scratch) = (Vec::new(), Vec::new());
        for ReadRequest { offset, buffer } in requests {
            let (requests, offset) = match offset.checked_sub(self.end) {
                None => (&mut base, *offset),
                Some(offset) => (&mut scratch, offset),
            };
            requests.push(ReadRequest { offset, buffer });
        }
        self.base.read_many(&mut base)?;
        self.scratch.read_many(&mut scratch)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.scratch.write_at(bytes, self.changing(offset)?)
    }

    fn write_zeros(&self, offset: u64, bytes: u64) -> Result<()> {
        self.scratch.write_zeros(self.changing(offset)?, bytes)
    }

    /// Nothing here needs to outlive the process.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn size(&self) -> Result<u64> {
        Ok(self.end.saturating_add(self.scratch.size()?))
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.scratch.set_size(self.changing(size)?)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.scratch.allocate(self.changing(offset)?, bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.scratch.punch_hole(self.changing(offset)?, bytes)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.base.allocated_bytes()?.saturating_add(self.scratch.allocated_bytes()?))
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>> {
        self.scratch.map(self.changing(offset)?, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::io::memory::MemoryDirectory;
    use crate::storage::io::{Access, Directory, OpenMode, ScratchPlace, WriteRequest};

    #[test]
    fn the_base_is_read_and_what_is_behind_it_written() {
        let dir = MemoryDirectory::new();
        let base = dir.open("base", OpenMode::CreateNew, Access::Direct).unwrap();
        base.write_at(&[7; 8192], 0).unwrap();
        let base = dir.open("base", OpenMode::Read, Access::Direct).unwrap();
        let file = ContinuedFile::new(base, 8192, dir.scratch(ScratchPlace::Anywhere).unwrap());
        file.allocate(8192, 4096).unwrap();
        file.write_at(&[9; 4096], 8192).unwrap();
        let (mut one, mut other) = ([0; 4096], [0; 4096]);
        let mut requests = [
            ReadRequest { offset: 8192, buffer: &mut one },
            ReadRequest { offset: 4096, buffer: &mut other },
        ];
        file.read_many(&mut requests).unwrap();
        assert_eq!((one, other), ([9; 4096], [7; 4096]));
        assert_eq!(file.size().unwrap(), 12_288);
        let behind = [(8192, 3), (16_384, 5)];
        let behind = behind.map(|(offset, byte)| (offset, vec![byte; 4096]));
        let mut writes: Vec<_> =
            behind.iter().map(|(offset, bytes)| WriteRequest { offset: *offset, bytes }).collect();
        file.write_many(&writes).unwrap();
        for (offset, bytes) in &behind {
            file.read_at(&mut one, *offset).unwrap();
            assert_eq!(one[..], bytes[..]);
        }
        file.write_zeros(16_384, 4096).unwrap();
        file.read_at(&mut one, 16_384).unwrap();
        assert_eq!(one, [0; 4096]);
        writes.push(WriteRequest { offset: 4096, bytes: &[1; 4096] });
        let refused = [
            file.write_many(&writes),
            file.write_at(&[1], 8191),
            file.write_zeros(4096, 4096),
            file.allocate(0, 4096),
            file.punch_hole(0, 4096),
            file.set_size(0),
            file.map(0, 4096).map(|_| ()),
        ];
        for refused in refused {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
        }
        assert_eq!(dir.to_files(), [("base".to_owned(), vec![7; 8192])].into());
    }
}
