//! The write path, from entries to an acknowledgement.

mod admit;
pub mod commit;
mod payload;
mod pipeline;
pub mod record;
pub mod writes;
