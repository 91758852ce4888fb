//! Numbers that look random and are the same in every run: a mixing function with its inverse, a
//! generator, and permutations of any range.

/// The step of the generator; odd, its bits look random.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The multipliers of [`mix`], and their inverses modulo 2^64.
const MULTIPLIERS: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];
const INVERSES: [u64; 2] = [0x96de_1b17_3f11_9089, 0x3196_42b2_d24d_8ec3];

/// Spreads `number` over all 64 bits; no two numbers give the same. (The output function of
/// SplitMix64.)
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(MULTIPLIERS[0]);
    z = (z ^ (z >> 27)).wrapping_mul(MULTIPLIERS[1]);
    z ^ (z >> 31)
}

/// The number that [`mix`] made `mixed` of.
pub fn unmix(mixed: u64) -> u64 {
    let mut z = mixed ^ (mixed >> 31) ^ (mixed >> 62);
    z = z.wrapping_mul(INVERSES[1]);
    z = z ^ (z >> 27) ^ (z >> 54);
    z = z.wrapping_mul(INVERSES[0]);
    z = z ^ (z >> 30) ^ (z >> 60);
    z.wrapping_sub(STEP)
}

/// A generator of 64 random bits at a time.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        let bits = mix(self.state);
        self.state = self.state.wrapping_add(STEP);
        bits
    }

    /// A number from 0 to `limit` - 1, all equally likely; 0 if the limit is.
    pub fn below(&mut self, limit: u64) -> u64 {
        scale(self.next(), limit)
    }

    /// A number from 0 up to, not including, 1.
    pub fn fraction(&mut self) -> f64 {
        fraction(self.next())
    }
}

/// Random bits as a number from 0 to `limit` - 1.
pub fn scale(bits: u64, limit: u64) -> u64 {
    let product = u128::from(bits) * u128::from(limit);
    // The high half of the product is below the limit.
    u64::try_from(product >> 64).unwrap_or(0)
}

/// Random bits as a number from 0 up to, not including, 1.
#[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// A permutation of 0 .. `count` that looks random.
///
/// It permutes the next power of two by multiplications with odd numbers and shifts, each of which
/// can be undone, and goes on from a number that is out of range until one is in it.
#[derive(Clone, Debug)]
pub struct Permutation {
    count: u64,
    mask: u64,
    shift: u32,
    seed: u64,
}

impl Permutation {
    /// The permutation of 0 .. `count` that belongs to `seed`.
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = (u64::BITS - count.saturating_sub(1).leading_zeros()).max(2);
        let mask = u64::MAX >> (u64::BITS - bits);
        Self { count: count.max(1), mask, shift: bits.div_ceil(2), seed: mix(seed) }
    }

    /// Where `number`, which is below the count, goes.
    pub fn of(&self, number: u64) -> u64 {
        let mut z = number;
        loop {
            z = z.wrapping_add(self.seed) & self.mask;
            for multiplier in MULTIPLIERS {
                z = z.wrapping_mul(multiplier) & self.mask;
                z ^= z >> self.shift;
            }
            if z < self.count {
                return z;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixing_can_be_undone() {
        let mut random = Random::new(1);
        for number in (0..1000).chain([u64::MAX, u64::MAX - 1, 1 << 63]) {
            assert_eq!(unmix(mix(number)), number);
            let bits = random.next();
            assert_eq!(mix(unmix(bits)), bits);
        }
    }

    #[test]
    fn permutations_hit_everything_once_and_look_random() {
        for count in [1_u64, 2, 3, 4, 5, 100, 1023, 1024, 1025, 10_000] {
            let permutation = Permutation::new(count, 7);
            let mut seen = vec![false; usize::try_from(count).unwrap()];
            for number in 0..count {
                let place = usize::try_from(permutation.of(number)).unwrap();
                assert!(!std::mem::replace(&mut seen[place], true), "{count}: {place} twice");
            }
        }
        // Neighbours are not neighbours afterwards, and both halves get their share.
        let permutation = Permutation::new(100_000, 7);
        let near = (1..100_000)
            .filter(|n| permutation.of(*n).abs_diff(permutation.of(n - 1)) < 100)
            .count();
        assert!(near < 1000, "{near}");
        let low = (0..10_000).filter(|n| permutation.of(*n) < 50_000).count();
        assert!((4_500..5_500).contains(&low), "{low}");
    }

    #[test]
    fn draws_are_even() {
        let mut random = Random::new(3);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[usize::try_from(random.below(10)).unwrap()] += 1;
            let fraction = random.fraction();
            assert!((0.0..1.0).contains(&fraction));
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_eq!(random.below(0), 0);
        assert_ne!(Random::new(1).next(), Random::new(2).next());
    }
}
