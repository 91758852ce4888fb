//! Every choice a user can make, in one place, typed, with its default.

use crate::base::codec::{Decoder, put_varint};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::{SCALING_PERCENT_MIN, SIZE_RATIO_MAX, SIZE_RATIO_MIN};
use crate::engine::LevelOptions;
use crate::engines::{EngineKind, EngineOptions};
use crate::filters::FilterKind;
use crate::filters::sizing::{BITS_PER_KEY_DEFAULT, BITS_PER_KEY_MAX};

/// How safe a commit is when its call returns. Each level carries every earlier commit with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Durability {
    /// Visible to everyone in this process. May be lost if the process dies.
    Memory,
    /// Survives the death of the process. A power cut may lose the last moments: a sync of the log
    /// begins in the background at most 100 ms after the write, so what is lost at most are the
    /// commits of that and of the time of one sync. What is left is always a prefix of the commits.
    #[default]
    Process,
    /// Survives a power cut: the log was synced before the call returned.
    Sync,
}

/// Options of a keyspace. What is not set means "as stored", or the default for a new keyspace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct KeyspaceOptions {
    pub(crate) engine: Option<EngineKind>,
    pub(crate) filter: Option<FilterKind>,
    pub(crate) filter_bits_per_key: Option<u32>,
    pub(crate) leaf_bytes: Option<u32>,
    pub(crate) pivots_max: Option<u32>,
    pub(crate) checkpoint_distance: Option<u64>,
    pub(crate) levels: Option<LevelOptions>,
}

/// The range of [`KeyspaceOptions::filter_bits_per_key`].
const FILTER_BITS: std::ops::RangeInclusive<u32> = 0..=BITS_PER_KEY_MAX;
/// The range of [`KeyspaceOptions::leaf_bytes`]; the lower end is for tests of tiny trees.
const LEAF_BYTES: std::ops::RangeInclusive<u32> = 4 << 10..=8 << 20;
/// The range of the pivots of a node.
const PIVOTS: std::ops::RangeInclusive<u32> = 4..=64;

impl KeyspaceOptions {
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// How the keyspace keeps its data. Fixed when it is created.
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.engine = Some(engine);
        self
    }

    /// The kind of filter that spares reads of absent keys. Fixed when it is created.
    pub fn filter(mut self, filter: FilterKind) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Filter memory and space per key, in bits (0 to 32, 16 by default; 0 for no filters). Where
    /// an engine divides it between levels a part of them may have none; a filter that there is
    /// has at least 4. Fixed when it is created.
    pub fn filter_bits_per_key(mut self, bits: u32) -> Self {
        self.filter_bits_per_key = Some(bits);
        self
    }

    /// The size of a full leaf, in bytes (4 KiB to 8 MiB). By default it follows the checkpoint
    /// distance: a 32nd of it, from 256 KiB to 2 MiB. Fixed when it is created, if set. New leaves
    /// are smaller where the memory budget asks for it: all threads of a merge together build
    /// leaves of at most a 16th of it, but none of less than 256 KiB for that.
    pub fn leaf_bytes(mut self, bytes: u32) -> Self {
        self.leaf_bytes = Some(bytes);
        self
    }

    /// The bytes of updates between two checkpoints: the dial between writes and reads. More makes
    /// writes cheaper and leaves less memory to reads. By default it follows the memory budget. May
    /// be changed at any time; a ceiling within the write share of the budget.
    pub fn checkpoint_distance(mut self, bytes: u64) -> Self {
        self.checkpoint_distance = Some(bytes);
        self
    }

    /// The shape of the levels, for engine `autumn`. May be changed at any time, also by
    /// [`crate::Keyspace::set_levels`]: the tree moves to the new shape by itself.
    pub fn levels(mut self, levels: LevelOptions) -> Self {
        self.levels = Some(levels);
        self
    }

    /// The most children of a tree node (4 to 64, 64 by default): small for tests of deep trees.
    #[cfg(feature = "internals")]
    pub fn pivots_max(mut self, pivots: u32) -> Self {
        self.pivots_max = Some(pivots);
        self
    }

    /// The options of another keyspace.
    pub(crate) fn as_stored(stored: &StoredOptions) -> Self {
        Self {
            engine: Some(stored.engine),
            filter: Some(stored.filter),
            filter_bits_per_key: Some(stored.filter_bits_per_key),
            leaf_bytes: stored.leaf_bytes,
            pivots_max: Some(stored.pivots_max),
            checkpoint_distance: stored.checkpoint_distance,
            levels: stored.levels,
        }
    }

    fn check(&self) -> Result<()> {
        let within =
            |value: Option<u32>, range: &std::ops::RangeInclusive<u32>, what: &str| match value {
                Some(value) if !range.contains(&value) => Err(Error::invalid(format!(
                    "{what} is {value}; it must be from {} to {}",
                    range.start(),
                    range.end()
                ))),
                _ => Ok(()),
            };
        within(self.filter_bits_per_key, &FILTER_BITS, "filter_bits_per_key")?;
        within(self.leaf_bytes, &LEAF_BYTES, "leaf_bytes")?;
        within(self.pivots_max, &PIVOTS, "pivots_max")?;
        if self.checkpoint_distance == Some(0) {
            return Err(Error::invalid("checkpoint_distance is 0; it must be at least 1"));
        }
        self.levels.map_or(Ok(()), check_levels)
    }

    /// The options of a new keyspace.
    pub(crate) fn for_new(&self) -> Result<StoredOptions> {
        self.check()?;
        let engine = self.engine.unwrap_or_default();
        Ok(StoredOptions {
            engine,
            filter: self.filter.unwrap_or_default(),
            filter_bits_per_key: self.filter_bits_per_key.unwrap_or(BITS_PER_KEY_DEFAULT),
            leaf_bytes: self.leaf_bytes,
            pivots_max: self.pivots_max.unwrap_or(*PIVOTS.end()),
            checkpoint_distance: self.checkpoint_distance,
            levels: levels_of(engine, self.levels)?,
        })
    }

    /// Fails if a fixed option contradicts what is stored.
    pub(crate) fn check_existing(&self, stored: &StoredOptions, name: &str) -> Result<()> {
        self.check()?;
        levels_of(stored.engine, self.levels)?;
        let differs = |what: &str, asked: &dyn std::fmt::Debug, is: &dyn std::fmt::Debug| {
            Err(Error::invalid(format!(
                "keyspace {name:?} exists with {what} {is:?}, which cannot be changed to {asked:?}"
            )))
        };
        match self {
            Self { engine: Some(asked), .. } if *asked != stored.engine => {
                differs("engine", asked, &stored.engine)
            }
            Self { filter: Some(asked), .. } if *asked != stored.filter => {
                differs("filter", asked, &stored.filter)
            }
            Self { filter_bits_per_key: Some(asked), .. }
                if *asked != stored.filter_bits_per_key =>
            {
                differs("filter_bits_per_key", asked, &stored.filter_bits_per_key)
            }
            Self { leaf_bytes: Some(asked), .. } if Some(*asked) != stored.leaf_bytes => {
                differs("leaf_bytes", asked, &stored.leaf_bytes)
            }
            Self { pivots_max: Some(asked), .. } if *asked != stored.pivots_max => {
                differs("pivots_max", asked, &stored.pivots_max)
            }
            _ => Ok(()),
        }
    }
}

/// Fails if levels cannot have this shape.
pub(crate) fn check_levels(levels: LevelOptions) -> Result<()> {
    let LevelOptions { size_ratio, scaling_percent, .. } = levels;
    if !(SIZE_RATIO_MIN..=SIZE_RATIO_MAX).contains(&size_ratio) {
        let range = format!("from {SIZE_RATIO_MIN} to {SIZE_RATIO_MAX}");
        return Err(Error::invalid(format!("size_ratio is {size_ratio}; it must be {range}")));
    }
    if !(SCALING_PERCENT_MIN..=100).contains(&scaling_percent) {
        let range = format!("from {SCALING_PERCENT_MIN} to 100");
        let text = format!("scaling_percent is {scaling_percent}; it must be {range}");
        return Err(Error::invalid(text));
    }
    Ok(())
}

/// The shape of the levels of an engine that has levels. Fails if one is asked for that has none.
pub(crate) fn levels_of(
    engine: EngineKind,
    asked: Option<LevelOptions>,
) -> Result<Option<LevelOptions>> {
    if engine.has_levels() {
        return Ok(Some(asked.unwrap_or_default()));
    }
    if asked.is_some() {
        let name = engine.name();
        return Err(Error::invalid(format!("engine {name} has no levels that could be shaped")));
    }
    Ok(None)
}

/// The options of an existing keyspace, as the catalog keeps them.
///
/// ```text
/// varint  version of this layout (1, or 2 for an engine with levels)
/// varint  engine number
/// varint  filter number
/// varint  filter bits per key
/// varint  leaf bytes, 0 for "follows the checkpoint distance"
/// varint  most pivots of a node
/// varint  checkpoint distance in bytes, 0 for "follows the memory budget"
///         layout 2 goes on:
/// varint  size ratio of the last two levels
/// varint  scaling of the ratios, in percent
/// varint  bit 0: levels are relative to the last; bit 1: filters are divided between levels
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StoredOptions {
    pub engine: EngineKind,
    pub filter: FilterKind,
    pub filter_bits_per_key: u32,
    pub leaf_bytes: Option<u32>,
    pub pivots_max: u32,
    pub checkpoint_distance: Option<u64>,
    /// Of engines that have levels.
    pub levels: Option<LevelOptions>,
}

/// The versions of the layout above.
const LAYOUT: u64 = 1;
/// See [`LAYOUT`].
const LAYOUT_LEVELS: u64 = 2;

/// Bits of the last number of layout 2.
const RELATIVE: u64 = 1;
/// See [`RELATIVE`].
const FILTERS_BY_LEVEL: u64 = 2;

impl StoredOptions {
    /// What the engine is told, for a checkpoint distance that is acted on.
    pub fn for_engine(&self, checkpoint_distance: u64) -> EngineOptions {
        EngineOptions {
            filter: self.filter,
            bits_per_key: self.filter_bits_per_key,
            leaf_bytes: u64::from(self.leaf_bytes.unwrap_or(0)),
            pivots_max: self.pivots_max,
            levels: self.levels.unwrap_or_default(),
            checkpoint_distance,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for value in [
            if self.levels.is_some() { LAYOUT_LEVELS } else { LAYOUT },
            u64::from(self.engine.number()),
            u64::from(self.filter.number()),
            u64::from(self.filter_bits_per_key),
            u64::from(self.leaf_bytes.unwrap_or(0)),
            u64::from(self.pivots_max),
            self.checkpoint_distance.unwrap_or(0),
        ] {
            put_varint(&mut out, value);
        }
        if let Some(levels) = self.levels {
            let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
            let flags =
                bit(levels.relative, RELATIVE) | bit(levels.filters_by_level, FILTERS_BY_LEVEL);
            for value in [u64::from(levels.size_ratio), u64::from(levels.scaling_percent), flags] {
                put_varint(&mut out, value);
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut decoder = Decoder::new(bytes, "keyspace options");
        let layout = decoder.varint()?;
        if layout > LAYOUT_LEVELS {
            let text = format!("the options of a keyspace are of a newer layout, {layout}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if layout != LAYOUT && layout != LAYOUT_LEVELS {
            return Err(decoder.damaged("they are of no known layout"));
        }
        let engine = decoder.varint()?;
        let filter = decoder.varint()?;
        let known = (
            u8::try_from(engine).ok().and_then(|number| EngineKind::from_number(number).ok()),
            u8::try_from(filter).ok().and_then(FilterKind::from_number),
        );
        let (Some(engine), Some(filter)) = known else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("a keyspace has engine {engine} and filter {filter}, not both known here"),
            ));
        };
        let filter_bits_per_key = decoder.varint_u32()?;
        let leaf_bytes = Some(decoder.varint_u32()?).filter(|bytes| *bytes != 0);
        let pivots_max = decoder.varint_u32()?;
        let checkpoint_distance = Some(decoder.varint()?).filter(|bytes| *bytes != 0);
        let levels = if layout == LAYOUT_LEVELS {
            let (size_ratio, scaling_percent) = (decoder.varint_u32()?, decoder.varint_u32()?);
            let flags = decoder.varint()?;
            Some(LevelOptions {
                size_ratio,
                scaling_percent,
                relative: flags & RELATIVE != 0,
                filters_by_level: flags & FILTERS_BY_LEVEL != 0,
            })
        } else {
            None
        };
        decoder.finish()?;
        let levels_fit = levels.is_some() == engine.has_levels()
            && levels.is_none_or(|levels| check_levels(levels).is_ok());
        let fits = levels_fit
            && FILTER_BITS.contains(&filter_bits_per_key)
            && leaf_bytes.is_none_or(|bytes| LEAF_BYTES.contains(&bytes))
            && PIVOTS.contains(&pivots_max);
        if !fits {
            return Err(decoder.damaged("a number is out of its range"));
        }
        Ok(Self {
            engine,
            filter,
            filter_bits_per_key,
            leaf_bytes,
            pivots_max,
            checkpoint_distance,
            levels,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_back_and_those_of_a_newer_layout_ask_for_an_upgrade() {
        let stored = StoredOptions {
            engine: EngineKind::Turtle,
            filter: FilterKind::Quotient,
            filter_bits_per_key: 12,
            leaf_bytes: None,
            pivots_max: 7,
            checkpoint_distance: Some(9_000),
            levels: None,
        };
        let levels = LevelOptions { size_ratio: 3, relative: true, ..LevelOptions::default() };
        let leveled =
            StoredOptions { engine: EngineKind::Autumn, levels: Some(levels), ..stored.clone() };
        assert_eq!(StoredOptions::decode(&leveled.encode()).unwrap(), leveled);
        let lacking = StoredOptions { levels: None, ..leveled };
        assert!(StoredOptions::decode(&lacking.encode()).is_err());
        let mut bytes = stored.encode();
        assert_eq!(StoredOptions::decode(&bytes).unwrap(), stored);
        for (layout, kind) in [(LAYOUT_LEVELS + 1, ErrorKind::Unsupported), (0, ErrorKind::Corrupt)]
        {
            bytes[0] = u8::try_from(layout).unwrap();
            assert_eq!(StoredOptions::decode(&bytes).err().unwrap().kind(), kind);
        }
    }
}
