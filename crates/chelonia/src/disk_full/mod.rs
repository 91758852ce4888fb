//! Space of the device for what is accepted.
//!
//! What a memtable holds goes into the data file one day, and that must not fail for want of space:
//! only a flush lets the log behind it go. So a commit is accepted if all memtables, with it, could
//! be flushed now.
//!
//! ```text
//!   the pool: free on the device, free in the data file, log segments that wait
//!   |<- memtables, a few times ->|<------- not needed ------->|<- kept for deletes ->|
//! ```
//!
//! If there is not enough for that, memtables are flushed and a checkpoint is made: empty ones need
//! nothing, and a checkpoint frees what was overwritten. If that does not help, puts are refused
//! with `NoSpace` while there is still some space left.
//!
//! Why deletes get through, as long as the store has the device to itself:
//!
//! 1. The three parts of the pool are one. The data file takes blocks of the device; free space of
//!    the data file is given back to the device when the log needs a segment
//!    ([`Core::make_log_space`]); segments that wait are removed.
//! 2. Puts leave in the pool what a flush of all memtables takes, what the engine that needs most
//!    takes to free space ([`crate::engine::Engine::reclaim_needs_bytes`]), and a part of what is
//!    in use (`KEPT_PART`).
//! 3. Deletes are accepted as long as the log has segments. It makes no further one unless the pool
//!    has, beside it, what the flush of all memtables takes, and while snapshots are held what an
//!    engine needs to free something afterwards ([`Core::is_log_affordable`]). A small segment
//!    suffices. They start work for space while what an engine needs for that is still left.
//! 4. Nothing else takes the space for the flush: what flushes at the usual pace, merges and passes
//!    that free something allocate is limited ([`crate::storage::Storage::limit`]), for a snapshot
//!    may keep what they replace. The tight flush is not limited, and takes little more than the
//!    memtable.
//! 5. So a flush and a checkpoint, which takes no space of its own, always trim the log, whose
//!    segments go back to the pool; then engines free what deletes hid.
//! 6. What snapshots and iterators keep comes back when they are dropped, with the next checkpoint
//!    at the latest. While they keep it, deletes free nothing, and may be refused by 3.
//!
//! A limit on the length of files (`ulimit -f`) is treated like a smaller disk.
//!
//! Others may use the device too: what was free when this looked may be gone when it is needed.
//! Then the flush waits for space (`flush/memtable.rs`), and deletes are refused when the log has
//! no segment left, until somebody frees some.
//!
//! Work that did not help is not repeated by every commit, but when the pool, the memtables or the
//! snapshots changed, else after a time that doubles ([`crate::admission::headroom`]).
//!
//! | file | what |
//! | --- | --- |
//! | `pool` | how large the pool is, and which part of it is spoken for |
//! | `accept` | whether a put is accepted |
//! | `log_space` | space for the log's next segment |
//! | `reclaim` | work that frees space, and flushes on a full disk |

pub mod accept;
pub mod log_space;
pub mod pool;
pub mod reclaim;
