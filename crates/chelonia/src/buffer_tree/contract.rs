//! The contract of a version ([`Version`]) for versions of buffer trees.

use super::version::TreeVersion;
use super::{check, counts, read};
use crate::base::check::CheckReport;
use crate::base::checksum::KeyHash;
use crate::base::dump::DumpVisitor;
use crate::base::error::Result;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::SortedStream;
use crate::engine::{Answer, Looked, OwnedExtent, Progress, Salvaged, Version};
use crate::memory::epoch::Guard;
use crate::runtime::sync::Arc;

impl Version for TreeVersion {
    fn look(&self, key: &[u8], hash: KeyHash, guard: &Guard) -> Result<Looked> {
        read::lookup::look(&self.shared, &self.root, key, hash, guard)
    }

    fn read(&self, key: &[u8], hash: KeyHash, from: Progress) -> Result<Answer> {
        read::lookup::read(&self.shared, &self.root, (key, hash), from)
    }

    fn multi_get(&self, keys: &[(&[u8], KeyHash)]) -> Result<Vec<Answer>> {
        read::lookup::multi_get(&self.shared, &self.root, keys)
    }

    fn cursor(
        self: Arc<Self>,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn SortedStream + Send>> {
        Ok(Box::new(read::cursor::TreeCursor::new(self, range, direction)?))
    }

    fn root(&self) -> Result<Vec<u8>> {
        Ok(self.encode())
    }

    fn extents(&self, visit: &mut dyn FnMut(OwnedExtent) -> Result<()>) -> Result<()> {
        counts::walk_extents(&self.shared.node_cache, &self.root, visit)
    }

    fn verify(&self, report: &mut dyn CheckReport) -> Result<()> {
        check::verify::verify(self, report)
    }

    fn salvage(&self, found: &mut dyn Salvaged) -> Result<()> {
        check::salvage::salvage(self, found)
    }

    fn describe(&self, out: &mut dyn DumpVisitor) -> Result<()> {
        check::describe::describe(self, out)
    }
}
