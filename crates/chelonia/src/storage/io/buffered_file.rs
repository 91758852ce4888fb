//! A file through the page cache: shared by files and their windows.
//!
//! Thread-safety: as `direct::file`, which shows what goes through the page cache.

use super::mapping::Mappings;
use crate::base::error::{Error, Result};
use rustix::fs::{fdatasync, fstat};
use rustix::io::{Errno, pwrite, retry_on_intr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The page cache descriptor, with the name and access mode of the file for errors and checks.
#[derive(Debug)]
pub struct BufferedFile {
    name: String,
    descriptor: OwnedFd,
    writable: bool,
    mappings: Mappings,
}

impl BufferedFile {
    /// The file `name` behind `descriptor`.
    pub fn new(name: &str, descriptor: OwnedFd, writable: bool) -> Self {
        Self { name: name.to_owned(), descriptor, writable, mappings: Mappings::default() }
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The descriptor through the page cache.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// The mappings of the file.
    pub fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    /// Makes all writes durable, including those through mappings.
    pub fn sync(&self) -> Result<()> {
        self.mappings.let_go_written();
        retry_on_intr(|| fdatasync(&self.descriptor)).map_err(|error| self.error("sync", error))
    }

    /// The size in bytes.
    pub fn size(&self) -> Result<u64> {
        let stat = fstat(&self.descriptor).map_err(|error| self.error("get the size", error))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Writes all of `bytes` through the page cache.
    pub fn write_buffered(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = self.place(offset, done)?;
            done += self.written(pwrite_once(self.descriptor(), &bytes[done..], at), at)?;
        }
        Ok(())
    }

    /// The error of a call that did `what`.
    pub fn error(&self, what: &str, error: Errno) -> Error {
        Error::io(what, &self.name, error.into())
    }

    /// The offset `done` bytes after `offset`.
    pub fn place(&self, offset: u64, done: usize) -> Result<u64> {
        offset
            .checked_add(done as u64)
            .ok_or_else(|| Error::internal("an offset is beyond what files have"))
    }

    /// The result of one write at `at`: a number of bytes that is not zero.
    pub fn written(&self, outcome: rustix::io::Result<usize>, at: u64) -> Result<usize> {
        match outcome {
            Ok(0) => {
                let error = io::ErrorKind::WriteZero.into();
                Err(Error::io("write", &self.name, error).at(&self.name, at))
            }
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(self.error("write", error).at(&self.name, at)),
        }
    }

    /// Fails if the file was opened read-only.
    pub fn check_writable(&self) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        Err(Error::io("write", &self.name, io::ErrorKind::PermissionDenied.into()))
    }
}

/// Writes once, repeated if interrupted.
pub fn pwrite_once(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> rustix::io::Result<usize> {
    retry_on_intr(|| pwrite(file, bytes, offset))
}
