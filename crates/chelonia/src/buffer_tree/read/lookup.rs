//! Point reads.
//!
//! A lookup walks from the root to a leaf and visits every run that may contain the key, newest
//! first. Filters are checked before data: a run whose filter is in memory and excludes the key
//! costs nothing more.
//!
//! | | `look` | `read`, after it |
//! | --- | --- | --- |
//! | data | in memory only, under the caller's guard | all |
//! | holds | nothing of its own | the current node, and no guard during reads |
//! | at a run that may contain the key | searches it | the same, if no newer run is undecided |
//! | at missing data | ends | reads it; filters as below |
//!
//! If a filter is missing, `read` walks the path to its end, reads all missing filters together,
//! and then searches the remaining runs in order.
//!
//! Batches of lookups: `run/read/rounds.rs`.
//!
//! Damage hides as little as possible: a damaged filter block counts as "maybe", and damaged data
//! on the path fails a lookup only if no newer run has the key.

use crate::base::checksum::KeyHash;
use crate::base::error::Result;
use crate::buffer_tree::Shared;
use crate::buffer_tree::events::Event;
use crate::buffer_tree::node::{Child, HEIGHT_MAX, Node, NodeSlot, Pivot};
use crate::buffer_tree::read::read_cost;
use crate::engine::{Answer, Looked, Progress, look_many};
use crate::memory::budget::Use;
use crate::memory::epoch::Guard;
use crate::run::{
    Candidate, Candidates, FilterState, Run, RunFilter, RunHit, find_many, find_newest,
};
use crate::runtime::sync::Arc;
use crate::storage::cache::{Presence, Priority};

/// Converts a hit to an answer: a tombstone is an answer, too.
fn answer((hit, presence): (RunHit, Presence)) -> Answer {
    Answer { found: hit.found(), presence }
}

/// Target of a walk.
#[derive(Clone, Copy)]
pub struct Wanted<'k> {
    key: &'k [u8],
    hash: KeyHash,
    /// The lookup is charged for the filters it checks.
    pays: bool,
}

impl<'k> Wanted<'k> {
    pub fn new(key: &'k [u8], hash: KeyHash) -> Self {
        Self { key, hash, pays: read_cost::is_sampled(hash) }
    }
}

/// Result of visiting a run that may contain a key.
pub enum Visit<T> {
    /// The run has the key, in a block that was cached before or not.
    Found(T, Presence),
    /// The run does not have the key, or it is undecided.
    Progress,
    /// The run does not have the key, but its filter did not exclude it: a block, cached before or
    /// not, was searched unnecessarily.
    Wasted(Presence),
    /// Data must be read first: the walk ends.
    Ended,
}

/// Result of a walk in memory.
pub enum Walked<T> {
    /// A run has the key, in a block that was cached before or not.
    Found(T, Presence),
    /// No run has the key.
    Nowhere,
    /// The walk ended before it had passed the pivot with this number (the root's is 0).
    Ended(usize),
}

/// The pivots on the path of a key, from a node down, as far as nodes are in memory.
struct Way<'g> {
    pivots: [Option<&'g Pivot>; HEIGHT_MAX as usize],
    /// The node below the last pivot is not in memory.
    is_cut: bool,
}

impl<'g> Way<'g> {
    /// Returns the path from the root, as far as nodes are in memory. Prefetches all filters on it
    /// together, because each access is a CPU cache miss.
    #[inline]
    fn down(
        shared: &Shared,
        root: &'g Arc<NodeSlot>,
        wanted: Wanted<'_>,
        guard: &'g Guard,
    ) -> Self {
        let mut way = Self { pivots: [None; HEIGHT_MAX as usize], is_cut: true };
        let Some(root) = shared.node_cache.in_memory(root, guard) else { return way };
        let mut node: &'g Node = root;
        for place in &mut way.pivots {
            let pivot = &node.pivots[node.pivot_of(wanted.key)];
            *place = Some(pivot);
            for part in pivot.parts.candidates(wanted.key) {
                part.filter.prefetch(wanted.hash, guard);
            }
            match &pivot.child {
                Child::None => {
                    way.is_cut = false;
                    break;
                }
                Child::Leaf(run) => {
                    if let Some(filter) = &pivot.leaf_filter {
                        filter.prefetch(wanted.hash, guard);
                    }
                    run.prefetch_root(guard);
                    way.is_cut = false;
                    break;
                }
                Child::Node(slot, _) => match shared.node_cache.in_memory(slot, guard) {
                    Some(child) => node = child,
                    None => break,
                },
            }
        }
        way
    }
}

/// Calls `visit` with every run that may contain `key`, newest first, until it finds something or
/// data is not in memory; the result says whether the block was cached. Unnecessary searches and
/// device reads are charged to the pivots, and filter checks if the lookup `pays` (`read_cost.rs`).
#[inline]
pub fn walk<'g, T>(
    shared: &Shared,
    root: &'g Arc<NodeSlot>,
    wanted: Wanted<'_>,
    guard: &'g Guard,
    mut visit: impl FnMut(&'g Arc<Run>, &'g RunFilter) -> Result<Visit<T>>,
) -> Result<Walked<T>> {
    let way = Way::down(shared, root, wanted, guard);
    if wanted.pays {
        shared.events.add(Event::Lookups, read_cost::SAMPLE.into());
    }
    let mut passed = 0;
    for pivot in way.pivots.into_iter().map_while(|pivot| pivot) {
        match visit_pivot(shared, pivot, wanted, &mut visit)? {
            Visit::Found(found, presence) => return Ok(Walked::Found(found, presence)),
            Visit::Ended => return Ok(Walked::Ended(passed)),
            Visit::Progress | Visit::Wasted(_) => passed += 1,
        }
    }
    Ok(if way.is_cut { Walked::Ended(passed) } else { Walked::Nowhere })
}

/// Continues a walk from pivot number `from` on, and reads data that is not in memory when it is
/// reached. No guard is held meanwhile, only the nodes on the path.
fn walk_reading<T>(
    shared: &Shared,
    root: &Arc<NodeSlot>,
    wanted: Wanted<'_>,
    from: usize,
    mut visit: impl FnMut(&Arc<Run>, &RunFilter) -> Result<Visit<T>>,
) -> Result<Option<(T, Presence)>> {
    let mut node = shared.node_cache.load_owned(root)?;
    // Heights decrease on the way down, so the loop ends.
    for number in 0.. {
        let pivot = &node.pivots[node.pivot_of(wanted.key)];
        if number >= from
            && let Visit::Found(found, presence) = visit_pivot(shared, pivot, wanted, &mut visit)?
        {
            return Ok(Some((found, presence)));
        }
        let Child::Node(slot, _) = &pivot.child else { break };
        node = shared.node_cache.load_owned(slot)?;
    }
    Ok(None)
}

/// Visits the runs of one pivot and charges the pivot: its parts, and the leaf if it is the last.
#[inline]
fn visit_pivot<'g, T>(
    shared: &Shared,
    pivot: &'g Pivot,
    wanted: Wanted<'_>,
    visit: &mut impl FnMut(&'g Arc<Run>, &'g RunFilter) -> Result<Visit<T>>,
) -> Result<Visit<T>> {
    // Part of the cost is that of levels.
    let mut by_levels = if wanted.pays { read_cost::filters(pivot.parts.filters()) } else { 0 };
    let mut paid = 0;
    let mut checked = 0;
    let mut visited = Visit::Progress;
    for part in pivot.parts.candidates(wanted.key) {
        checked += 1;
        match visit(&part.segment.run, &part.filter)? {
            Visit::Found(hit, presence) => {
                visited = Visit::Found(hit, presence);
                if presence == Presence::Absent {
                    paid += crowding(shared, pivot);
                }
                break;
            }
            // The reading walk visits this pivot again, and charges it then.
            Visit::Ended => return Ok(Visit::Ended),
            Visit::Wasted(Presence::Absent) => by_levels += read_cost::BLOCK_READ,
            Visit::Wasted(_) => by_levels += read_cost::BLOCK_LOOK,
            Visit::Progress => {}
        }
    }
    if let (Visit::Progress, Child::Leaf(run), Some(filter)) =
        (&visited, &pivot.child, &pivot.leaf_filter)
    {
        checked += 1;
        match visit(run, filter)? {
            Visit::Ended => return Ok(Visit::Ended),
            Visit::Found(hit, presence) => {
                visited = Visit::Found(hit, presence);
                if presence == Presence::Absent {
                    paid += crowding(shared, pivot);
                }
            }
            Visit::Progress | Visit::Wasted(_) => {}
        }
    }
    if wanted.pays {
        shared.events.add(Event::FiltersChecked, checked * u64::from(read_cost::SAMPLE));
    }
    if paid + by_levels > 0 {
        shared.read_costs.pay(pivot, paid + by_levels, by_levels);
    }
    Ok(visited)
}

/// Returns the charge for a block that was not in memory ([`read_cost::ReadCosts::crowding`]).
fn crowding(shared: &Shared, pivot: &Pivot) -> read_cost::Units {
    shared.read_costs.crowding(pivot, shared.node_cache.storage().budget().used_by(Use::Cache))
}

/// Returns the value of `key` in the tree below `root`, as far as memory decides it.
pub fn look(
    shared: &Shared,
    root: &Arc<NodeSlot>,
    key: &[u8],
    hash: KeyHash,
    guard: &Guard,
) -> Result<Looked> {
    let walked = walk(shared, root, Wanted::new(key, hash), guard, |run, filter| {
        Ok(match filter.state(hash, guard) {
            FilterState::No => Visit::Progress,
            FilterState::Missing(_) => Visit::Ended,
            FilterState::Maybe => match run.find_cached(key, guard)? {
                Some((Some(hit), presence)) => Visit::Found(hit, presence),
                Some((None, presence)) => Visit::Wasted(presence),
                None => Visit::Ended,
            },
        })
    });
    Ok(match walked? {
        Walked::Found(hit, presence) => Looked::Answer(answer((hit, presence))),
        Walked::Nowhere => Looked::Answer(Answer::default()),
        Walked::Ended(passed) => Looked::OnDevice(Progress(passed)),
    })
}

/// Returns the value of `key` in the tree below `root`, after the pivots that were already passed.
pub fn read(
    shared: &Shared,
    root: &Arc<NodeSlot>,
    (key, hash): (&[u8], KeyHash),
    Progress(from): Progress,
) -> Result<Answer> {
    let storage = shared.node_cache.storage();
    // Undecided runs, newest first, each with its missing filter block.
    let mut undecided: Vec<Candidate> = Vec::new();
    let walked = walk_reading(shared, root, Wanted::new(key, hash), from, |run, filter| {
        let state = filter.state(hash, &storage.epochs().pin());
        match state {
            FilterState::No => {}
            FilterState::Maybe if undecided.is_empty() => {
                return Ok(match run.find(key)? {
                    (Some(hit), presence) => Visit::Found(hit, presence),
                    (None, presence) => Visit::Wasted(presence),
                });
            }
            FilterState::Maybe => undecided.push((Arc::clone(run), None)),
            FilterState::Missing(block) => undecided.push((Arc::clone(run), Some(block))),
        }
        Ok(Visit::Progress)
    });
    if undecided.is_empty() {
        return walked.map(|hit| hit.map(answer).unwrap_or_default());
    }
    match find_newest(storage, &undecided, (key, hash))? {
        Some(hit) => Ok(answer(hit)),
        None => walked.map(|hit| hit.map(answer).unwrap_or_default()),
    }
}

/// Returns true if the tree may contain `key` according to its filters. Reads filters, no entries.
pub fn may_have(shared: &Shared, root: &Arc<NodeSlot>, key: &[u8]) -> Result<bool> {
    let storage = shared.node_cache.storage();
    let hash = storage.key_hash(key);
    let wanted = Wanted { key, hash, pays: false };
    let walked = walk_reading(shared, root, wanted, 0, |run, filter| {
        let state = filter.state(hash, &storage.epochs().pin());
        let maybe = match state {
            FilterState::No => false,
            FilterState::Maybe => true,
            FilterState::Missing(block) => {
                // A damaged filter counts as "maybe".
                let loaded = run.cached().load(block, Priority::Filter);
                loaded.map_or(true, |bytes| run.filter().may_contain_in(hash, &bytes))
            }
        };
        Ok(if maybe { Visit::Found((), Presence::Settled) } else { Visit::Progress })
    });
    walked.map(|found| found.is_some())
}

/// Returns the values of `keys` in the tree below `root`, in the same order.
pub fn multi_get(
    shared: &Shared,
    root: &Arc<NodeSlot>,
    keys: &[(&[u8], KeyHash)],
) -> Result<Vec<Answer>> {
    let storage = shared.node_cache.storage();
    let mut look = |key: &[u8], hash: KeyHash, guard: &Guard| look(shared, root, key, hash, guard);
    look_many(storage, keys, &mut look, &mut |rest, passed, take| {
        find_many(storage, &Lookups { shared, root, passed }, rest, &mut |index, hit, presence| {
            take(index, answer((hit, presence)));
        })
    })
}

/// Batched lookups in one tree.
struct Lookups<'t> {
    shared: &'t Shared,
    root: &'t Arc<NodeSlot>,
    /// How far each lookup came in memory.
    passed: &'t [Progress],
}

impl Candidates for Lookups<'_> {
    fn visit(
        &self,
        index: usize,
        (key, hash): (&[u8], KeyHash),
        visit: &mut dyn FnMut(&Arc<Run>, &RunFilter),
    ) -> Result<()> {
        let Progress(from) = self.passed[index];
        let wanted = Wanted::new(key, hash);
        let walked = walk_reading(self.shared, self.root, wanted, from, |run, filter| {
            visit(run, filter);
            Ok(Visit::<()>::Progress)
        });
        walked.map(|_| ())
    }
}
