//! Computes the size and shape of a filter, from the number of keys and the bits per key.
//!
//! Filters consist of complete blocks, so a filter has at least the requested bits, and its shape
//! is chosen for the bits it has.
//!
//! ```text
//! lines            = ceil(keys * bits_per_key / 512), rounded up to blocks of 63
//! Bloom            probes from the bits per key that a line really has: the values that measure
//!                  best for lines of 512 bits (somewhat fewer than ln 2 * bits, because lines
//!                  differ in how many keys they get)
//! quotient         load  = keys / lines                     mean keys in a line
//!                  slots = load + 4 sigma + 2               sigma of the mean load of one block
//!                  buckets + slots * (1 + entry_bits) <= 511
//!                  false positives ~ 2 * load / buckets / 2^remainder_bits, minimised
//! maplet           the same, with entries of remainder_bits + value_bits
//! ```
//!
//! The number of keys in a line varies although each key takes the emptier of its two lines: the
//! mean over a block's 63 lines varies with sigma = sqrt(load / 63), and within a block the fullest
//! line stays within about two of the mean. Lines that overflow nevertheless answer "maybe" to
//! everything.

use super::{FILTER_BLOCKS_MAX, FilterKind, FilterSpec, LINES_PER_BLOCK};
use crate::kernels::bloom::LINE_BYTES;
use crate::kernels::quotient as kernel;

/// Bits of a line.
const LINE_BITS: u64 = LINE_BYTES as u64 * 8;

/// Maximum number of bits that a Bloom filter sets per key.
pub const PROBES_MAX: u8 = 16;

/// Maximum length in bits of the number of a run in a maplet.
pub const VALUE_BITS_MAX: u8 = 6;

/// Maximum length of a remainder in bits.
pub const REMAINDER_BITS_MAX: u8 = 16;

const _: () = assert!(
    REMAINDER_BITS_MAX as u32 + VALUE_BITS_MAX as u32 <= kernel::ENTRY_BITS_MAX,
    "a probe reads an entry at once"
);

/// Minimum bits per key of a useful filter.
pub const BITS_PER_KEY_MIN: u32 = 4;

/// Maximum useful bits per key.
pub const BITS_PER_KEY_MAX: u32 = 32;

/// Default bits per key of a keyspace.
pub const BITS_PER_KEY_DEFAULT: u32 = 16;

/// Bits per key (times 100) up to which a Bloom filter makes 1, 2, 3 ... probes.
const PROBE_STEPS: [u64; 15] =
    [208, 358, 510, 664, 830, 1007, 1172, 1400, 1605, 1830, 2001, 2200, 2550, 3000, 3600];

/// The number of blocks of a filter for `keys` keys.
pub(super) fn blocks_for(bits_per_key: u32, keys: u64) -> u32 {
    let bits = bits_per_key.clamp(BITS_PER_KEY_MIN, BITS_PER_KEY_MAX);
    let lines = keys.max(1).saturating_mul(u64::from(bits)).div_ceil(LINE_BITS);
    let blocks = lines.div_ceil(u64::from(LINES_PER_BLOCK));
    u32::try_from(blocks).unwrap_or(FILTER_BLOCKS_MAX).min(FILTER_BLOCKS_MAX)
}

/// The filter for `keys` keys at `bits_per_key`; none at 0 bits.
#[must_use]
pub fn spec_for(kind: FilterKind, bits_per_key: u32, keys: u64) -> FilterSpec {
    if bits_per_key == 0 {
        return FilterSpec::None;
    }
    let blocks = blocks_for(bits_per_key, keys);
    let lines = u64::from(blocks) * u64::from(LINES_PER_BLOCK);
    match kind {
        FilterKind::Bloom => {
            let centibits = lines.saturating_mul(LINE_BITS * 100) / keys.max(1);
            let steps = PROBE_STEPS.iter().take_while(|step| centibits > **step).count();
            let probes = u8::try_from(steps + 1).unwrap_or(PROBES_MAX);
            FilterSpec::Bloom { blocks, probes }
        }
        FilterKind::Quotient => {
            let (slots, remainder_bits) = quotient_shape(keys.max(1), lines, 0);
            FilterSpec::Quotient { blocks, slots, remainder_bits }
        }
    }
}

/// Chooses slots per line and bits per remainder for the fewest false positives. Uses integers
/// only, so that every machine makes the same choice.
pub(super) fn quotient_shape(keys: u64, lines: u64, value_bits: u8) -> (u8, u8) {
    // In hundredths: the mean load and four times its deviation from block to block.
    let load = keys.saturating_mul(100) / lines.max(1);
    let deviation = (load * 100 * 16 / u64::from(LINES_PER_BLOCK)).isqrt();
    // With one bit of remainder and one bucket at least.
    let most = ((kernel::BITS - 1) / (2 + u32::from(value_bits))).min(200);
    let slots = (load + deviation + 200).div_ceil(100).clamp(4, u64::from(most));
    let slots = u8::try_from(slots).unwrap_or(200);
    let rate = |bits: &u8| {
        // Minimised: the reverse of buckets * 2^bits, which is to be maximal.
        std::cmp::Reverse(u64::from(quotient_buckets(slots, bits + value_bits)) << bits)
    };
    let fits = |bits: &u8| quotient_shape_fits(slots, *bits, value_bits);
    let fitting = (1..=REMAINDER_BITS_MAX).filter(fits);
    (slots, fitting.min_by_key(rate).unwrap_or(1))
}

/// The number of buckets that fit a line besides its slots; 0 if none fits.
#[must_use]
pub fn quotient_buckets(slots: u8, entry_bits: u8) -> u32 {
    kernel::BITS.saturating_sub(u32::from(slots) * (1 + u32::from(entry_bits)))
}

/// True if a line can have this shape.
#[must_use]
pub fn quotient_shape_fits(slots: u8, remainder_bits: u8, value_bits: u8) -> bool {
    slots >= 1
        && (1..=REMAINDER_BITS_MAX).contains(&remainder_bits)
        && value_bits <= VALUE_BITS_MAX
        && quotient_buckets(slots, remainder_bits + value_bits) >= 1
}
