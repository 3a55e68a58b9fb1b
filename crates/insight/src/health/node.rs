//! Node health: the probability that a node is bad, from its devices alone.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::xid::{XidClass, xid};
use crate::straggler::{Evidence, Fault};

/// Measurements of a device over the period evaluated. `None` means not measured, never zero.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct DeviceHealth {
    /// The driver no longer lists it.
    pub lost: bool,
    /// Mean SM clock while busy, MHz.
    pub sm_clock_mhz: Option<f64>,
    /// Share of the time with clocks lowered by heat, hardware or a power brake: 0 to 1.
    pub slowdown_share: Option<f64>,
    /// Width of the host link over its greatest width, under load: 0 to 1.
    pub link_width_ratio: Option<f64>,
    /// Replays and recoveries of PCIe and NVLink.
    pub link_retries: Option<u64>,
    /// New uncorrectable ECC errors.
    pub uncorrectable_errors: Option<u64>,
    /// Rows await remapping: a reset is due.
    pub remap_pending: Option<bool>,
    /// A row could not be remapped: the device must be replaced.
    pub remap_failed: Option<bool>,
}

/// Health state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No evidence against it.
    Healthy,
    /// Some evidence: check it before the next large job.
    Watch,
    /// Probably bad: drain when it is free.
    Bad,
    /// A device is lost or must be reset: it does no work.
    Failed,
}

/// Health of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeHealth {
    /// Probability that the node is bad, 0 to 1.
    pub bad: f64,
    /// How it stands.
    pub state: State,
    /// Device of the strongest evidence, by position.
    pub device: Option<usize>,
    /// Evidence against it, strongest first.
    pub evidence: Vec<Evidence>,
}

/// Priors of node health.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HealthPrior {
    /// Probability that any node is bad at a time: about 0.5 % are slow (MegaScale, as Greyhound
    /// cites it), and four per 1,000 node-days fail for 1.5 days (StepFun), 0.6 % more.
    pub bad: f64,
    /// Usual link retries of a healthy device over the period.
    pub retries: f64,
    /// Of a lemon ([`lemons`](super::lemons)): its rate of bad hours relative to the fleet's.
    pub lemon_times: Option<f64>,
}

impl Default for HealthPrior {
    fn default() -> Self {
        Self { bad: 0.01, retries: 1.0, lemon_times: None }
    }
}

/// Weighs a node's devices and faults (`rank` of a fault is the position of the device).
///
/// Naive Bayes in log odds. Each device's strongest item of a kind counts once, so that one broken
/// part reported ten times is not ten parts. Impossible values are ignored. The prior odds of a
/// lemon are multiplied by its relative rate, whatever it shows now, and it is at least watched.
pub fn node_health(devices: &[DeviceHealth], faults: &[Fault], prior: &HealthPrior) -> NodeHealth {
    let mut found: Vec<(usize, Evidence)> = Vec::new();
    let mut failed = false;
    for (at, device) in devices.iter().enumerate() {
        let mut add = |rule: &'static str, value: f64, weight: f64| {
            found.push((at, Evidence { rule: rule.into(), value, weight }))
        };
        if device.lost {
            add("device_lost", 1.0, 6.0);
            failed = true;
        }
        if device.remap_failed == Some(true) {
            add("remap_failed", 1.0, 5.0);
        }
        if device.remap_pending == Some(true) {
            add("remap_pending", 1.0, 2.0);
        }
        if let Some(errors) = device.uncorrectable_errors.filter(|errors| *errors > 0) {
            add("uncorrectable_errors", errors as f64, 3.0);
        }
        if let Some(width) = share(device.link_width_ratio).filter(|width| *width < 0.9) {
            add("link_narrower", width, 3.0);
        }
        let retries = device.link_retries.unwrap_or(0) as f64;
        let score = (retries - prior.retries) / prior.retries.max(0.25).sqrt();
        if score > 10.0 {
            add("link_retries", retries, 2.0);
        }
        let slowed = share(device.slowdown_share).filter(|share| *share > 0.3);
        let ratio = clock_ratio(devices, at).filter(|ratio| *ratio < 0.95);
        match (slowed, ratio) {
            // If all devices of a node are throttled, its cooling is at fault, which still is the
            // node's.
            (Some(share), Some(_)) => add("slowed_down_alone", share, 4.0),
            (Some(share), None) => add("slowed_down", share, 1.5),
            // A lower clock without a reason may be a lighter load.
            (None, Some(ratio)) => add("clock_below_peers", ratio, 1.0),
            (None, None) => {}
        }
    }
    for fault in faults {
        let (rule, value, weight) = match fault.xid.map(|code| (code, xid(code))) {
            Some((_, known)) if known.class == XidClass::Application => continue,
            Some((code, known)) => {
                failed |= known.fatal && known.class == XidClass::Lost;
                ("xid", f64::from(code), known.weight)
            }
            None => ("fault_without_code", 1.0, 2.0),
        };
        found.push((fault.rank as usize, Evidence { rule: rule.into(), value, weight }));
    }
    let lemon = prior.lemon_times.filter(|times| *times > 1.0 && times.is_finite());
    let mut health = conclude(found, failed, prior, lemon);
    if lemon.is_some() {
        health.state = health.state.max(State::Watch);
    }
    health
}

fn conclude(
    mut found: Vec<(usize, Evidence)>,
    failed: bool,
    prior: &HealthPrior,
    lemon: Option<f64>,
) -> NodeHealth {
    found.sort_by(|a, b| {
        let order = b.1.weight.total_cmp(&a.1.weight);
        order.then_with(|| a.1.rule.cmp(&b.1.rule)).then(a.0.cmp(&b.0)).then(a.1.value.total_cmp(&b.1.value))
    });
    let mut seen: Vec<(usize, Cow<'static, str>, u64)> = Vec::new();
    found.retain(|(at, evidence)| {
        // XIDs of different codes are different items.
        let code = if evidence.rule == "xid" { evidence.value.to_bits() } else { 0 };
        let key = (*at, evidence.rule.clone(), code);
        let new = !seen.contains(&key);
        if new {
            seen.push(key);
        }
        new
    });
    let device = found.first().map(|item| item.0);
    let mut evidence: Vec<Evidence> = found.into_iter().map(|item| item.1).collect();
    if let Some(times) = lemon {
        let item = Evidence { rule: "lemon".into(), value: times, weight: times.ln() };
        let at = evidence.partition_point(|other| other.weight >= item.weight);
        evidence.insert(at, item);
    }
    let prior = if prior.bad > 0.0 && prior.bad < 1.0 { prior.bad } else { HealthPrior::default().bad };
    let odds = (prior / (1.0 - prior)).ln() + evidence.iter().map(|item| item.weight).sum::<f64>();
    let bad = 1.0 / (1.0 + (-odds).exp());
    let state = match bad {
        _ if failed => State::Failed,
        bad if bad >= 0.5 => State::Bad,
        bad if bad >= 0.05 => State::Watch,
        _ => State::Healthy,
    };
    NodeHealth { bad, state, device, evidence }
}

fn share(value: Option<f64>) -> Option<f64> {
    value.filter(|value| (0.0..=1.0).contains(value))
}

/// Clock of a device over the median of the node's others; `None` with fewer than two others.
fn clock_ratio(devices: &[DeviceHealth], at: usize) -> Option<f64> {
    let clock = |device: &DeviceHealth| device.sm_clock_mhz.filter(|clock| *clock > 0.0 && clock.is_finite());
    let others = devices.iter().enumerate().filter(|(other, _)| *other != at);
    let mut others: Vec<f64> = others.filter_map(|(_, device)| clock(device)).collect();
    others.sort_unstable_by(f64::total_cmp);
    let middle = *others.get(others.len() / 2)?;
    let own = clock(&devices[at])?;
    (others.len() >= 2).then_some(own / middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calm() -> Vec<DeviceHealth> {
        let device = DeviceHealth {
            sm_clock_mhz: Some(1500.0),
            slowdown_share: Some(0.0),
            link_width_ratio: Some(1.0),
            link_retries: Some(1),
            uncorrectable_errors: Some(0),
            ..DeviceHealth::default()
        };
        vec![device; 8]
    }

    #[test]
    fn a_calm_node_is_as_good_as_any() {
        let health = node_health(&calm(), &[], &HealthPrior::default());
        assert!((health.bad - 0.01).abs() < 1e-12);
        assert_eq!((health.state, health.device), (State::Healthy, None));
        let program = [Fault { rank: 1, time_us: 0, xid: Some(31) }; 40];
        assert_eq!(node_health(&calm(), &program, &HealthPrior::default()).state, State::Healthy);
    }

    #[test]
    fn a_failed_remap_and_its_xid_make_a_bad_node() {
        let mut devices = calm();
        devices[5].remap_failed = Some(true);
        let fault = Fault { rank: 5, time_us: 0, xid: Some(64) };
        let health = node_health(&devices, &[fault, fault], &HealthPrior::default());
        // ln(0.01 / 0.99) + 5 + 4 = 4.405: 0.988
        assert!((health.bad - 0.98794).abs() < 1e-4, "{}", health.bad);
        assert_eq!((health.state, health.device, health.evidence.len()), (State::Bad, Some(5), 2));
    }

    #[test]
    fn a_lemon_is_watched_and_counts_as_often_as_it_fails() {
        let prior = |times| HealthPrior { lemon_times: Some(times), ..HealthPrior::default() };
        // Odds 1 to 99, four times: 4 / 103.
        let calm_now = node_health(&calm(), &[], &prior(4.0));
        assert!((calm_now.bad - 4.0 / 103.0).abs() < 1e-12, "{}", calm_now.bad);
        assert_eq!(
            (calm_now.state, calm_now.device, &*calm_now.evidence[0].rule),
            (State::Watch, None, "lemon")
        );
        // The part that fails now weighs more and comes first.
        let fault = Fault { rank: 2, time_us: 0, xid: Some(64) };
        let failing = node_health(&calm(), &[fault], &prior(4.0));
        let rules: Vec<&str> = failing.evidence.iter().map(|item| &*item.rule).collect();
        assert_eq!((failing.state, failing.device, rules), (State::Bad, Some(2), vec!["xid", "lemon"]));
    }

    #[test]
    fn heat_alone_is_worse_than_heat_together_and_a_lost_device_has_failed() {
        let mut alone = calm();
        alone[2] = DeviceHealth { sm_clock_mhz: Some(1200.0), slowdown_share: Some(0.9), ..alone[2] };
        assert_eq!(node_health(&alone, &[], &HealthPrior::default()).evidence[0].rule, "slowed_down_alone");
        alone[2].lost = true;
        assert_eq!(node_health(&alone, &[], &HealthPrior::default()).state, State::Failed);
    }

    #[test]
    fn unread_and_absurd_values_are_ignored() {
        let odd = DeviceHealth {
            sm_clock_mhz: Some(f64::NAN),
            slowdown_share: Some(f64::INFINITY),
            link_width_ratio: Some(-3.0),
            ..DeviceHealth::default()
        };
        let health = node_health(
            &[odd; 3],
            &[],
            &HealthPrior { bad: f64::NAN, retries: f64::NAN, lemon_times: Some(f64::NAN) },
        );
        assert_eq!(health.state, State::Healthy);
        assert!(health.bad.is_finite() && health.evidence.is_empty());
    }
}
