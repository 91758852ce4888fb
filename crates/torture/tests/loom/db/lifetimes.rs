//! Versions play no part here.

pub struct HeldVersion;
