//! The block index of a leaf against the trie of the TurtleKV paper [3.1.1]: bytes, and the time to
//! find the block of a key.
//!
//! ```text
//! cargo bench -p chelonia --bench leaf_index
//! ```
//!
//! The trie is binary, with a byte compared at each node and the prefix that all keys below share,
//! and its nodes lie in the order of van Emde Boas, so that a path touches few cache lines. Both
//! hold the separator of each of the 512 blocks of a leaf of 2 MiB. They are measured over one
//! leaf, which stays in the processor's cache, and over 256, which do not. Times are medians of
//! rounds; the key of each lookup depends on the answer before, as lookups of one thread do.

#![expect(clippy::print_stdout, reason = "a program for people")]
#![expect(clippy::cast_possible_truncation, reason = "the numbers of one leaf fit two bytes")]

use chelonia::internals::leaf_index::LeafIndex;
use chelonia::internals::{Clock, Rng};
use std::cmp::Ordering;
use std::hint::black_box;

const BLOCKS: usize = 512;

/// Records of a block.
const RECORDS: usize = 31;

const LEAVES: [usize; 2] = [1, 256];

const LOOKUPS: usize = 200_000;

const ROUNDS: usize = 7;

/// Set in a reference to a leaf of the trie.
const IS_LEAF: u16 = 0x8000;

/// Set in the length of a prefix if the node says which blocks are below it.
const HAS_RANGE: u8 = 0x80;

/// A trie in one array of bytes.
///
/// ```text
/// node   u8 prefix length, HAS_RANGE unless 0 | u8 pivot | u16 left | u16 right
///        | u16 first block below, u16 last one, prefix: unless its length is 0
/// leaf   u16 block | u8 length | the rest of the separator
/// ```
struct Trie {
    bytes: Vec<u8>,
    root: u16,
}

/// A node before it has its place.
enum Draft {
    Leaf { block: usize, rest: Vec<u8> },
    Node { prefix: Vec<u8>, pivot: u8, blocks: (usize, usize), children: [usize; 2] },
}

impl Trie {
    fn new(separators: &[Vec<u8>]) -> Self {
        let mut drafts = Vec::new();
        let root = draft(separators, (0, separators.len()), 0, &mut drafts);
        let mut order = Vec::new();
        van_emde_boas(&drafts, root, height(&drafts, root), &mut order, &mut Vec::new());
        let mut places = vec![0; drafts.len()];
        let mut end = 0;
        for index in &order {
            places[*index] = end;
            end += match &drafts[*index] {
                Draft::Leaf { rest, .. } => 3 + rest.len(),
                Draft::Node { prefix, .. } if prefix.is_empty() => 6,
                Draft::Node { prefix, .. } => 10 + prefix.len(),
            };
        }
        assert!(end < usize::from(IS_LEAF), "offsets have 15 bits");
        let reference = |index: usize| match &drafts[index] {
            Draft::Leaf { .. } => places[index] as u16 | IS_LEAF,
            Draft::Node { .. } => places[index] as u16,
        };
        let mut bytes = Vec::new();
        for index in order {
            match &drafts[index] {
                Draft::Leaf { block, rest } => {
                    bytes.extend((*block as u16).to_le_bytes());
                    bytes.push(rest.len() as u8);
                    bytes.extend(rest);
                }
                Draft::Node { prefix, pivot, blocks, children } => {
                    let range = if prefix.is_empty() { 0 } else { HAS_RANGE };
                    bytes.extend([prefix.len() as u8 | range, *pivot]);
                    children.iter().for_each(|child| bytes.extend(reference(*child).to_le_bytes()));
                    if range != 0 {
                        bytes.extend((blocks.0 as u16).to_le_bytes());
                        bytes.extend((blocks.1 as u16 - 1).to_le_bytes());
                        bytes.extend(prefix);
                    }
                }
            }
        }
        Self { bytes, root: reference(root) }
    }

    fn number(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// The last block whose separator is at most `key`; the first if there is none.
    fn find(&self, key: &[u8]) -> u16 {
        let (mut at, mut depth) = (self.root, 0);
        while at & IS_LEAF == 0 {
            let node = usize::from(at);
            let prefix_len = usize::from(self.bytes[node] & !HAS_RANGE);
            if prefix_len > 0 {
                let prefix = &self.bytes[node + 10..node + 10 + prefix_len];
                let shared = prefix_len.min(key.len() - depth);
                match key[depth..depth + shared].cmp(prefix) {
                    Ordering::Less => return self.number(node + 6).saturating_sub(1),
                    Ordering::Greater => return self.number(node + 8),
                    Ordering::Equal => depth += prefix_len,
                }
            }
            let is_right = key.get(depth).is_some_and(|byte| *byte >= self.bytes[node + 1]);
            at = self.number(node + if is_right { 4 } else { 2 });
        }
        let leaf = usize::from(at & !IS_LEAF);
        let rest = &self.bytes[leaf + 3..][..usize::from(self.bytes[leaf + 2])];
        let block = self.number(leaf);
        if key[depth..] < *rest { block.saturating_sub(1) } else { block }
    }
}

/// Drafts the trie of a range of separators, which share `depth` bytes; returns its root.
fn draft(
    separators: &[Vec<u8>],
    blocks: (usize, usize),
    depth: usize,
    drafts: &mut Vec<Draft>,
) -> usize {
    let (first, end) = blocks;
    let (low, high) = (&separators[first][depth..], &separators[end - 1][depth..]);
    let drafted = if end - first == 1 {
        Draft::Leaf { block: first, rest: low.to_vec() }
    } else {
        let shared = low.iter().zip(high).take_while(|(one, other)| one == other).count();
        let byte = |block: usize| separators[block].get(depth + shared);
        // The byte that divides the blocks most evenly.
        let middle = first.midpoint(end);
        let divides = |block: &usize| byte(*block) != byte(*block - 1);
        let cuts = (first + 1..end).filter(divides);
        let cut = cuts.min_by_key(|block| block.abs_diff(middle)).expect("they differ");
        let pivot = *byte(cut).expect("a longer key follows");
        let children = [(first, cut), (cut, end)]
            .map(|blocks| draft(separators, blocks, depth + shared, drafts));
        Draft::Node { prefix: low[..shared].to_vec(), pivot, blocks, children }
    };
    drafts.push(drafted);
    drafts.len() - 1
}

fn height(drafts: &[Draft], root: usize) -> usize {
    match &drafts[root] {
        Draft::Leaf { .. } => 1,
        Draft::Node { children, .. } => {
            1 + children.iter().map(|child| height(drafts, *child)).max().unwrap_or(0)
        }
    }
}

/// Appends the upper `levels` levels below `root` to `order`, the upper half of them first, and the
/// roots of those below to `below`.
fn van_emde_boas(
    drafts: &[Draft],
    root: usize,
    levels: usize,
    order: &mut Vec<usize>,
    below: &mut Vec<usize>,
) {
    if levels <= 1 {
        order.push(root);
        if let Draft::Node { children, .. } = &drafts[root] {
            below.extend(children);
        }
        return;
    }
    let mut middle = Vec::new();
    van_emde_boas(drafts, root, levels / 2, order, &mut middle);
    for root in middle {
        van_emde_boas(drafts, root, levels - levels / 2, order, below);
    }
}

/// Keys of one kind.
struct Kind {
    name: &'static str,
    key: fn(u64) -> Vec<u8>,
}

const KINDS: [Kind; 3] = [
    Kind { name: "8 random bytes", key: |number| number.to_be_bytes().to_vec() },
    Kind {
        name: "\"user\" and 19 digits",
        key: |number| format!("user{number:019}", number = number >> 1).into_bytes(),
    },
    Kind {
        name: "paths of 40 to 60 bytes",
        key: |number| {
            let (tenant, table, row) = (number >> 61, number >> 56 & 31, number >> 20);
            format!("tenants/customer-{tenant:03}/tables/orders-{table:04}/rows/{row}").into_bytes()
        },
    },
];

/// The shortest key above `before` and not above `key`.
fn separator(before: &[u8], key: &[u8]) -> Vec<u8> {
    let shared = before.iter().zip(key).take_while(|(one, other)| one == other).count();
    key[..(shared + 1).min(key.len())].to_vec()
}

fn separators(keys: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let first = keys[0][..keys[0].len().min(8)].to_vec();
    let others = (RECORDS..keys.len()).step_by(RECORDS);
    std::iter::once(first).chain(others.map(|at| separator(&keys[at - 1], &keys[at]))).collect()
}

fn median_nanos(mut look: impl FnMut(usize) -> usize) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let clock = Clock::real();
            // The answer before decides the next key, so lookups do not overlap.
            black_box((0..LOOKUPS).fold(0, |before, place| look(place ^ (before & 1))));
            clock.now().as_nanos() as f64 / LOOKUPS as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() {
    println!("block index / trie of a leaf of {BLOCKS} blocks");
    println!("| keys | leaves | bytes | find, ns |");
    println!("| --- | ---: | ---: | ---: |");
    for Kind { name, key } in KINDS {
        for leaves in LEAVES {
            let mut rng = Rng::new(leaves as u64);
            let count = leaves * BLOCKS * RECORDS;
            let mut keys: Vec<Vec<u8>> = (0..count).map(|_| key(rng.next_u64())).collect();
            keys.sort();
            keys.dedup();
            assert_eq!(keys.len(), count, "random keys differ");
            let leaves: Vec<&[Vec<u8>]> = keys.chunks(BLOCKS * RECORDS).collect();
            let all: Vec<_> = leaves.iter().map(|keys| separators(keys)).collect();
            let indexes: Vec<_> =
                all.iter().map(|of| LeafIndex::new(of).expect("separators are short")).collect();
            let tries: Vec<_> = all.iter().map(|of| Trie::new(of)).collect();
            let asked: Vec<(usize, &[u8])> = (0..LOOKUPS + 2)
                .map(|_| rng.below(keys.len() as u64) as usize)
                .map(|at| (at / (BLOCKS * RECORDS), &keys[at][..]))
                .collect();
            let by_index = |place: usize| {
                let (leaf, key) = asked[place];
                indexes[leaf].find(key).expect("the index is whole") as usize
            };
            let by_trie = |place: usize| {
                let (leaf, key) = asked[place];
                usize::from(tries[leaf].find(key))
            };
            for place in 0..LOOKUPS {
                assert_eq!(by_index(place), by_trie(place), "both find the same block");
            }
            let nanos = [median_nanos(by_index), median_nanos(by_trie)];
            println!(
                "| {name} | {} | {} / {} | {:.0} / {:.0} |",
                leaves.len(),
                indexes[0].bytes(),
                tries[0].bytes.len(),
                nanos[0],
                nanos[1],
            );
        }
    }
}
