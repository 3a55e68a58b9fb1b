//! Prints the explanation of a job as text.

use super::format::{duration, hours, thousandths, time};
use super::{Attempt, Explanation, Job, Wait, gpu_time_text, summary};

pub fn print(explanation: &Explanation) {
    for sentence in summary::sentences(explanation) {
        say!("{sentence}");
    }
    let job = &explanation.job;
    say!("\njob {} of cluster {}{}", job.job_id, job.cluster, about(job));
    say!("{}", state(explanation));
    let present =
        explanation.waits.last().filter(|wait| explanation.state == "waiting" && wait.until.is_none());
    if let Some(wait) = present {
        say!("\nwhy          {}", why(wait));
        say!("since        {}", time(&wait.since));
        say!("evidence     {}", wait.evidence);
        say!(
            "starts when  {}",
            wait.starts_when.as_deref().unwrap_or("not known, since it is not known what it waits for")
        );
    }
    if !explanation.waits.is_empty() {
        say!("\nwaits");
        for wait in &explanation.waits {
            say!(
                "  {}  {:>9}  {:>9} GPU-h  {}",
                time(&wait.since),
                duration(wait.waited_ms),
                wait.gpu_ms_waited.map_or_else(|| "?".into(), hours),
                why(wait)
            );
            if present.is_none_or(|present| !std::ptr::eq(present, wait)) {
                say!("      {}", wait.evidence);
            }
        }
    }
    if !explanation.attempts.is_empty() {
        say!("\nattempts");
        explanation.attempts.iter().for_each(attempt);
    }
    if explanation.attempts.is_empty() || job.gpu_ms_held == 0 {
        return;
    }
    if explanation.state == "ended" {
        say!("\nhow its time went");
        say!("  waited  {:>9} GPU-h", hours(job.gpu_ms_queued));
        say!("  held    {:>9} GPU-h", hours(job.gpu_ms_held));
        say!("  of it   {:>9} GPU-h in runs that were followed by another one", hours(job.gpu_ms_lost));
    }
    if let Some(held) = &explanation.held {
        gpu_time_text::print(held, job.gpu_ms_held);
    }
}

fn about(job: &Job) -> String {
    let parts = [("", &job.job_name), ("team ", &job.team), ("user ", &job.user_name), ("pool ", &job.pool)];
    let known = parts.iter().filter_map(|(what, text)| text.as_ref().map(|text| format!("{what}{text}")));
    let gpus = job.gpus_milli.map(|gpus| format!("{} GPUs", thousandths(gpus)));
    known.chain(gpus).map(|part| format!(", {part}")).collect()
}

fn state(explanation: &Explanation) -> String {
    let job = &explanation.job;
    let since = explanation.since.as_deref().map_or_else(|| "a time that is not known".into(), time);
    let as_of = job.as_of.as_deref().map_or_else(String::new, |at| format!(" (known up to {})", time(at)));
    match explanation.state {
        "ended" => {
            format!("ended {since} as {}", job.final_state.as_deref().unwrap_or("it is not known what"))
        }
        "running" => format!("runs since {since}{as_of}"),
        _ => {
            let begun = job.submit_time.as_deref().map_or_else(String::new, time);
            format!("waits{as_of}; submitted {begun}")
        }
    }
}

fn why(wait: &Wait) -> String {
    let layer = match wait.layer {
        Some(1) => "layer 1, reservation or quota",
        Some(2) => "layer 2, provisioning",
        Some(3) => "layer 3, scheduling",
        Some(4) => "layer 4, workload",
        _ => "layer not known",
    };
    match &wait.constraint {
        Some(constraint) => format!("{constraint} ({layer})"),
        None => layer.to_owned(),
    }
}

fn attempt(attempt: &Attempt) {
    let number = attempt.attempt.map_or_else(|| "?".into(), |number| number.to_string());
    let nodes = match (&attempt.nodes, attempt.node_count) {
        (Some(nodes), _) => format!(" on {nodes}"),
        (None, Some(count)) => format!(" on {count} nodes"),
        _ => String::new(),
    };
    let ended = attempt.final_state.as_ref().map_or_else(|| "runs".into(), |state| format!("ended {state}"));
    let lost = if attempt.is_lost == 1 { ", followed by another run" } else { "" };
    say!(
        "  {number}: {}  {:>9}  {:>9} GPU-h  {} GPUs{nodes}, {ended}{lost}",
        attempt.from_time.as_deref().map_or_else(String::new, time),
        attempt.held_ms.map_or_else(|| "?".into(), duration),
        hours(attempt.gpu_ms_held),
        attempt.gpus_milli.map_or_else(|| "?".into(), thousandths),
    );
}
