//! The files of the library, and stubs for their imports.

#[path = "../../../../chelonia/src/versions/history.rs"]
pub mod history;
pub mod lifetimes;
#[path = "../../../../chelonia/src/versions/pins.rs"]
pub mod pins;
pub mod view;
#[path = "../../../../chelonia/src/versions/visibility.rs"]
pub mod visibility;
