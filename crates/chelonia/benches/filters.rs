//! Bloom filters against quotient filters: bits per key, false positives, and the time to build
//! and to probe one, for filters of a million keys. And Bloom filters of several runs against one
//! maplet over all of them.
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
use chelonia::internals::{Clock, FilterSpec, KeyHash, MapletSpec, Rng, filter_spec};
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

/// Keys of all runs, of which each has the same number, that a maplet replaces the filters of.
const KEYS_OF_RUNS: usize = 1_200_000;

/// Runs on the path of a lookup.
const RUNS: [usize; 4] = [2, 4, 6, 12];

/// Requested bits per key of the filters, and per entry of the maplet.
const BITS_OF_RUNS: [(u32, u32); 3] = [(16, 16), (16, 20), (16, 24)];

/// Filters of several runs, and a maplet over them.
struct Runs {
    filters: Vec<(FilterSpec, Vec<u8>)>,
    maplet: (MapletSpec, Vec<u8>),
    /// Nanoseconds per lookup of a present and of an absent key, and to build, by filters and by
    /// the maplet.
    times: [[Vec<f64>; 3]; 2],
}

impl Runs {
    fn new(keys: &[u64], runs: usize, bits: (u32, u32)) -> Self {
        let each = keys.len() / runs;
        let spec = filter_spec(FilterKind::Bloom, bits.0, each as u64);
        let filters = (0..runs).map(|_| (spec, Vec::new())).collect();
        let maplet = (MapletSpec::for_runs(runs, keys.len() as u64, bits.1), Vec::new());
        Self { filters, maplet, times: Default::default() }
    }

    fn round(&mut self, keys: &[u64], absent: &[u64]) {
        let runs = self.filters.len();
        let parts: Vec<&[u64]> = keys.chunks(keys.len() / runs).take(runs).collect();
        let built = nanos_per(keys.len(), || {
            for ((spec, blocks), part) in self.filters.iter_mut().zip(&parts) {
                spec.build(part, blocks);
            }
        });
        self.times[0][2].push(built);
        let built = nanos_per(keys.len(), || {
            let entries =
                (0..).zip(&parts).flat_map(|(run, part)| part.iter().map(move |of| (*of, run)));
            self.maplet.0.build(entries, &mut self.maplet.1);
        });
        self.times[1][2].push(built);
        for (place, hashes) in [keys, absent].into_iter().enumerate() {
            let by_filters = nanos_per(hashes.len(), || {
                black_box(self.by_filters(hashes));
            });
            let by_maplet = nanos_per(hashes.len(), || {
                black_box(self.by_maplet(hashes));
            });
            self.times[0][place].push(by_filters);
            self.times[1][place].push(by_maplet);
        }
    }

    /// The sum of the runs that may have each of `hashes`, as a lookup finds them: all filters are
    /// fetched before the first is tested.
    fn by_filters(&self, hashes: &[u64]) -> u64 {
        let runs_of = |hash: &u64| {
            let hash = KeyHash(*hash);
            let block = |(spec, _): &(FilterSpec, Vec<u8>)| {
                let block = spec.block_of(hash).expect("the filter has blocks") as usize;
                block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES
            };
            for filter in &self.filters {
                filter.0.prefetch(&filter.1[block(filter)], hash);
            }
            let may_have = self
                .filters
                .iter()
                .filter(|filter| filter.0.may_contain(&filter.1[block(filter)], hash));
            may_have.count() as u64
        };
        hashes.iter().map(runs_of).sum()
    }

    fn by_maplet(&self, hashes: &[u64]) -> u64 {
        let (spec, blocks) = &self.maplet;
        let known = (1 << self.filters.len()) - 1;
        let runs_of = |hash: &u64| {
            let hash = KeyHash(*hash);
            let block = spec.block_of(hash) as usize * BLOCK_BYTES;
            u64::from((spec.runs_of(&blocks[block..][..BLOCK_BYTES], hash) & known).count_ones())
        };
        hashes.iter().map(runs_of).sum()
    }
}

/// Prints filters of several runs against one maplet.
#[expect(clippy::cast_precision_loss, reason = "ratios for people")]
fn compare_runs(keys: &[u64], absent: &[u64]) {
    println!("\nBloom filters of several runs / a maplet over them; nanoseconds per key or lookup");
    println!("| runs | stored bits | false runs per million | build | lookup, present | absent |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    for runs in RUNS {
        for bits in BITS_OF_RUNS {
            let mut measured = Runs::new(keys, runs, bits);
            (0..ROUNDS).for_each(|_| measured.round(keys, &absent[..KEYS]));
            let blooms: usize = measured.filters.iter().map(|(_, blocks)| blocks.len()).sum();
            let stored =
                [blooms, measured.maplet.1.len()].map(|all| (all * 8) as f64 / keys.len() as f64);
            let wrong = [measured.by_filters(absent), measured.by_maplet(absent)];
            let wrong = wrong.map(|runs| runs as f64 * 1e6 / absent.len() as f64);
            let [of, other] =
                measured.times.each_mut().map(|times| times.each_mut().map(|all| median(all)));
            let both = |one: f64, two: f64| format!("{one:.1} / {two:.1}");
            println!(
                "| {runs} | {} | {} | {} | {} | {} |",
                both(stored[0], stored[1]),
                both(wrong[0], wrong[1]),
                both(of[2], other[2]),
                both(of[0], other[0]),
                both(of[1], other[1]),
            );
        }
    }
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
    compare_runs(&hashes(KEYS_OF_RUNS), &absent);
}
