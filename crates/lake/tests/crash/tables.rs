//! Which tables are kept.

use tidegate_lake::pipeline::Pipeline;
use tidegate_lake::plan::Plan;

/// Tables of each kind: raw, samples, keyed, windows computed anew and kept in parts, and with
/// `activity_*`: windows of several topics, and windows of those, twice over.
const FEW: [&str; 7] =
    ["attempts", "gpu_1h", "gpu_1m", "node_health", "stragglers", "training_1m", "usage_1h"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// All that is shipped and stored.
    Shipped,
    /// Some of each kind, in a fraction of the time.
    Few,
}

impl Tables {
    /// The views that nobody asks for are left out; they are computed from tables when asked.
    pub async fn plan(self) -> Plan {
        let shipped = tidegate_lake::shipped::shipped();
        match self {
            Self::Shipped => {
                let all = Plan::compile(shipped.clone()).await.unwrap();
                let is_view = |name: &str| all.views.iter().any(|view| view.spec.name == name);
                let stored = shipped.iter().map(|p| p.name.clone()).filter(|name| !is_view(name));
                let wanted = stored.collect();
                Plan::compile(made_of(shipped, wanted)).await.unwrap()
            }
            Self::Few => {
                let mut few = made_of(shipped, FEW.map(str::to_owned).to_vec());
                few.extend([
                    Pipeline::parse("activity_1m.sql", include_str!("activity_1m.sql")).unwrap(),
                    Pipeline::parse("activity_1h.sql", include_str!("activity_1h.sql")).unwrap(),
                    Pipeline::parse("activity_1d.sql", include_str!("activity_1d.sql")).unwrap(),
                ]);
                Plan::compile(few).await.unwrap()
            }
        }
    }
}

/// The pipelines of these names, and what they are made of.
fn made_of(mut all: Vec<Pipeline>, mut wanted: Vec<String>) -> Vec<Pipeline> {
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
