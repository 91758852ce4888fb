//! The options of a tree, and the sizes that follow from them.

use crate::base::limits::BLOCK_BYTES;
use crate::engine::{
    BminusOptions, DELTA_BYTES_DEFAULT, PAGE_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT,
};
use crate::pages::homes::HomeLayout;
use crate::pages::homes::slotted::room;

/// Number of pages of a node at most.
const NODE_PAGES: usize = 128;

/// Options of a tree.
#[derive(Clone, Copy, Debug)]
pub struct BminusConfig {
    /// Blocks of a page.
    pub page_blocks: u32,
    /// Bytes of a segment, `Ds` of the paper.
    pub segment_bytes: usize,
    /// Changed bytes up to which a delta is written, `T` of the paper.
    pub delta_bytes: usize,
    /// False: the baseline, in which an update moves its page.
    pub shadow: bool,
    /// Pages of a node at most.
    pub node_pages: usize,
}

impl BminusConfig {
    /// The sizes for these options.
    #[must_use]
    pub fn new(options: BminusOptions) -> Self {
        let to_usize = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let page = options.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT);
        Self {
            page_blocks: (page / u32::try_from(BLOCK_BYTES).unwrap_or(u32::MAX)).max(1),
            segment_bytes: to_usize(options.segment_bytes.unwrap_or(SEGMENT_BYTES_DEFAULT)),
            delta_bytes: to_usize(options.delta_bytes.unwrap_or(DELTA_BYTES_DEFAULT)),
            shadow: options.shadow.unwrap_or(true),
            node_pages: NODE_PAGES,
        }
    }

    /// The sizes of homes for pages of this many blocks.
    #[must_use]
    pub fn layout(&self, page_blocks: u32) -> HomeLayout {
        HomeLayout { page_blocks, shadow: self.shadow }
    }

    /// The sizes of usual homes.
    #[must_use]
    pub fn usual(&self) -> HomeLayout {
        self.layout(self.page_blocks)
    }

    /// Bytes of records and their places in a usual page.
    #[must_use]
    pub fn page_room(&self) -> usize {
        room(self.page_blocks)
    }
}
