//! Kernels: loops that use vector instructions.
//!
//! Every kernel is one algorithm with thin wrappers per instruction set, chosen at run time, and a
//! scalar version; the same tests run over all of them. Kernels operate on bytes and numbers and
//! depend on nothing else of the store. All are safe to call with any bytes: the types guarantee
//! what the instructions require of their operands.
//!
//! | file | content |
//! | --- | --- |
//! | `bloom` | one line of a Bloom filter |
//! | `heads` | search in a sorted array of `u32` |
//! | `node16` | search for a byte among up to sixteen |
//! | `prefix` | length of a common prefix |
//! | `prefetch` | prefetch hints |
//! | `quotient` | one line of a quotient filter |

pub mod bloom;
pub mod heads;
pub mod node16;
pub mod prefetch;
pub mod prefix;
pub mod quotient;
