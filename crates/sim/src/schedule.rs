//! The scheduler: which waiting job starts next.

use crate::{
    Backfill, JobState, PPM, Sim,
    curve::relative_ppm,
    nodes::{Held, Room},
};

/// Result of trying to start a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartAttempt {
    Started,
    OverQuota,
    NoRoom,
}

impl Sim {
    /// Pool that a job runs in.
    pub fn pool_of(&self, job: u32) -> usize {
        self.spec.teams[self.jobs[job as usize].spec.team].pool
    }

    /// Starts every job that can start.
    pub(crate) fn schedule(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        for pool in 0..self.spec.pools.len() {
            self.schedule_pool(pool);
        }
    }

    /// First come, first served over all teams of a pool. A team at its quota blocks only itself. A
    /// job without room blocks all behind it, except those that backfill lets pass.
    fn schedule_pool(&mut self, pool: usize) {
        self.schedule_reserved(pool);
        let teams = &self.spec.teams;
        let mut open: Vec<usize> = (0..teams.len()).filter(|t| teams[*t].pool == pool).collect();
        loop {
            let heads = open.iter().filter_map(|t| self.queues[*t].first().map(|head| (*head, *t)));
            let Some(((_, job), team)) = heads.min() else { return };
            match self.try_start(job, None) {
                StartAttempt::Started => {}
                StartAttempt::OverQuota => {
                    open.retain(|t| *t != team);
                    if self.spec.schedule.pass_at_quota {
                        self.pass(team);
                    }
                }
                StartAttempt::NoRoom => {
                    if self.spec.schedule.preempt {
                        self.preempt_for(pool, job);
                    }
                    if let Backfill::Easy { depth } = self.spec.schedule.backfill {
                        self.backfill(pool, job, &open, depth);
                    }
                    return;
                }
            }
        }
    }

    /// Starts later jobs of a team whose first job is held back by its quota.
    fn pass(&mut self, team: usize) {
        const LOOKED_AT: usize = 100;
        let behind: Vec<u32> = self.queues[team].iter().skip(1).take(LOOKED_AT).map(|key| key.1).collect();
        for job in behind {
            let _tried = self.try_start(job, None);
        }
    }

    /// Starts a job if its team's quota and the free GPUs allow it; in `room` alone if given.
    pub(crate) fn try_start(&mut self, job: u32, room: Option<&Room>) -> StartAttempt {
        let spec = &self.jobs[job as usize].spec;
        let (team, pool) = (spec.team, self.pool_of(job));
        let quota = self.limits[team].map_or(u32::MAX, |l| l.saturating_sub(self.held_by_team[team]));
        let smaller = self.spec.schedule.start_smaller;
        let least = if smaller { spec.sizes().0 } else { spec.gpus };
        if least > quota {
            return StartAttempt::OverQuota;
        }
        let mut size = spec.gpus.min(quota);
        loop {
            let free = match room {
                Some(room) => room.fit(spec.model, size, spec.loan),
                None => self.nodes.fit(pool, spec.model, size, spec.loan),
            };
            if let Some(held) = free.or_else(|| self.fit_before_reservations(job, size)) {
                self.begin(job, held);
                return StartAttempt::Started;
            }
            if size <= least {
                return StartAttempt::NoRoom;
            }
            size = (size / 2).max(least);
        }
    }

    /// Takes a job out of the queue and starts it.
    pub(crate) fn begin(&mut self, job: u32, held: Held) {
        let pause_us = self.latency().start_us + self.jobs[job as usize].spec.restart_us;
        let now_us = self.now_us;
        let j = &mut self.jobs[job as usize];
        j.waited_us += now_us - j.queued_us;
        let (team, key) = (j.spec.team, (-j.spec.priority, job));
        self.queues[team].remove(&key);
        self.start(job, held, pause_us);
    }

    /// Preempts jobs of lower priority until there is room for `head`; those that lose least first.
    fn preempt_for(&mut self, pool: usize, head: u32) {
        let spec = &self.jobs[head as usize].spec;
        let (need, priority, loan) = (spec.gpus, spec.priority, spec.loan);
        let (own, lent) = self.nodes.free(pool);
        let mut room = own + if loan { lent } else { 0 };
        let mut victims: Vec<(i32, i128, u32)> = Vec::new();
        for job in &self.running {
            let j = &self.jobs[*job as usize];
            if self.pool_of(*job) != pool || j.spec.priority >= priority {
                continue;
            }
            if j.closing.is_some() {
                room += j.gpus();
            } else {
                victims.push((j.spec.priority, j.at_risk_gpu_us(self.now_us), *job));
            }
        }
        let total: u32 = room + victims.iter().map(|v| self.jobs[v.2 as usize].gpus()).sum::<u32>();
        if total < need {
            return;
        }
        victims.sort_unstable();
        for (_, _, job) in victims {
            if room >= need {
                return;
            }
            room += self.jobs[job as usize].gpus();
            self.preempt(job);
        }
    }

    /// Remaining run time of a job on `gpus` GPUs, without checkpoints and restarts, µs.
    pub fn remaining_us(&self, job: u32, gpus: u32) -> i64 {
        let j = &self.jobs[job as usize];
        let left = j.work() - j.progress(self.now_us);
        let rate = match j.spec.elastic {
            Some(e) => relative_ppm(&self.spec.curves[e.curve], gpus, j.spec.gpus),
            None => PPM,
        };
        (left / i128::from(rate.max(1))) as i64
    }

    /// Whether a job may be changed: it runs and has no notice.
    pub fn is_steady(&self, job: u32) -> bool {
        let j = &self.jobs[job as usize];
        j.state == JobState::Running && j.closing.is_none()
    }
}
