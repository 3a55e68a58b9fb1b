//! Changes from outside: lend and call back nodes, resize and stop jobs, drain nodes, set quotas.

use crate::{AttemptEnd, Place, Sim, SimEvent, job::Closing, nodes::Held, sim::Unsaved};

/// Why a change was refused. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The node is in the wrong state.
    #[error("node {node} is {found}; it must be {must}")]
    Node {
        /// The node.
        node: u32,
        /// The state it must be in.
        must: &'static str,
        /// The state it is in.
        found: String,
    },
    /// A job does not allow the change.
    #[error("job {job} {why}")]
    Job {
        /// The job.
        job: u32,
        /// The reason.
        why: &'static str,
    },
    /// A reservation cannot be made or changed so.
    #[error("reservation {name} {why}")]
    Reservation {
        /// Its name.
        name: String,
        /// The reason.
        why: String,
    },
    /// There are not enough free GPUs.
    #[error("there is no room for {gpus} more GPUs")]
    NoRoom {
        /// GPUs asked for.
        gpus: u32,
    },
}

impl Sim {
    /// Lends a node of a service to the jobs of pool `to`. Takes
    /// [`Latency::handover_us`](crate::Latency).
    ///
    /// # Errors
    /// [`ControlError::Node`] if the node is not at home, has no service, is down or drained.
    pub fn lend(&mut self, node: u32, to: usize) -> Result<(), ControlError> {
        let n = self.nodes.get(node);
        let serves = self.services.iter().any(|s| s.pool == n.pool);
        if n.place != Place::Home || !n.up || n.drained || !serves || n.pool == to {
            let found = format!("{:?}, up: {}, drained: {}, serving: {serves}", n.place, n.up, n.drained);
            return Err(ControlError::Node { node, must: "at home, up, not drained, of a service", found });
        }
        self.actions += 1;
        self.lent_nodes += 1;
        self.place(node, Place::Leaving { to });
        self.schedule_move(node, self.latency().handover_us);
        Ok(())
    }

    /// Calls a lent node back: it takes no new jobs. Once empty, it is handed over and loads a
    /// model.
    ///
    /// # Errors
    /// [`ControlError::Node`] if the node is not lent.
    pub fn call_back(&mut self, node: u32) -> Result<(), ControlError> {
        match self.nodes.get(node).place {
            Place::Lent { to } | Place::Leaving { to } => {
                self.actions += 1;
                self.place(node, Place::Called { to });
                self.hand_over_emptied(&vec![(node, 0)]);
                Ok(())
            }
            place => Err(ControlError::Node { node, must: "on loan", found: format!("{place:?}") }),
        }
    }

    /// Calls a node back and stops its jobs. Elastic jobs give up the node if their minimum size is
    /// left; others return to the queue.
    ///
    /// # Errors
    /// [`ControlError::Node`] if the node is not lent.
    pub fn clear_and_call_back(&mut self, node: u32, notice: bool) -> Result<(), ControlError> {
        self.call_back(node)?;
        self.clear(node, notice);
        Ok(())
    }

    /// Stops the jobs on a called-back node that have no notice yet.
    pub(crate) fn clear(&mut self, node: u32, notice: bool) {
        for job in self.nodes.get(node).jobs.clone() {
            let leaving = |n: u32| matches!(self.nodes.get(n).place, Place::Called { .. });
            let kept: Held = self.jobs[job as usize].held.iter().filter(|h| !leaving(h.0)).copied().collect();
            if self.shrink(job, kept, notice).is_err() {
                self.evict(job, notice);
            }
        }
    }

    /// Shrinks an elastic job to some of its GPUs.
    ///
    /// # Errors
    /// [`ControlError::Job`] if it does not run, has notice, is not elastic, or would have less
    /// than its least size.
    pub fn shrink(&mut self, job: u32, keep: Held, notice: bool) -> Result<(), ControlError> {
        let refuse = |why| Err(ControlError::Job { job, why });
        if !self.is_steady(job) {
            return refuse("does not run, or was told to go");
        }
        let j = &self.jobs[job as usize];
        let Some(elastic) = j.spec.elastic else { return refuse("is not elastic") };
        let gpus: u32 = keep.iter().map(|h| h.1).sum();
        if gpus < elastic.min_gpus || gpus >= j.gpus() {
            return refuse("would not have fewer GPUs, or less than its least size");
        }
        let had = |k: &(u32, u32)| j.held.iter().any(|h| h.0 == k.0 && h.1 >= k.1);
        if !keep.iter().all(had) {
            return refuse("does not hold what it shall keep");
        }
        self.actions += 1;
        self.schedule_closing(job, Closing::Keep(keep), notice);
        Ok(())
    }

    /// Grows an elastic job: it writes a checkpoint and restarts at its new size, holding all GPUs
    /// meanwhile.
    ///
    /// # Errors
    /// [`ControlError`] if it does not run, is not elastic, would exceed its maximum size or its
    /// team's limit, or there is no room.
    pub fn grow(&mut self, job: u32, gpus: u32) -> Result<(), ControlError> {
        let refuse = |why| Err(ControlError::Job { job, why });
        if !self.is_steady(job) {
            return refuse("does not run, or was told to go");
        }
        let j = &self.jobs[job as usize];
        let (Some(elastic), Some(_)) = (j.spec.elastic, j.spec.checkpoint) else {
            return refuse("is not elastic, or writes no checkpoints");
        };
        if gpus > elastic.max_gpus || gpus <= j.gpus() {
            return refuse("would not have more GPUs, or more than its largest size");
        }
        let (extra, team) = (gpus - j.gpus(), j.spec.team);
        if self.limits[team].is_some_and(|limit| self.held_by_team[team] + extra > limit) {
            return refuse("belongs to a team that is at its limit");
        }
        let model = j.held.first().map(|h| self.nodes.get(h.0).model);
        let more = self.nodes.fit(self.pool_of(job), model, extra, j.spec.loan);
        let mut held = j.held.clone();
        for (node, count) in more.ok_or(ControlError::NoRoom { gpus: extra })? {
            match held.iter_mut().find(|h| h.0 == node) {
                Some(h) => h.1 += count,
                None => held.push((node, count)),
            }
        }
        let pause_us = self.latency().checkpoint_us + j.spec.restart_us;
        self.actions += 1;
        let j = &self.jobs[job as usize];
        let attempt = j.attempts - 1;
        self.settle(job, 0, Unsaved::Saved);
        self.release(job);
        self.emit(|| SimEvent::Ended { job, attempt, how: AttemptEnd::Resized });
        self.start(job, held, pause_us);
        Ok(())
    }

    /// Stops a job and puts it back into the queue. With notice it has time to write a checkpoint,
    /// if it can.
    pub fn evict(&mut self, job: u32, notice: bool) {
        if self.is_steady(job) {
            self.actions += 1;
            self.schedule_closing(job, Closing::Requeue, notice);
        }
    }

    /// Stops a job for one of higher priority; the scheduler does this.
    pub(crate) fn preempt(&mut self, job: u32) {
        self.schedule_closing(job, Closing::Requeue, true);
    }

    fn schedule_closing(&mut self, job: u32, closing: Closing, notice: bool) {
        let latency = self.latency();
        let saved = notice && self.jobs[job as usize].spec.checkpoint.is_some_and(|c| c.on_notice);
        let notice_us = if notice { latency.notice_us } else { 0 };
        let after_us = notice_us + latency.kill_us + if saved { latency.checkpoint_us } else { 0 };
        let j = &mut self.jobs[job as usize];
        j.closing = Some(closing);
        self.schedule_close(job, after_us, saved);
    }

    /// Sets the GPU limit of a team. No job is stopped for it.
    pub fn set_limit(&mut self, team: usize, gpus: Option<u32>) {
        self.actions += 1;
        self.limits[team] = gpus;
        self.dirty = true;
        self.emit(|| SimEvent::LimitSet { team, gpus });
    }

    /// Drains a node, or puts it back into service.
    pub fn set_drained(&mut self, node: u32, drained: bool) {
        if self.nodes.get(node).drained != drained {
            self.actions += 1;
            self.nodes.change(node, |n| n.drained = drained);
            self.dirty = true;
            self.emit(|| SimEvent::NodeDrained { node, drained });
        }
    }

    fn place(&mut self, node: u32, place: Place) {
        self.nodes.change(node, |n| {
            n.place = place;
            n.epoch += 1;
        });
        self.emit(|| SimEvent::NodeMoved { node, place });
    }

    /// Hands over called-back nodes that their last job has left.
    pub(crate) fn hand_over_emptied(&mut self, nodes: &Held) {
        for (node, _) in nodes {
            let n = self.nodes.get(*node);
            if matches!(n.place, Place::Called { .. }) && n.jobs.is_empty() {
                self.place(*node, Place::Handover);
                self.schedule_move(*node, self.latency().handover_us);
            }
        }
    }

    /// A node completes a step between owner and borrower.
    pub(crate) fn advance_move(&mut self, node: u32) {
        match self.nodes.get(node).place {
            Place::Leaving { to } => {
                self.place(node, Place::Lent { to });
                self.dirty = true;
            }
            Place::Handover => {
                self.place(node, Place::Loading);
                self.schedule_move(node, self.latency().load_us);
            }
            Place::Loading => self.place(node, Place::Home),
            Place::Home | Place::Lent { .. } | Place::Called { .. } => {}
        }
    }
}
