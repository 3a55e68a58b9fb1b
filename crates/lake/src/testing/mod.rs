//! Support for tests of pipelines and of the lake, also used by `tidegate pipeline test` and
//! `tidegate chaos log`.

pub mod equivalence;
pub mod histories;

use crate::pipeline::Pipeline;

/// The pipelines with these names, and all they are computed from.
pub fn with_dependencies(mut all: Vec<Pipeline>, mut wanted: Vec<String>) -> Vec<Pipeline> {
    let mut next = 0;
    while next < wanted.len() {
        let sources = all.iter().filter(|p| p.name == wanted[next]).flat_map(|p| p.sources.clone());
        let new: Vec<String> = sources.filter(|source| !wanted.contains(source)).collect();
        wanted.extend(new);
        next += 1;
    }
    all.retain(|pipeline| wanted.contains(&pipeline.name));
    all
}
