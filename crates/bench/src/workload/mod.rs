//! What is done: keys, values and streams of operations. All of it is pure and follows from a seed,
//! so that every store does the same work and every run can be repeated.

pub mod keys;
pub mod phases;
pub mod random;
pub mod stream;
pub mod values;
pub mod zipf;
