//! Recommendation for a job: one sentence on its largest loss.

use super::Explanation;
use super::format::{duration, hours, percent};
use super::gpu_time::{Bottleneck, GpuTime};

/// Losses below this share of the held time are ignored; then the bottleneck counts.
const WORTH_PERCENT: i64 = 10;

/// Names the largest unproductive part of its GPU time and a remedy; for a waiting job, what starts
/// it.
pub fn best(explanation: &Explanation) -> String {
    if explanation.state == "waiting" {
        let starts = explanation.waits.last().and_then(|wait| wait.starts_when.as_deref());
        return starts.map_or_else(
            || {
                "not known: nobody tells what it waits for; watch its scheduler (tidegate-node watch)"
                    .to_owned()
            },
            |starts| format!("it starts when {starts}"),
        );
    }
    let Some(held) = &explanation.held else { return "nothing: it held no GPU".to_owned() };
    if let Some(ms) = held.memory.first().and_then(|device| device.time_to_oom_ms)
        && explanation.state == "running"
    {
        return format!(
            "save a checkpoint and look for what keeps device memory: it is full in {}",
            duration(ms)
        );
    }
    if let Some(slow) = held.straggler()
        && explanation.state == "running"
    {
        let node = slow.node.as_deref().unwrap_or("the slow part");
        return format!("move it off {node}, or drain that node: all other ranks wait for it");
    }
    let all = held.gpu_ms();
    let class = held.ledger.iter().find(|class| class.class != "productive");
    let class = class.map(|class| (class.gpu_ms, of_class(&class.class, held)));
    let lost = (
        explanation.job.gpu_ms_lost,
        "find out why its runs end, and save checkpoints more often: what runs did before they were followed by another one",
    );
    let (gpu_ms, advice) = class.into_iter().chain([lost]).max_by_key(|(gpu_ms, _)| *gpu_ms).unwrap_or(lost);
    if gpu_ms > 0 && gpu_ms * 100 >= all.max(explanation.job.gpu_ms_held) * WORTH_PERCENT {
        return format!(
            "{advice}: {} GPU-h, {}",
            hours(gpu_ms),
            percent(gpu_ms, all.max(explanation.job.gpu_ms_held))
        );
    }
    let wall = held.walls.iter().find(|wall| wall.label != "unknown");
    wall.map_or_else(|| "nothing that is known: no class of loss is above 10 %".to_owned(), of_wall)
}

fn of_class(class: &str, held: &GpuTime) -> &'static str {
    let is_imbalanced = held.walls.first().is_some_and(|wall| wall.label == "imbalance");
    let is_spread = held.spread.as_ref().is_some_and(|spread| spread.switches > Some(1));
    match class {
        "empty_held" => "let GPUs go that no process uses",
        "idle_held" => "let GPUs go while nothing runs on them, or ask for fewer",
        "active" if !held.runs.is_empty() => {
            "see what it does between steps: it is busy, and no step was reported"
        }
        "active" => "report steps (deploy/clients), so that it shows what the busy time is",
        "startup" => "start faster: images, imports and data that are there before the job is",
        "recovery" => "restart faster: the time from a start to the first step of a later run",
        "restore" => "load checkpoints faster: in parallel, from a near place",
        "redone" => "save checkpoints more often: steps were done again",
        "checkpoint" => "save checkpoints beside computing, or less often",
        "data_stall" => "feed it faster: more loader workers, prefetching, data near the node",
        "communication_stall" if is_imbalanced => {
            "find the slowest rank: the others wait for it in collectives"
        }
        "communication_stall" if is_spread => {
            "place it at one switch, and overlap collectives with computing"
        }
        "communication_stall" => "overlap collectives with computing, or send less",
        "unknown" => "let agents watch its nodes (tidegate-node agent): nobody saw what its GPUs did",
        _ => "see what this time was",
    }
}

fn of_wall(wall: &Bottleneck) -> String {
    let advice = match wall.label.as_str() {
        "compute" => "nothing is in its way but the GPU itself: a lower precision, or faster GPUs",
        "memory_bandwidth" => "move less through device memory: fused kernels, a lower precision",
        "host" | "starved" => "feed it faster: the devices wait for the host",
        "pcie" => "move less between host and device, or from pinned memory",
        "nvlink" | "communication" => "overlap collectives with computing, or send less",
        "imbalance" => "find the slowest rank: the others wait for it",
        _ => "larger batches or fewer, larger kernels: nothing is near its limit",
    };
    advice.to_owned()
}
