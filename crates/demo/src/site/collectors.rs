//! What the site's collectors see: the scheduler's answers, lines of steps, readings of devices.

use std::collections::BTreeMap;

use tidegate_collect::receiver::read_step;
use tidegate_events::Event;
use tidegate_sim::Place;
use tidegate_sim::observe::Observer;

use super::{QUIET_MS, REGISTER, Site, WATCHER, Working, source_of};
use crate::DemoError;
use crate::agent::{DeviceActivity, Unit};
use crate::feed::Observation;
use crate::levels::{Doing, Levels, Load};
use crate::plan::{self, HOUR_MS, NODES, POOLS, pool_of};
use crate::script::{self, DEV_NODE, Does};
use crate::slurm::{self, NodeShown};
use crate::training::Pace;

/// From here on before the present the watcher looks at every step, ms.
const LIVE_MS: i64 = 2 * HOUR_MS;

impl Site {
    /// Asks the scheduler if anything changed, and now and then.
    pub(super) fn ask_scheduler(&mut self, seen: &mut Vec<Observation>) -> Result<(), DemoError> {
        let sim = self.target.sim();
        let limits: slurm::Limits = sim
            .spec()
            .teams
            .iter()
            .enumerate()
            .map(|(t, team)| (team.name.clone(), sim.limit_gpus(t)))
            .collect();
        let shown = (self.nodes_shown(), limits);
        let is_new = self.shown.as_ref() != Some(&shown);
        let every_ms = if self.now_ms > self.times.present_ms - LIVE_MS { 0 } else { QUIET_MS };
        let is_due = self.now_ms >= self.asked_ms.saturating_add(every_ms);
        if !(self.queue.take_changed() || is_new || is_due) {
            return Ok(());
        }
        self.asked_ms = self.now_ms;
        if self.now_ms >= self.times.watched_ms {
            self.watcher.emit_devices();
        }
        let capacity = is_new.then(|| slurm::capacity(&shown.0, &shown.1, &self.times, self.now_ms));
        let ended = self.queue.take_ended().iter().flat_map(slurm::accounted).collect();
        let queue = slurm::queue(&self.queue, &shown.1);
        let events = self.watcher.take_in(self.now_ms, &queue, ended, capacity)?;
        self.shown = Some(shown);
        let at_ms = self.now_ms;
        seen.extend(events.into_iter().map(|event| Observation { source: WATCHER.into(), at_ms, event }));
        Ok(())
    }

    fn nodes_shown(&self) -> Vec<NodeShown> {
        let shown = |node: &tidegate_sim::Node| {
            let (state, reason) = match (node.up, node.drained) {
                (true, false) => ("IDLE", None),
                (true, true) => ("IDLE+DRAIN", Some("tidegate: slower than its peers".to_owned())),
                (false, _) => ("DOWN*", Some("Not responding".to_owned())),
            };
            let pool = match node.place {
                Place::Lent { to } | Place::Called { to } => to,
                _ => node.pool,
            };
            NodeShown { pool: POOLS[pool], state, reason }
        };
        let mut nodes: Vec<NodeShown> = self.target.sim().nodes().iter().map(shown).collect();
        nodes.push(NodeShown { pool: POOLS[2], state: "IDLE", reason: None });
        nodes
    }

    pub(super) fn sample_pools(&mut self, seen: &mut Vec<Observation>) {
        if self.now_ms < self.sampled_ms.saturating_add(QUIET_MS) {
            return;
        }
        self.sampled_ms = self.now_ms;
        let at_ms = self.now_ms;
        let samples = Observer::new(REGISTER, 0).sample(self.target.sim(), QUIET_MS.unsigned_abs());
        seen.extend(samples.into_iter().map(|event| Observation { source: REGISTER.into(), at_ms, event }));
    }

    pub(super) fn report_steps(&mut self, seen: &mut Vec<Observation>) -> Result<(), DemoError> {
        let training: Vec<u64> = self
            .working
            .iter()
            .filter(|(_, working)| working.training.is_some())
            .map(|(id, _)| *id)
            .collect();
        training.into_iter().try_for_each(|id| self.report_steps_of(id, self.now_ms, seen))
    }

    /// The lines of each rank of a job, as its agents receive them.
    pub(super) fn report_steps_of(
        &mut self,
        id: u64,
        to_ms: i64,
        seen: &mut Vec<Observation>,
    ) -> Result<(), DemoError> {
        let pace = self.pace(id);
        let Some(training) = self.working.get_mut(&id).and_then(|working| working.training.as_mut()) else {
            return Ok(());
        };
        if to_ms <= self.times.watched_ms {
            training.skip_to(to_ms);
            return Ok(());
        }
        let Some(hold) = self.queue.get(id).and_then(|job| job.hold.as_ref()) else { return Ok(()) };
        for step in training.until(to_ms, pace) {
            let ranks = hold.on.iter().flat_map(|on| on.gpus.iter().map(|gpu| (on.node, *gpu)));
            for (rank, (node, gpu)) in ranks.enumerate() {
                let agent = &self.agents[node];
                let line = training.line(id, &step, rank, pace, agent.uuid(gpu));
                let report = read_step(&line, &agent.name).map_err(DemoError::Step)?;
                seen.push(Observation { source: source_of(node), at_ms: to_ms, event: Event::Step(report) });
            }
        }
        Ok(())
    }

    /// How fast a job is now: one slow GPU holds up all, and so does a neighbour on its GPU.
    fn pace(&self, id: u64) -> Pace {
        let Some(hold) = self.queue.get(id).and_then(|job| job.hold.as_ref()) else {
            return Pace { all: 1.0, slow: None };
        };
        let held = hold.on.iter().flat_map(|on| on.gpus.iter().map(move |gpu| (on.node, *gpu)));
        let mut held = held.enumerate();
        let slow = held.find(|(_, (node, gpu))| self.hot == Some((*node, *gpu)));
        let is_crowded = hold.on[0].node == DEV_NODE && self.beside(id, hold.on[0].gpus[0]);
        match slow {
            Some((rank, _)) => Pace { all: 1e6 / f64::from(script::HOT_PPM), slow: Some(rank) },
            None if is_crowded => Pace { all: script::CROWDED, slow: None },
            None => Pace { all: 1.0, slow: None },
        }
    }

    /// Whether another job uses this GPU of the pool for notebooks by turns.
    fn beside(&self, id: u64, gpu: u32) -> bool {
        self.queue.jobs().any(|(other, job)| {
            let holds = job.hold.as_ref().is_some_and(|hold| {
                !hold.shows_devices && hold.on.iter().any(|on| on.node == DEV_NODE && on.gpus.contains(&gpu))
            });
            other != id && holds && job.gpus == 0
        })
    }

    pub(super) fn read_devices(&mut self, seen: &mut Vec<Observation>) {
        if self.now_ms < self.times.watched_ms {
            return;
        }
        let mut agents = std::mem::take(&mut self.agents);
        let (now_ms, holders) = (self.now_ms, self.holders());
        for agent in &mut agents {
            let (source, node) = (source_of(agent.node), agent.node);
            let is_up = node == DEV_NODE || self.target.sim().nodes()[node].up;
            if !is_up {
                continue;
            }
            let batches = agent.read(now_ms, |unit| self.see(node, unit, &holders));
            let said = |batch| Observation {
                source: source.clone(),
                at_ms: now_ms,
                event: Event::GpuSamples(batch),
            };
            seen.extend(batches.into_iter().map(said));
        }
        self.agents = agents;
    }

    /// Jobs by the GPU that they hold.
    fn holders(&self) -> BTreeMap<(usize, u32), Vec<u64>> {
        let mut holders: BTreeMap<(usize, u32), Vec<u64>> = BTreeMap::new();
        for (id, job) in self.queue.jobs() {
            for on in job.hold.iter().flat_map(|hold| &hold.on) {
                on.gpus.iter().for_each(|gpu| holders.entry((on.node, *gpu)).or_default().push(id));
            }
        }
        holders
    }

    /// What a device does now.
    fn see(&self, node: usize, unit: &Unit, holders: &BTreeMap<(usize, u32), Vec<u64>>) -> DeviceActivity {
        let gpu = unit.device.index;
        let mut seen = DeviceActivity {
            is_lost: script::is_lost(&self.times, node, gpu, self.now_ms),
            is_slow: self.hot == Some((node, gpu)),
            ..DeviceActivity::default()
        };
        let nobody = Load::new(self.draw.of(7).of(u64::from(gpu)));
        seen.levels = nobody.levels(Doing::Nothing);
        let jobs = holders.get(&(node, gpu)).map_or(&[][..], Vec::as_slice);
        let parts = jobs
            .iter()
            .filter(|id| unit.slices.is_none() || script::slice_of(&self.times, **id) == unit.place);
        let share = if unit.slices.is_none() && jobs.len() > 1 { 1.0 / jobs.len() as f64 } else { 1.0 };
        for id in parts {
            let Some(working) = self.working.get(id) else { continue };
            let Some((levels, bytes)) = self.works(*id, working, node, gpu) else { continue };
            if share < 1.0 || unit.slices.is_some() {
                seen.levels.add(levels, share);
            } else {
                seen.levels = levels;
            }
            seen.process(*id, (bytes as f64 * share) as i64, "python");
        }
        if seen.is_slow {
            for level in [&mut seen.levels.sm_active, &mut seen.levels.tensor_active] {
                *level *= 1.04;
            }
            seen.levels.power_mw *= 0.8;
        }
        seen
    }

    /// Levels and memory of a job's process on a GPU; `None`: it runs none.
    fn works(&self, id: u64, working: &Working, node: usize, gpu: u32) -> Option<(Levels, i64)> {
        let load = &working.load;
        let age_ms = self.now_ms - working.since_ms;
        let bytes = load.memory_bytes;
        Some(match working.does {
            Does::Nothing => return None,
            Does::Trains => match &working.training {
                Some(training) => (training.levels(load, self.now_ms), bytes),
                None => (load.levels(Doing::Busy), bytes),
            },
            Does::Serves if pool_of(node) == 1 => {
                let place = self.replicas.iter().take(node - NODES[0]).flatten().count() as u32;
                let demand = self.target.sim().demand_gpus(0);
                let is_needed = place * plan::GPUS_PER_NODE + gpu < demand;
                (load.levels(if is_needed { Doing::Busy } else { Doing::Idle }), bytes)
            }
            Does::Serves => (load.levels(Doing::Busy), bytes),
            Does::Leaks(per_hour) => {
                (load.levels(Doing::Busy), bytes + (per_hour as f64 * age_ms as f64 / HOUR_MS as f64) as i64)
            }
            Does::Notebook(from, to) => {
                let hour = self.times.hour_at(self.now_ms);
                let minute = self.now_ms.div_euclid(60_000).rem_euclid(60);
                let is_busy = (from..to).contains(&hour) && (minute + id as i64 * 7) % 60 < 12;
                (load.levels(if is_busy { Doing::Busy } else { Doing::Idle }), bytes)
            }
        })
    }
}
