//! Checking: verification, damage, salvage, dumps.

pub mod damage;
pub mod describe;
pub mod salvage;
pub mod verify;
