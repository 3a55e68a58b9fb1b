//! What happens beside the simulation: jobs of the script, mishaps, and events of nodes.

use tidegate_events::{Event, v1};

use super::{REGISTER, Site, Working, source_of};
use crate::DemoError;
use crate::feed::Observation;
use crate::levels::Load;
use crate::plan::{self, POOLS};
use crate::queue::{Job, OnNode};
use crate::script::{self, DEV_NODE, Does, Mishap, Scripted};

impl Site {
    /// Starts and ends jobs of the script; their holds are what a prolog reports.
    pub(super) fn follow_script(&mut self, seen: &mut Vec<Observation>) -> Result<(), DemoError> {
        while let Some(job) = self.script.last().copied().filter(|job| job.from_ms <= self.now_ms) {
            self.script.pop();
            let is_whole = job.slice.is_none() && job.share_milli.is_none();
            self.queue.submit(job.id, of_script(&job));
            let on = OnNode { node: DEV_NODE, gpus: vec![job.gpu] };
            self.queue.start_on(job.id, job.from_ms, on, is_whole);
            let mut load = Load::new(self.draw.of(6).of(job.id));
            load.memory_bytes = match job.does {
                Does::Leaks(_) => 18 << 30,
                Does::Notebook(..) => 7 << 30,
                _ => 22 << 30,
            };
            self.working
                .insert(job.id, Working { does: job.does, load, training: None, since_ms: job.from_ms });
            self.begins(job.id, job.from_ms);
            if job.from_ms > self.times.watched_ms {
                seen.push(self.prolog(&job, v1::JobEventKind::DeviceHeld, job.from_ms));
            }
        }
        let over: Vec<Scripted> = script::jobs(&self.times)
            .into_iter()
            .filter(|job| job.to_ms <= self.now_ms && self.working.contains_key(&job.id))
            .collect();
        for job in over {
            seen.push(self.prolog(&job, v1::JobEventKind::DeviceReleased, job.to_ms));
            self.ends(job.id, job.to_ms, job.state, seen)?;
        }
        Ok(())
    }

    /// What the prolog of a job of the script reports, or its epilog.
    fn prolog(&self, job: &Scripted, kind: v1::JobEventKind, at_ms: i64) -> Observation {
        let agent = &self.agents[DEV_NODE];
        let slices = agent.units.iter().filter(|unit| unit.device.index == job.gpu && unit.slices.is_some());
        let slice = job.slice.and_then(|slice| slices.clone().nth(slice));
        let event = Event::Job(v1::JobEvent {
            envelope: Some(v1::Envelope { event_time_ms: at_ms, ..v1::Envelope::default() }),
            kind: kind.into(),
            job_id: job.id.to_string(),
            hold_id: Some(format!("{}/{}/{}", agent.name, job.id, job.gpu)),
            node: Some(agent.name.clone()),
            gpu_uuid: Some(agent.uuid(job.gpu).to_owned()),
            mig_uuid: slice.and_then(|unit| unit.device.mig_uuid.clone()),
            gpu_index: Some(job.gpu),
            hold_quality: Some(if job.share_milli.is_some() { "SHARED_ESTIMATED" } else { "EXACT" }.into()),
            hold_evidence: Some("prolog".into()),
            share_milli: job.share_milli,
            ..v1::JobEvent::default()
        });
        Observation { source: source_of(DEV_NODE), at_ms: at_ms.max(self.times.watched_ms), event }
    }

    /// Lets mishaps happen whose time has come, to nodes on which jobs run.
    pub(super) fn let_happen(&mut self) {
        while let Some((at_ms, what)) = self.mishaps.pop_if(|(at_ms, _)| *at_ms <= self.now_ms) {
            let is_first = what != Mishap::GpuLost;
            let Some(on) = self.node_of(is_first) else { continue };
            let (node, gpu, now_us) = (on.node, on.gpus[on.gpus.len() / 2], self.target.sim().now_us());
            if what == Mishap::TooHot {
                self.hot = Some((node, gpu));
                self.target.plan_speed(now_us, node as u32, script::HOT_PPM);
                continue;
            }
            self.target.plan_failure(now_us, node as u32, script::REPAIR_MS * 1_000);
            if at_ms > self.times.watched_ms {
                self.incidents.push(script::xid(node, gpu, self.now_ms - 4_000, 79));
            }
            self.incidents.extend(script::repair(node, self.now_ms));
            self.incidents.sort_by_key(|incident| -incident.at_ms);
        }
    }

    /// A node of the job that always trains, or else of the largest of the others, rather one that
    /// trains too.
    fn node_of(&self, of_first: bool) -> Option<OnNode> {
        let trains = |id: &u64| self.working.get(id).is_some_and(|working| working.training.is_some());
        let held = |(id, job): (u64, &Job)| Some((id, job.hold.clone()?));
        let simulated = self.queue.jobs().filter(|(_, job)| job.pool == POOLS[0]).filter_map(held);
        let (_, hold) = simulated
            .filter(|(id, _)| of_first || *id != plan::FIRST_JOB)
            .max_by_key(|(id, hold)| (of_first && *id == plan::FIRST_JOB, trains(id), hold.gpus()))?;
        hold.on.last().cloned()
    }

    pub(super) fn report_incidents(&mut self, seen: &mut Vec<Observation>) {
        while let Some(incident) = self.incidents.pop_if(|incident| incident.at_ms <= self.now_ms) {
            let is_start = incident.event.kind() == v1::NodeEventKind::CollectorStarted;
            let (node, at_ms) = (incident.node, incident.at_ms);
            let source = if incident.by_agent { source_of(node) } else { REGISTER.to_owned() };
            let uuid = incident.gpu.map(|gpu| self.agents[node].uuid(gpu).to_owned());
            let event = Event::Node(incident.into_event(uuid.as_deref()));
            seen.push(Observation { source, at_ms, event });
            if is_start && node == DEV_NODE {
                let held: Vec<Scripted> =
                    script::jobs(&self.times).into_iter().filter(|job| job.from_ms <= at_ms).collect();
                seen.extend(
                    held.iter().map(|job| self.prolog(job, v1::JobEventKind::DeviceHeld, job.from_ms)),
                );
            }
        }
    }
}

fn of_script(job: &Scripted) -> Job {
    Job {
        name: job.name.into(),
        team: job.team.into(),
        user: job.user.into(),
        pool: POOLS[2],
        gpus: u32::from(job.share_milli.is_none()),
        priority: 50_000,
        limit_ms: 7 * plan::DAY_MS,
        submit_ms: job.from_ms,
        hold: None,
    }
}
