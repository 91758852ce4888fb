//! The options of every engine: chosen when a keyspace is created, checked, and stored with it.
//!
//! An option that is `None` was not set: a new keyspace uses its default, an existing one the
//! stored value. Most options are fixed when the keyspace is created; those that may change while
//! it is open are in [`LiveOptions`]. `options/keyspace.rs` has the stored layout, and
//! `integrity/dump.rs` prints the stored values.

use crate::base::error::{Error, Result};
use crate::engine::kind::EngineKind;
use std::fmt::Display;
use std::ops::RangeInclusive;

mod choices;

pub use choices::{
    AutumnOptions, BminusOptions, LevelOptions, SplinterOptions, TreelineOptions, TurtleOptions,
};

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

/// Range of the number of pages of a group.
const GROUP_PAGES: RangeInclusive<u32> = 1..=32;
/// Default number of pages of a group, the most of the TreeLine paper.
pub(crate) const GROUP_PAGES_DEFAULT: u32 = 16;
/// Range of the filled part of a new page, in percent.
const FILL_PERCENT: RangeInclusive<u32> = 50..=100;
/// Default of the filled part of a new page, in percent.
pub(crate) const FILL_PERCENT_DEFAULT: u32 = 85;

/// Sizes of a page of engine bminus in bytes: whole blocks.
const PAGE_BYTES: [u32; 3] = [4096, 8192, 16384];
/// Sizes of a segment in bytes, those of the paper.
const SEGMENT_BYTES: [u32; 2] = [128, 256];
/// Changed bytes up to which a delta is written: those of the paper, and 0 for "no deltas".
const DELTA_BYTES: [u32; 4] = [0, 1024, 2048, 4096];
/// Default size of a page of engine bminus in bytes.
pub(crate) const PAGE_BYTES_DEFAULT: u32 = 8192;
/// Default size of a segment in bytes, `Ds` of the paper.
pub(crate) const SEGMENT_BYTES_DEFAULT: u32 = 128;
/// Default of the changed bytes up to which a delta is written, `T` of the paper.
pub(crate) const DELTA_BYTES_DEFAULT: u32 = 2048;
/// Default of "the places of a page are written in turn".
pub(crate) const SHADOW_DEFAULT: bool = true;

/// Range of the error of a linear model, in percent of a page.
const EPSILON_PERCENT: RangeInclusive<u32> = 0..=25;
/// Default of the error of a linear model: none, bounds are keys.
pub(crate) const EPSILON_PERCENT_DEFAULT: u32 = 0;
/// Range of the number of rounds of sweeps for which inserts are forecast.
const FORECAST_ROUNDS: RangeInclusive<u32> = 0..=100;
/// Default number of rounds of sweeps for which inserts are forecast.
pub(crate) const FORECAST_ROUNDS_DEFAULT: u32 = 0;

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
    /// See [`EngineKind::Treeline`].
    Treeline(TreelineOptions),
    /// See [`EngineKind::Bminus`].
    Bminus(BminusOptions),
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

impl From<EngineKind> for EngineOptions {
    fn from(kind: EngineKind) -> Self {
        match kind {
            EngineKind::Turtle => Self::Turtle(TurtleOptions::new()),
            EngineKind::Autumn => Self::Autumn(AutumnOptions::new()),
            EngineKind::Splinter => Self::Splinter(SplinterOptions::new()),
            EngineKind::Treeline => Self::Treeline(TreelineOptions::new()),
            EngineKind::Bminus => Self::Bminus(BminusOptions::new()),
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

impl From<TreelineOptions> for EngineOptions {
    fn from(options: TreelineOptions) -> Self {
        Self::Treeline(options)
    }
}

impl From<BminusOptions> for EngineOptions {
    fn from(options: BminusOptions) -> Self {
        Self::Bminus(options)
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
            Self::Treeline(_) => EngineKind::Treeline,
            Self::Bminus(_) => EngineKind::Bminus,
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
            EngineKind::Treeline => Self::Treeline(TreelineOptions::new().group_pages(4)),
            EngineKind::Bminus => Self::Bminus(BminusOptions::new().page_bytes(4096)),
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
            Self::Turtle(_) | Self::Splinter(_) | Self::Treeline(_) | Self::Bminus(_) => None,
            Self::Autumn(options) => options.levels,
        }
    }

    /// Fails if a number is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let within = |what, value: Option<u32>, range| {
            value.map_or(Ok(()), |value| check_range(what, value, range))
        };
        let one_of = |what, value: Option<u32>, values: &[u32]| {
            value.map_or(Ok(()), |value| check_one_of(what, value, values))
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
            Self::Treeline(options) => {
                within("group_pages", options.group_pages, &GROUP_PAGES)?;
                within("fill_percent", options.fill_percent, &FILL_PERCENT)?;
                within("epsilon_percent", options.epsilon_percent, &EPSILON_PERCENT)?;
                within("forecast_rounds", options.forecast_rounds, &FORECAST_ROUNDS)?;
                let fill = options.fill_percent.unwrap_or(FILL_PERCENT_DEFAULT);
                let epsilon = options.epsilon_percent.unwrap_or(EPSILON_PERCENT_DEFAULT);
                if epsilon > 0 && fill + 2 * epsilon > 100 {
                    return Err(Error::invalid(format!(
                        "fill_percent is {fill} and epsilon_percent is {epsilon}: fill_percent and \
                         twice epsilon_percent may not exceed 100; choose a smaller one"
                    )));
                }
                Ok(())
            }
            Self::Bminus(options) => {
                one_of("page_bytes", options.page_bytes, &PAGE_BYTES)?;
                one_of("segment_bytes", options.segment_bytes, &SEGMENT_BYTES)?;
                one_of("delta_bytes", options.delta_bytes, &DELTA_BYTES)
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
            Self::Treeline(chosen) => Self::Treeline(TreelineOptions {
                group_pages: Some(chosen.group_pages.unwrap_or(GROUP_PAGES_DEFAULT)),
                fill_percent: Some(chosen.fill_percent.unwrap_or(FILL_PERCENT_DEFAULT)),
                epsilon_percent: Some(chosen.epsilon_percent.unwrap_or(EPSILON_PERCENT_DEFAULT)),
                forecast_rounds: Some(chosen.forecast_rounds.unwrap_or(FORECAST_ROUNDS_DEFAULT)),
            }),
            Self::Bminus(chosen) => Self::Bminus(BminusOptions {
                page_bytes: Some(chosen.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT)),
                segment_bytes: Some(chosen.segment_bytes.unwrap_or(SEGMENT_BYTES_DEFAULT)),
                delta_bytes: Some(chosen.delta_bytes.unwrap_or(DELTA_BYTES_DEFAULT)),
                shadow: Some(chosen.shadow.unwrap_or(SHADOW_DEFAULT)),
            }),
        }
    }

    /// Describes the first fixed option that `asked` chooses differently from these stored options,
    /// as text for an error.
    pub(crate) fn difference(&self, asked: &Self) -> Option<String> {
        let of = changed::<u32>;
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
            (Self::Treeline(stored), Self::Treeline(asked)) => {
                of("group_pages", asked.group_pages, stored.group_pages)
                    .or_else(|| of("fill_percent", asked.fill_percent, stored.fill_percent))
                    .or_else(|| {
                        of("epsilon_percent", asked.epsilon_percent, stored.epsilon_percent)
                    })
                    .or_else(|| {
                        of("forecast_rounds", asked.forecast_rounds, stored.forecast_rounds)
                    })
            }
            (Self::Bminus(stored), Self::Bminus(asked)) => {
                of("page_bytes", asked.page_bytes, stored.page_bytes)
                    .or_else(|| of("segment_bytes", asked.segment_bytes, stored.segment_bytes))
                    .or_else(|| of("delta_bytes", asked.delta_bytes, stored.delta_bytes))
                    .or_else(|| changed("shadow", asked.shadow, stored.shadow))
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
            Self::Turtle(_) | Self::Treeline(_) | Self::Bminus(_) => None,
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

/// Describes a fixed option that would change, as text for an error.
fn changed<T: PartialEq + Display>(
    what: &str,
    asked: Option<T>,
    stored: Option<T>,
) -> Option<String> {
    let asked = asked.filter(|asked| stored.as_ref() != Some(asked))?;
    let stored = stored.map_or_else(|| "unset".to_owned(), |stored| stored.to_string());
    Some(format!("{what} is {stored} and cannot be changed to {asked}"))
}

fn check_range(what: &str, value: u32, range: &RangeInclusive<u32>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(Error::invalid(format!("{what} is {value}; it must be from {least} to {most}")))
}

fn check_one_of(what: &str, value: u32, values: &[u32]) -> Result<()> {
    if values.contains(&value) {
        return Ok(());
    }
    let values: Vec<String> = values.iter().map(u32::to_string).collect();
    Err(Error::invalid(format!("{what} is {value}; it must be one of {}", values.join(", "))))
}
