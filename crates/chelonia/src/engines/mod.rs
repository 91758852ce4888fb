//! Storage engines: opens each engine by its options.
//!
//! `CONTRIBUTING.md` lists the steps to add an engine.

use crate::base::error::Result;
#[cfg(feature = "internals")]
use crate::buffer_tree;
#[cfg(feature = "internals")]
use crate::engine::EngineKind;
use crate::engine::{Engine, EngineOptions};
use crate::run::RunOptions;
use crate::runtime::sync::Arc;
use crate::storage::Storage;

pub mod autumn;
pub mod bminus;
pub mod splinter;
pub mod treeline;
pub mod turtle;

/// Context for opening an engine: its storage and its options.
#[derive(Clone)]
pub struct EngineContext {
    /// The data file of the database.
    pub storage: Arc<Storage>,
    /// The engine and its options.
    pub options: EngineOptions,
    /// Options for new runs.
    pub run: RunOptions,
    /// Approximate bytes of updates in one absorb.
    pub checkpoint_distance: u64,
}

/// Opens an engine at the state described by `root` (from [`Engine::root`]), or an empty one.
pub fn open(context: &EngineContext, root: Option<&[u8]>) -> Result<Arc<dyn Engine>> {
    let EngineContext { storage, run, checkpoint_distance, .. } = context;
    match context.options {
        EngineOptions::Turtle(options) => {
            let config = turtle::TurtleConfig::new(options, *run);
            Ok(Arc::new(turtle::Turtle::open(storage, config, root)?))
        }
        EngineOptions::Autumn(options) => {
            let config = autumn::AutumnConfig::new(options, *run, *checkpoint_distance);
            Ok(Arc::new(autumn::Autumn::open(storage, config, root)?))
        }
        EngineOptions::Splinter(options) => {
            let config = splinter::SplinterConfig::new(options, *run);
            Ok(Arc::new(splinter::Splinter::open(storage, config, root)?))
        }
        EngineOptions::Treeline(options) => {
            let config = treeline::TreelineConfig::new(options, *run, *checkpoint_distance);
            Ok(Arc::new(treeline::Treeline::open(storage, config, root)?))
        }
        EngineOptions::Bminus(options) => {
            let config = bminus::BminusConfig::new(options);
            Ok(Arc::new(bminus::Bminus::open(storage, config, root)?))
        }
    }
}

/// Decodes a root blob, for tests.
#[cfg(feature = "internals")]
pub fn decode_root(kind: EngineKind, bytes: &[u8]) -> Result<()> {
    match kind {
        EngineKind::Turtle | EngineKind::Splinter => buffer_tree::decode_root(bytes),
        EngineKind::Autumn => autumn::decode_root(bytes),
        EngineKind::Treeline => treeline::decode_root(bytes),
        EngineKind::Bminus => bminus::decode_root(bytes),
    }
}

/// Decodes bytes from the file of `storage` as every kind of on-disk structure, for tests.
#[cfg(feature = "internals")]
pub fn decode_structure(kind: EngineKind, bytes: &[u8], storage: &Arc<Storage>) {
    match kind {
        EngineKind::Turtle | EngineKind::Splinter => {
            buffer_tree::decode_structure(bytes, storage);
        }
        EngineKind::Autumn => autumn::decode_structure(bytes, storage),
        EngineKind::Treeline => treeline::decode_structure(bytes, storage),
        EngineKind::Bminus => bminus::decode_structure(bytes, storage),
    }
}
