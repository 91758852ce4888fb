//! Tests of the division of a pass into tasks: how much faster it is on several threads, shown by
//! counting, and that its result does not depend on their number.

use super::{World, tiny};
use crate::buffer_tree::events::TracedNode;
use crate::buffer_tree::node::{Child, NodeSlot};
use crate::engine::Engine;
use crate::engine::tests::world::{Item, Model};
use crate::engine::tests::{key_of, uniform, value};
use crate::engines::turtle::TurtleConfig;
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Numbers of workers that a pass is simulated with.
const WORKERS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Time to plan or to assemble a pivot, as the weight of entries that are merged in that time: a
/// 256th of a leaf, which is a microsecond or two for leaves of 256 KiB.
const PIVOT_WEIGHT: u64 = 16;

/// Entries of a leaf that is nine tenths full.
const LEAF_ENTRIES: u64 = 34;

/// A task that can start: its rank as in the queue, its node, and its number there.
type Ready = ((Reverse<u8>, u64, Reverse<usize>), usize, usize);

/// A pass whose tasks are started as by the queue, on simulated workers.
struct Simulation<'t> {
    trace: &'t [TracedNode],
    /// The node that each task enters.
    below: Vec<Vec<Option<usize>>>,
    /// Tasks of each node that are not finished.
    left: Vec<usize>,
    ready: BinaryHeap<Ready>,
    pushed: usize,
}

impl<'t> Simulation<'t> {
    fn new(trace: &'t [TracedNode]) -> Self {
        let mut below: Vec<Vec<_>> =
            trace.iter().map(|node| vec![None; node.tasks.len()]).collect();
        for (number, node) in trace.iter().enumerate() {
            if let Some((above, task)) = node.above {
                below[above][task] = Some(number);
            }
        }
        let left = trace.iter().map(|node| node.tasks.len()).collect();
        Self { trace, below, left, ready: BinaryHeap::new(), pushed: 0 }
    }

    /// Plans a node: its tasks become ready. Returns the time that this takes.
    fn enter(&mut self, node: usize) -> u64 {
        for (task, (planned, _)) in self.trace[node].tasks.iter().enumerate() {
            self.pushed += 1;
            let height = self.trace[node].height;
            let rank = (Reverse(height), *planned, Reverse(self.pushed));
            self.ready.push((rank, node, task));
        }
        PIVOT_WEIGHT * self.trace[node].pivots
    }

    /// Finishes a task; returns the time of the assemblies that become possible.
    fn finish(&mut self, mut node: usize) -> u64 {
        let mut time = 0;
        loop {
            self.left[node] -= 1;
            if self.left[node] > 0 {
                return time;
            }
            time += PIVOT_WEIGHT * self.trace[node].pivots;
            match self.trace[node].above {
                Some((above, _)) => node = above,
                None => return time,
            }
        }
    }

    /// Returns the time until the root is assembled, and the work until then.
    fn run(mut self, workers: usize) -> (u64, u64) {
        let mut now = self.enter(0);
        let mut work = now;
        // Tasks that run and assemblies (without a task), by their end.
        let mut running: BinaryHeap<Reverse<(u64, usize, Option<usize>)>> = BinaryHeap::new();
        loop {
            while running.len() < workers
                && let Some((_, node, task)) = self.ready.pop()
            {
                let time = match self.below[node][task] {
                    Some(below) => PIVOT_WEIGHT * self.trace[below].pivots,
                    None => self.trace[node].tasks[task].1,
                };
                work += time;
                running.push(Reverse((now + time, node, Some(task))));
            }
            let Some(Reverse((end, node, task))) = running.pop() else { return (now, work) };
            now = end;
            let Some(task) = task else { continue };
            if let Some(below) = self.below[node][task] {
                self.enter(below);
            } else {
                // The thread of the last task assembles.
                let time = self.finish(node);
                work += time;
                running.push(Reverse((now + time, node, None)));
            }
        }
    }
}

/// Returns the speed-up of a pass for each number of workers.
fn speedups(trace: &[TracedNode]) -> Vec<f64> {
    let (alone, work) = Simulation::new(trace).run(1);
    assert_eq!(alone, work, "one worker is never idle");
    let times = WORKERS.map(|workers| Simulation::new(trace).run(workers));
    assert!(times.iter().all(|(_, done)| *done == work), "the work is the same");
    times.map(|(time, _)| work as f64 / time as f64).to_vec()
}

/// A tree of leaves of 4 KiB with `leaves` of them.
fn filled(leaves: u64, threads: usize) -> World {
    let mut rng = Rng::new(leaves);
    let options = TurtleConfig { pivots_max: 64, ..tiny() };
    let mut world = World::new(options, threads);
    let keys = (0..leaves * LEAF_ENTRIES).map(|key| (key_of(key << 32), value(&mut rng, 92)));
    world.absorb(keys.collect());
    world
}

/// Number of pivots of the root.
fn children(world: &World) -> usize {
    let version = world.tree.newest();
    world.tree.shared.node_cache.load_owned(&version.root).unwrap().pivots.len()
}

/// Absorbs `count` updates spread over all keys of a tree of `leaves`, and returns the trace.
fn absorb_spread(world: &mut World, leaves: u64, count: u64) -> Vec<TracedNode> {
    let mut rng = Rng::new(count);
    let all = (leaves * LEAF_ENTRIES) << 32;
    let batch = (0..count).map(|_| (key_of(rng.below(all)), value(&mut rng, 92)));
    let batch: Model = batch.collect();
    world.tree.shared.events.trace.lock().clear();
    world.absorb(batch);
    std::mem::take(&mut *world.tree.shared.events.trace.lock())
}

#[test]
fn a_pass_uses_many_workers_however_few_children_the_root_has() {
    // Leaves, children of the root, updates, and the least speed-up with 2, 8 and 32 workers.
    let cases = [
        (2, 2, 3000, [1.9, 6.5, 16.0]),
        (3, 3, 3000, [1.9, 6.5, 16.0]),
        (8, 8, 3000, [1.9, 6.5, 16.0]),
        (64, 64, 6000, [1.9, 6.5, 16.0]),
        (170, 3, 6000, [1.9, 6.5, 16.0]),
        (400, 8, 20_000, [1.9, 6.5, 16.0]),
    ];
    for (leaves, expected, count, least) in cases {
        let mut world = filled(leaves, 1);
        let trace = absorb_spread(&mut world, leaves, count);
        let of_root = usize::try_from(trace[0].pivots).unwrap();
        assert!(of_root.abs_diff(expected) <= 1, "{of_root} children, not {expected}");
        let speedups = speedups(&trace);
        for (workers, least) in [1, 3, 5].into_iter().zip(least) {
            assert!(speedups[workers] >= least, "{of_root} children: {speedups:.1?}");
        }
    }
}

/// Flushes of runs alone, without updates between, are cut as well.
#[test]
fn merges_of_runs_are_cut_at_their_blocks() {
    let options = TurtleConfig { flush_percent: 1000, leaf_bytes: 8 << 10, ..tiny() };
    let mut rng = Rng::new(7);
    let mut world = World::new(options, 1);
    let batch = |rng: &mut Rng, count: u64| -> Model {
        (0..count).map(|_| (key_of(rng.next_u64() >> 8), value(rng, 92))).collect()
    };
    world.absorb(batch(&mut rng, 500));
    let mut flushed = 0;
    for _ in 0..200 {
        world.tree.shared.events.trace.lock().clear();
        let cut = world.event("flushes_cut");
        // At most a leaf and a half of updates, where all runs together have ten leaves.
        world.absorb(batch(&mut rng, 100));
        if world.event("flushes_cut") == cut {
            continue;
        }
        flushed += 1;
        let trace = world.tree.shared.events.trace.lock();
        let written =
            |node: &TracedNode| node.tasks.iter().map(|(_, written)| *written).sum::<u64>();
        let total: u64 = trace.iter().map(written).sum();
        let heaviest = trace.iter().flat_map(|node| &node.tasks).map(|task| task.1).max().unwrap();
        assert!(heaviest <= 7 * options.leaf_bytes, "{heaviest} of {total}: {trace:?}");
    }
    assert!(flushed >= 3, "{flushed} flushes were cut");
    world.check(&mut rng);
}

/// A level over a pivot with much more than a leaf is cut within the pivot.
#[test]
fn a_heavy_pivot_has_a_level_in_pieces() {
    let options = TurtleConfig { flush_percent: 1000, leaf_bytes: 16 << 10, ..tiny() };
    let mut rng = Rng::new(8);
    let mut world = World::new(options, 2);
    let batch = |rng: &mut Rng, count: u64| -> Model {
        (0..count).map(|_| (key_of(rng.next_u64()), value(rng, 92))).collect()
    };
    world.absorb(batch(&mut rng, 500));
    for _ in 0..40 {
        world.absorb(batch(&mut rng, 400));
        world.check(&mut rng);
    }
    assert!(world.event("levels_cut") > 0);
}

/// The pivots of a tree with their contents: numbers of entries and bytes, by node.
fn shape_of(world: &World) -> Vec<(u8, Vec<u8>, Vec<u64>)> {
    fn visit(world: &World, slot: &Arc<NodeSlot>, shape: &mut Vec<(u8, Vec<u8>, Vec<u64>)>) {
        let node = world.tree.shared.node_cache.load_owned(slot).unwrap();
        for pivot in &node.pivots {
            let mut numbers = vec![pivot.settled_entries(), pivot.settled_bytes()];
            for part in &pivot.parts {
                let run = part.segment.run.reference();
                let live = [part.totals.entries, part.totals.bytes];
                numbers.extend([part.level.into(), run.entries, run.user_bytes]);
                numbers.extend(live);
            }
            shape.push((node.height, pivot.key.to_bytes().into_owned(), numbers));
            if let Child::Node(slot, _) = &pivot.child {
                visit(world, slot, shape);
            }
        }
    }
    let mut shape = Vec::new();
    visit(world, &world.tree.newest().root, &mut shape);
    shape
}

/// A history of updates and deletions, wide and narrow.
fn history(threads: usize) -> World {
    let mut rng = Rng::new(40);
    let options = TurtleConfig { pivots_max: 8, flush_percent: 300, ..tiny() };
    let mut world = World::new(options, threads);
    for round in 0..12_u64 {
        let mut batch = uniform(&mut rng, if round % 4 == 0 { 2000 } else { 150 });
        let narrow = round << 60;
        batch.extend((0..600).map(|_| (key_of(narrow + rng.below(1 << 40)), value(&mut rng, 92))));
        let keys: Vec<_> = world.model.keys().step_by(7).cloned().collect();
        batch.extend(keys.into_iter().map(|key| (key, Item::Deleted)));
        world.absorb(batch);
    }
    world
}

#[test]
fn the_tree_is_the_same_for_any_number_of_threads() {
    let alone = history(1);
    let (shape, root) = (shape_of(&alone), alone.tree.root().unwrap());
    let counted = ["flushes_cut", "levels_cut", "nodes_planned", "planned_bytes", "merged_bytes"];
    assert!(alone.event("flushes_cut") > 5, "{}", alone.event("flushes_cut"));
    assert!(children(&alone) > 1);
    // With one thread each byte is in the same place.
    assert_eq!(history(1).tree.root().unwrap(), root);
    for threads in [2, 3, 8] {
        let world = history(threads);
        assert!(shape_of(&world) == shape, "{threads} threads");
        assert_eq!(counted.map(|it| world.event(it)), counted.map(|it| alone.event(it)));
        world.check(&mut Rng::new(1));
    }
}
