//! Kernels: loops that use vector instructions.
//!
//! Every kernel is one algorithm with thin wrappers per instruction set, chosen at run time, and a
//! scalar version; the same tests run over all of them. Kernels operate on bytes and numbers and
//! depend on nothing else of the store. All are safe to call with any bytes: the types guarantee
//! what the instructions require of their operands.

pub mod bloom;
pub mod heads;
pub mod node16;
pub mod prefetch;
pub mod prefix;
