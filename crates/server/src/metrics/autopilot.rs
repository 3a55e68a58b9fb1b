//! Metrics of an autopilot: whether it is alive, and how it meets its objectives.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    cluster: String,
    objective: String,
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AlertLabels {
    cluster: String,
    objective: String,
    kind: String,
    severity: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterLabel {
    cluster: String,
}

/// How an autopilot keeps one objective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectiveKept {
    /// promises, verified or cycles.
    pub objective: &'static str,
    /// Kind of decision, or all.
    pub kind: &'static str,
    /// Share that went well, millionths; `None`: nothing happened.
    pub attained_ppm: Option<u64>,
    /// Share of the error budget that is left, millionths; `None`: nothing happened.
    pub budget_left_ppm: Option<i64>,
    /// How many times as fast as it may the budget burned in the last hour, thousandths; `None`:
    /// nothing happened.
    pub burn_rate_milli: Option<u64>,
    /// Severities of the alerts that stand.
    pub alerts: Vec<&'static str>,
}

/// State of an autopilot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutopilotKept {
    /// Its cluster.
    pub cluster: String,
    /// Its last step, seconds since the epoch.
    pub stepped_s: i64,
    /// It holds the lease.
    pub acts: bool,
    /// Its objectives.
    pub objectives: Vec<ObjectiveKept>,
}

/// Writes the gauges. Unknown values have no series.
#[derive(Default)]
pub(super) struct Gauges {
    stepped: Family<ClusterLabel, Gauge>,
    acts: Family<ClusterLabel, Gauge>,
    attained: Family<Labels, Gauge>,
    left: Family<Labels, Gauge>,
    burning: Family<Labels, Gauge>,
    alerts: Family<AlertLabels, Gauge>,
}

impl Gauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let own = Self::default();
        let registry = registry.sub_registry_with_prefix("tidegate_autopilot");
        registry.register(
            "last_step_seconds",
            "When it last stepped, seconds since the epoch",
            own.stepped.clone(),
        );
        registry.register("acts", "1 if it holds the lease", own.acts.clone());
        registry.register("slo_attained_ppm", "Share that went well, millionths", own.attained.clone());
        registry.register("slo_budget_left_ppm", "Error budget that is left, millionths", own.left.clone());
        let burn = "How many times as fast as it may the error budget burned in the last hour, thousandths";
        registry.register("slo_burn_rate_milli", burn, own.burning.clone());
        registry.register("slo_alerts", "Burn-rate alerts that stand", own.alerts.clone());
        own
    }

    pub(super) fn observe(&self, kept: &AutopilotKept) {
        let cluster = &kept.cluster;
        let of = || ClusterLabel { cluster: cluster.clone() };
        self.stepped.get_or_create(&of()).set(kept.stepped_s);
        self.acts.get_or_create(&of()).set(i64::from(kept.acts));
        self.alerts.clear();
        [&self.attained, &self.left, &self.burning].iter().for_each(|family| family.clear());
        for one in &kept.objectives {
            let (objective, kind) = (one.objective.to_owned(), one.kind.to_owned());
            let labels =
                Labels { cluster: cluster.clone(), objective: objective.clone(), kind: kind.clone() };
            let known = |value: Option<u64>| value.and_then(|value| i64::try_from(value).ok());
            for (family, value) in [
                (&self.attained, known(one.attained_ppm)),
                (&self.left, one.budget_left_ppm),
                (&self.burning, known(one.burn_rate_milli)),
            ] {
                if let Some(value) = value {
                    family.get_or_create(&labels).set(value);
                }
            }
            for severity in ["page", "ticket"] {
                let standing = one.alerts.iter().filter(|alert| **alert == severity).count();
                let severity = severity.to_owned();
                let labels = AlertLabels {
                    cluster: cluster.clone(),
                    objective: objective.clone(),
                    kind: kind.clone(),
                    severity,
                };
                self.alerts.get_or_create(&labels).set(i64::try_from(standing).unwrap_or(i64::MAX));
            }
        }
    }
}
