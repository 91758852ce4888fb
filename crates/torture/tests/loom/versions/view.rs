//! Not used: nothing here has views.

use super::lifetimes::HeldVersion;

pub struct Buffer;

pub struct View {
    pub version: HeldVersion,
}

impl View {
    pub fn of_version(version: HeldVersion) -> Self {
        Self { version }
    }

    pub fn has_updates(&self) -> bool {
        false
    }
}
