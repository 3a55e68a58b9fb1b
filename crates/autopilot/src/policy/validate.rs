//! Validation of policy values: ranges, and relations between them.

use super::{LendRules, Mode, Policy, PolicyError, calendar::minute_of_day, rollout};
use crate::action::Kind;
use crate::names::OwnerName;

const YEAR_S: f64 = 366.0 * 86_400.0;

pub(super) fn validate(policy: &Policy) -> Result<(), PolicyError> {
    if policy.format != 1 {
        return Err(PolicyError::value("format", policy.format, "this program reads format 1"));
    }
    if policy.name.trim().is_empty() {
        return Err(PolicyError::value(
            "name",
            "\"\"",
            "give the policy a name; decisions are recorded under it",
        ));
    }
    ranges(policy)?;
    relations(policy)?;
    services(policy)?;
    rollout::check(&policy.shadow, &policy.canary)?;
    calendar(policy)
}

/// Checks each number by itself.
fn ranges(policy: &Policy) -> Result<(), PolicyError> {
    let p = policy;
    let shares = [
        ("blast.fleet_share", p.blast.fleet_share),
        ("blast.owner_lost_share", p.blast.owner_lost_share),
        ("floors.in_service_share", p.floors.in_service_share),
        ("lend.reclaim_chance", p.lend.reclaim_chance),
        ("lend.lost_per_lent", p.lend.lost_per_lent),
        ("lend.least_coverage", p.lend.least_coverage),
        ("lend.step_share", p.lend.step_share),
        ("record.verified", p.record.verified),
        ("record.verified_down", p.record.verified_down),
        ("drain.slowdown", p.drain.slowdown),
    ];
    let objectives =
        [("slo.promises", p.slo.promises), ("slo.verified", p.slo.verified), ("slo.cycles", p.slo.cycles)];
    for (key, value) in objectives {
        if !(0.0..1.0).contains(&value) {
            return Err(PolicyError::value(
                key,
                value,
                "write a share from 0.0, which asks for none, and below 1.0",
            ));
        }
    }
    for (key, value) in shares {
        if !(0.0..=1.0).contains(&value) {
            return Err(PolicyError::value(key, value, "write a share from 0.0 to 1.0"));
        }
    }
    for (kind, budget) in &p.budgets {
        if !(0.0..=1.0).contains(&budget.gpus_share_per_hour) {
            let key = format!("budgets.{kind}.gpus_share_per_hour");
            return Err(PolicyError::value(
                &key,
                budget.gpus_share_per_hour,
                "write a share from 0.0 to 1.0",
            ));
        }
    }
    let inside = [
        ("lend.least_quantile", p.lend.least_quantile),
        ("reservation.quantile", p.reservation.quantile),
        ("reservation.price_ratio", p.reservation.price_ratio),
        ("advice.keeps_share", p.advice.keeps_share),
        ("drain.bad", p.drain.bad),
    ];
    for (key, value) in inside {
        if !(value > 0.0 && value < 1.0) {
            return Err(PolicyError::value(key, value, "write a number above 0.0 and below 1.0"));
        }
    }
    for (key, promise) in promise_levels(&p.lend) {
        if !(promise > 0.0 && promise <= 1.0) {
            return Err(PolicyError::value(&key, promise, "write a number above 0.0 and at most 1.0"));
        }
    }
    let not_negative = [
        ("blast.owner_lost_gpu_hours", p.blast.owner_lost_gpu_hours),
        ("worth.least_net_gpu_hours", p.worth.least_net_gpu_hours),
        ("worth.caution", p.worth.caution),
        ("worth.relative_error", p.worth.relative_error),
        ("resize.dwell_pauses", p.resize.dwell_pauses),
        ("resize.gain_ratio", p.resize.gain_ratio),
        ("resize.trial_gain", p.resize.trial_gain),
        ("record.realised", p.record.realised),
        ("record.realised_down", p.record.realised_down),
        ("record.calibrated_least", p.record.calibrated_least),
        ("record.calibrated_most", p.record.calibrated_most),
    ];
    for (key, value) in not_negative {
        if !(0.0..=1e6).contains(&value) {
            return Err(PolicyError::value(key, value, "write a number from 0.0 to a million"));
        }
    }
    let durations = [
        ("blast.window_s", p.blast.window_s, 1),
        ("stability.dwell_s", p.stability.dwell_s, 0),
        ("stability.cooldown_s", p.stability.cooldown_s, 1),
        ("stability.cooldown_most_s", p.stability.cooldown_most_s, 1),
        ("freshness.most_s", p.freshness.most_s, 1),
        ("freshness.plan_s", p.freshness.plan_s, 1),
        ("freshness.person_s", p.freshness.person_s, 1),
        ("forecast.most_age_s", p.forecast.most_age_s, 1),
        ("lend.term_s", p.lend.term_s, 60),
        ("lend.reclaim_within_s", p.lend.reclaim_within_s, 1),
        ("lend.step_every_s", p.lend.step_every_s, 0),
        ("resize.hold_s", p.resize.hold_s, 1),
        ("resize.pause_s", p.resize.pause_s, 0),
        ("reservation.horizon_s", p.reservation.horizon_s, 3600),
        ("reservation.ahead_s", p.reservation.ahead_s, 60),
        ("drain.good_for_s", p.drain.good_for_s, 0),
        ("drain.repair_s", p.drain.repair_s, 0),
        ("preempt.least_run_s", p.preempt.least_run_s, 0),
        ("preempt.after_wait_s", p.preempt.after_wait_s, 0),
        ("preempt.gather_after_s", p.preempt.gather_after_s, 0),
        ("preempt.restart_s", p.preempt.restart_s, 0),
        ("preempt.notice_s", p.preempt.notice_s, 0),
    ];
    for (key, value, least) in durations {
        if value < least || value as f64 > YEAR_S {
            return Err(PolicyError::value(key, value, &format!("write seconds from {least} to a year")));
        }
    }
    let counts = [
        ("blast.objects", p.blast.objects),
        ("blast.failures", p.blast.failures),
        ("stability.failures", p.stability.failures),
        ("lend.step_gpus", p.lend.step_gpus),
        ("reservation.step_gpus", p.reservation.step_gpus),
        ("reservation.term_days", p.reservation.term_days),
        ("drain.families", p.drain.families),
        ("promise.least_jobs", p.promise.least_jobs),
        ("record.decisions", p.record.decisions),
        ("record.window", p.record.window),
        ("slo.window_days", p.slo.window_days),
        ("slo.least_bad", p.slo.least_bad),
    ];
    for (key, value) in counts {
        if value == 0 {
            return Err(PolicyError::value(key, value, "write 1 or more"));
        }
    }
    if !(-14 * 60..=14 * 60).contains(&p.utc_offset_minutes) {
        return Err(PolicyError::value(
            "utc_offset_minutes",
            p.utc_offset_minutes,
            "write minutes from -840 to 840",
        ));
    }
    Ok(())
}

/// The promise level for all owners, and those of single ones, with their keys.
fn promise_levels(lend: &LendRules) -> impl Iterator<Item = (String, f64)> {
    let single =
        |(owner, level): (&OwnerName, &f64)| (format!("lend.owner_promise_quantile.{owner}"), *level);
    let all = ("lend.promise_quantile".to_owned(), lend.promise_quantile);
    std::iter::once(all).chain(lend.owner_promise_quantile.iter().map(single))
}

/// Checks numbers that depend on each other.
fn relations(policy: &Policy) -> Result<(), PolicyError> {
    let lend = &policy.lend;
    if lend.reclaim_buffer_gpus > lend.buffer_gpus {
        let mend = format!(
            "write at most lend.buffer_gpus ({}), or lending and taking back chase each other",
            lend.buffer_gpus
        );
        return Err(PolicyError::value("lend.reclaim_buffer_gpus", lend.reclaim_buffer_gpus, &mend));
    }
    for (key, promise) in promise_levels(lend) {
        if promise < lend.least_quantile {
            let mend = format!(
                "write at least lend.least_quantile ({}): a promise is surer than a gain",
                lend.least_quantile
            );
            return Err(PolicyError::value(&key, promise, &mend));
        }
    }
    if 3 * lend.reclaim_within_s > lend.term_s {
        let mend = format!(
            "write at most a third of lend.term_s ({}): a loan is renewed in its last two reclaim times, so \
             it would be renewed nearly all the time",
            lend.term_s
        );
        return Err(PolicyError::value("lend.reclaim_within_s", lend.reclaim_within_s, &mend));
    }
    if policy.reservation.ahead_s < lend.reclaim_within_s {
        let mend = format!(
            "write at least lend.reclaim_within_s ({}), or what is lent is not back when the peak comes",
            lend.reclaim_within_s
        );
        return Err(PolicyError::value("reservation.ahead_s", policy.reservation.ahead_s, &mend));
    }
    let mode = |kind: Kind| policy.modes.get(&kind).copied().unwrap_or(Mode::Observe);
    for (kind, needs) in [(Kind::Lend, Kind::Reclaim), (Kind::DrainNode, Kind::ReturnNode)] {
        if mode(needs) < mode(kind) && mode(kind) >= Mode::Approve {
            let mend = format!(
                "write at least {:?}, the mode of {kind}: what is done must be undone",
                mode(kind).name()
            );
            return Err(PolicyError::value(
                &format!("modes.{needs}"),
                format!("{:?}", mode(needs).name()),
                &mend,
            ));
        }
    }
    let worth = &policy.worth;
    if worth.missing_micros_per_gpu_hour == 0 {
        return Err(PolicyError::value(
            "worth.missing_micros_per_gpu_hour",
            0,
            "write what an hour of a GPU that is missing costs",
        ));
    }
    if policy.stability.cooldown_most_s < policy.stability.cooldown_s {
        let mend = format!("write at least stability.cooldown_s ({})", policy.stability.cooldown_s);
        return Err(PolicyError::value("stability.cooldown_most_s", policy.stability.cooldown_most_s, &mend));
    }
    let record = &policy.record;
    if record.verified_down > record.verified || record.realised_down > record.realised {
        let mend = "write at most the number for promotion, or a kind is promoted and demoted in turn";
        return Err(PolicyError::value("record.verified_down and realised_down", record.verified_down, mend));
    }
    if record.calibrated_least > 1.0 || record.calibrated_most < 1.0 {
        let mend = "write at most 1.0 and at least 1.0, or no kind is ever calibrated";
        let key = "record.calibrated_least and calibrated_most";
        return Err(PolicyError::value(key, record.calibrated_least, mend));
    }
    if policy.slo.window_days > 30 {
        return Err(PolicyError::value("slo.window_days", policy.slo.window_days, "write 1 to 30"));
    }
    if record.window < record.decisions {
        return Err(PolicyError::value("record.window", record.window, "write at least record.decisions"));
    }
    for (source, age) in &policy.freshness.sources {
        if *age < 1 {
            return Err(PolicyError::value(
                &format!("freshness.sources.{source}"),
                age,
                "write seconds from 1",
            ));
        }
    }
    Ok(())
}

/// Checks the services' promises.
fn services(policy: &Policy) -> Result<(), PolicyError> {
    for (i, service) in policy.services.iter().enumerate() {
        let key = |name: &str| format!("services[{i}].{name}");
        for (name, value) in
            [("requests_per_gpu", service.requests_per_gpu), ("service_s", service.service_s)]
        {
            if !(value > 0.0 && value <= 1e6) {
                return Err(PolicyError::value(&key(name), value, "write a number above 0.0, to a million"));
            }
        }
        if !(0.0..=1e6).contains(&service.wait_s) {
            return Err(PolicyError::value(
                &key("wait_s"),
                service.wait_s,
                "write seconds from 0.0 to a million",
            ));
        }
        if !(service.late_share > 0.0 && service.late_share < 1.0) {
            let mend = "write a number above 0.0 and below 1.0";
            return Err(PolicyError::value(&key("late_share"), service.late_share, mend));
        }
        // Most requests a GPU can serve, given the time each takes.
        let most = f64::from(service.slots_per_gpu) / service.service_s;
        if service.requests_per_gpu > most {
            let mend = format!("write at most {most}: slots_per_gpu over service_s");
            return Err(PolicyError::value(&key("requests_per_gpu"), service.requests_per_gpu, &mend));
        }
        let same = |other: &super::Service| other.owner == service.owner && other.pool == service.pool;
        if policy.services[..i].iter().any(same) {
            let mend = "write one service for an owner and pool";
            return Err(PolicyError::value(&key("owner"), format!("{:?}", service.owner), mend));
        }
    }
    Ok(())
}

fn calendar(policy: &Policy) -> Result<(), PolicyError> {
    for (i, freeze) in policy.calendar.iter().enumerate() {
        for (key, time) in [("from", &freeze.from), ("to", &freeze.to)] {
            if minute_of_day(time).is_none() {
                let key = format!("calendar[{i}].{key}");
                return Err(PolicyError::value(
                    &key,
                    format!("{time:?}"),
                    "write a time as \"HH:MM\", e.g. \"09:00\"",
                ));
            }
        }
    }
    Ok(())
}
