//! Mutants in the database: commits, checkpoints, snapshots, recovery.

use super::Mutant;

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "sync-acknowledged-early",
        bug: "a commit at level `Sync` returns before it is durable",
        file: "write/commit.rs",
        text: "            self.sync_through(end)?;\n        }\n        self.after_commit()",
        instead: "        }\n        let _ = end;\n        self.after_commit()",
    },
    Mutant {
        name: "large-values-unsynced",
        bug: "a commit is durable before the large value that it refers to",
        file: "state/core.rs",
        text: "        if self.large_unsynced.swap(false, Ordering::SeqCst) {",
        instead: "        if self.large_unsynced.swap(false, Ordering::SeqCst) && self.read_only {",
    },
    Mutant {
        name: "log-cut-before-root",
        bug: "the log is released before the root that replaces it is durable",
        file: "flush/checkpoint.rs",
        text: "        if let Err(error) = self.storage.checkpoint(&catalog, mark) {",
        instead: "        logs.trim(&mark.begin);\n        \
                  if let Err(error) = self.storage.checkpoint(&catalog, mark) {",
    },
    Mutant {
        name: "space-reused-before-root",
        bug: "space that the durable root needs is freed before the next root is durable",
        file: "flush/checkpoint.rs",
        text: "        if let Err(error) = self.storage.checkpoint(&catalog, mark) {",
        instead: "        state.durable.clear();\n        \
                  if let Err(error) = self.storage.checkpoint(&catalog, mark) {",
    },
    Mutant {
        name: "checkpoint-misses-a-flush",
        bug: "data flushed during a checkpoint is neither in the root nor in the log (WT-7984, \
              SQLite's WAL-reset race)",
        file: "flush/checkpoint.rs",
        text: "        // Only now: memtables flushed since the mark are in the versions too.\n",
        instead: "        std::thread::yield_now();\n        \
                  mark = self.log_mark(logs, &keyspaces)?;\n",
    },
    Mutant {
        name: "root-ahead-of-log",
        bug: "a root becomes durable ahead of the log: one keyspace is newer than the others",
        file: "flush/checkpoint.rs",
        text: "        self.sync_logs(None)?;\n",
        instead: "",
    },
    Mutant {
        name: "absorbed-too-high",
        bug: "the root claims more than was flushed (etcd#13766)",
        file: "flush/memtable.rs",
        text: "Latest { root, absorbed: last, version: newest.clone() };",
        instead: "Latest { root, absorbed: self.visibility.visible(), version: newest.clone() };",
    },
    Mutant {
        name: "flush-does-not-wait",
        bug: "a memtable is flushed while commits still write to it (fjall#112, lsm-tree#230)",
        file: "flush/memtable.rs",
        text: "        self.visibility.wait_until_visible(buffer.last())?;\n        let start",
        instead: "        let start",
    },
    Mutant {
        name: "drop-not-durable",
        bug: "a dropped keyspace is removed in memory only: it comes back (fjall#241)",
        file: "api/keyspace_set.rs",
        text: "        core.checkpoint_change(&mut state, Change::Drop(keyspace.id))?;\n",
        instead: "        state.change = Change::Nothing;\n",
    },
    Mutant {
        name: "seen-too-early",
        bug: "a commit is visible before its predecessors are",
        file: "versions/visibility.rs",
        text: "        self.advance(false);\n        self.wait_until_visible(end)",
        instead: "        self.advance(false);\n        \
                  self.visible.fetch_max(end.0, Ordering::SeqCst);\n        Ok(())",
    },
    Mutant {
        name: "half-a-batch-seen",
        bug: "a batch is visible while its entries are still being inserted into memtables",
        file: "write/pipeline.rs",
        text: "        let unfinished = Unfinished { pipeline: self };\n",
        instead: "        let unfinished = Unfinished { pipeline: self };\n        \
                  self.visibility.complete(ticket, last)?;\n",
    },
    Mutant {
        name: "half-a-batch-replayed",
        bug: "of a batch that spans keyspaces, recovery replays only the first keyspace's part \
              (rocksdb#12995)",
        file: "recovery/replay.rs",
        text: "            let Some(keyspace) = self.keyspaces.get(&id) else { continue };",
        instead: "            let Some(keyspace) = self.keyspaces.get(&id) else \
                  { continue };\n            \
                  if touched.first().is_some_and(|first| *first != id) {\n                \
                  continue;\n            }",
    },
    Mutant {
        name: "snapshot-forgotten",
        bug: "a flush does not retain what a snapshot sees",
        file: "versions/pins.rs",
        text: "registry.all.within(from, to).chain(one).collect();",
        instead: "registry.all.within(from, to).chain(one).skip(1).collect();",
    },
    Mutant {
        name: "stop-ignored",
        bug: "writes continue after a failed one (rocksdb#6316: an append behind garbage)",
        file: "state/health.rs",
        text: "        let _ = self.state.compare_exchange(HEALTHY, \
                  STOPPED, Ordering::AcqRel, Ordering::Relaxed);\n",
        instead: "",
    },
    Mutant {
        name: "reads-stop-too",
        bug: "after a failed write, reads are refused as well",
        file: "state/health.rs",
        text: "self.state.load(Ordering::Acquire) != CLOSED;",
        instead: "self.state.load(Ordering::Acquire) == HEALTHY;",
    },
    Mutant {
        name: "full-device-stops",
        bug: "after a full device, writes never resume",
        file: "state/health.rs",
        text: "        if error.is_transient() || error.kind() == ErrorKind::InvalidArgument {",
        instead: "        if error.kind() == ErrorKind::InvalidArgument {",
    },
    Mutant {
        name: "scan-error-is-end",
        bug: "a scan that hits a read error ends as if there were no more entries (redb 4.3.0)",
        file: "api/iter.rs",
        text: "            state.finish();\n            return Some(Err(error));",
        instead: "            state.finish();\n            drop(error);\n            return None;",
    },
    Mutant {
        name: "strange-files-refused",
        bug: "a foreign file in the directory makes the open fail (sled#1527)",
        file: "recovery/open.rs",
        text: "    if names.is_empty() || names.iter().any(|name| \
                  name == DATA_FILE || Log::has_file(name)) {",
        instead: "    if names.iter().all(|name| {\n        \
                  name == DATA_FILE || Log::has_file(name) || name == \"lock\"\n    }) {",
    },
    Mutant {
        name: "space-leaks",
        bug: "large values of a refused commit keep their space",
        file: "write/commit.rs",
        text: "                    extents.for_each(|extent| \
                  self.storage.free_unreachable(extent));\n",
        instead: "                    drop(extents);\n",
    },
];
