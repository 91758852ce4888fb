//! A disk that is full, or nearly.

pub mod headroom;
