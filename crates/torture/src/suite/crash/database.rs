//! The databases of crash tests: small, stepped, with keyspaces that their options distinguish.

use super::run::{AllDials, Dials, Opening, Space, State};
use crate::suite::support::{ENGINES, ModelSpace, compression_of, engine_of};
use chelonia::internals::Directory;
use chelonia::{
    Database, DatabaseBuilder, EngineOptions, FilterKind, Keyspace, KeyspaceOptions, LevelOptions,
    Result,
};
use std::sync::Arc;

/// The names of keyspaces; histories use each of them several times.
pub const NAMES: [&str; 6] = ["left", "right", "third", "fourth", "fifth", "sixth"];

/// How many keyspaces made one after the other differ in their options.
pub const MAKES: u32 = 29;

/// Shapes with several levels even for few bytes. With the last, levels hold the most.
pub const SHAPES: [LevelOptions; 3] = {
    let plain = LevelOptions::new().size_ratio(2).scaling_percent(100);
    let steep = LevelOptions::new().size_ratio(4).scaling_percent(50);
    [plain, plain.dynamic_sizes(true), steep.allocate_filters_by_level(false)]
};

/// The fixed options of the keyspace that was made as number `made`. Two keyspaces made one after
/// the other have different engines.
pub fn options_of(made: u32) -> KeyspaceOptions {
    let is_even = (u64::from(made) / ENGINES as u64).is_multiple_of(2);
    let kind = if is_even { FilterKind::Bloom } else { FilterKind::Quotient };
    let options = KeyspaceOptions::new().engine(engine_options_of(made));
    let compression = compression_of(engine_of(u64::from(made)), u64::from(made / 3));
    options.filter(kind).filter_bits_per_key(4 + made % MAKES).compression(compression)
}

/// The engine of the keyspace that was made as number `made`, with its fixed options.
pub fn engine_options_of(made: u32) -> EngineOptions {
    let leaf_bytes = if made % 4 == 2 { 8 << 10 } else { 4 << 10 };
    EngineOptions::tiny(engine_of(u64::from(made)), leaf_bytes)
}

/// The same with the live options of a new keyspace.
pub fn first_options_of(made: u32) -> EngineOptions {
    match engine_options_of(made) {
        EngineOptions::Autumn(options) => options.levels(SHAPES[0]).into(),
        EngineOptions::Splinter(options) => options.space_percent(SPACES[0]).into(),
        engine => engine,
    }
}

/// Values of `space_percent` of engine splinter. The first is the default.
pub const SPACES: [u32; 3] = [160, 110, 300];

/// Whether the engine of that keyspace has levels.
pub fn has_levels(made: u32) -> bool {
    engine_of(u64::from(made)).has_levels()
}

/// A write share so small that recovery has to flush while it replays.
pub const SHARE_MIN: u64 = 16 << 10;

/// Opens a stepped database with small segments and a small budget.
pub fn open(directory: Arc<dyn Directory>, opening: Opening) -> Result<Database> {
    builder(directory, opening).open()
}

/// Opens it read-only.
pub fn open_to_read(directory: Arc<dyn Directory>, opening: Opening) -> Result<Database> {
    builder(directory, opening).read_only(true).open()
}

fn builder(directory: Arc<dyn Directory>, opening: Opening) -> DatabaseBuilder {
    let Opening { write_share, layout } = opening;
    let builder = Database::builder("crash").memory(64 << 20).log_layout(layout);
    builder.internals(|internals| {
        internals.directory = Some(directory);
        internals.write_share = write_share;
        internals.stepped = true;
        internals.salt = Some(7);
        internals.log_segment_bytes = Some(16 << 10);
        // A close may make a checkpoint or leave a log to be replayed.
        internals.leave_log = write_share.is_none();
    })
}

/// The content of a database, read entry by entry, and its live options.
pub fn read(database: &Database) -> Result<(State, AllDials)> {
    let (mut state, mut dials) = (State::new(), AllDials::new());
    for name in database.keyspaces() {
        let keyspace = database.keyspace(&name, KeyspaceOptions::new())?;
        let mut entries = ModelSpace::new();
        for entry in keyspace.iter() {
            let (key, value) = entry?;
            entries.insert(key.to_vec(), value.to_vec());
        }
        // Options that differ from the stored ones are refused.
        let made = (0..MAKES).find(|made| database.keyspace(&name, options_of(*made)).is_ok());
        let made = made.unwrap_or_else(|| panic!("{name:?} has options that no history sets"));
        dials.insert(name.clone(), dials_of(&keyspace));
        state.insert(name, Space { made, entries: Arc::new(entries) });
    }
    Ok((state, dials))
}

/// The live options of `keyspace`.
pub fn dials_of(keyspace: &Keyspace) -> Dials {
    dials_with(keyspace.checkpoint_distance(), keyspace.engine_options())
}

/// A distance, and the live options among those of an engine.
pub fn dials_with(distance: u64, engine: EngineOptions) -> Dials {
    let space_percent = match engine {
        EngineOptions::Splinter(options) => options.space_percent,
        _ => None,
    };
    Dials { distance, levels: engine.levels(), space_percent }
}
