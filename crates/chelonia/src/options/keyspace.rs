//! Durability levels, and the options of a keyspace with their stored layout.

use crate::base::codec::{Decoder, put_varint};
use crate::base::error::{Error, ErrorKind, Result};
use crate::engine::{
    AutumnOptions, BminusOptions, DELTA_BYTES_DEFAULT, EPSILON_PERCENT_DEFAULT, EngineKind,
    EngineOptions, FILL_PERCENT_DEFAULT, FORECAST_ROUNDS_DEFAULT, GROUP_PAGES_DEFAULT,
    LevelOptions, PAGE_BYTES_DEFAULT, PIVOTS_MAX, SEGMENT_BYTES_DEFAULT, SHADOW_DEFAULT,
    SplinterOptions, TreelineOptions, TurtleOptions,
};
use crate::engines::EngineContext;
use crate::filters::FilterKind;
use crate::filters::sizing::{BITS_PER_KEY_DEFAULT, BITS_PER_KEY_MAX};
use crate::options::compression::Compression;
use crate::run::RunOptions;
use crate::runtime::sync::Arc;
use crate::storage::Storage;

/// The durability of a commit when its call returns. Every earlier commit is then at least as
/// durable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The commit is visible in this process, and may be lost if the process crashes.
    Memory,
    /// The commit survives a crash of the process. A power failure may lose the last commits: a
    /// background sync of the log starts at most 100 ms after the write, so at most the commits of
    /// those 100 ms plus the duration of one sync are lost. The remaining commits are a prefix.
    #[default]
    Process,
    /// The commit survives a power failure: the log was synced before the call returned.
    Sync,
}

/// Options of a keyspace. An option that is not set keeps its stored value; in a new keyspace it
/// gets its default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct KeyspaceOptions {
    pub(crate) engine: Option<EngineOptions>,
    pub(crate) filter: Option<FilterKind>,
    pub(crate) filter_bits_per_key: Option<u32>,
    pub(crate) checkpoint_distance: Option<u64>,
    pub(crate) compression: Option<Compression>,
}

/// The range of [`KeyspaceOptions::filter_bits_per_key`].
const FILTER_BITS: std::ops::RangeInclusive<u32> = 0..=BITS_PER_KEY_MAX;

impl KeyspaceOptions {
    /// Creates options with nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the engine: an [`EngineKind`], or the options of an engine
    /// ([`crate::TurtleOptions`], [`crate::AutumnOptions`], [`crate::SplinterOptions`],
    /// [`crate::TreelineOptions`], [`crate::BminusOptions`]). The engine is fixed when the
    /// keyspace is created.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # use chelonia::{EngineKind, KeyspaceOptions, TurtleOptions};
    /// let options = KeyspaceOptions::new().engine(TurtleOptions::new().leaf_bytes(1 << 20));
    /// database.keyspace("people", options)?;
    /// let autumn = KeyspaceOptions::new().engine(EngineKind::Autumn);
    /// assert!(database.keyspace("people", autumn).is_err(), "the engine is fixed");
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn engine(mut self, engine: impl Into<EngineOptions>) -> Self {
        self.engine = Some(engine.into());
        self
    }

    /// Sets the kind of the filters that save reads of runs without the key (default
    /// [`FilterKind::Bloom`]). Fixed at creation.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # use chelonia::{FilterKind, KeyspaceOptions};
    /// let options = KeyspaceOptions::new().filter(FilterKind::Quotient).filter_bits_per_key(24);
    /// let people = database.keyspace("people", options)?;
    /// # assert!(people.is_empty()?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn filter(mut self, filter: FilterKind) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Sets the size of filters in bits per key (0 to 32, default 16; 0 for no filters). If the
    /// engine divides filter memory between levels, this is the average: some levels may have no
    /// filter, others have at least 4 bits. Fixed at creation.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # use chelonia::{ErrorKind, KeyspaceOptions};
    /// database.keyspace("small", KeyspaceOptions::new().filter_bits_per_key(8))?;
    /// let error = database.keyspace("large", KeyspaceOptions::new().filter_bits_per_key(33));
    /// assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn filter_bits_per_key(mut self, bits: u32) -> Self {
        self.filter_bits_per_key = Some(bits);
        self
    }

    /// Sets the checkpoint distance: bytes of updates between two checkpoints. A larger distance
    /// makes writes cheaper and leaves less memory for reads. By default it follows the memory
    /// budget; the budget's share for writes limits it. If it is set, commits wait for flushes when
    /// they are ahead of it. Can be changed at any time
    /// ([`crate::Keyspace::set_checkpoint_distance`]).
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # use chelonia::KeyspaceOptions;
    /// let options = KeyspaceOptions::new().checkpoint_distance(4 << 20);
    /// let people = database.keyspace("people", options)?;
    /// assert_eq!(people.checkpoint_distance(), 4 << 20);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn checkpoint_distance(mut self, bytes: u64) -> Self {
        self.checkpoint_distance = Some(bytes);
        self
    }

    /// Sets how values are stored (default [`Compression::None`]). Can be changed at any time
    /// ([`crate::Keyspace::set_compression`]); it is for engines turtle, autumn and splinter.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # use chelonia::{Compression, KeyspaceOptions};
    /// let options = KeyspaceOptions::new().compression(Compression::Fast);
    /// let documents = database.keyspace("documents", options)?;
    /// assert_eq!(documents.compression(), Compression::Fast);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// The options of an existing keyspace, for a copy of it.
    pub(crate) fn as_stored(stored: &StoredOptions) -> Self {
        Self {
            engine: Some(stored.engine),
            filter: Some(stored.filter),
            filter_bits_per_key: Some(stored.filter_bits_per_key),
            checkpoint_distance: stored.checkpoint_distance,
            compression: Some(stored.compression),
        }
    }

    fn check(&self) -> Result<()> {
        if let Some(bits) = self.filter_bits_per_key.filter(|bits| !FILTER_BITS.contains(bits)) {
            let (least, most) = (FILTER_BITS.start(), FILTER_BITS.end());
            let text = format!("filter_bits_per_key is {bits}; it must be from {least} to {most}");
            return Err(Error::invalid(text));
        }
        if self.checkpoint_distance == Some(0) {
            return Err(Error::invalid("checkpoint_distance is 0; it must be at least 1"));
        }
        self.engine.map_or(Ok(()), |engine| engine.check())
    }

    /// The options of a new keyspace.
    pub(crate) fn for_new(&self) -> Result<StoredOptions> {
        self.check()?;
        let engine = self.engine.unwrap_or_else(|| EngineKind::default().into()).for_new();
        let compression = self.compression.unwrap_or_default();
        check_compression(engine.kind(), compression)?;
        Ok(StoredOptions {
            engine,
            compression,
            filter: self.filter.unwrap_or_default(),
            filter_bits_per_key: self.filter_bits_per_key.unwrap_or(BITS_PER_KEY_DEFAULT),
            checkpoint_distance: self.checkpoint_distance,
        })
    }

    /// Fails if a fixed option contradicts the stored one.
    pub(crate) fn check_existing(&self, stored: &StoredOptions, name: &str) -> Result<()> {
        self.check()?;
        check_compression(stored.engine.kind(), self.compression.unwrap_or_default())?;
        let differs = |what: &str, asked: &dyn std::fmt::Debug, is: &dyn std::fmt::Debug| {
            Some(format!("{what} is {is:?} and cannot be changed to {asked:?}"))
        };
        let difference = match self {
            Self { filter: Some(asked), .. } if *asked != stored.filter => {
                differs("filter", asked, &stored.filter)
            }
            Self { filter_bits_per_key: Some(asked), .. }
                if *asked != stored.filter_bits_per_key =>
            {
                differs("filter_bits_per_key", asked, &stored.filter_bits_per_key)
            }
            Self { engine: Some(asked), .. } => stored.engine.difference(asked),
            _ => None,
        };
        difference.map_or(Ok(()), |difference| {
            Err(Error::invalid(format!("keyspace {name:?} exists: its {difference}")))
        })
    }
}

/// Fails if an engine cannot store values so.
pub(crate) fn check_compression(engine: EngineKind, compression: Compression) -> Result<()> {
    let Some(codec) = compression.codec() else { return Ok(()) };
    match engine {
        EngineKind::Turtle | EngineKind::Autumn | EngineKind::Splinter => codec.check(),
        EngineKind::Treeline | EngineKind::Bminus => Err(Error::invalid(format!(
            "engine {engine:?} updates values in place and does not compress them; compression \
             is for turtle, autumn and splinter"
        ))),
    }
}

/// The stored options of a keyspace, as in the catalog.
///
/// ```text
/// varint  version of this layout: 1, 2 for an engine with levels, 3 for `space_percent`, 4 for
///         an engine with groups of pages, 5 for one with pages that have fixed places; 16 more
///         if values are compressed: then the number of the compression comes last
/// varint  engine number
/// varint  filter number
/// varint  filter bits per key
/// varint  bytes of a leaf, table or branch, 0 for "automatic"; unused in layouts 4
///         and 5
/// varint  maximum number of pivots of a node; unused in layouts 2, 4 and 5
/// varint  checkpoint distance in bytes, 0 for "follows the memory budget"
///         layout 2 continues:
/// varint  size ratio of the last two levels
/// varint  scaling of the ratios, in percent
/// varint  bit 0: dynamic sizes; bit 1: filters are allocated by level
///         layout 3 continues after the checkpoint distance:
/// varint  space of a leaf of splinter, in percent; 160 in layout 1
///         layout 4 continues after the checkpoint distance:
/// varint  pages of a group
/// varint  filled part of a new page, in percent
/// varint  error of a linear model, in percent of a page
/// varint  rounds of sweeps for which inserts are forecast
///         layout 5 continues after the checkpoint distance:
/// varint  bytes of a page
/// varint  bytes of a segment
/// varint  changed bytes up to which a delta is written
/// varint  1 if the places of a page are written in turn, else 0
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StoredOptions {
    /// With the defaults of a new keyspace filled in ([`EngineOptions::for_new`]).
    pub engine: EngineOptions,
    pub filter: FilterKind,
    pub filter_bits_per_key: u32,
    pub checkpoint_distance: Option<u64>,
    pub compression: Compression,
}

/// The versions of the layout above.
const LAYOUT: u64 = 1;
/// See [`LAYOUT`].
const LAYOUT_LEVELS: u64 = 2;
/// See [`LAYOUT`].
const LAYOUT_SPACE: u64 = 3;
/// See [`LAYOUT`].
const LAYOUT_PAGES: u64 = 4;
/// See [`LAYOUT`].
const LAYOUT_HOMES: u64 = 5;

/// Flag in the version: values are compressed.
const COMPRESSED: u64 = 16;

/// Space of a leaf of engine splinter in layout 1, in percent. The default may change, this not.
const SPACE_PERCENT_OF_LAYOUT: u32 = 160;

/// Bits of the last number of layout 2.
const DYNAMIC_SIZES: u64 = 1;
/// See [`DYNAMIC_SIZES`].
const FILTERS_BY_LEVEL: u64 = 2;

impl StoredOptions {
    /// The context to open the engine with, for the effective checkpoint distance.
    pub fn context(&self, storage: &Arc<Storage>, checkpoint_distance: u64) -> EngineContext {
        EngineContext {
            storage: Arc::clone(storage),
            options: self.engine,
            run: RunOptions { filter: self.filter, bits_per_key: self.filter_bits_per_key },
            checkpoint_distance,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let (layout, leaf_bytes, pivots_max) = match self.engine {
            EngineOptions::Turtle(options) => (LAYOUT, options.leaf_bytes, options.pivots_max),
            EngineOptions::Autumn(options) => (LAYOUT_LEVELS, options.table_bytes, None),
            EngineOptions::Splinter(options) => {
                let space = options.space_percent.unwrap_or(SPACE_PERCENT_OF_LAYOUT);
                let layout = if space == SPACE_PERCENT_OF_LAYOUT { LAYOUT } else { LAYOUT_SPACE };
                (layout, options.branch_bytes, options.fanout)
            }
            EngineOptions::Treeline(_) => (LAYOUT_PAGES, None, None),
            EngineOptions::Bminus(_) => (LAYOUT_HOMES, None, None),
        };
        let is_compressed = self.compression != Compression::None;
        let mut out = Vec::new();
        for value in [
            layout | if is_compressed { COMPRESSED } else { 0 },
            u64::from(self.engine.kind().number()),
            u64::from(self.filter.number()),
            u64::from(self.filter_bits_per_key),
            u64::from(leaf_bytes.unwrap_or(0)),
            u64::from(pivots_max.unwrap_or(PIVOTS_MAX)),
            self.checkpoint_distance.unwrap_or(0),
        ] {
            put_varint(&mut out, value);
        }
        match self.engine {
            EngineOptions::Autumn(options) => {
                put_levels(&mut out, options.levels.unwrap_or_default());
            }
            EngineOptions::Splinter(options) if layout == LAYOUT_SPACE => {
                let space = options.space_percent.unwrap_or(SPACE_PERCENT_OF_LAYOUT);
                put_varint(&mut out, space.into());
            }
            EngineOptions::Treeline(options) => put_pages(&mut out, options),
            EngineOptions::Bminus(options) => put_homes(&mut out, options),
            EngineOptions::Turtle(_) | EngineOptions::Splinter(_) => {}
        }
        if is_compressed {
            put_varint(&mut out, self.compression.number().into());
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut decoder = Decoder::new(bytes, "keyspace options");
        let version = decoder.varint()?;
        let (layout, is_compressed) = (version & !COMPRESSED, version & COMPRESSED != 0);
        if layout > LAYOUT_HOMES {
            let text = format!("the options of a keyspace are of a newer layout, {version}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if layout == 0 {
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
        let out_of_range = decoder.damaged("a number is out of its range");
        let has_no_shape = leaf_bytes.is_none() && pivots_max == PIVOTS_MAX;
        let engine = match (engine, layout) {
            (EngineKind::Turtle, LAYOUT) => {
                EngineOptions::Turtle(TurtleOptions { leaf_bytes, pivots_max: Some(pivots_max) })
            }
            (EngineKind::Autumn, LAYOUT_LEVELS) if pivots_max == PIVOTS_MAX => {
                let levels = Some(take_levels(&mut decoder)?);
                EngineOptions::Autumn(AutumnOptions { table_bytes: leaf_bytes, levels })
            }
            (EngineKind::Splinter, LAYOUT | LAYOUT_SPACE) => {
                let is_stored = layout == LAYOUT_SPACE;
                let space = if is_stored { decoder.varint_u32()? } else { SPACE_PERCENT_OF_LAYOUT };
                EngineOptions::Splinter(SplinterOptions {
                    branch_bytes: leaf_bytes,
                    fanout: Some(pivots_max),
                    space_percent: Some(space),
                })
            }
            (EngineKind::Treeline, LAYOUT_PAGES) if has_no_shape => {
                take_pages(&mut decoder)?.into()
            }
            (EngineKind::Bminus, LAYOUT_HOMES) if has_no_shape => take_homes(&mut decoder)?.into(),
            _ => return Err(out_of_range),
        };
        let compression = if is_compressed { decoder.varint()? } else { 0 };
        decoder.finish()?;
        let compression = Compression::from_number(compression).ok_or_else(|| {
            let text = "the values of a keyspace are compressed in a newer way";
            Error::new(ErrorKind::Unsupported, text)
        })?;
        match check_compression(engine.kind(), compression) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Ok(()) if is_compressed == (compression != Compression::None) => {}
            Ok(()) | Err(_) => return Err(out_of_range),
        }
        if engine.check().is_err() || !FILTER_BITS.contains(&filter_bits_per_key) {
            return Err(out_of_range);
        }
        Ok(Self { engine, filter, filter_bits_per_key, checkpoint_distance, compression })
    }
}

fn put_pages(out: &mut Vec<u8>, options: TreelineOptions) {
    let TreelineOptions { group_pages, fill_percent, epsilon_percent, forecast_rounds } = options;
    put_varint(out, group_pages.unwrap_or(GROUP_PAGES_DEFAULT).into());
    put_varint(out, fill_percent.unwrap_or(FILL_PERCENT_DEFAULT).into());
    put_varint(out, epsilon_percent.unwrap_or(EPSILON_PERCENT_DEFAULT).into());
    put_varint(out, forecast_rounds.unwrap_or(FORECAST_ROUNDS_DEFAULT).into());
}

fn take_pages(decoder: &mut Decoder<'_>) -> Result<TreelineOptions> {
    Ok(TreelineOptions {
        group_pages: Some(decoder.varint_u32()?),
        fill_percent: Some(decoder.varint_u32()?),
        epsilon_percent: Some(decoder.varint_u32()?),
        forecast_rounds: Some(decoder.varint_u32()?),
    })
}

fn put_homes(out: &mut Vec<u8>, options: BminusOptions) {
    let BminusOptions { page_bytes, segment_bytes, delta_bytes, shadow } = options;
    put_varint(out, page_bytes.unwrap_or(PAGE_BYTES_DEFAULT).into());
    put_varint(out, segment_bytes.unwrap_or(SEGMENT_BYTES_DEFAULT).into());
    put_varint(out, delta_bytes.unwrap_or(DELTA_BYTES_DEFAULT).into());
    put_varint(out, shadow.unwrap_or(SHADOW_DEFAULT).into());
}

fn take_homes(decoder: &mut Decoder<'_>) -> Result<BminusOptions> {
    Ok(BminusOptions {
        page_bytes: Some(decoder.varint_u32()?),
        segment_bytes: Some(decoder.varint_u32()?),
        delta_bytes: Some(decoder.varint_u32()?),
        shadow: match decoder.varint()? {
            shadow @ (0 | 1) => Some(shadow == 1),
            _ => return Err(decoder.damaged("a number is out of its range")),
        },
    })
}

fn put_levels(out: &mut Vec<u8>, levels: LevelOptions) {
    let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
    let flags = bit(levels.dynamic_sizes, DYNAMIC_SIZES)
        | bit(levels.allocate_filters_by_level, FILTERS_BY_LEVEL);
    for value in [levels.size_ratio.into(), levels.scaling_percent.into(), flags] {
        put_varint(out, value);
    }
}

fn take_levels(decoder: &mut Decoder<'_>) -> Result<LevelOptions> {
    let (size_ratio, scaling_percent) = (decoder.varint_u32()?, decoder.varint_u32()?);
    let flags = decoder.varint()?;
    Ok(LevelOptions {
        size_ratio,
        scaling_percent,
        dynamic_sizes: flags & DYNAMIC_SIZES != 0,
        allocate_filters_by_level: flags & FILTERS_BY_LEVEL != 0,
    })
}

/// Decodes the options of a keyspace. For tests.
#[cfg(feature = "internals")]
pub fn decode_options(bytes: &[u8]) -> Result<()> {
    StoredOptions::decode(bytes).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_back_and_those_of_a_newer_layout_ask_for_an_upgrade() {
        let stored = StoredOptions {
            engine: TurtleOptions::new().pivots_max(7).into(),
            filter: FilterKind::Quotient,
            filter_bits_per_key: 12,
            checkpoint_distance: Some(9_000),
            compression: Compression::None,
        };
        let compressed = StoredOptions { compression: Compression::Fast, ..stored.clone() };
        let mut bytes = compressed.encode();
        assert_eq!(StoredOptions::decode(&bytes).unwrap(), compressed);
        for (number, kind) in [(99, ErrorKind::Unsupported), (0, ErrorKind::Corrupt)] {
            *bytes.last_mut().unwrap() = number;
            assert_eq!(StoredOptions::decode(&bytes).err().unwrap().kind(), kind);
        }
        let levels = LevelOptions::new().size_ratio(3).dynamic_sizes(true);
        let engine = AutumnOptions::new().table_bytes(8 << 10).levels(levels).into();
        let leveled = StoredOptions { engine, ..stored.clone() };
        assert_eq!(StoredOptions::decode(&leveled.encode()).unwrap(), leveled);
        // An engine with levels in the layout of one without.
        let mut lacking = stored.encode();
        lacking[1] = EngineKind::Autumn.number();
        assert_eq!(StoredOptions::decode(&lacking).err().unwrap().kind(), ErrorKind::Corrupt);
        let mut bytes = stored.encode();
        assert_eq!(StoredOptions::decode(&bytes).unwrap(), stored);
        let engine = TreelineOptions::new().group_pages(4).fill_percent(70);
        let engine = engine.epsilon_percent(5).forecast_rounds(2).into();
        let paged = StoredOptions { engine, ..stored.clone() };
        assert_eq!(StoredOptions::decode(&paged.encode()).unwrap(), paged);
        let engine = BminusOptions::new().page_bytes(4096).segment_bytes(256).delta_bytes(0);
        let homes = StoredOptions { engine: engine.shadow(false).into(), ..stored.clone() };
        let mut bytes_of_homes = homes.encode();
        assert_eq!(StoredOptions::decode(&bytes_of_homes).unwrap(), homes);
        *bytes_of_homes.last_mut().unwrap() = 2;
        let refused = StoredOptions::decode(&bytes_of_homes).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        for (layout, kind) in [(LAYOUT_HOMES + 1, ErrorKind::Unsupported), (0, ErrorKind::Corrupt)]
        {
            bytes[0] = u8::try_from(layout).unwrap();
            assert_eq!(StoredOptions::decode(&bytes).err().unwrap().kind(), kind);
        }
    }

    #[test]
    fn the_space_of_a_splinter_is_stored_only_if_it_is_not_the_default() {
        let of = |space: Option<u32>| StoredOptions {
            engine: EngineOptions::Splinter(SplinterOptions {
                space_percent: space,
                ..SplinterOptions::new()
            })
            .for_new(),
            filter: FilterKind::Bloom,
            filter_bits_per_key: 16,
            checkpoint_distance: None,
            compression: Compression::None,
        };
        let (unset, low) = (of(None), of(Some(120)));
        assert_eq!(unset.encode(), of(Some(160)).encode());
        for (options, layout) in [(&unset, LAYOUT), (&low, LAYOUT_SPACE)] {
            let mut bytes = options.encode();
            assert_eq!(u64::from(bytes[0]), layout);
            assert_eq!(StoredOptions::decode(&bytes).unwrap(), *options);
            // An engine without this option.
            bytes[1] = EngineKind::Autumn.number();
            assert_eq!(StoredOptions::decode(&bytes).err().unwrap().kind(), ErrorKind::Corrupt);
        }
        let mut bytes = low.encode();
        *bytes.last_mut().unwrap() = 109;
        assert_eq!(StoredOptions::decode(&bytes).err().unwrap().kind(), ErrorKind::Corrupt);
    }
}
