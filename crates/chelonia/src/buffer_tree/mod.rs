//! A tree of runs whose nodes buffer updates: the part that the engines `turtle` and `splinter` are
//! built on. The engines decide when updates move down and what is merged.
//!
//! ```text
//!   node (height 2)      pivot ""                       pivot "m"
//!   level 0 (newest)     [ run a .......................................... ]  two parts
//!   level 1              [ run b ... ] [ run c .. ]     [ run d ... ]
//!   child                node (height 1)                node (height 1)
//! ```
//!
//! A read searches the parts of the root's pivot, newest first, then those of the pivot in the next
//! node, and so on. The first match wins. The tree is persistent: a change writes new runs and
//! nodes and shares all others with the version before.
//!
//! | module | contents |
//! | --- | --- |
//! | `node` | pivots, parts and segments in memory |
//! | `codec` | on-disk encoding of nodes and the root blob |
//! | `span` | key spans |
//! | `source`, `level`, `output` | inputs of a merge; writing a level; extents written |
//! | `counts` | reference counts; extents gained and lost by a change |
//! | `overlap` | share of updates to existing keys |
//! | `read` | point reads and range reads; read cost of buffered updates |
//! | `version`, `contract` | a version; what every engine does with one |
//! | `check` | verification, unreadable blocks that merges skip, salvage, dumps |
//! | `events` | event counters |

use self::events::Events;
use self::node::NodeCache;
use self::read::read_cost::{Price, ReadCosts};
use crate::run::OpenRuns;
use crate::runtime::sync::Arc;
use crate::runtime::workers::Workers;
use crate::storage::Storage;

pub mod check;
pub mod codec;
mod contract;
pub mod counts;
pub mod events;
pub mod level;
pub mod node;
pub mod output;
pub mod overlap;
pub mod read;
pub mod source;
pub mod span;
pub mod version;

/// Divisor of the memory budget for runs under construction by all workers. A run under
/// construction takes several times its weight, with hashes and staged entries, and memtables and
/// merge buffers need memory as well.
const RUNS_PART: u64 = 32;

/// Number of runs under construction that this memory must suffice for. Fixed, so that the size of
/// runs does not depend on the number of processors; with more memory more workers are used.
const RUNS_AT_ONCE: u64 = 4;

/// Minimum of the maximum size of a run, however little memory there is.
pub const RUN_MAX_MIN: u64 = 256 << 10;

/// State shared by an engine and its versions.
pub struct Shared {
    /// The nodes in memory, and the open runs.
    pub node_cache: NodeCache,
    /// Event counters.
    pub events: Events,
    /// Read cost of buffered updates.
    pub read_costs: ReadCosts,
}

impl Shared {
    /// Creates the state of a tree without nodes in memory, of an engine whose read-triggered
    /// flushes have this `price`.
    #[must_use]
    pub fn new(storage: &Arc<Storage>, price: Price) -> Arc<Self> {
        let node_cache = NodeCache::new(Arc::clone(storage), OpenRuns::default());
        let (events, read_costs) = (Events::new(), ReadCosts::new(price));
        Arc::new(Self { node_cache, events, read_costs })
    }

    /// Bytes of memory for runs under construction.
    fn runs_bytes(&self) -> u64 {
        self.node_cache.storage().budget().limit() / RUNS_PART
    }

    /// The maximum size of a run that the memory budget allows.
    #[must_use]
    pub fn run_max(&self) -> u64 {
        (self.runs_bytes() / RUNS_AT_ONCE).max(RUN_MAX_MIN)
    }

    /// Returns how many of `workers` may build runs of `run` bytes at the same time.
    #[must_use]
    pub fn workers_for(&self, workers: Workers, run: u64) -> Workers {
        let count = self.runs_bytes() / run.max(RUN_MAX_MIN);
        workers.at_most(usize::try_from(count).unwrap_or(usize::MAX))
    }
}

/// Decodes a root blob, for tests.
#[cfg(feature = "internals")]
pub fn decode_root(bytes: &[u8]) -> crate::base::error::Result<()> {
    codec::RootBlob::decode(bytes).map(|_| ())
}

/// Decodes a node of both kinds, over leaves and over nodes, for tests.
#[cfg(feature = "internals")]
pub fn decode_structure(bytes: &[u8], storage: &Arc<Storage>) {
    let node_cache = NodeCache::new(Arc::clone(storage), OpenRuns::default());
    for height in 1..=2 {
        drop(codec::decode_node(bytes, height, &node_cache));
    }
}
