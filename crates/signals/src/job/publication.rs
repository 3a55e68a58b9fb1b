//! Signals of a job's detector as events.

use tidegate_events::{Event, Micros, v1};
use tidegate_insight::straggler::{Blame, Class, Evidence, Signal, Stage, StepReport};

use super::{JobMonitor, MODEL, PublishedEpisode};
use crate::publication::{Publication, envelope, evidence_lines, ppm, producer_name};
use crate::roles::RankLocation;

impl JobMonitor {
    pub(super) fn publication(&mut self, signal: &Signal) -> Publication {
        let output = self.published.entry(signal.episode);
        let output = output
            .and_modify(|output| output.revision += 1)
            .or_insert(PublishedEpisode { revision: 0, detected_us: signal.said_us });
        let PublishedEpisode { revision, detected_us } = *output;
        let location = match signal.blame {
            Blame::Rank(rank) => self.locations.get(rank as usize).cloned().unwrap_or_default(),
            Blame::Node(node) => {
                RankLocation { node: self.nodes.get(node as usize).cloned(), ..RankLocation::default() }
            }
            Blame::Role(_) | Blame::Fabric | Blame::Nobody => RankLocation::default(),
        };
        let attempt = self.attempt.map_or_else(|| "-".to_owned(), |attempt| attempt.to_string());
        let (cluster, job_id, episode) = (&self.cluster, &self.job_id, signal.episode);
        let source =
            producer_name(&[MODEL, cluster, job_id, &attempt, &episode.to_string(), &revision.to_string()]);
        let event = v1::StragglerSignal {
            envelope: envelope(cluster, &source, signal.said_us, 0),
            state: match signal.stage {
                Stage::Suspect => v1::SignalState::Suspect,
                Stage::Confirmed => v1::SignalState::Confirmed,
                Stage::Closed => v1::SignalState::Cleared,
                Stage::Corrected => v1::SignalState::Corrected,
            }
            .into(),
            job_id: job_id.clone(),
            attempt_id: self.attempt,
            episode,
            revision,
            blame: blame(&signal.blame).into(),
            node: location.node,
            gpu_uuid: location.gpu_uuid,
            gpu_index: location.gpu_index,
            rank: if let Blame::Rank(rank) = signal.blame { Some(rank) } else { None }
                .filter(|_| !self.by_devices),
            role: if let Blame::Role(role) = signal.blame { Some(role) } else { None },
            class: class(signal.class).into(),
            posterior_ppm: ppm(signal.posterior),
            onset_ms: Micros(signal.since_us).floor_millis().0,
            detected_ms: Micros(detected_us).floor_millis().0,
            said_ms: Micros(signal.said_us).floor_millis().0,
            slowdown_ppm: (signal.excess * 1e6).round() as i64,
            lost_gpu_ms: signal.lost_gpu_ms,
            evidence: evidence_lines(&signal.evidence),
            model: MODEL.into(),
            pipeline_stage: signal.pipeline_stage,
            cause: (signal.class == Class::Structural).then(|| cause(&signal.evidence)).flatten(),
        };
        Publication { source, events: vec![Event::Straggler(event)] }
    }
}

pub(super) fn step_report(report: &v1::StepReport, run: u32, end_us: i64) -> StepReport {
    StepReport {
        attempt: run,
        rank: report.rank,
        step: report.step,
        end_us,
        duration_us: report.duration_us,
        compute_us: report.compute_us,
        communication_us: report.communication_us,
        data_us: report.data_wait_us,
        tokens: report.tokens,
        squared_tokens: report.squared_tokens,
    }
}

fn blame(blame: &Blame) -> &'static str {
    match blame {
        Blame::Rank(_) => "RANK",
        Blame::Node(_) => "NODE",
        Blame::Role(_) => "ROLE",
        Blame::Fabric => "FABRIC",
        Blame::Nobody => "NOBODY",
    }
}

/// The structural cause of most weight in the evidence; of equal weights, the larger value.
fn cause(evidence: &[Evidence]) -> Option<String> {
    let named = |rule: &str| match rule {
        "long_stage" => Some("LONG_STAGE"),
        "sequence_imbalance" => Some("SEQUENCE_IMBALANCE"),
        "expert_imbalance" => Some("EXPERT_IMBALANCE"),
        "ranks_slower_from_the_start" => Some("SLOWER_FROM_THE_START"),
        _ => None,
    };
    let causes = evidence.iter().filter_map(|evidence| Some((evidence, named(&evidence.rule)?)));
    let most =
        causes.max_by(|(a, _), (b, _)| a.weight.total_cmp(&b.weight).then(a.value.total_cmp(&b.value)));
    most.map(|(_, name)| name.to_owned())
}

fn class(class: Class) -> &'static str {
    match class {
        Class::ComputeThermal => "COMPUTE_THERMAL",
        Class::ComputeSilent => "COMPUTE_SILENT",
        Class::Link => "LINK",
        Class::Host => "HOST",
        Class::Data => "DATA",
        Class::Communication => "COMMUNICATION",
        Class::Structural => "STRUCTURAL",
    }
}
