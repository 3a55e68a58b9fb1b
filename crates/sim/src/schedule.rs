//! The scheduler: which waiting job starts next.

use crate::{Backfill, JobState, PPM, Sim, curve::relative_ppm, nodes::Held};

/// Result of trying to start a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartAttempt {
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
            match self.try_start(job) {
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
            let _tried = self.try_start(job);
        }
    }

    fn try_start(&mut self, job: u32) -> StartAttempt {
        let spec = &self.jobs[job as usize].spec;
        let (team, pool) = (spec.team, self.pool_of(job));
        let room = self.limits[team].map_or(u32::MAX, |l| l.saturating_sub(self.held_by_team[team]));
        let smaller = self.spec.schedule.start_smaller;
        let least = if smaller { spec.sizes().0 } else { spec.gpus };
        if least > room {
            return StartAttempt::OverQuota;
        }
        let mut size = spec.gpus.min(room);
        loop {
            let free = self.nodes.fit(pool, spec.model, size, spec.loan);
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

    /// EASY backfill: starts jobs that end before the head could start, or leave it enough GPUs.
    fn backfill(&mut self, pool: usize, head: u32, open: &[usize], depth: usize) {
        let need = i64::from(self.jobs[head as usize].spec.gpus);
        let (own, lent) = self.nodes.free(pool);
        let mut free = i64::from(own + if self.jobs[head as usize].spec.loan { lent } else { 0 });
        if own + lent == 0 {
            return;
        }
        let mut shadow_us = i64::MAX;
        for (end_us, job) in &self.ends {
            if free >= need {
                break;
            }
            if self.pool_of(*job) == pool {
                free += i64::from(self.jobs[*job as usize].gpus());
                shadow_us = (*end_us).max(self.now_us);
            }
        }
        if free < need {
            shadow_us = i64::MAX;
        }
        let mut spare = (free - need).max(0);
        let waiting = open.iter().flat_map(|t| self.queues[*t].iter().take(depth + 1));
        let mut waiting: Vec<(i32, u32)> = waiting.filter(|key| key.1 != head).copied().collect();
        waiting.sort_unstable();
        for (_, job) in waiting.into_iter().take(depth) {
            let spec = &self.jobs[job as usize].spec;
            let gpus = i64::from(spec.gpus);
            let ends_before = self.now_us.saturating_add(spec.estimate_us) <= shadow_us;
            if !ends_before && gpus > spare {
                continue;
            }
            let started = self.try_start(job) == StartAttempt::Started;
            if started && !ends_before {
                spare -= i64::from(self.jobs[job as usize].gpus());
            }
        }
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
