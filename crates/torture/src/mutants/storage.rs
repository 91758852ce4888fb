//! Mutants in the data file.

use super::Mutant;

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "superblock-before-data",
        bug: "a superblock is durable before the data it refers to, including the length of the \
              file (redb 4.2.0, LMDB's growth)",
        file: "storage/data_file/mod.rs",
        text: "        let done = file.sync().and_then(|()| {",
        instead: "        let done = Ok(()).and_then(|()| {",
    },
    Mutant {
        name: "superblock-unsynced",
        bug: "a checkpoint returns before its superblock is durable",
        file: "storage/data_file/superblock.rs",
        text: "            file.sync()?;\n",
        instead: "",
    },
    Mutant {
        name: "copies-in-flight-together",
        bug: "both copies of the superblock are overwritten before either is durable",
        file: "storage/data_file/superblock.rs",
        text: "            file.sync()?;\n        }\n",
        instead: "        }\n        file.sync()?;\n",
    },
    Mutant {
        name: "superblock-failure-ignored",
        bug: "a checkpoint whose superblock could not be synced continues as if it were durable",
        file: "storage/data_file/superblock.rs",
        text: "            file.sync()?;\n",
        instead: "            let _ = file.sync();\n",
    },
    Mutant {
        name: "older-superblock-believed",
        bug: "of two valid copies of the superblock the older one is used",
        file: "storage/data_file/superblock.rs",
        text: "let a_is_newer = a.generation > b.generation;",
        instead: "let a_is_newer = a.generation < b.generation;",
    },
    Mutant {
        name: "blocks-unchecked",
        bug: "block checksums are not verified (leveldb without paranoid checks)",
        file: "storage/block.rs",
        text: "    if right {\n",
        instead: "    if right || block.len() == BLOCK_BYTES {\n",
    },
    Mutant {
        name: "place-unchecked",
        bug: "a block is accepted at any location (TigerBeetle's misdirected write)",
        file: "storage/block.rs",
        text: "    identity([salt, generation.0, number.0])",
        instead: "    identity([salt, generation.0, number.0 & 0])",
    },
    Mutant {
        name: "age-unchecked",
        bug: "a block of an earlier generation of its location is accepted: a lost write is not \
              detected",
        file: "storage/block.rs",
        text: "    identity([salt, generation.0, number.0])",
        instead: "    identity([salt, generation.0 & 0, number.0])",
    },
    Mutant {
        name: "catalog-overwritten",
        bug: "the extent of the durable catalog is reused for the next catalog",
        file: "storage/checkpoint.rs",
        text: "        let allocation = match spare.take_if(|spare| spare.blocks >= count) {",
        instead: "        let durable = root.current().catalog.map(|catalog| \
                  catalog.extent);\n        \
                  *spare = durable.or(*spare);\n        \
                  let allocation = match spare.take_if(|spare| spare.blocks >= count) {",
    },
    Mutant {
        name: "overlaps-unchecked",
        bug: "two structures that own the same block are not detected (bbolt#701)",
        file: "storage/space.rs",
        text: "        if !self.free.take(range.clone()) {\n            let reason",
        instead: "        if !self.free.take(range.clone()) && \
                  range.end > self.free.file_blocks() {\n            \
                  let reason",
    },
];
