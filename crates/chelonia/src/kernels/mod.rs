//! Kernels: the loops that are worth the processor's own instructions.
//!
//! Every kernel is one algorithm, thin wrappers per instruction set chosen at run time, and a plain
//! twin; one battery of tests runs over all of them. Kernels know bytes and numbers, nothing else
//! of the store. All are safe to call with any bytes: what an instruction needs of its operands,
//! the types give.

pub mod bloom;
pub mod heads;
pub mod node16;
pub mod prefetch;
pub mod prefix;
