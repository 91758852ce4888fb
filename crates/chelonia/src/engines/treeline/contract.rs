//! The contract of a version ([`Version`]) for versions of treeline trees.

use super::version::TreelineVersion;
use super::{check, read};
use crate::base::check::CheckReport;
use crate::base::checksum::KeyHash;
use crate::base::dump::DumpVisitor;
use crate::base::error::Result;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::SortedStream;
use crate::engine::{Answer, Looked, OwnedExtent, Progress, Salvaged, Version};
use crate::memory::epoch::Guard;
use crate::runtime::sync::Arc;
use crate::structure::DirectoryRoot;

impl Version for TreelineVersion {
    fn look(&self, key: &[u8], hash: KeyHash, guard: &Guard) -> Result<Looked> {
        self.find_cached(key, hash, guard)
    }

    fn read(&self, key: &[u8], hash: KeyHash, _from: Progress) -> Result<Answer> {
        self.find(key, hash)
    }

    fn multi_get(&self, keys: &[(&[u8], KeyHash)]) -> Result<Vec<Answer>> {
        self.find_all(keys)
    }

    fn cursor(
        self: Arc<Self>,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn SortedStream + Send>> {
        Ok(Box::new(read::cursor::TreelineCursor::new(&self, range, direction)?))
    }

    fn root(&self) -> Result<Vec<u8>> {
        let root = DirectoryRoot { directory: self.place, disk_blocks: self.disk_blocks };
        Ok(root.encode())
    }

    fn extents(&self, visit: &mut dyn FnMut(OwnedExtent) -> Result<()>) -> Result<()> {
        check::extents::walk_extents(self, visit)
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
