//! Versions play no part here.

#[derive(Clone)]
pub struct HeldVersion;
