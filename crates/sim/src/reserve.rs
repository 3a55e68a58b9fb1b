//! Makes and ends reservations, and starts jobs in them.
//!
//! They follow Slurm's with the flags `MAGNETIC` and `FLEX`: jobs need not name a reservation and
//! may outlast it. The scheduler chooses the nodes. It refuses if too few will be free when the
//! reservation begins, going by the time limits of the jobs on them. Before it begins, anybody's
//! job may use them if its limit ends in time; during it, only the team's jobs may start there.
//!
//! Slurm's `FLEX` also lets jobs start early and use nodes inside and outside at once. Here a job
//! runs wholly inside or wholly outside.

use std::collections::BTreeSet;

use crate::{ControlError, Held, Place, Reservation, Sim, SimEvent, sim::Tick};

/// Most waiting jobs of a team that are tried in its reservation.
const TRIED: usize = 100;

impl Sim {
    /// Creates reservation `name` for a team, or changes its size and end. 0 GPUs end it at once.
    ///
    /// # Errors
    /// [`ControlError::Reservation`] if the team's pool serves, the reservation is another team's
    /// or in use, its end has passed, or the GPUs are not whole free nodes. Nothing was changed.
    pub fn reserve(
        &mut self,
        name: &str,
        team: usize,
        gpus: u32,
        start_us: i64,
        end_us: i64,
    ) -> Result<(), ControlError> {
        let refuse = |why: String| Err(ControlError::Reservation { name: name.to_owned(), why });
        let found = self.reservations.get(name);
        if found.is_some_and(|found| found.team != team) {
            return refuse("belongs to another team".to_owned());
        }
        let start_us = found.map_or(start_us.max(self.now_us), |found| found.start_us);
        let had = found.map(|found| found.nodes.clone()).unwrap_or_default();
        if gpus > 0 && end_us <= self.now_us.max(start_us) {
            return refuse("would end before it begins".to_owned());
        }
        if self.services.iter().any(|service| service.pool == self.spec.teams[team].pool) {
            return refuse("is in a pool that serves".to_owned());
        }
        let nodes = match self.choose(team, &had, gpus, start_us) {
            Ok(nodes) => nodes,
            Err(why) => return refuse(why),
        };
        self.actions += 1;
        for node in had.symmetric_difference(&nodes) {
            let is_reserved = nodes.contains(node);
            self.nodes.change(*node, |n| n.reserved = is_reserved);
        }
        if nodes.is_empty() {
            self.reservations.remove(name);
        } else {
            let reservation = Reservation { team, nodes, start_us, end_us };
            self.reservations.insert(name.to_owned(), reservation);
            self.plan_reservation(start_us);
            self.plan_reservation(end_us);
        }
        self.dirty = true;
        self.emit(|| SimEvent::Reserved { name: name.to_owned(), team, gpus });
        Ok(())
    }

    /// Chooses the nodes of a reservation of `gpus` that now has `had`. Idle nodes are added first
    /// and released first.
    fn choose(
        &self,
        team: usize,
        had: &BTreeSet<u32>,
        gpus: u32,
        start_us: i64,
    ) -> Result<BTreeSet<u32>, String> {
        let node = |n: u32| self.nodes.get(n);
        let held = |nodes: &BTreeSet<u32>| nodes.iter().map(|n| node(*n).gpus).sum::<u32>();
        let runs_inside = |job: &u32| {
            let job = &self.jobs[*job as usize];
            job.spec.team == team && job.started_us >= start_us
        };
        let in_use = |n: u32| node(n).jobs.iter().any(runs_inside);
        let mut nodes = had.clone();
        while held(&nodes) > gpus {
            let unused = nodes.iter().filter(|n| !in_use(**n));
            let last = unused.max_by_key(|n| (node(**n).jobs.is_empty(), **n)).copied();
            nodes.remove(&last.ok_or("is in use: jobs run in it")?);
        }
        let pool = self.spec.teams[team].pool;
        let ends_by = |job: &u32| {
            let job = &self.jobs[*job as usize];
            job.started_us + job.spec.estimate_us <= start_us
        };
        let mut free: Vec<(bool, u32)> = (0..self.nodes.all().len() as u32)
            .filter(|n| {
                let n = node(*n);
                n.pool == pool && n.place == Place::Home && n.up && !n.drained && !n.reserved
            })
            .filter(|n| node(*n).jobs.iter().all(ends_by))
            .map(|n| (!node(n).jobs.is_empty(), n))
            .collect();
        free.sort_unstable();
        for (_, n) in free {
            if held(&nodes) + node(n).gpus <= gpus {
                nodes.insert(n);
            }
        }
        let chosen = held(&nodes);
        if chosen < gpus {
            return Err(format!("wants {gpus} GPUs, and whole nodes of {chosen} are free by then"));
        }
        Ok(nodes)
    }

    fn plan_reservation(&mut self, at_us: i64) {
        self.timeline.push(at_us.max(self.now_us), Tick::Reservation);
    }

    /// Ends reservations whose time has come; those that begin let jobs start.
    pub(crate) fn settle_reservations(&mut self) {
        let now_us = self.now_us;
        let (over, kept) =
            std::mem::take(&mut self.reservations).into_iter().partition(|(_, r)| r.end_us <= now_us);
        self.reservations = kept;
        for (name, Reservation { team, nodes, .. }) in over {
            nodes.iter().for_each(|node| self.nodes.change(*node, |n| n.reserved = false));
            self.emit(|| SimEvent::Reserved { name, team, gpus: 0 });
        }
        self.dirty = true;
    }

    /// Starts waiting jobs in active reservations of their teams, in queue order. A job that does
    /// not fit does not block those behind it.
    pub(crate) fn schedule_reserved(&mut self, pool: usize) {
        let is_active = |r: &&Reservation| self.spec.teams[r.team].pool == pool && r.start_us <= self.now_us;
        let active: Vec<Reservation> = self.reservations.values().filter(is_active).cloned().collect();
        for Reservation { team, nodes, .. } in active {
            let waiting: Vec<u32> = self.queues[team].iter().take(TRIED).map(|key| key.1).collect();
            for job in waiting {
                let spec = &self.jobs[job as usize].spec;
                let room = self.limits[team].map_or(u32::MAX, |l| l.saturating_sub(self.held_by_team[team]));
                let held = self.nodes.fit_among(&nodes, spec.model, spec.gpus);
                if let Some(held) = held.filter(|_| spec.gpus <= room) {
                    self.begin(job, held);
                }
            }
        }
    }

    /// Room for a job on nodes of a reservation that begins once the job has ended.
    pub(crate) fn fit_before_reservations(&self, job: u32, gpus: u32) -> Option<Held> {
        let (spec, pool) = (&self.jobs[job as usize].spec, self.pool_of(job));
        let ends_us = self.now_us.saturating_add(spec.estimate_us);
        let later = self.reservations.values().filter(|r| {
            self.spec.teams[r.team].pool == pool && r.start_us > self.now_us && ends_us <= r.start_us
        });
        later.map(|r| &r.nodes).find_map(|nodes| self.nodes.fit_among(nodes, spec.model, gpus))
    }
}
