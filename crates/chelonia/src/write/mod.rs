//! The write path, from entries to an acknowledgement.

pub mod commit;
pub mod record;
pub mod writes;
