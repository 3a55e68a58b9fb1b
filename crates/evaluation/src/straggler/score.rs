//! Scores: alarms matched against the true events.

use serde::Serialize;
use tidegate_insight::straggler::Class;

use super::method::{Alarm, Level, Target};
use super::scene::{Event, Place, Relevance, Truth};

/// How long after its event's end an alarm may come, µs.
const AFTERMATH_US: i64 = 60_000_000;

/// A counted event and the first alarm that matched it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Hit {
    /// True class.
    pub class: Class,
    /// Slowdown of the job.
    pub slowdown: f64,
    /// Delay from the end of the first slow step to the event time that decided the alarm, s.
    /// `None`: missed.
    pub delay_s: Option<f64>,
    /// The same up to the arrival of the alarm.
    pub heard_s: Option<f64>,
    /// Whether exactly the faulty rank, node or fabric was named; `None` where no report could show
    /// it, or no subject was named.
    pub blamed: Option<bool>,
    /// Whether the named subject lies on the faulty node.
    pub node: Option<bool>,
    /// Whether the class was right; `None` without a class.
    pub classed: Option<bool>,
}

/// Score of one job at one level.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct JobScore {
    /// Length, h.
    pub hours: f64,
    /// GPUs times length, h.
    pub gpu_hours: f64,
    /// Counted events.
    pub hits: Vec<Hit>,
    /// Alarms that matched no event.
    pub false_alarms: u64,
    /// Alarms that matched only events that do not count.
    pub ignored: u64,
}

/// Outcome of an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmOutcome {
    /// It matches an event that counts.
    TruePositive,
    /// It matches only events that do not count.
    Ignored,
    /// It matches nothing.
    FalsePositive,
}

/// Outcome of one alarm against the truth.
pub fn alarm_outcome(truth: &Truth, alarm: &Alarm) -> AlarmOutcome {
    outcome_of(truth, &met(truth, alarm))
}

/// Events that the alarm matches, except those too short to matter.
fn met(truth: &Truth, alarm: &Alarm) -> Vec<usize> {
    let is_met = |event: &Event| event.relevance != Relevance::Ignored && meets(truth, event, alarm);
    (0..truth.events.len()).filter(|&i| is_met(&truth.events[i])).collect()
}

fn outcome_of(truth: &Truth, met: &[usize]) -> AlarmOutcome {
    if met.is_empty() {
        AlarmOutcome::FalsePositive
    } else if met.iter().all(|&i| truth.events[i].relevance == Relevance::DontCare) {
        AlarmOutcome::Ignored
    } else {
        AlarmOutcome::TruePositive
    }
}

/// Scores one job: an event is found by the first alarm of at least this level within it, or up to
/// 60 s after it, whose ranks overlap it.
pub fn score(truth: &Truth, alarms: &[Alarm], level: Level) -> JobScore {
    let mut first: Vec<Option<&Alarm>> = vec![None; truth.events.len()];
    let mut wrong: Vec<u64> = Vec::new();
    let mut ignored = 0;
    for alarm in alarms.iter().filter(|alarm| alarm.level >= level) {
        let met = met(truth, alarm);
        match outcome_of(truth, &met) {
            AlarmOutcome::FalsePositive => wrong.push(alarm.key),
            AlarmOutcome::Ignored => ignored += 1,
            AlarmOutcome::TruePositive => {}
        }
        for i in met {
            let first = &mut first[i];
            if first.is_none_or(|before| alarm.said_us < before.said_us) {
                *first = Some(alarm);
            }
        }
    }
    wrong.sort_unstable();
    wrong.dedup();
    let counted = truth.events.iter().zip(first).filter(|(event, _)| event.relevance == Relevance::Counts);
    JobScore {
        hours: truth.hours,
        gpu_hours: truth.gpu_hours,
        hits: counted.map(|(event, alarm)| hit(truth, event, alarm)).collect(),
        false_alarms: wrong.len() as u64,
        ignored,
    }
}

fn ranks(truth: &Truth, target: Target, at_us: i64) -> Option<std::ops::Range<u32>> {
    match target {
        Target::Rank(rank) => Some(rank..rank.saturating_add(1)),
        Target::Node(node) => truth.ranks_of_node(node, at_us),
        Target::Role(role) => Some(truth.ranks_of_role(role)),
        Target::Fabric | Target::Job => truth.ranks_of(Place::Fabric, at_us),
    }
}

fn meets(truth: &Truth, event: &Event, alarm: &Alarm) -> bool {
    // Nodes' clocks differ by up to 50 ms.
    const SKEW_US: i64 = 100_000;
    if !(event.start_us - SKEW_US..=event.end_us + AFTERMATH_US).contains(&alarm.said_us) {
        return false;
    }
    match (alarm.target, event.fault.place) {
        (Target::Job, _) => true,
        (Target::Fabric, _) => event.fault.of_transfer(),
        // All ranks wait for a slow fabric, so an alarm must name communication to match it.
        (_, Place::Fabric) => alarm.class == Some(Class::Communication),
        (target, place) => {
            let (Some(said), Some(true_ranks)) = (
                ranks(truth, target, alarm.said_us),
                truth.ranks_of(place, event.start_us.max(alarm.said_us)),
            ) else {
                return false;
            };
            said.start < true_ranks.end && true_ranks.start < said.end
        }
    }
}

fn hit(truth: &Truth, event: &Event, alarm: Option<&Alarm>) -> Hit {
    let mut hit = Hit {
        class: event.class(),
        slowdown: event.slowdown,
        delay_s: None,
        heard_s: None,
        blamed: None,
        node: None,
        classed: None,
    };
    let Some(alarm) = alarm else { return hit };
    hit.delay_s = Some((alarm.said_us - event.first_us) as f64 / 1e6);
    hit.heard_s = Some((alarm.heard_us - event.first_us) as f64 / 1e6);
    hit.classed = alarm.class.map(|class| class == event.class());
    let knowable = event.class() != Class::Communication || event.fault.evidence;
    if alarm.target == Target::Job || !knowable {
        return hit;
    }
    let place = event.fault.place;
    let said = ranks(truth, alarm.target, alarm.said_us);
    let (exact, inside) = match (alarm.target, place) {
        (Target::Fabric, Place::Fabric) => (true, true),
        (Target::Fabric, _) | (_, Place::Fabric) => (false, false),
        (target, place) => {
            let node = match place {
                Place::Device(device) => device / 8,
                Place::Node(node) => node,
                Place::Fabric => usize::MAX,
            };
            let node = truth.ranks_of(Place::Node(node), alarm.said_us);
            let inside = said
                .as_ref()
                .zip(node)
                .is_some_and(|(said, node)| node.start <= said.start && said.end <= node.end);
            let of_node =
                matches!(place, Place::Node(_)) && matches!(target, Target::Node(_) | Target::Role(_));
            let exact = said.is_some() && said == truth.ranks_of(place, alarm.said_us) || of_node && inside;
            (exact, inside)
        }
    };
    hit.blamed = Some(exact);
    hit.node = Some(inside);
    hit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::scene::{Injected, Plan, Regime};

    const START: i64 = 1_000_000_000;

    fn event(place: Place, class: Class, start_s: i64, end_s: i64, relevance: Relevance) -> Event {
        let fault = Injected { class, place, start_s: 0.0, end_s: 0.0, size: 0.2, evidence: true };
        Event {
            fault,
            start_us: START + start_s * 1_000_000,
            end_us: START + end_s * 1_000_000,
            first_us: START + (start_s + 2) * 1_000_000,
            steps: 50,
            slowdown: 0.1,
            relevance,
        }
    }

    fn truth(events: Vec<Event>) -> Truth {
        let plan = Plan {
            nodes: 4,
            stages: 1,
            node_ids: vec![10, 11, 12, 13, 14],
            ..Plan::draw(1, Regime::A, Some(1.0))
        };
        Truth { events, ..Truth::new(&plan, START) }
    }

    fn alarm(key: u64, target: Target, class: Class, said_s: i64) -> Alarm {
        let said_us = START + said_s * 1_000_000;
        let level = Level::Confirmed;
        Alarm { key, level, target, class: Some(class), said_us, heard_us: said_us + 2_000_000 }
    }

    #[test]
    fn an_alarm_on_the_faulty_rank_is_a_hit_with_its_delay() {
        let truth = truth(vec![event(Place::Device(9), Class::ComputeSilent, 100, 400, Relevance::Counts)]);
        let class = Class::ComputeSilent;
        let said = [alarm(1, Target::Rank(9), class, 150), alarm(2, Target::Rank(9), class, 300)];
        let got = score(&truth, &said, Level::Confirmed);
        assert_eq!((got.false_alarms, got.ignored, got.hits.len()), (0, 0, 1));
        let hit = got.hits[0];
        assert_eq!((hit.delay_s, hit.heard_s), (Some(48.0), Some(50.0)));
        assert_eq!((hit.blamed, hit.node, hit.classed), (Some(true), Some(true), Some(true)));
        // The node is right, but the device is not named: found, with the wrong blame.
        let hit = score(&truth, &[alarm(1, Target::Node(11), Class::Host, 150)], Level::Confirmed).hits[0];
        assert_eq!((hit.blamed, hit.node, hit.classed), (Some(false), Some(true), Some(false)));
    }

    #[test]
    fn another_rank_or_another_time_is_false() {
        let truth = truth(vec![event(Place::Device(9), Class::ComputeSilent, 100, 400, Relevance::Counts)]);
        let class = Class::ComputeSilent;
        for (target, said_s) in
            [(Target::Rank(8), 150), (Target::Rank(9), 461), (Target::Rank(9), 99), (Target::Fabric, 150)]
        {
            let got = score(&truth, &[alarm(1, target, class, said_s)], Level::Confirmed);
            assert_eq!((got.false_alarms, got.hits[0].delay_s), (1, None), "{target:?} {said_s}");
        }
        assert_eq!(score(&truth, &[alarm(1, Target::Rank(9), class, 460)], Level::Confirmed).false_alarms, 0);
        // Alarms of one key count as one false alarm; suspicions do not count where only
        // confirmations do.
        let mut said = [alarm(1, Target::Rank(8), class, 150), alarm(1, Target::Rank(8), class, 160)];
        assert_eq!(score(&truth, &said, Level::Suspect).false_alarms, 1);
        said[0].level = Level::Suspect;
        said[1].level = Level::Suspect;
        assert_eq!(score(&truth, &said, Level::Confirmed).false_alarms, 0);
    }

    #[test]
    fn what_does_not_count_is_neither_right_nor_wrong() {
        let place = Place::Node(2);
        let truth = truth(vec![
            event(place, Class::Host, 100, 140, Relevance::DontCare),
            event(place, Class::Host, 1000, 1010, Relevance::Ignored),
        ]);
        let got = score(&truth, &[alarm(1, Target::Node(12), Class::Host, 130)], Level::Confirmed);
        assert_eq!((got.false_alarms, got.ignored, got.hits.len()), (0, 1, 0));
        let got = score(&truth, &[alarm(1, Target::Node(12), Class::Host, 1005)], Level::Confirmed);
        assert_eq!((got.false_alarms, got.ignored), (1, 0));
    }

    #[test]
    fn network_events_match_network_alarms() {
        let truth = truth(vec![event(Place::Node(1), Class::Communication, 0, 400, Relevance::Counts)]);
        let comm = Class::Communication;
        let one = |alarm: Alarm| score(&truth, &[alarm], Level::Confirmed);
        assert_eq!(one(alarm(1, Target::Node(11), comm, 50)).hits[0].blamed, Some(true));
        let fabric = one(alarm(1, Target::Fabric, comm, 50));
        assert_eq!((fabric.false_alarms, fabric.hits[0].blamed), (0, Some(false)));
        let job = one(Alarm { class: None, ..alarm(1, Target::Job, comm, 50) });
        assert_eq!((job.false_alarms, job.hits[0].blamed, job.hits[0].classed), (0, None, None));
        let all = self::truth(vec![event(Place::Fabric, comm, 0, 400, Relevance::Counts)]);
        assert_eq!(
            score(&all, &[alarm(1, Target::Rank(3), Class::ComputeSilent, 50)], Level::Confirmed)
                .false_alarms,
            1
        );
        assert_eq!(
            score(&all, &[alarm(1, Target::Fabric, comm, 50)], Level::Confirmed).hits[0].blamed,
            Some(true)
        );
    }
}
