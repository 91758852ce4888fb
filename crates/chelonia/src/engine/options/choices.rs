//! The options of each engine, as a user chooses them.

use super::check_range;
use crate::base::error::Result;
use crate::base::limits::{
    SCALING_PERCENT_DEFAULT, SCALING_PERCENT_MIN, SIZE_RATIO_DEFAULT, SIZE_RATIO_MAX,
    SIZE_RATIO_MIN,
};

/// Options of engine `turtle`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct TurtleOptions {
    /// See [`Self::leaf_bytes()`].
    pub leaf_bytes: Option<u32>,
    /// Maximum number of children of a tree node.
    pub pivots_max: Option<u32>,
}

/// Options of engine `autumn`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct AutumnOptions {
    /// See [`Self::table_bytes()`].
    pub table_bytes: Option<u32>,
    /// See [`Self::levels()`].
    pub levels: Option<LevelOptions>,
}

/// Options of engine `splinter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct SplinterOptions {
    /// See [`Self::branch_bytes()`].
    pub branch_bytes: Option<u32>,
    /// See [`Self::fanout()`].
    pub fanout: Option<u32>,
    /// See [`Self::space_percent()`].
    pub space_percent: Option<u32>,
}

/// Options of engine `treeline`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct TreelineOptions {
    /// See [`Self::group_pages()`].
    pub group_pages: Option<u32>,
    /// See [`Self::fill_percent()`].
    pub fill_percent: Option<u32>,
    /// See [`Self::epsilon_percent()`].
    pub epsilon_percent: Option<u32>,
    /// See [`Self::forecast_rounds()`].
    pub forecast_rounds: Option<u32>,
}

/// Options of engine `bminus`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct BminusOptions {
    /// See [`Self::page_bytes()`].
    pub page_bytes: Option<u32>,
    /// See [`Self::segment_bytes()`].
    pub segment_bytes: Option<u32>,
    /// See [`Self::delta_bytes()`].
    pub delta_bytes: Option<u32>,
    /// See [`Self::shadow()`].
    pub shadow: Option<bool>,
}

impl BminusOptions {
    /// Creates options with nothing chosen.
    pub const fn new() -> Self {
        Self { page_bytes: None, segment_bytes: None, delta_bytes: None, shadow: None }
    }

    /// Sets the size of a page, in bytes (4096, 8192 or 16384; default 8192). A lookup reads one
    /// page. Entries that do not fit get a larger page of their own.
    ///
    /// ```
    /// # use chelonia::BminusOptions;
    /// let options = BminusOptions::new().page_bytes(16384);
    /// assert_eq!(options.page_bytes, Some(16384));
    /// ```
    pub const fn page_bytes(mut self, bytes: u32) -> Self {
        self.page_bytes = Some(bytes);
        self
    }

    /// Sets the size of a segment, in bytes (128 or 256, default 128), `Ds` of the B-minus-tree
    /// paper: a delta consists of the segments of a page that changed since the whole page was
    /// written.
    ///
    /// ```
    /// # use chelonia::BminusOptions;
    /// let options = BminusOptions::new().segment_bytes(256);
    /// assert_eq!(options.segment_bytes, Some(256));
    /// ```
    pub const fn segment_bytes(mut self, bytes: u32) -> Self {
        self.segment_bytes = Some(bytes);
        self
    }

    /// Sets the bytes of changed segments up to which a delta is written instead of the page (0,
    /// 1024, 2048 or 4096; default 2048), the threshold `T` of the paper. Uniform updates of small
    /// records wrote the fewest bytes, after compression, with 1024 and 2048; larger deltas take
    /// more space. With 0 there are no deltas: each change writes the whole page.
    ///
    /// ```
    /// # use chelonia::BminusOptions;
    /// let options = BminusOptions::new().page_bytes(8192).delta_bytes(4096);
    /// assert_eq!((options.page_bytes, options.delta_bytes), (Some(8192), Some(4096)));
    /// ```
    pub const fn delta_bytes(mut self, bytes: u32) -> Self {
        self.delta_bytes = Some(bytes);
        self
    }

    /// Sets whether a page has two fixed places that are written in turn, so that a write of a page
    /// changes nothing else (default true). False is the baseline of the paper, conventional
    /// shadowing with a persisted page table: every changed page is written to another place, and
    /// so is its node. On a full device, deletes may then be refused, and flushes wait for space.
    ///
    /// ```
    /// # use chelonia::BminusOptions;
    /// let baseline = BminusOptions::new().shadow(false).delta_bytes(0);
    /// assert_eq!((baseline.shadow, baseline.delta_bytes), (Some(false), Some(0)));
    /// ```
    pub const fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = Some(shadow);
        self
    }
}

/// The shape of the levels of engine `autumn`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use]
pub struct LevelOptions {
    /// See [`Self::size_ratio()`].
    pub size_ratio: u32,
    /// See [`Self::scaling_percent()`].
    pub scaling_percent: u32,
    /// See [`Self::dynamic_sizes()`].
    pub dynamic_sizes: bool,
    /// See [`Self::allocate_filters_by_level()`].
    pub allocate_filters_by_level: bool,
}

impl TurtleOptions {
    /// Creates options with nothing chosen.
    pub const fn new() -> Self {
        Self { leaf_bytes: None, pivots_max: None }
    }

    /// Sets the size of a full leaf, in bytes (4 KiB to 8 MiB). The default is a 128th of the
    /// keyspace's stored bytes, from 256 KiB to 2 MiB. The memory budget limits the size of new
    /// leaves to a 128th of it, or 256 KiB if that is more.
    ///
    /// ```
    /// # use chelonia::TurtleOptions;
    /// let options = TurtleOptions::new().leaf_bytes(1 << 20);
    /// assert_eq!(options.leaf_bytes, Some(1 << 20));
    /// ```
    pub const fn leaf_bytes(mut self, bytes: u32) -> Self {
        self.leaf_bytes = Some(bytes);
        self
    }

    /// Sets the maximum number of children of a tree node (4 to 64, 64 by default); small for tests
    /// of deep trees.
    #[cfg(any(test, feature = "internals"))]
    pub const fn pivots_max(mut self, pivots: u32) -> Self {
        self.pivots_max = Some(pivots);
        self
    }
}

impl AutumnOptions {
    /// Creates options with nothing chosen.
    pub const fn new() -> Self {
        Self { table_bytes: None, levels: None }
    }

    /// Sets the size of a full table, in bytes (4 KiB to 8 MiB). The default is a 32nd of the
    /// checkpoint distance, from 256 KiB to 2 MiB.
    pub const fn table_bytes(mut self, bytes: u32) -> Self {
        self.table_bytes = Some(bytes);
        self
    }

    /// Sets the shape of the levels, which may be changed later ([`crate::LiveOptions::Levels`]).
    ///
    /// ```
    /// # use chelonia::{AutumnOptions, LevelOptions};
    /// let options = AutumnOptions::new().table_bytes(1 << 20).levels(LevelOptions::new());
    /// assert_eq!(options.table_bytes, Some(1 << 20));
    /// assert_eq!(options.levels, Some(LevelOptions::default()));
    /// ```
    pub const fn levels(mut self, levels: LevelOptions) -> Self {
        self.levels = Some(levels);
        self
    }
}

impl SplinterOptions {
    /// Creates options with nothing chosen.
    pub const fn new() -> Self {
        Self { branch_bytes: None, fanout: None, space_percent: None }
    }

    /// Sets the size of a branch, in bytes (1 KiB to 256 MiB): a node moves its updates on when
    /// they exceed `fanout` times as much, and a leaf is split when it has 3/4 of that. The default
    /// is a 64th of the keyspace's stored bytes, from 1 MiB to 24 MiB.
    pub const fn branch_bytes(mut self, bytes: u32) -> Self {
        self.branch_bytes = Some(bytes);
        self
    }

    /// Sets the maximum number of children of a trunk node (4 to 16, default 8).
    ///
    /// ```
    /// # use chelonia::SplinterOptions;
    /// let options = SplinterOptions::new().branch_bytes(8 << 20).fanout(16);
    /// assert_eq!((options.branch_bytes, options.fanout), (Some(8 << 20), Some(16)));
    /// ```
    pub const fn fanout(mut self, children: u32) -> Self {
        self.fanout = Some(children);
        self
    }

    /// Sets the space above which a leaf is merged if all updates are of existing keys, in percent
    /// of its merged branch (110 to 300, default 160): with less, the keyspace takes less space and
    /// writes more. May be changed later ([`crate::LiveOptions::SpacePercent`]). A small leaf may
    /// hold a branch of updates all the same, or proportionally less below 160 percent; and updates
    /// that have not reached a leaf yet take space, too. `docs/engines/splinter.md` has
    /// measurements.
    ///
    /// ```
    /// # use chelonia::{EngineOptions, SplinterOptions};
    /// let options = SplinterOptions::new().space_percent(130);
    /// assert_eq!(options.space_percent, Some(130));
    /// ```
    pub const fn space_percent(mut self, percent: u32) -> Self {
        self.space_percent = Some(percent);
        self
    }
}

impl TreelineOptions {
    /// Creates options with nothing chosen.
    pub const fn new() -> Self {
        Self { group_pages: None, fill_percent: None, epsilon_percent: None, forecast_rounds: None }
    }

    /// Sets the maximum number of pages of a group (1 to 32, default 16): pages of a group are
    /// neighbors on the device, so that scans read them together.
    ///
    /// ```
    /// # use chelonia::TreelineOptions;
    /// let options = TreelineOptions::new().group_pages(8).fill_percent(70);
    /// assert_eq!((options.group_pages, options.fill_percent), (Some(8), Some(70)));
    /// ```
    pub const fn group_pages(mut self, pages: u32) -> Self {
        self.group_pages = Some(pages);
        self
    }

    /// Sets how much of a new page is filled, in percent (50 to 100, default 85): with less, more
    /// inserts fit before pages are divided, and the keyspace takes more space.
    pub const fn fill_percent(mut self, percent: u32) -> Self {
        self.fill_percent = Some(percent);
        self
    }

    /// Sets how pages of new groups are found (0 to 25, default 0). With 0, by keys between them.
    /// With more, by linear models as in the TreeLine paper: a group has as many pages as one line
    /// from keys to pages describes with an error of this much of a page, in percent. The index in
    /// memory is smaller then, and groups have fewer pages. A page may have this much more than
    /// `fill_percent` at each end, so that `fill_percent` and twice this may not exceed 100.
    ///
    /// ```
    /// # use chelonia::TreelineOptions;
    /// let options = TreelineOptions::new().fill_percent(80).epsilon_percent(10);
    /// assert_eq!(options.epsilon_percent, Some(10));
    /// ```
    pub const fn epsilon_percent(mut self, percent: u32) -> Self {
        self.epsilon_percent = Some(percent);
        self
    }

    /// Sets for how many rounds of sweeps new pages have space, by a forecast from the inserts of
    /// the round before (0 to 100, default 0). With 0, all pages are filled to
    /// `fill_percent`; otherwise less where inserts are expected.
    ///
    /// ```
    /// # use chelonia::TreelineOptions;
    /// let options = TreelineOptions::new().forecast_rounds(4);
    /// assert_eq!(options.forecast_rounds, Some(4));
    /// ```
    pub const fn forecast_rounds(mut self, rounds: u32) -> Self {
        self.forecast_rounds = Some(rounds);
        self
    }
}

impl LevelOptions {
    /// Creates the default shape: size ratio 5, scaling 80 percent, capacities that do not depend
    /// on the last level's current size, filters allocated by level.
    pub const fn new() -> Self {
        Self {
            size_ratio: SIZE_RATIO_DEFAULT,
            scaling_percent: SCALING_PERCENT_DEFAULT,
            dynamic_sizes: false,
            allocate_filters_by_level: true,
        }
    }

    /// Sets the ratio between the sizes of the last two levels, `T` of the Autumn paper (2 to 32,
    /// default 5).
    pub const fn size_ratio(mut self, ratio: u32) -> Self {
        self.size_ratio = ratio;
        self
    }

    /// Sets the scaling of the size ratios in percent, 100 times `c` of the Autumn paper (20 to
    /// 100, default 80): with each level further up, the ratio is divided by `c`. 100 gives every
    /// level the same ratio.
    pub const fn scaling_percent(mut self, percent: u32) -> Self {
        self.scaling_percent = percent;
        self
    }

    /// Sets whether the capacity of each level is a fraction of the current size of the last one;
    /// otherwise it follows from the size ratio, the scaling and the checkpoint distance (default
    /// false).
    pub const fn dynamic_sizes(mut self, dynamic: bool) -> Self {
        self.dynamic_sizes = dynamic;
        self
    }

    /// Sets whether filter memory is divided between levels to minimize the expected reads;
    /// otherwise every level has the same bits per key (default true).
    ///
    /// ```
    /// # use chelonia::LevelOptions;
    /// let levels = LevelOptions::new().size_ratio(10).scaling_percent(100);
    /// let levels = levels.dynamic_sizes(true).allocate_filters_by_level(false);
    /// assert_eq!((levels.size_ratio, levels.scaling_percent), (10, 100));
    /// assert_eq!((levels.dynamic_sizes, levels.allocate_filters_by_level), (true, false));
    /// ```
    pub const fn allocate_filters_by_level(mut self, by_level: bool) -> Self {
        self.allocate_filters_by_level = by_level;
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        let ratios = SIZE_RATIO_MIN..=SIZE_RATIO_MAX;
        check_range("size_ratio", self.size_ratio, &ratios)?;
        check_range("scaling_percent", self.scaling_percent, &(SCALING_PERCENT_MIN..=100))
    }
}

impl Default for LevelOptions {
    fn default() -> Self {
        Self::new()
    }
}
