//! Sums a job up in three sentences: its state, why it waits or where its time went, and what would
//! help most.

use super::Explanation;
use super::format::{duration, hours, percent, thousandths, time};
use super::gpu_time::{GpuTime, Straggler};

/// At most three sentences; one that nothing is known of is left out.
pub fn sentences(explanation: &Explanation) -> Vec<String> {
    let reason = match explanation.state {
        "waiting" => {
            explanation.waits.last().map(|wait| format!("Why: {}.", full_stop_apart(&wait.evidence)))
        }
        _ => explanation.held.as_ref().map(|held| of_time(explanation, held)),
    };
    let helps = format!("What helps most: {}.", full_stop_apart(&explanation.helps));
    [Some(state(explanation)), reason, Some(helps)].into_iter().flatten().collect()
}

fn state(explanation: &Explanation) -> String {
    let job = &explanation.job;
    let team = job.team.as_ref().map_or_else(String::new, |team| format!(" of team {team}"));
    let gpus = match job.gpus_milli {
        None => "GPUs".to_owned(),
        Some(1_000) => "1 GPU".to_owned(),
        Some(gpus) => format!("{} GPUs", thousandths(gpus)),
    };
    let since = explanation.since.as_deref().map_or_else(|| "a time that is not known".into(), time);
    let name = format!("Job {}{team}", job.job_id);
    match explanation.state {
        "waiting" => {
            let submitted = job.submit_time.as_deref().map_or_else(|| since.clone(), time);
            format!("{name} has waited for {gpus} since {submitted}.")
        }
        "running" => format!("{name} runs on {gpus} since {since}."),
        _ => {
            let how = job.final_state.as_deref().unwrap_or("an unknown state");
            format!("{name} ended {since} as {how}, after {} GPU-hours.", hours(job.gpu_ms_held))
        }
    }
}

/// The straggler that slows it now, or the largest class of its GPU time.
fn of_time(explanation: &Explanation, held: &GpuTime) -> String {
    let slow = held.straggler().filter(|_| explanation.state == "running");
    if let Some(slow) = slow {
        return format!("It is slower since {}: {}.", time(&slow.onset_time), blamed(slow));
    }
    let all = held.gpu_ms();
    let share =
        |class: &str| held.ledger.iter().filter(|it| it.class == class).map(|it| it.gpu_ms).sum::<i64>();
    let productive = format!("{} of its GPU time was productive", percent(share("productive"), all));
    let largest = held.ledger.iter().find(|class| class.class != "productive");
    match largest {
        None if all == 0 => "The ledger has none of its GPU time yet.".into(),
        None => format!("{productive}."),
        Some(class) => format!(
            "{productive}; the largest other part is {}, {}.",
            class.class,
            percent(class.gpu_ms, all)
        ),
    }
}

/// Who is slow, by how much and why, e.g. `rank 12 on gpu-02 takes 19.0 % longer
/// (COMPUTE_THERMAL)`.
pub fn blamed(slow: &Straggler) -> String {
    let place = match (slow.rank, slow.node.as_deref()) {
        (Some(rank), Some(node)) => format!("rank {rank} on {node}"),
        (Some(rank), None) => format!("rank {rank}"),
        (None, Some(node)) => node.to_owned(),
        (None, None) => "a part that is not known".into(),
    };
    let by = slow.slowdown_ppm.map_or_else(String::new, |ppm| format!(" {}", percent(ppm, 1_000_000)));
    let class = slow.class.as_deref().map_or_else(String::new, |class| format!(" ({class})"));
    let lasts = slow.for_ms.map_or_else(String::new, |ms| format!(", for {}", duration(ms)));
    format!("{place} takes{by} longer{class}{lasts}")
}

/// A sentence without its full stop.
fn full_stop_apart(text: &str) -> &str {
    text.strip_suffix('.').unwrap_or(text)
}
