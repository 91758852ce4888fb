//! Common types of all modules: limits, ids, keys, bytes, streams of entries, errors.
//!
//! Every other module may import this one; it imports none.
//!
//! | file | content |
//! | --- | --- |
//! | `limits` | limits that users can meet, each with its reason |
//! | `ids`, `keys`, `bytes` | numbers with types; key ranges; keys and values of callers |
//! | `logs` | positions in the logs of a database, and where replay begins in each |
//! | `stream` | updates in key order, between memtables, runs and merges |
//! | `codec`, `checksum` | integers as bytes; the two hash functions |
//! | `error` | the error type |
//! | `check`, `dump` | findings of a verification; the structure on disk as items |

pub mod bytes;
pub mod check;
pub mod checksum;
pub mod codec;
pub mod dump;
pub mod error;
pub mod ids;
pub mod keys;
pub mod limits;
pub mod logs;
pub mod stream;
