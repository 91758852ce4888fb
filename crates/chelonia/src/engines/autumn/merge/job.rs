//! Jobs: one merge unit, or one change of the level shape.
//!
//! ```text
//!   plan      the next step that does not meet a claim; its tables are claimed
//!   run       merges the tables into new ones; absorbs and other jobs go on meanwhile
//!   install   the new tables replace the old ones in the newest version; the claim ends
//! ```
//!
//! The claim (`claims.rs`) ensures that the tables of a job are still in place at its install. An
//! absorb adds a sequence at the front of level 0 and may merge sequences there that are not
//! sinking yet, so sequences of level 0 are found by their distance from the end. Steps that merge
//! nothing keep the lock until they are installed.

use crate::base::error::{Error, Result};
use crate::engine::{Absorbed, Job, OwnedExtent, Work};
use crate::engines::autumn::merge::choose::{self, Down, Measure};
use crate::engines::autumn::merge::claims::{Avoided, Claim, Claims};
use crate::engines::autumn::merge::level0_picker;
use crate::engines::autumn::merge::output::{Change, Output};
use crate::engines::autumn::merge::plan::{Sizes, Step};
use crate::engines::autumn::merge::unit::{Merged, Unit};
use crate::engines::autumn::table::Table;
use crate::engines::autumn::version::{AutumnVersion, Next};
use crate::engines::autumn::{Autumn, Writer};
use crate::runtime::sync::{Arc, Ordering};
use crate::runtime::workers::Workers;
use crate::structure::{SharedKey, events};

/// One step from its plan to its install.
pub(in crate::engines::autumn) struct MergeJob<'e> {
    tree: &'e Autumn,
    step: Step,
    task: Task,
    workers: Workers,
    /// The number of its claim.
    claim: Option<u64>,
    /// Number of level-0 sequences at the plan, and of those that were sinking.
    level0: (usize, usize),
    /// Output of the merge.
    merged: Option<Merged>,
    gained: Vec<OwnedExtent>,
    lost: Vec<OwnedExtent>,
}

/// Work of a job.
enum Task {
    /// Nothing but the step itself.
    Shape,
    /// These tables move down, each with the index of its level-0 sequence.
    Moves(Vec<(usize, Table)>),
    Merge(Target, Unit),
}

/// Where the output of a merge goes.
#[derive(Clone, Copy)]
enum Target {
    /// Into the level below.
    Below,
    /// Into the same level.
    Level,
    /// Into level 0: the sequences from this index on.
    Within(usize),
}

/// Result of an attempt to plan a step.
pub(in crate::engines::autumn) enum Planned<'e> {
    Job(Box<MergeJob<'e>>),
    /// No part of the step is possible.
    Stuck,
    /// No part of the step is possible beside the outstanding jobs.
    Blocked,
}

impl Autumn {
    /// Plans the next step that is possible now.
    pub(in crate::engines::autumn) fn plan_job(
        &self,
        workers: Workers,
    ) -> Result<Option<Box<MergeJob<'_>>>> {
        let mut writer = self.writer.lock();
        let workers = self.room(workers, self.options().table_bytes());
        let measure = self.options().measure(workers);
        let version = self.newest();
        let mut blocked = Vec::new();
        loop {
            let Some(step) = self.step_beside(&version, &writer.stuck, &blocked) else {
                if blocked.is_empty() && self.claims.lock().is_empty() {
                    self.shared.is_read.store(false, Ordering::Relaxed);
                }
                self.reassess(&writer.stuck);
                if !blocked.is_empty() {
                    self.want_later();
                }
                return Ok(None);
            };
            match self.plan_step(step, &version, &mut writer, measure, workers) {
                Ok(Planned::Job(job)) => return Ok(Some(job)),
                Ok(Planned::Stuck) => writer.stuck.extend(step.level()),
                Ok(Planned::Blocked) => match step.level() {
                    // One merge takes from level 0 already.
                    Some(0) if self.claims.lock().has_level0() => blocked.push(0),
                    // No more is taken from the level below, so that this one gets its turn.
                    Some(level) => blocked.extend([level, level + 1]),
                    None => {
                        self.want_later();
                        return Ok(None);
                    }
                },
                Err(error) => {
                    if !error.is_transient() {
                        writer.stuck.extend(step.level());
                    }
                    self.reassess(&writer.stuck);
                    return Err(error);
                }
            }
        }
    }

    /// Nothing can be planned until an outstanding job ends.
    fn want_later(&self) {
        self.wants.store(false, Ordering::SeqCst);
        // The last one may have been dropped meanwhile.
        if self.claims.lock().is_empty() {
            self.wants.store(true, Ordering::SeqCst);
        }
    }

    /// Plans `step`. Its caller has the lock of `writer`.
    pub(in crate::engines::autumn) fn plan_step(
        &self,
        step: Step,
        version: &AutumnVersion,
        writer: &mut Writer,
        measure: Measure,
        workers: Workers,
    ) -> Result<Planned<'_>> {
        let mut claims = self.claims.lock();
        let (task, claim) = match step {
            Step::Sink => (Task::Shape, None),
            Step::AddLevel(_) | Step::RemoveLevel(_) if claims.is_empty() => (Task::Shape, None),
            Step::AddLevel(_) | Step::RemoveLevel(_) => return Ok(Planned::Blocked),
            Step::Down(0) if claims.has_level0() => return Ok(Planned::Blocked),
            Step::Down(level) => {
                let down = self.pick(level, version, writer, measure, &claims)?;
                let (target, unit) = match down {
                    Down::Stuck if claims.is_empty() => return Ok(Planned::Stuck),
                    Down::Stuck => return Ok(Planned::Blocked),
                    Down::Moves(moves) => {
                        let avoided =
                            Avoided { damage: &writer.damage, claims: Some((&claims, level)) };
                        if moves.iter().any(|(_, table)| avoided.has(table)) {
                            return Ok(Planned::Blocked);
                        }
                        return Ok(Planned::Job(self.job(
                            step,
                            (Task::Moves(moves), None),
                            version,
                            workers,
                        )));
                    }
                    Down::Unit(unit) => (Target::Below, unit),
                    Down::Parted(unit) => (Target::Level, unit),
                    Down::Within { first, unit } => (Target::Within(first), unit),
                };
                let upper: Vec<&Table> = unit.upper.iter().flatten().collect();
                let Some(claim) = Claim::of(level, &upper, &unit.lower) else {
                    return Err(Error::internal("a merge without tables was planned"));
                };
                let Some(claim) = claims.add(claim) else { return Ok(Planned::Blocked) };
                (Task::Merge(target, unit), Some(claim))
            }
        };
        Ok(Planned::Job(self.job(step, (task, claim), version, workers)))
    }

    fn job(
        &self,
        step: Step,
        (task, claim): (Task, Option<u64>),
        version: &AutumnVersion,
        workers: Workers,
    ) -> Box<MergeJob<'_>> {
        Box::new(MergeJob {
            tree: self,
            step,
            task,
            workers,
            claim,
            level0: (version.level0.len(), version.sinking),
            merged: None,
            gained: Vec::new(),
            lost: Vec::new(),
        })
    }

    /// Selects tables of `level` for the level below.
    fn pick(
        &self,
        level: usize,
        version: &AutumnVersion,
        writer: &mut Writer,
        measure: Measure,
        claims: &Claims,
    ) -> Result<Down> {
        let node_cache = &self.shared.node_cache;
        let goal = self.goal(version, level);
        let damage = &writer.damage;
        if level == 0 {
            // From the left on: it waits for a claim there.
            let avoided = Avoided { damage, claims: None };
            return level0_picker::from_level0(version, node_cache, measure, goal, &avoided);
        }
        let avoided = Avoided { damage, claims: Some((claims, level)) };
        let from = writer.from.entry(level).or_insert_with(|| SharedKey::LEAST);
        choose::from_level(version, node_cache, level, from, measure, goal, &avoided)
    }

    /// Returns the next step, as if the outstanding jobs were done; levels in `stuck` cannot be
    /// compacted, those in `blocked` not now.
    pub(in crate::engines::autumn) fn step_beside(
        &self,
        version: &AutumnVersion,
        stuck: &[usize],
        blocked: &[usize],
    ) -> Option<Step> {
        let claims = self.claims.lock();
        let mut sizes = Sizes::of(version);
        for (place, size) in sizes.levels.iter_mut().enumerate() {
            *size = size.saturating_sub(claims.bytes_of(place + 1));
        }
        sizes.step(&self.options().policy(), self.is_eager(), stuck, blocked)
    }
}

impl Step {
    /// Returns the level that it takes tables from.
    fn level(self) -> Option<usize> {
        match self {
            Step::Down(level) => Some(level),
            Step::Sink | Step::AddLevel(_) | Step::RemoveLevel(_) => None,
        }
    }
}

impl MergeJob<'_> {
    /// Changes the contents of the next version.
    fn apply(
        &mut self,
        version: &AutumnVersion,
        writer: &mut Writer,
        next: &mut Next,
        output: &Output<'_>,
    ) -> Result<()> {
        let counters = &self.tree.shared.counters;
        match self.step {
            Step::Sink => {
                let fresh = next.level0.len() - next.sinking;
                next.sinking += fresh.min(self.tree.sinking_max(self.workers));
                writer.stuck.retain(|stuck| *stuck != 0);
                events::add(&counters.sinkings, 1);
            }
            Step::AddLevel(place) => {
                next.levels.insert(place, Arc::default());
                writer.forget_places();
                events::add(&counters.levels_added, 1);
            }
            Step::RemoveLevel(place) => {
                if !next.levels.remove(place).is_empty() {
                    return Err(Error::internal("a level to be removed is not empty"));
                }
                writer.forget_places();
                events::add(&counters.levels_removed, 1);
            }
            Step::Down(level) => {
                self.lower(level, version, writer, next, output)?;
                // The arriving tables may be merged with tables that were stuck.
                writer.stuck.retain(|stuck| *stuck != level + 1);
            }
        }
        Ok(())
    }

    /// Puts the moved or merged tables in their places.
    fn lower(
        &mut self,
        level: usize,
        version: &AutumnVersion,
        writer: &mut Writer,
        next: &mut Next,
        output: &Output<'_>,
    ) -> Result<()> {
        let counters = &self.tree.shared.counters;
        let (target, unit) = match std::mem::replace(&mut self.task, Task::Shape) {
            Task::Shape => return Err(Error::internal("a job has no tables")),
            Task::Moves(moves) => {
                return self.tree.move_tables(level, moves, version, next, output);
            }
            Task::Merge(target, unit) => (target, unit),
        };
        let merged = self.merged.take();
        let merged = merged.ok_or_else(|| Error::internal("a job was installed before its run"))?;
        writer.damage.forget(unit.upper.iter().flatten().chain(&unit.lower));
        let (level0, sinking) = self.level0;
        match target {
            Target::Below => {
                let first = next.level0.len() - sinking;
                Autumn::replace((level, first), &unit, merged, next, output)?;
                let units = if level == 0 { &counters.level0_units } else { &counters.level_units };
                events::add(units, 1);
            }
            Target::Level => {
                let removed: Vec<Table> = unit.upper.into_iter().flatten().collect();
                output.lose(removed.iter().map(Table::owned));
                let place = &mut next.levels[level - 1];
                *place = Arc::new(output.change(place, Change { removed, added: merged.tables })?);
            }
            Target::Within(first) => {
                let first = next.level0.len() - (level0 - first);
                Autumn::replace_within(first, &unit, merged, next, output)?;
                events::add(&counters.merges_within, 1);
            }
        }
        Ok(())
    }
}

impl Job for MergeJob<'_> {
    fn keeps_lock(&self) -> bool {
        !matches!(self.task, Task::Merge(..))
    }

    fn run(&mut self, work: &Work<'_>) -> Result<()> {
        let Task::Merge(_, unit) = &self.task else { return Ok(()) };
        let (tree, counters) = (self.tree, &self.tree.shared.counters);
        let output = tree.output(work);
        let workers = work.workers.at_most(self.workers.threads());
        let error = match unit.run(&output, counters, &workers) {
            Ok(merged) => {
                (self.gained, self.lost) = output.settle();
                self.merged = Some(merged);
                return Ok(());
            }
            Err(error) => error,
        };
        // The first error is more useful than one from the roll-back.
        let _ = output.roll_back();
        let mut writer = tree.writer.lock();
        let stuck = writer.damage.learn(unit, &error);
        events::add(&counters.tables_stuck, stuck);
        if stuck > 0 {
            // These tables are avoided from now on, and the install drops this job.
            return Ok(());
        }
        if !error.is_transient() {
            writer.stuck.extend(self.step.level());
        }
        Err(error)
    }

    fn install(mut self: Box<Self>, work: &Work<'_>) -> Result<Option<Absorbed>> {
        if matches!(self.task, Task::Merge(..)) && self.merged.is_none() {
            return Ok(None);
        }
        let tree = self.tree;
        let mut writer = tree.writer.lock();
        let version = tree.newest();
        let output = tree.output(work);
        output.gain(std::mem::take(&mut self.gained));
        output.lose(std::mem::take(&mut self.lost));
        let mut next = Next::of(&version);
        if let Err(error) = self.apply(&version, &mut writer, &mut next, &output) {
            // The first error is more useful than one from the roll-back.
            let _ = output.roll_back();
            if !error.is_transient() {
                writer.stuck.extend(self.step.level());
            }
            return Err(error);
        }
        next.settle();
        let absorbed = tree.publish(&version, next, output)?;
        // Before the sizes are looked at again.
        self.end();
        tree.reassess(&writer.stuck);
        Ok(Some(absorbed))
    }
}

impl MergeJob<'_> {
    /// Ends the claim.
    fn end(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.tree.claims.lock().remove(claim);
        }
    }
}

impl Drop for MergeJob<'_> {
    fn drop(&mut self) {
        if self.claim.is_some() {
            // It was not installed, and is planned again.
            self.end();
            self.tree.wants.store(true, Ordering::Relaxed);
        }
        let storage = self.tree.shared.node_cache.storage();
        self.gained.iter().for_each(|owned| storage.free_unreachable(owned.extent));
    }
}
