//! Mutants in the log.

use super::Mutant;

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "name-unsynced",
        bug: "a new log segment is written before its directory entry is durable (leveldb#189, \
              rocksdb#10573)",
        file: "log/segments/prepare.rs",
        text: "        if !recycled {\n            self.dir.sync()?;\n        }\n",
        instead: "",
    },
    Mutant {
        name: "removal-unsynced",
        bug: "recovery reads the log before removals are durable (leveldb#195: an unlinked file \
              comes back)",
        file: "log/recover.rs",
        text: "            dir.sync()?;\n",
        instead: "",
    },
    Mutant {
        name: "segment-header-unsynced",
        bug: "records are appended to a segment whose header and size are not durable",
        file: "log/segments/prepare.rs",
        text: "        file.sync()?;\n        if !recycled {",
        instead: "        if !recycled {",
    },
    Mutant {
        name: "older-segment-unsynced",
        bug: "a sync covers the newest segment but not the ones before it (rocksdb#10185, #12489)",
        file: "log/mod.rs",
        text: "for file in self.segments.unsynced(self.synced(), target) {",
        instead: "for file in self.segments.unsynced(self.synced(), target)\
                  .into_iter().rev().take(1) {",
    },
    Mutant {
        name: "stale-records-believed",
        bug: "a record is not bound to its position and its predecessor (rocksdb#12918, \
              pebble#543)",
        file: "log/format.rs",
        text: "identity([start.lsn.0, chained, payload_hash])",
        instead: "identity([0, chained & 0xffff_ffff, payload_hash])",
    },
    Mutant {
        name: "block-numbers-reused",
        bug: "recovery reuses block numbers of blocks behind the cut (pebble#984)",
        file: "log/recover.rs",
        text: "next_block: next_block.max(block_of(end.lsn) + 1),",
        instead: "next_block: next_block.min(block_of(end.lsn) + 1),",
    },
    Mutant {
        name: "watermark-ignored",
        bug: "bit rot in the synced part of the log is cut off like a torn tail (rocksdb#7701)",
        file: "log/recover.rs",
        text: "        Some((watermark, file, offset)) if *watermark > end => {",
        instead: "        Some((watermark, file, offset)) \
                  if *watermark > Lsn(end.0 + (1 << 40)) => {",
    },
    Mutant {
        name: "durable-mark-ignored",
        bug: "the same, for the position that a clean close stores in the superblock (WT-4240)",
        file: "log/recover.rs",
        text: "        _ if durable > end => \"the superblock\".to_owned(),",
        instead: "        _ if durable > Lsn(end.0 + (1 << 40)) => \"the superblock\".to_owned(),",
    },
    Mutant {
        name: "watermark-ahead",
        bug: "blocks claim that more is durable than is: a healthy log is refused",
        file: "log/tail.rs",
        text: "watermark: self.log.synced(), chain, first_start };",
        instead: "watermark: self.log.written(), chain, first_start };",
    },
    Mutant {
        name: "payload-unchecked",
        bug: "a record is accepted by its header alone, whatever its payload",
        file: "log/reader.rs",
        text: "        if record_check(position, length, sum) != check {",
        instead: "        if sum == check.into() {",
    },
    Mutant {
        name: "sync-failure-ignored",
        bug: "a failed sync of the log counts as successful (rocksdb#4990)",
        file: "log/mod.rs",
        text: "            file.sync().map_err(|error| self.poison(error))?;",
        instead: "            let _ = file.sync();",
    },
    Mutant {
        name: "sync-retried",
        bug: "a failed sync of the log is retried and succeeds (PostgreSQL's fsyncgate)",
        file: "log/mod.rs",
        text: "            file.sync().map_err(|error| self.poison(error))?;",
        instead: "            file.sync().or_else(|_| file.sync())\
                  .map_err(|error| self.poison(error))?;",
    },
    Mutant {
        name: "replayed-log-unsynced",
        bug: "recovery exposes data that is only in the page cache; a power cut loses it \
              (rocksdb#7607)",
        file: "log/recover.rs",
        text: "            found.file.sync()?;\n",
        instead: "",
    },
    Mutant {
        name: "unreadable-log-ends",
        bug: "a device error is treated as the end of the log (rocksdb 8.7.0)",
        file: "log/reader.rs",
        text: "        found.file.read_at(&mut chunk, offset)?;\n        self.chunk = chunk;",
        instead: "        if found.file.read_at(&mut chunk, offset).is_err() {\n            \
                  return Ok(false);\n        }\n        self.chunk = chunk;",
    },
    Mutant {
        name: "ended-file-reused",
        bug: "the file at whose end the log ended is reused before the log has gone on",
        file: "log/recover.rs",
        text: "reader.visited.extend(begins_in.or(ends_there));",
        instead: "let _ = ends_there;\n        reader.visited.extend(begins_in);",
    },
    Mutant {
        name: "gap-in-order-ignored",
        bug: "replay of several logs goes on behind a write that one of them has lost",
        file: "log/several/read.rs",
        text: "        if numbers[at].is_some_and(|found| found.first == last.next()) {",
        instead: "        if numbers[at].is_some() {",
    },
    Mutant {
        name: "one-log-synced",
        bug: "a sync covers one of the logs that were written",
        file: "log/several/mod.rs",
        text: "            if log.synced() < *end {\n                log.sync_files(*end)?;",
        instead: "            if log.synced() < *end {\n                \
                  if log.synced() == self.first().synced() {\n                    \
                  log.sync_files(*end)?;\n                }",
    },
    Mutant {
        name: "log-synced-before-others",
        bug: "a log counts as synced before those that hold earlier writes: a healthy store is \
              refused",
        file: "log/several/mod.rs",
        text: "                log.sync_files(*end)?;\n",
        instead: "                log.sync_files(*end)?;\n                \
                  log.raise_synced(*end);\n",
    },
];
