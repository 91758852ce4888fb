//! Runs that follow each other in key order, as one source of a merge.

use crate::base::error::Result;
use crate::base::keys::KeyRange;
use crate::base::stream::{SortedStream, Update};
use crate::run::read::lookup::Run;
use crate::run::read::stream::RunStream;
use crate::runtime::sync::Arc;

/// Ranges of runs that follow each other in key order (a level of a buffer, or leaves), each opened
/// when the one before has ended. Pending ranges are kept as `R`, which may take less memory than
/// contiguous bounds of long keys.
pub struct RangesStream<R = KeyRange> {
    /// Pending ranges, the next one last.
    waiting: Vec<(Arc<Run>, R)>,
    current: Option<RunStream>,
    bytes_read: u64,
}

impl<R: Into<KeyRange>> RangesStream<R> {
    /// Creates the stream, positioned on the first entry within `ranges`.
    pub fn new(mut ranges: Vec<(Arc<Run>, R)>) -> Result<Self> {
        ranges.reverse();
        let mut stream = Self { waiting: ranges, current: None, bytes_read: 0 };
        stream.stand()?;
        Ok(stream)
    }

    /// Bytes read from the device so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read + self.current.as_ref().map_or(0, RunStream::bytes_read)
    }

    fn stand(&mut self) -> Result<()> {
        loop {
            if let Some(current) = &self.current {
                if current.key().is_some() {
                    return Ok(());
                }
                self.bytes_read += current.bytes_read();
                // Returns its buffer before the next stream requests one.
                self.current = None;
            }
            let Some((run, range)) = self.waiting.pop() else { return Ok(()) };
            self.current = Some(RunStream::new(&run, range.into())?);
        }
    }
}

impl<R: Into<KeyRange>> SortedStream for RangesStream<R> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.current.as_ref().and_then(RunStream::key)
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.current.as_ref().map_or(Update::Delete, RunStream::update)
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if let Some(current) = &mut self.current {
            current.advance()?;
            if current.key().is_some() {
                return Ok(());
            }
        }
        self.stand()
    }
}
