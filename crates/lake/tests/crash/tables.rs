//! Which tables the crash tests keep.

use tidegate_lake::pipeline::Pipeline;
use tidegate_lake::pipeline::Plan;
use tidegate_lake::testing::with_dependencies;

/// Tables of each kind: raw, samples, keyed, recomputed windows, partial aggregates; and with
/// `activity_*` joined windows, and joined windows of those, twice over.
const FEW: [&str; 7] =
    ["attempts", "gpu_1h", "gpu_1m", "node_health", "stragglers", "training_1m", "usage_1h"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// All that are shipped and stored.
    Shipped,
    /// Some of each kind, in a fraction of the time.
    Few,
}

impl Tables {
    /// Views that no test reads are left out. They are computed from tables on demand.
    pub async fn plan(self) -> Plan {
        let shipped = tidegate_lake::pipeline::shipped();
        match self {
            Self::Shipped => {
                let all = Plan::compile(shipped.clone()).await.unwrap();
                let is_view = |name: &str| all.views.iter().any(|view| view.spec.name == name);
                let stored = shipped.iter().map(|p| p.name.clone()).filter(|name| !is_view(name));
                let wanted = stored.collect();
                Plan::compile(with_dependencies(shipped, wanted)).await.unwrap()
            }
            Self::Few => {
                let mut few = with_dependencies(shipped, FEW.map(str::to_owned).to_vec());
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
