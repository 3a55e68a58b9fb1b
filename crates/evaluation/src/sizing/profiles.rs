//! Measured step times by size, from the profiles of the Sia simulator (Pollux and AdaptDL).

use std::{collections::BTreeMap, path::Path};

use tidegate_insight::advice::scaling::Size;

use super::SizingEvaluationError;
use crate::columns::Columns;

/// Profile of one model on one kind of hardware.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Model and hardware.
    pub name: String,
    /// Sizes and seconds of a step.
    pub steps: Vec<(Size, f64)>,
}

/// Reads the profiles from `folder`. Skips modelled ones (`gpt_pmp`), a copy (`default`), partly
/// synthetic ones (`dgx-ext`), and those with fewer than three numbers of GPUs or on one node
/// alone.
///
/// # Errors
/// A file or column that is missing.
pub fn profiles(folder: &Path) -> Result<Vec<Profile>, SizingEvaluationError> {
    let file = Columns::read(folder, "sia_scaling_profiles")?;
    let (model, hardware, placement) =
        (file.texts("model")?, file.texts("hardware")?, file.texts("placement")?);
    let (batch, step) = (file.numbers("local_bsz")?, file.numbers("step_time")?);
    let (nodes, replicas) = (file.numbers("num_nodes")?, file.numbers("num_replicas")?);
    let mut by_name: BTreeMap<String, Vec<(Size, f64)>> = BTreeMap::new();
    for row in 0..step.len() {
        if model[row] == "gpt_pmp" || matches!(hardware[row].as_str(), "default" | "dgx-ext") {
            continue;
        }
        let (gpus, nodes) = match placement[row].as_str() {
            "" => (replicas[row] as u32, nodes[row] as u32),
            // One digit per node: its GPUs.
            placement => {
                (placement.chars().filter_map(|digit| digit.to_digit(10)).sum(), placement.len() as u32)
            }
        };
        let size = Size { gpus, nodes, local_batch: batch[row] as u32 };
        by_name.entry(format!("{}/{}", model[row], hardware[row])).or_default().push((size, step[row]));
    }
    by_name.retain(|_, steps| steps.iter().any(|(size, _)| size.nodes > 1));
    Ok(by_name.into_iter().map(|(name, steps)| Profile { name, steps }).collect())
}
