//! The autumn engine.
mod garnering;
