//! The options of every engine: chosen when a keyspace is created, checked, and stored with it.
//!
//! An option that is `None` was not set: a new keyspace uses its default, an existing one the
//! stored value. Most options are fixed when the keyspace is created; those that may change while
//! it is open are in [`LiveOptions`]. `options/keyspace.rs` has the stored layout, and
//! `integrity/dump.rs` prints the stored values.

use crate::base::error::{Error, Result};
use crate::base::limits::{
    SCALING_PERCENT_DEFAULT, SCALING_PERCENT_MIN, SIZE_RATIO_DEFAULT, SIZE_RATIO_MAX,
    SIZE_RATIO_MIN,
};
use crate::engine::kind::EngineKind;
use std::ops::RangeInclusive;

/// Range of the size of a leaf or table; the lower end is for tests of tiny trees.
const LEAF_BYTES: RangeInclusive<u32> = 4 << 10..=8 << 20;
/// Range of the number of pivots of a node.
const PIVOTS: RangeInclusive<u32> = 4..=PIVOTS_MAX;
/// Default maximum number of pivots of a node.
pub(crate) const PIVOTS_MAX: u32 = 64;

/// Range of the size of a branch; the lower end is for tests of tiny trees.
const BRANCH_BYTES: RangeInclusive<u32> = 1 << 10..=256 << 20;
/// Range of the number of children of a trunk node.
const FANOUT: RangeInclusive<u32> = 4..=16;
/// Default maximum number of children of a trunk node, `F` of the SplinterDB paper.
pub(crate) const FANOUT_DEFAULT: u32 = 8;
/// Range of the space of a leaf, in percent of its merged branch.
const SPACE_PERCENT: RangeInclusive<u32> = 110..=300;
/// Default of the space of a leaf, in percent of its merged branch.
pub(crate) const SPACE_PERCENT_DEFAULT: u32 = 160;

/// The engine of a keyspace, with the options of that engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EngineOptions {
    /// See [`EngineKind::Turtle`].
    Turtle(TurtleOptions),
    /// See [`EngineKind::Autumn`].
    Autumn(AutumnOptions),
    /// See [`EngineKind::Splinter`].
    Splinter(SplinterOptions),
}

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

/// The options that may change while a keyspace is open
/// ([`crate::Keyspace::set_live_options`]).
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let database = chelonia::Database::open(directory.path().join("d"))?;
/// # use chelonia::{EngineKind, KeyspaceOptions, LevelOptions, LiveOptions};
/// let options = KeyspaceOptions::new().engine(EngineKind::Autumn);
/// let events = database.keyspace("events", options)?;
/// events.set_live_options(LiveOptions::Levels(LevelOptions::new().size_ratio(3)))?;
/// assert_eq!(events.engine_options().levels().unwrap().size_ratio, 3);
/// # Ok::<(), chelonia::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LiveOptions {
    /// The shape of the levels of engine `autumn`. Regular merges bring the tree into the new
    /// shape.
    Levels(LevelOptions),
    /// The space of a leaf of engine `splinter`, in percent
    /// ([`SplinterOptions::space_percent()`]). Leaves that take more are merged, from the next
    /// updates of existing keys on.
    SpacePercent(u32),
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

    /// Sets the shape of the levels, which may be changed later ([`LiveOptions::Levels`]).
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
    /// writes more. May be changed later ([`LiveOptions::SpacePercent`]). A small leaf may hold a
    /// branch of updates all the same, or proportionally less below 160 percent; and updates that
    /// have not reached a leaf yet take space, too. `docs/engines/splinter.md` has measurements.
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

    fn check(&self) -> Result<()> {
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

impl From<EngineKind> for EngineOptions {
    fn from(kind: EngineKind) -> Self {
        match kind {
            EngineKind::Turtle => Self::Turtle(TurtleOptions::new()),
            EngineKind::Autumn => Self::Autumn(AutumnOptions::new()),
            EngineKind::Splinter => Self::Splinter(SplinterOptions::new()),
        }
    }
}

impl From<TurtleOptions> for EngineOptions {
    fn from(options: TurtleOptions) -> Self {
        Self::Turtle(options)
    }
}

impl From<AutumnOptions> for EngineOptions {
    fn from(options: AutumnOptions) -> Self {
        Self::Autumn(options)
    }
}

impl From<SplinterOptions> for EngineOptions {
    fn from(options: SplinterOptions) -> Self {
        Self::Splinter(options)
    }
}

impl From<LevelOptions> for LiveOptions {
    fn from(levels: LevelOptions) -> Self {
        Self::Levels(levels)
    }
}

impl EngineOptions {
    /// Returns the engine.
    #[must_use]
    pub const fn kind(&self) -> EngineKind {
        match self {
            Self::Turtle(_) => EngineKind::Turtle,
            Self::Autumn(_) => EngineKind::Autumn,
            Self::Splinter(_) => EngineKind::Splinter,
        }
    }

    /// Creates options of a miniature tree: leaves of `leaf_bytes`, few children per node. For
    /// tests.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub const fn tiny(kind: EngineKind, leaf_bytes: u32) -> Self {
        match kind {
            EngineKind::Turtle => {
                Self::Turtle(TurtleOptions::new().leaf_bytes(leaf_bytes).pivots_max(4))
            }
            EngineKind::Autumn => Self::Autumn(AutumnOptions::new().table_bytes(leaf_bytes)),
            EngineKind::Splinter => {
                Self::Splinter(SplinterOptions::new().branch_bytes(leaf_bytes / 4).fanout(4))
            }
        }
    }

    /// Returns the shape of the levels, if the engine has levels.
    ///
    /// ```
    /// # use chelonia::{AutumnOptions, EngineKind, EngineOptions, LevelOptions};
    /// let autumn = EngineOptions::from(AutumnOptions::new().levels(LevelOptions::new()));
    /// assert_eq!(autumn.kind(), EngineKind::Autumn);
    /// assert_eq!(autumn.levels(), Some(LevelOptions::new()));
    /// assert_eq!(EngineOptions::from(EngineKind::Turtle).levels(), None);
    /// ```
    #[must_use]
    pub const fn levels(&self) -> Option<LevelOptions> {
        match self {
            Self::Turtle(_) | Self::Splinter(_) => None,
            Self::Autumn(options) => options.levels,
        }
    }

    /// Fails if a number is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let within = |what, value: Option<u32>, range| {
            value.map_or(Ok(()), |value| check_range(what, value, range))
        };
        match self {
            Self::Turtle(options) => {
                within("leaf_bytes", options.leaf_bytes, &LEAF_BYTES)?;
                within("pivots_max", options.pivots_max, &PIVOTS)
            }
            Self::Autumn(options) => {
                within("table_bytes", options.table_bytes, &LEAF_BYTES)?;
                options.levels.map_or(Ok(()), |levels| levels.check())
            }
            Self::Splinter(options) => {
                within("branch_bytes", options.branch_bytes, &BRANCH_BYTES)?;
                within("fanout", options.fanout, &FANOUT)?;
                within("space_percent", options.space_percent, &SPACE_PERCENT)
            }
        }
    }

    /// Fills in the defaults of all stored options that were not set.
    pub(crate) fn for_new(self) -> Self {
        match self {
            Self::Turtle(TurtleOptions { leaf_bytes, pivots_max }) => {
                let pivots_max = Some(pivots_max.unwrap_or(PIVOTS_MAX));
                Self::Turtle(TurtleOptions { leaf_bytes, pivots_max })
            }
            Self::Autumn(AutumnOptions { table_bytes, levels }) => {
                let levels = Some(levels.unwrap_or_default());
                Self::Autumn(AutumnOptions { table_bytes, levels })
            }
            Self::Splinter(SplinterOptions { branch_bytes, fanout, space_percent }) => {
                let fanout = Some(fanout.unwrap_or(FANOUT_DEFAULT));
                let space_percent = Some(space_percent.unwrap_or(SPACE_PERCENT_DEFAULT));
                Self::Splinter(SplinterOptions { branch_bytes, fanout, space_percent })
            }
        }
    }

    /// Describes the first fixed option that `asked` chooses differently from these stored options,
    /// as text for an error.
    pub(crate) fn difference(&self, asked: &Self) -> Option<String> {
        let of = |what: &str, asked: Option<u32>, stored: Option<u32>| {
            let asked = asked.filter(|_| asked != stored)?;
            let stored = stored.map_or_else(|| "unset".to_owned(), |stored| stored.to_string());
            Some(format!("{what} is {stored} and cannot be changed to {asked}"))
        };
        match (self, asked) {
            (Self::Turtle(stored), Self::Turtle(asked)) => {
                of("leaf_bytes", asked.leaf_bytes, stored.leaf_bytes)
                    .or_else(|| of("pivots_max", asked.pivots_max, stored.pivots_max))
            }
            (Self::Autumn(stored), Self::Autumn(asked)) => {
                of("table_bytes", asked.table_bytes, stored.table_bytes)
            }
            (Self::Splinter(stored), Self::Splinter(asked)) => {
                of("branch_bytes", asked.branch_bytes, stored.branch_bytes)
                    .or_else(|| of("fanout", asked.fanout, stored.fanout))
            }
            (stored, asked) => {
                let (stored, asked) = (stored.kind().name(), asked.kind().name());
                Some(format!("engine is {stored} and cannot be changed to {asked}"))
            }
        }
    }

    /// Returns the live options that `self` chooses.
    pub(crate) fn live(&self) -> Option<LiveOptions> {
        match self {
            Self::Turtle(_) => None,
            Self::Autumn(options) => options.levels.map(LiveOptions::Levels),
            Self::Splinter(options) => options.space_percent.map(LiveOptions::SpacePercent),
        }
    }

    /// Returns these options with `live` applied. Fails if a number is out of range, or the engine
    /// has no such options.
    pub(crate) fn with_live(self, live: LiveOptions) -> Result<Self> {
        match (self, live) {
            (Self::Autumn(options), LiveOptions::Levels(levels)) => {
                levels.check()?;
                Ok(Self::Autumn(options.levels(levels)))
            }
            (Self::Splinter(options), LiveOptions::SpacePercent(percent)) => {
                check_range("space_percent", percent, &SPACE_PERCENT)?;
                Ok(Self::Splinter(options.space_percent(percent)))
            }
            (_, LiveOptions::Levels(_)) => {
                let name = self.kind().name();
                Err(Error::invalid(format!("engine {name} has no levels")))
            }
            (_, LiveOptions::SpacePercent(_)) => {
                let name = self.kind().name();
                Err(Error::invalid(format!("engine {name} has no option space_percent")))
            }
        }
    }
}

fn check_range(what: &str, value: u32, range: &RangeInclusive<u32>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(Error::invalid(format!("{what} is {value}; it must be from {least} to {most}")))
}
