//! `tidegate autopilot record`: predictions and results by kind of decision, and promises by owner.

use serde::Serialize;
use tidegate_autopilot::action::Kind;
use tidegate_autopilot::executor::{ExecutorState, JournalEntry, JournalEvent};
use tidegate_autopilot::policy::{Mode, Policy};
use tidegate_autopilot::scorecard::{Score, summary, trust};
use tidegate_control::PlanArchive;

use super::dry_runs::DryRuns;
use super::promises;
use crate::commands::plan::newest_plan;
use crate::commands::{CommandError, DataArgs, block_on, committed};

/// Why a kind that restores keeps its mode.
const OWED: &str = "; it gives back what is owed, so its record never holds it back";

/// The record of one kind.
#[derive(Debug, Serialize)]
struct Line {
    kind: Kind,
    decisions: u32,
    scored: u32,
    /// Decisions whose interval includes the prediction.
    undecided: u32,
    verified_ppm: Option<u32>,
    median_ratio_ppm: Option<i64>,
    net_gpu_ms: i64,
    /// Bounds of the net over all decisions of which anything is known.
    net_low_gpu_ms: Option<i64>,
    net_high_gpu_ms: Option<i64>,
    worse_than_noop: u32,
    mode: &'static str,
    why: String,
    newest: Option<Newest>,
    #[serde(skip_serializing_if = "DryRuns::is_empty")]
    dry_runs: DryRuns,
}

/// The newest decision of a kind, and what would have happened without it.
#[derive(Debug, Serialize)]
struct Newest {
    action: String,
    without_it: String,
}

pub(super) fn run(policy: &Policy, json: bool, data: &DataArgs) -> Result<(), CommandError> {
    let (entries, newest): (Vec<JournalEntry>, _) = block_on(async {
        let service = committed(data).await?;
        let archive = PlanArchive::in_data(&data.data);
        let kinds = "kind IN ('SCORED', 'ALERT', 'COMPARED')";
        let entries = crate::autopilot::record::entries(&service, &archive, kinds).await?;
        Ok::<_, CommandError>((entries, newest_plan(data).await))
    })??;
    let (lines, owners) = (lines(policy, entries), newest.map(promises::lines).unwrap_or_default());
    if json {
        let record = serde_json::json!({ "kinds": lines, "owners": owners });
        say!("{}", serde_json::to_string_pretty(&record)?);
        return Ok(());
    }
    if lines.is_empty() {
        say!("nothing is scored yet: a decision is when the time of its prediction is over");
    }
    for line in &lines {
        for text in describe(line) {
            say!("{text}");
        }
    }
    promises::print(&owners);
    Ok(())
}

fn lines(policy: &Policy, entries: Vec<JournalEntry>) -> Vec<Line> {
    let dry_runs = |kind| DryRuns::of(kind, &entries);
    let mut known = ExecutorState::default();
    known.policy = Some(policy.clone());
    entries
        .iter()
        .filter(|entry| matches!(entry.event, JournalEvent::Scored(_) | JournalEvent::Alert(_)))
        .for_each(|entry| known.fold(entry.clone()));
    let earned = known.earned(policy);
    let has_scores =
        |kind: &Kind| known.scores.iter().any(|score| score.kind == *kind) || !dry_runs(*kind).is_empty();
    let line = |kind: Kind| {
        let of = summary(kind, &known.scores, policy.record.window);
        let mode = earned.get(&kind).copied().unwrap_or(Mode::Observe);
        Line {
            kind,
            decisions: of.decisions,
            scored: of.scored,
            undecided: of.undecided,
            verified_ppm: of.verified_ppm,
            median_ratio_ppm: of.median_ratio_ppm,
            net_gpu_ms: of.net_gpu_ms,
            net_low_gpu_ms: of.net_bounds.map(|bounds| bounds.low_gpu_ms),
            net_high_gpu_ms: of.net_bounds.map(|bounds| bounds.high_gpu_ms),
            worse_than_noop: of.worse_than_noop,
            mode: mode.name(),
            why: trust(mode, &of, &policy.record).why + if kind.restores() { OWED } else { "" },
            newest: newest(kind, &known.scores),
            dry_runs: dry_runs(kind),
        }
    };
    Kind::ALL.into_iter().filter(has_scores).map(line).collect()
}

fn newest(kind: Kind, scores: &[Score]) -> Option<Newest> {
    let score = scores.iter().rev().find(|score| score.kind == kind && score.without.is_some())?;
    Some(Newest { action: score.action.clone(), without_it: score.without.clone()? })
}

fn describe(line: &Line) -> Vec<String> {
    let hours = |gpu_ms: i64| gpu_ms as f64 / 3.6e6;
    let bounds = line.net_low_gpu_ms.zip(line.net_high_gpu_ms).filter(|(low, high)| low < high);
    let between = bounds.map_or_else(String::new, |(low, high)| {
        format!(" (between {:+.1} and {:+.1})", hours(low), hours(high))
    });
    let undecided = match line.undecided {
        0 => String::new(),
        count => format!("{count} cannot be told from the prediction, "),
    };
    let head = format!(
        "{:18} {:4} decisions, {:+.1} GPU-hours net of doing nothing{between}, {} would better not have been, {undecided}may {} ({})",
        line.kind.name(),
        line.decisions,
        hours(line.net_gpu_ms),
        line.worse_than_noop,
        line.mode,
        line.why
    );
    let newest = line.newest.as_ref();
    let without = newest.map(|newest| format!("{:18} without {}: {}", "", newest.action, newest.without_it));
    let tried = line.dry_runs.describe().map(|dry_runs| format!("{:18} {dry_runs}", ""));
    std::iter::once(head).chain(without).chain(tried).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_autopilot::scorecard::Interval;

    use super::*;

    const HOUR: i64 = 3_600_000;

    fn scored(action: &str, realised: Option<i64>, interval: Option<(i64, i64)>) -> JournalEntry {
        let score = Score {
            action: action.to_owned(),
            kind: Kind::DrainNode,
            decided_us: 1,
            verified: true,
            predicted_gpu_ms: 10 * HOUR,
            realised_gpu_ms: realised.map(|hours| hours * HOUR),
            benefit_ratio_ppm: None,
            predicted_benefit: None,
            realised_benefit_gpu_ms: None,
            within: None,
            interval: interval
                .map(|(low, high)| Interval { low_gpu_ms: low * HOUR, high_gpu_ms: high * HOUR }),
            without: Some(format!("{action} would have run on")),
            canary: None,
        };
        JournalEntry { at_us: 1, generation: 0, event: JournalEvent::Scored(score) }
    }

    #[test]
    fn an_interval_that_includes_the_prediction_counts_neither_way_and_is_shown() {
        let entries = vec![
            scored("a", None, Some((-4, 12))),
            scored("b", Some(-2), Some((-3, -1))),
            scored("c", Some(5), None),
        ];
        let lines = lines(&Policy::shipped(), entries);
        assert_eq!((lines[0].undecided, lines[0].scored, lines[0].worse_than_noop), (1, 2, 1));
        let text = describe(&lines[0]);
        // The nearest end of b and c itself: -1 + 5; all bounds: -4 - 3 + 5 to 12 - 1 + 5.
        assert!(text[0].contains("+4.0 GPU-hours net of doing nothing (between -2.0 and +16.0)"), "{text:?}");
        assert!(text[0].contains("1 cannot be told from the prediction"), "{text:?}");
        assert!(text[1].ends_with("without c: c would have run on"), "{text:?}");
    }
}
