//! Not used: nothing here has versions.

#[derive(Clone)]
pub struct HeldVersion;
