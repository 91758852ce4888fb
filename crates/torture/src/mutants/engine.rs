//! Mutants in engines and parts: memtables, flushes, merges and filters.

use super::Mutant;

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "cut-off-by-one",
        bug: "a flush orders the newest write that a snapshot sees after the snapshot",
        file: "memtable/sorted.rs",
        text: "cuts.partition_point(|cut| *cut < version.seqno())",
        instead: "cuts.partition_point(|cut| *cut <= version.seqno())",
    },
    Mutant {
        name: "last-key-lost",
        bug: "a task of a flush ends one key too early",
        file: "buffer_tree/source.rs",
        text: "start..span.upper.map_or(self.ranks.end, bound).max(start)",
        instead: "start..span\n            .upper\n            \
                  .map_or(self.ranks.end, |key| bound(key)\
                  .saturating_sub(1))\n            .max(start)",
    },
    Mutant {
        name: "merge-error-is-end",
        bug: "a merge treats a read error in a run as the end of the run (rocksdb 6.8.0)",
        file: "run/read/ranges/stream.rs",
        text: "            current.advance()?;\n            if current.key().is_some() {",
        instead: "            if current.advance().is_err() {\n                \
                  self.waiting.clear();\n                self.current = None;\n                \
                  return Ok(());\n            }\n            if current.key().is_some() {",
    },
    Mutant {
        name: "tombstone-dropped-early",
        bug: "a tombstone is dropped while the entry it hides is still below (rocksdb 6.11)",
        file: "engines/turtle/pass/mod.rs",
        text: "Merge::new(sources, Direction::Ascending, Tombstones::Keep)?;",
        instead: "Merge::new(sources, Direction::Ascending, Tombstones::Drop)?;",
    },
    Mutant {
        name: "older-wins",
        bug: "of two merge sources with the same key the older one wins",
        file: "merge/mod.rs",
        text: "                    self.order[place] = source.min(other);\n                    \
               source = source.max(other);",
        instead: "                    self.order[place] = source.max(other);\n                    \
                  source = source.min(other);",
    },
    Mutant {
        name: "filter-misses-a-key",
        bug: "a filter returns a false negative",
        file: "filters/bloom.rs",
        text: "    for hash in hashes {\n",
        instead: "    for hash in hashes.iter().skip(1) {\n",
    },
    Mutant {
        name: "stale-record-cached",
        bug: "cached records are not updated when a flush brings new values",
        file: "flush/memtable.rs",
        text: "        self.records.refresh(&keyspace.cache_epoch, newest.number(), \
               &flushed.batches);\n",
        instead: "        self.records.refresh::<SortedBatch>(&keyspace.cache_epoch, \
                  newest.number(), &[]);\n",
    },
];
