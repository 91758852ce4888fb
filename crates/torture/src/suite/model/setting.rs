//! Sets of options under which the same history must give the same answers.

use crate::suite::support::{KEYSPACES, compression_of, engine_of};
use chelonia::internals::{Directory, MemoryDirectory};
use chelonia::limits::MEMORY_BYTES_MIN;
use chelonia::{
    BminusOptions, Database, Durability, EngineKind, EngineOptions, FilterKind, KeyspaceOptions,
    LevelOptions, LogLayout, Result, TreelineOptions, TurtleOptions,
};
use std::sync::Arc;

/// One set of options.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name in messages.
    pub name: &'static str,
    memory: u64,
    leaf_bytes: u32,
    pivots_max: u32,
    /// The filter of the first keyspace; the second has the other kind.
    filter: FilterKind,
    filter_bits: u32,
    /// The number of the engine of the first keyspace; the second has the next one.
    engine: u64,
    /// The shape of levels, for engines that have levels.
    levels: LevelOptions,
    /// The pages of engine treeline.
    pages: TreelineOptions,
    /// The pages of engine bminus.
    homes: BminusOptions,
    /// The checkpoint distance, in bytes.
    pub distance: u64,
    log_segment_bytes: u64,
    log_layout: LogLayout,
    write_share: Option<u64>,
    durability: Durability,
    /// A close makes no checkpoint: the next open replays the log.
    leave_log: bool,
    /// Background work has threads of its own; otherwise the committing thread does it.
    threads: bool,
}

/// The default shape of levels.
const FEW_LEVELS: LevelOptions = LevelOptions::new().size_ratio(5).scaling_percent(80);

/// The setting from which most others differ in one option: leaves of one block, four pivots,
/// memtables of a few entries, so that every case of the tree comes soon.
const TINY: Setting = Setting {
    name: "tiny",
    memory: 64 << 20,
    leaf_bytes: 4 << 10,
    pivots_max: 4,
    filter: FilterKind::Bloom,
    filter_bits: 16,
    engine: 0,
    levels: FEW_LEVELS,
    pages: TreelineOptions::new().group_pages(4),
    homes: BminusOptions::new().page_bytes(4096),
    distance: 2_000,
    log_segment_bytes: 32 << 10,
    log_layout: LogLayout::Shared,
    write_share: None,
    durability: Durability::Process,
    leave_log: true,
    threads: false,
};

/// All settings.
pub const SETTINGS: [Setting; 18] = [
    TINY,
    Setting { name: "engines the other way round", engine: 1, ..TINY },
    // Sweeps of so few entries that pages are divided within their groups.
    Setting {
        name: "a memtable of one entry",
        distance: 1,
        pages: TreelineOptions::new().group_pages(32).fill_percent(100),
        ..TINY
    },
    Setting {
        name: "quotient filters of few bits",
        filter: FilterKind::Quotient,
        filter_bits: 4,
        ..TINY
    },
    Setting {
        name: "no filters; pages without shadowing",
        filter_bits: 0,
        homes: BminusOptions::new().page_bytes(4096).shadow(false),
        ..TINY
    },
    Setting {
        name: "no deltas",
        homes: BminusOptions::new().page_bytes(4096).delta_bytes(0),
        ..TINY
    },
    Setting { name: "small leaves, many pivots", pivots_max: 64, ..TINY },
    Setting {
        name: "larger leaves",
        leaf_bytes: 64 << 10,
        pivots_max: 8,
        distance: 30_000,
        ..TINY
    },
    Setting {
        name: "everything in memtables",
        leaf_bytes: 1 << 20,
        pivots_max: 64,
        distance: 32 << 20,
        log_segment_bytes: 1 << 20,
        ..TINY
    },
    Setting { name: "the least memory", memory: MEMORY_BYTES_MIN, leave_log: false, ..TINY },
    Setting { name: "a write share of a few blocks", write_share: Some(16 << 10), ..TINY },
    Setting {
        name: "every commit synced",
        durability: Durability::Sync,
        log_segment_bytes: 16 << 10,
        leave_log: false,
        ..TINY
    },
    Setting {
        name: "levels that are a part of the last one",
        levels: FEW_LEVELS.size_ratio(2).dynamic_sizes(true),
        ..TINY
    },
    Setting {
        name: "many levels with like filters",
        levels: FEW_LEVELS.size_ratio(2).scaling_percent(100).allocate_filters_by_level(false),
        ..TINY
    },
    Setting {
        name: "pages along lines, with space for inserts",
        pages: TreelineOptions::new()
            .group_pages(8)
            .fill_percent(70)
            .epsilon_percent(15)
            .forecast_rounds(2),
        homes: BminusOptions::new().segment_bytes(256).delta_bytes(4096),
        ..TINY
    },
    Setting {
        name: "several logs",
        log_layout: LogLayout::PerThread { logs: 3 },
        log_segment_bytes: 16 << 10,
        ..TINY
    },
    Setting {
        name: "several logs, every commit synced",
        log_layout: LogLayout::PerThread { logs: 2 },
        durability: Durability::Sync,
        leave_log: false,
        ..TINY
    },
    Setting {
        name: "background threads",
        threads: true,
        distance: 3_000,
        leave_log: false,
        ..TINY
    },
];

impl Setting {
    /// The fixed options of a keyspace.
    pub fn options(&self, name: &str) -> KeyspaceOptions {
        let other = match self.filter {
            FilterKind::Bloom => FilterKind::Quotient,
            _ => FilterKind::Bloom,
        };
        let is_first = name == KEYSPACES[0];
        let filter = if is_first { self.filter } else { other };
        let engine: EngineOptions = match self.engine(name) {
            EngineKind::Turtle => {
                let options = TurtleOptions::new().leaf_bytes(self.leaf_bytes);
                options.pivots_max(self.pivots_max).into()
            }
            EngineKind::Treeline => self.pages.into(),
            EngineKind::Bminus => self.homes.into(),
            engine => EngineOptions::tiny(engine, self.leaf_bytes),
        };
        let options = KeyspaceOptions::new().engine(engine).filter(filter);
        let compression = compression_of(self.engine(name), self.leaf_bytes.into());
        options.filter_bits_per_key(self.filter_bits).compression(compression)
    }

    /// True if the committing thread does the background work.
    pub fn is_stepped(&self) -> bool {
        !self.threads
    }

    /// The engine of a keyspace.
    pub fn engine(&self, name: &str) -> EngineKind {
        let place = KEYSPACES.iter().position(|one| *one == name).unwrap_or(0);
        engine_of(self.engine + place as u64)
    }

    /// Opens a database over `directory`.
    pub fn open(&self, directory: &MemoryDirectory, salt: u64) -> Result<Database> {
        let directory: Arc<dyn Directory> = Arc::new(directory.clone());
        let builder = Database::builder("model").memory(self.memory).durability(self.durability);
        let builder = builder.log_layout(self.log_layout).internals(|internals| {
            internals.directory = Some(directory);
            internals.stepped = self.is_stepped();
            internals.salt = Some(salt);
            internals.log_segment_bytes = Some(self.log_segment_bytes);
            internals.write_share = self.write_share;
            internals.leave_log = self.leave_log;
        });
        let database = builder.open()?;
        for name in KEYSPACES {
            let keyspace = database.keyspace(name, self.options(name))?;
            keyspace.set_checkpoint_distance(self.distance)?;
            if self.engine(name).has_levels() {
                keyspace.set_live_options(self.levels)?;
            }
        }
        Ok(database)
    }
}
