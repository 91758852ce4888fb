//! The write path, from entries to an acknowledgement.
//!
//! | file | content |
//! | --- | --- |
//! | `commit` | a commit, step by step; the steps name the other files |
//! | `admit`, `payload`, `pipeline` | steps 1, 2 and 3 to 5 |
//! | `writes` | the entries of a commit, and the layout of a batch in memory |
//! | `record` | the layout of a commit in the log |

mod admit;
pub mod commit;
mod payload;
mod pipeline;
pub mod record;
pub mod writes;
