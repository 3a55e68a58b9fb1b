//! What jobs of the trace are named, whose they are, and what they do with their GPUs.

use tidegate_sim::JobSpec;

use crate::draw::Draw;
use crate::plan::{FIRST_JOB, STUDY};
use crate::script::Does;

/// Names of a team's jobs.
fn names(team: &str) -> [&'static str; 2] {
    match team {
        "language" => ["pretrain-7b", "finetune-7b"],
        "vision" => ["vit-large", "diffusion-xl"],
        "speech" => ["asr-large", "tts-small"],
        _ => ["ablation", "moe-probe"],
    }
}

/// The name of a job, its user, and what it does with its GPUs: most of the larger ones report
/// their steps.
pub(crate) fn habit(draw: Draw, team: &str, spec: &JobSpec, id: u64) -> (&'static str, String, Does) {
    let names = names(team);
    if id == FIRST_JOB || spec.priority == STUDY {
        return (names[0], format!("{team}-1"), Does::Trains);
    }
    let name = names[draw.of(1).whole(0, 1) as usize];
    let does = match draw.of(2).ratio() {
        at if at < 0.06 => Does::Notebook(8, 18),
        at if at < 0.09 => Does::Nothing,
        _ if spec.gpus >= 4 => Does::Trains,
        _ => Does::Serves,
    };
    (name, format!("{team}-{}", draw.of(3).whole(1, 3)), does)
}
