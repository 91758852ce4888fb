//! Streams of a sweep: staged runs, updates of one group, and what they read.

use crate::base::error::Result;
use crate::base::ids::BlockNo;
use crate::base::keys::KeyRange;
use crate::base::stream::{LargeRef, SortedStream, Update};
use crate::engines::treeline::staged::{Staged, Table, from_key};
use crate::merge::Merge;
use crate::run::{RunStream, Totals};
use crate::structure::SharedKey;

/// The entries of one staged memtable within a range, ascending.
pub(in crate::engines::treeline) struct StagedStream {
    /// Runs not entered yet, the next one last.
    waiting: Vec<Table>,
    range: KeyRange,
    current: Option<(Table, RunStream)>,
    /// Large values read.
    pub large: Vec<LargeRef>,
    /// Number of them by the first block of their run.
    pub counts: Vec<(BlockNo, u64)>,
    pub bytes_read: u64,
}

impl StagedStream {
    /// Creates the stream, positioned on the first entry.
    pub fn new(staged: &Staged, range: &KeyRange) -> Result<Self> {
        let tables = staged.tables.iter().rev().filter(|table| table.meets(range));
        let mut stream = Self {
            waiting: tables.cloned().collect(),
            range: range.clone(),
            current: None,
            large: Vec::new(),
            counts: Vec::new(),
            bytes_read: 0,
        };
        stream.settle()?;
        Ok(stream)
    }

    /// Enters runs until one has an entry.
    fn settle(&mut self) -> Result<()> {
        loop {
            if let Some((_, current)) = &self.current {
                if current.key().is_some() {
                    return Ok(());
                }
                self.bytes_read += current.bytes_read();
            }
            self.current = None;
            let Some(table) = self.waiting.pop() else { return Ok(()) };
            let stream = RunStream::new(&table.run, self.range.clone())?;
            self.current = Some((table, stream));
        }
    }

    fn note_large(&mut self, large: LargeRef) {
        self.large.push(large);
        let Some((table, _)) = &self.current else { return };
        let start = table.run.reference().extent.start;
        match self.counts.last_mut() {
            Some((run, count)) if *run == start => *count += 1,
            _ => self.counts.push((start, 1)),
        }
    }
}

impl SortedStream for StagedStream {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.current.as_ref().and_then(|(_, stream)| stream.key())
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.current.as_ref().map_or(Update::Delete, |(_, stream)| stream.update())
    }

    fn advance(&mut self) -> Result<()> {
        if let Some(large) = self.update().large() {
            self.note_large(large);
        }
        if let Some((_, stream)) = &mut self.current {
            stream.advance()?;
        }
        self.settle()
    }
}

/// The updates of all sinking memtables within a range: the newest of each key.
pub(in crate::engines::treeline) type SinkingUpdates = Merge<StagedStream>;

/// The range of a sweep without the keys that were swept before.
pub(in crate::engines::treeline) fn live_range(range: &KeyRange, swept_to: &SharedKey) -> KeyRange {
    from_key(range, swept_to)
}

/// A few updates, collected so that they can be divided among pages.
#[derive(Default)]
pub(in crate::engines::treeline) struct GroupUpdates {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    start: usize,
    key_len: usize,
    payload_len: usize,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Put,
    Large(LargeRef),
    Delete,
}

impl GroupUpdates {
    /// Takes updates below `upper` until it holds `bytes_max` bytes; true if it took all of them.
    pub fn fill(
        &mut self,
        updates: &mut SinkingUpdates,
        upper: Option<&SharedKey>,
        bytes_max: usize,
    ) -> Result<bool> {
        self.bytes.clear();
        self.entries.clear();
        while let Some(key) = updates.key().filter(|key| upper.is_none_or(|upper| *upper > **key)) {
            if self.bytes.len() >= bytes_max {
                return Ok(false);
            }
            self.push(key, updates.update());
            updates.advance()?;
        }
        Ok(true)
    }

    /// Adds an update behind the others.
    pub fn push(&mut self, key: &[u8], update: Update<'_>) {
        let (start, key_len) = (self.bytes.len(), key.len());
        self.bytes.extend_from_slice(key);
        let what = match update {
            Update::Put(value) => {
                self.bytes.extend_from_slice(value);
                What::Put
            }
            Update::PutCompressed(_) => unreachable!("the runs of a treeline compress nothing"),
            Update::PutLarge(large) => What::Large(large),
            Update::Delete => What::Delete,
        };
        let payload_len = self.bytes.len() - start - key_len;
        self.entries.push(Entry { start, key_len, payload_len, what });
    }

    /// Removes the first `count` updates.
    pub fn remove_first(&mut self, count: usize) {
        let start = self.entries.get(count).map_or(self.bytes.len(), |entry| entry.start);
        self.bytes.drain(..start);
        self.entries.drain(..count);
        self.entries.iter_mut().for_each(|entry| entry.start -= start);
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn key(&self, index: usize) -> &[u8] {
        let entry = &self.entries[index];
        &self.bytes[entry.start..entry.start + entry.key_len]
    }

    pub fn update(&self, index: usize) -> Update<'_> {
        let entry = &self.entries[index];
        match entry.what {
            What::Put => {
                let start = entry.start + entry.key_len;
                Update::Put(&self.bytes[start..start + entry.payload_len])
            }
            What::Large(large) => Update::PutLarge(large),
            What::Delete => Update::Delete,
        }
    }
}

/// Updates of a batch, and then those of `more` below an upper bound.
pub(in crate::engines::treeline) struct Upcoming<'b> {
    pub batch: &'b GroupUpdates,
    pub at: std::ops::Range<usize>,
    pub more: Option<(&'b mut SinkingUpdates, Option<&'b SharedKey>)>,
}

impl SortedStream for Upcoming<'_> {
    fn key(&self) -> Option<&[u8]> {
        if !self.at.is_empty() {
            return Some(self.batch.key(self.at.start));
        }
        let (updates, upper) = self.more.as_ref()?;
        updates.key().filter(|key| upper.is_none_or(|upper| *upper > **key))
    }

    fn update(&self) -> Update<'_> {
        match &self.more {
            _ if !self.at.is_empty() => self.batch.update(self.at.start),
            Some((updates, _)) => updates.update(),
            None => Update::Delete,
        }
    }

    fn advance(&mut self) -> Result<()> {
        if !self.at.is_empty() {
            self.at.start += 1;
            return Ok(());
        }
        self.more.as_mut().map_or(Ok(()), |(updates, _)| updates.advance())
    }
}

/// A stream that records what was read from it.
pub(in crate::engines::treeline) struct Recorded<S> {
    pub stream: S,
    pub totals: Totals,
    pub large: Vec<LargeRef>,
}

impl<S> Recorded<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, totals: Totals::default(), large: Vec::new() }
    }
}

impl<S: SortedStream> SortedStream for Recorded<S> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.stream.key()
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.stream.update()
    }

    fn advance(&mut self) -> Result<()> {
        let update = self.stream.update();
        self.large.extend(update.large());
        if let Some(key) = self.stream.key() {
            self.totals.add_entry(key, &update);
        }
        self.stream.advance()
    }
}
