//! The open runs of one engine: each run is opened at most once at a time.

use crate::base::ids::BlockNo;
use crate::run::read::Run;
use crate::run::reference::RunRef;
use crate::runtime::sync::{Arc, Mutex, Weak};
use crate::storage::Storage;
use std::collections::BTreeMap;

/// Open runs by first block. Holds weak references only.
#[derive(Default)]
pub struct OpenRuns {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    runs: BTreeMap<BlockNo, Weak<Run>>,
    /// Table length at which dead entries are removed.
    prune_at: usize,
}

impl OpenRuns {
    /// Opens the run of `reference`, which must be valid, or returns the open one.
    pub fn open(&self, storage: &Arc<Storage>, reference: RunRef) -> Arc<Run> {
        let mut table = self.table.lock();
        let start = reference.extent.start;
        if let Some(run) = table.runs.get(&start).and_then(Weak::upgrade)
            && *run.reference() == reference
        {
            return run;
        }
        let run = Run::open(storage, reference);
        table.runs.insert(start, Arc::downgrade(&run));
        if table.runs.len() > table.prune_at {
            table.runs.retain(|_, run| run.strong_count() > 0);
            table.prune_at = 2 * table.runs.len() + 64;
        }
        run
    }
}
