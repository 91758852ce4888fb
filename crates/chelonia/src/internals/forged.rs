//! Bytes that lie: what decoders get from files whose checksums are right and whose content is not,
//! as a bug, a bad processor or an attacker would leave them.
//!
//! [`decoders`] names every decoder of bytes from files, to be run by itself. The seals make
//! checksums right again over bytes that were changed, so that what is behind a checksum gets to
//! see them.

use crate::Database;
use crate::Result;
use crate::base::error::Error;
use crate::base::ids::{BlockNo, Generation};
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::{Codec, Compressed, Dictionary, Update};
use crate::engine::EngineKind;
use crate::engines;
use crate::log;
use crate::memory::budget::Budget;
use crate::options::keyspace::decode_options;
use crate::pages::homes::{PART_BYTES, Page, PageBytes, segments, slotted};
use crate::run;
use crate::storage::Storage;
use crate::storage::block::{self, BlockKind};
use crate::storage::data_file::catalog::Catalog;
use crate::storage::data_file::superblock;
use crate::storage::io::memory::MemoryDirectory;
use crate::storage::quota::UNLIMITED;
use crate::write::record::decode_record;
use std::sync::{Arc, OnceLock};

/// The salt that the decoders below take bytes to be of.
pub const SALT: u64 = 3;

/// The file that nodes and directories lie about.
const SCRATCH_BLOCKS: u32 = 1 << 10;
const SCRATCH_BYTES: u64 = 16 << 20;

/// A decoder of bytes from files.
#[derive(Clone, Copy, Debug)]
pub struct DecoderOfFiles {
    /// Its name.
    pub name: &'static str,
    /// Makes the checksum right.
    pub seal: fn(&mut [u8]),
    /// Decodes, and reads everything of the result. Must not panic, whatever the bytes are.
    pub decode: fn(&[u8]),
}

/// All decoders of bytes from files.
#[must_use]
pub fn decoders() -> Vec<DecoderOfFiles> {
    let of_files = [decoders_of_data(), decoders_of_logs(), decoders_of_structure()];
    [of_files.concat(), decoders_of_homes(), decoders_of_compressed()].concat()
}

fn unsealed(_: &mut [u8]) {}

fn decoders_of_data() -> Vec<DecoderOfFiles> {
    vec![
        DecoderOfFiles {
            name: "superblock",
            seal: seal_superblock,
            decode: |bytes| drop(superblock::Superblock::decode(bytes, 0)),
        },
        DecoderOfFiles {
            name: "catalog",
            seal: unsealed,
            decode: |bytes| {
                if let Ok(catalog) = Catalog::decode(bytes) {
                    catalog.keyspaces.iter().for_each(|one| drop(decode_options(&one.options)));
                    let encoded = catalog.encode().expect("what was decoded can be encoded");
                    assert_eq!(
                        Catalog::decode(&encoded).ok(),
                        Some(catalog),
                        "it does not come back"
                    );
                }
            },
        },
        DecoderOfFiles {
            name: "options",
            seal: unsealed,
            decode: |bytes| drop(decode_options(bytes)),
        },
        DecoderOfFiles {
            name: "root",
            seal: unsealed,
            decode: |bytes| {
                EngineKind::ALL.iter().for_each(|kind| drop(engines::decode_root(*kind, bytes)));
            },
        },
        DecoderOfFiles {
            name: "entries",
            seal: unsealed,
            decode: |bytes| sorted(bytes, BlockKind::Data),
        },
        DecoderOfFiles {
            name: "index",
            seal: unsealed,
            decode: |bytes| sorted(bytes, BlockKind::Index),
        },
        DecoderOfFiles {
            name: "large values",
            seal: unsealed,
            decode: |bytes| drop(run::decode_large_list(bytes)),
        },
    ]
}

fn decoders_of_logs() -> Vec<DecoderOfFiles> {
    vec![
        DecoderOfFiles {
            name: "log segment",
            seal: |bytes| log::seal(bytes, SALT),
            decode: |bytes| drop(log::decode_segment_header(bytes, SALT)),
        },
        DecoderOfFiles {
            name: "log block",
            seal: |bytes| log::seal(bytes, SALT),
            decode: |bytes| log::decode_block_header(bytes, SALT),
        },
        DecoderOfFiles {
            name: "log record",
            seal: unsealed,
            decode: |bytes| drop(decode_record(bytes)),
        },
    ]
}

fn decoders_of_structure() -> Vec<DecoderOfFiles> {
    vec![DecoderOfFiles {
        name: "structure",
        seal: unsealed,
        decode: |bytes| {
            for kind in EngineKind::ALL {
                engines::decode_structure(kind, bytes, scratch());
            }
        },
    }]
}

fn decoders_of_homes() -> Vec<DecoderOfFiles> {
    vec![
        DecoderOfFiles { name: "page", seal: unsealed, decode: page },
        DecoderOfFiles {
            name: "delta",
            seal: unsealed,
            decode: |bytes| {
                let mut base = vec![0; slotted::page_bytes(2)];
                let mut part = bytes.to_vec();
                part.resize(PART_BYTES, 0);
                let _ = segments::base_of(&part);
                if segments::apply(&mut base, &part).is_ok() {
                    page(&base);
                }
            },
        },
    ]
}

fn decoders_of_compressed() -> Vec<DecoderOfFiles> {
    vec![
        DecoderOfFiles {
            name: "dictionary",
            seal: unsealed,
            decode: |bytes| drop(run::decode_dictionary(bytes)),
        },
        DecoderOfFiles {
            name: "compressed value",
            seal: unsealed,
            decode: |bytes| {
                for codec in Codec::ALL {
                    // A build may lack zstd.
                    let Ok(dictionary) = Dictionary::new(codec, DICTIONARY.to_vec()) else { break };
                    drop(Compressed::new(bytes, &dictionary).and_then(Compressed::to_value));
                }
            },
        },
    ]
}

/// The dictionary that compressed values are taken to need.
const DICTIONARY: &[u8] = b"a dictionary of some run";

/// Reads a page with a fixed place in every way there is, with zeros behind `bytes`.
fn page(bytes: &[u8]) {
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().next_multiple_of(PART_BYTES).max(PART_BYTES), 0);
    let look = || -> Result<()> {
        let page = Page::parse(PageBytes::Whole(&whole))?;
        for index in 0..page.count() {
            drop((page.key(index), page.payload(index), page.spans(index), page.large(index)));
        }
        for probe in [&b""[..], b"m", &[0xff; 40]] {
            let _ = page.find(probe)?;
        }
        let _ = (page.totals(), page.live_bytes());
        Ok(())
    };
    drop(look());
}

/// A data file with room for everything that structure may refer to, and nothing in it.
fn scratch() -> &'static Arc<Storage> {
    static STORAGE: OnceLock<Arc<Storage>> = OnceLock::new();
    STORAGE.get_or_init(|| {
        let budget = Budget::new(SCRATCH_BYTES);
        let opened = Storage::create(&MemoryDirectory::new(), &budget, SALT);
        let storage = opened.expect("memory has room").storage;
        // Never given back.
        storage.allocate(SCRATCH_BLOCKS, &UNLIMITED).expect("memory has room");
        storage
    })
}

/// Makes the checksum of a superblock right, as copy A.
fn seal_superblock(bytes: &mut [u8]) {
    if bytes.len() == BLOCK_BYTES {
        superblock::reseal(bytes, 0);
    }
}

/// Reads a sorted block in every way there is.
fn sorted(bytes: &[u8], kind: BlockKind) {
    let look = || -> Result<()> {
        let mut joined = bytes.to_vec();
        if run::block::span_of(bytes, kind)? > 1 {
            run::block::join_in_place(&mut joined)?;
        }
        let block = run::block::SortedBlock::parse(&joined, kind)?;
        let count = block.layout().count();
        let dictionary = Dictionary::lz4(DICTIONARY.to_vec());
        for index in 0..count {
            let entry = block.entry(index)?;
            let behind = bytes.get(BLOCK_BYTES..).unwrap_or_default().chunks_exact(BLOCK_BYTES);
            let mut payload = Vec::new();
            let update = match entry.overflow {
                0 => entry.update(block.bytes(), Some(&dictionary)),
                _ => entry
                    .gather(block.bytes(), behind, &mut payload)
                    .and_then(|()| entry.update_with(&payload, Some(&dictionary))),
            };
            if let Ok(Update::PutCompressed(value)) = update {
                drop(value.to_value());
            }
            block.head(index);
        }
        for probe in [&b""[..], b"m", &[0xff; 40], block.prefix()] {
            let _ = block.search(probe)?;
            let _ = block.find(probe)?;
        }
        Ok(())
    };
    drop(look());
}

/// Makes the checksum of block `number` of a data file right.
pub fn seal_block(block: &mut [u8], salt: u64, generation: u64, number: u64) {
    block::seal(block, salt, Generation(generation), BlockNo(number));
}

/// Makes the checksum of a copy of the superblock right.
pub fn reseal_superblock(block: &mut [u8], copy: usize) {
    superblock::reseal(block, copy);
}

/// Makes the checksums of a block of a log file right: those of a segment header, if it looks like
/// one, or else that of a block's header.
pub fn reseal_log_block(block: &mut [u8], salt: u64) {
    log::seal(block, salt);
}

/// First block, number of blocks and generation of every extent that the newest versions and the
/// catalog have.
///
/// # Errors
/// As a read.
pub fn extents(database: &Database) -> Result<Vec<(u64, u32, u64)>> {
    database.handle.core().sealed_extents()
}

/// Appends a record to the log, right in everything but what it says. The first of several logs
/// gets it, with the next seqno, moved by `ahead`. The database can only be let go of after that.
///
/// # Errors
/// As a commit.
pub fn append_to_log(database: &Database, record: &[u8], ahead: u64) -> Result<()> {
    database.handle.core().append_to_log(record, ahead)
}

/// That an error speaks of damage or of something that is not known: what lies must come to.
#[must_use]
pub fn is_expected_of_forged(error: &Error) -> bool {
    use crate::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::Corrupt
            | ErrorKind::Unsupported
            | ErrorKind::InvalidArgument
            | ErrorKind::NotFound
            | ErrorKind::NoSpace
    )
}
