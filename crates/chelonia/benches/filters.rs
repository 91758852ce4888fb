//! Bloom filters against quotient filters: bits per key, false positives, and the time to build
//! and to probe one, for filters of a million keys.
//!
//! ```text
//! cargo bench -p chelonia --bench filters
//! ```
//!
//! Each filter is measured once per round, and times are medians of the rounds. Probes are
//! independent of each other, so the processor overlaps them. Keys are random hashes: the time to
//! hash a key is the same for both filters and is not included.

#![expect(clippy::print_stdout, reason = "a program for people")]

use chelonia::FilterKind;
use chelonia::internals::{Clock, FilterSpec, KeyHash, Rng, filter_spec};
use chelonia::limits::BLOCK_BYTES;
use std::hint::black_box;

const KEYS: usize = 1_000_000;

/// Keys that are probed for false positives.
const ABSENT: usize = 10_000_000;

const ROUNDS: usize = 5;

/// Requested bits per key.
const BITS_PER_KEY: [u32; 6] = [8, 12, 14, 16, 24, 32];

/// A filter, and the nanoseconds per key that each round measured.
struct Measured {
    spec: FilterSpec,
    blocks: Vec<u8>,
    build: Vec<f64>,
    present: Vec<f64>,
    absent: Vec<f64>,
}

impl Measured {
    fn new(kind: FilterKind, bits: u32) -> Self {
        let (spec, blocks) = (filter_spec(kind, bits, KEYS as u64), Vec::new());
        Self { spec, blocks, build: Vec::new(), present: Vec::new(), absent: Vec::new() }
    }

    fn round(&mut self, present: &[u64], absent: &[u64]) {
        self.build.push(nanos_per(present.len(), || self.spec.build(present, &mut self.blocks)));
        let mut found = 0;
        self.present.push(nanos_per(present.len(), || found = self.count(present)));
        assert_eq!(found, present.len(), "a filter denies no key that it has");
        self.absent.push(nanos_per(absent.len(), || found = self.count(absent)));
    }

    /// How many of `hashes` the filter may have.
    fn count(&self, hashes: &[u64]) -> usize {
        let may_have = |hash: &&u64| {
            let hash = KeyHash(**hash);
            let block = self.spec.block_of(hash).expect("the filter has blocks") as usize;
            self.spec.may_contain(&self.blocks[block * BLOCK_BYTES..][..BLOCK_BYTES], hash)
        };
        black_box(hashes.iter().filter(may_have).count())
    }

    /// Stored bits per key, false positives per million, medians of the times.
    #[expect(clippy::cast_precision_loss, reason = "ratios for people")]
    fn columns(&mut self, absent: &[u64]) -> [f64; 5] {
        let stored = (self.blocks.len() * 8) as f64 / KEYS as f64;
        let found = self.count(absent) as f64 * 1e6 / absent.len() as f64;
        let [build, yes, no] =
            [&mut self.build, &mut self.present, &mut self.absent].map(|times| median(times));
        [stored, found, build, yes, no]
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn nanos_per(count: usize, work: impl FnOnce()) -> f64 {
    let clock = Clock::real();
    work();
    clock.now().as_nanos() as f64 / count as f64
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let mut rng = Rng::new(1);
    let mut hashes = |count: usize| (0..count).map(|_| rng.next_u64()).collect::<Vec<u64>>();
    let (present, absent) = (hashes(KEYS), hashes(ABSENT));
    let kinds = [FilterKind::Bloom, FilterKind::Quotient];
    let mut pairs = BITS_PER_KEY.map(|bits| kinds.map(|kind| Measured::new(kind, bits)));
    for _ in 0..ROUNDS {
        for filter in pairs.iter_mut().flatten() {
            filter.round(&present, &absent[..KEYS]);
        }
    }
    println!("Bloom / quotient; times in nanoseconds per key");
    println!("| bits | stored | false per million | build | probe, present | probe, absent |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    for (bits, pair) in BITS_PER_KEY.iter().zip(&mut pairs) {
        let [bloom, quotient] = pair.each_mut().map(|filter| filter.columns(&absent));
        let columns = bloom.iter().zip(quotient).map(|(of, other)| format!("{of:.1} / {other:.1}"));
        println!("| {bits} | {} |", columns.collect::<Vec<_>>().join(" | "));
    }
}
