//! The workloads: keys, values and streams of operations. All are pure functions of a seed, so
//! every store does the same work and every run can be repeated.

pub mod keys;
pub mod phases;
pub mod random;
pub mod stream;
pub mod values;
pub mod zipf;
