//! Disk space: every accepted write can be flushed, and deletes work on a full disk.
//!
//! The content of a memtable is flushed to the data file later, and that must not fail for lack of
//! space: only a flush releases the log behind it. So a commit is accepted if all memtables,
//! including it, could be flushed now.
//!
//! ```text
//!   the pool: free on the device, free in the data file, recycled log segments
//!   |<- memtables, a few times ->|<------- not needed ------->|<- kept for deletes ->|
//! ```
//!
//! If the pool is too small for that, memtables are flushed and a checkpoint is made: empty
//! memtables need nothing, and a checkpoint frees what was overwritten. If that does not help, puts
//! are refused with `NoSpace` while there is still some space left.
//!
//! Why deletes succeed, as long as the store has the device to itself:
//!
//! 1. The three parts of the pool are interchangeable. The data file takes blocks of the device;
//!    free space of the data file is returned to the device when the log needs a segment
//!    ([`crate::state::core::Core::make_log_space`]); recycled segments are removed.
//! 2. Puts leave in the pool the space to flush all memtables (the bytes of their updates times the
//!    space factor of their engine, [`crate::engine::Engine::space_times`]), the space to free data
//!    that the most demanding engine needs ([`crate::engine::Engine::reclaim_needs_bytes`]), and a
//!    fraction of the used space (`KEPT_PART`).
//! 3. Deletes are accepted as long as the log has segments. The log makes another segment only
//!    if the pool has, beside it, the space to flush all memtables, and while snapshots are held
//!    the space that an engine needs to free something afterwards
//!    ([`crate::state::core::Core::is_log_affordable`]). A small segment suffices. Deletes start
//!    work for space while the space that an engine needs for it is still left.
//! 4. Nothing else takes the space for the flush: flushes at the usual pace, merges and reclaiming
//!    passes have a quota ([`crate::storage::quota`]), because a snapshot may keep what they
//!    replace. Writes that are accepted meanwhile reduce it. The minimal flush has none, and takes
//!    no more than the factor of its engine says.
//! 5. So a flush and a checkpoint, which takes no space of its own, always trim the log, whose
//!    segments go back to the pool; then engines free deleted data.
//! 6. Space that snapshots and iterators keep is freed after they are dropped, with the next
//!    checkpoint at the latest. While they keep it, deletes free nothing, and may be refused by 3.
//!
//! A limit on the length of files (`ulimit -f`) is treated like a smaller disk.
//!
//! Other programs may use the device too: space that was free at the check may be gone when it is
//! needed. Then the flush waits for space (`flush/memtable.rs`), and deletes are refused when the
//! log has no segment left, until space is freed.
//!
//! Work that did not help is not repeated by every commit, but when the pool, the memtables or the
//! snapshots changed, or after a time that doubles ([`crate::admission::headroom`]).
//!
//! | file | content |
//! | --- | --- |
//! | `pool` | size of the pool, and the part of it that is reserved |
//! | `accept` | whether a put is accepted |
//! | `log_space` | space for the log's next segment |
//! | `reclaim` | work that frees space, and flushes on a full disk |

pub mod accept;
pub mod log_space;
pub mod pool;
pub mod reclaim;
