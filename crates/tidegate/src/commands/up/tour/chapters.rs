//! The chapters, each an answer of SQL.

use console::style;
use serde::Deserialize;
use tidegate_server::QueryService;
use tidegate_text::shown;

use super::super::view::bar;
use crate::commands::{CommandError, ask};

const BAR: usize = 24;
/// Classes of the ledger that are shown.
const CLASSES: usize = 7;

/// One question, and what the site answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chapter {
    Money,
    Loans,
    Waits,
    Slow,
}

/// Money since agents watch, once the ledger has most of it; before, only who held GPUs is known.
const MONEY: &str = "
    WITH seen AS (
        SELECT l.* FROM ledger_1h l JOIN watched w ON w.cluster = l.cluster WHERE l.window_start >= w.from_time
    )
    SELECT class, sum(gpu_ms) / 3600000.0 AS gpu_hours, coalesce(sum(cost_micros), 0) / 1000000.0 AS cost
    FROM seen WHERE (SELECT count(DISTINCT window_start) FROM seen) >= 4
    GROUP BY class ORDER BY cost DESC, gpu_hours DESC";

const LOANS: &str = "
    SELECT count(*) FILTER (WHERE decision_kind = 'lend') AS loans,
           coalesce(sum(gpus) FILTER (WHERE decision_kind = 'lend'), 0) AS gpus,
           count(*) FILTER (WHERE decision_kind = 'reclaim') AS returns,
           max(verified_after_ms) FILTER (WHERE decision_kind = 'reclaim') AS slowest_ms,
           (SELECT sum(gpu_ms_queued) / 3600000.0 FROM pool_usage_1h WHERE owner = 'serve') AS short_gpu_hours
    FROM actions WHERE state = 'VERIFIED'";

const WAITS: &str = "
    SELECT job_id, team, substr(CAST(waited_from AS TEXT), 12, 5) AS since, evidence, starts_when,
           count(*) OVER () AS jobs
    FROM pending WHERE until IS NULL ORDER BY gpus_milli DESC, job_id LIMIT 1";

const SLOW: &str = "
    SELECT s.job_id, s.node, s.rank, s.class, s.slowdown_ppm / 10000 AS percent,
           substr(CAST(s.onset_time AS TEXT), 12, 5) AS since,
           (SELECT substr(CAST(min(a.verified_time) AS TEXT), 12, 5) FROM actions a
            WHERE a.decision_kind = 'drain_node' AND a.object = 'node:' || s.node) AS drained
    FROM stragglers s WHERE s.confirmed_time IS NOT NULL AND s.node IS NOT NULL
    ORDER BY s.lost_gpu_ms DESC, s.job_id LIMIT 1";

#[derive(Debug, Deserialize)]
struct Class {
    class: String,
    gpu_hours: f64,
    cost: f64,
}

#[derive(Debug, Deserialize)]
struct Loans {
    loans: u64,
    gpus: i64,
    returns: u64,
    slowest_ms: Option<i64>,
    short_gpu_hours: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Wait {
    job_id: String,
    team: Option<String>,
    since: String,
    evidence: Option<String>,
    starts_when: Option<String>,
    jobs: u64,
}

#[derive(Debug, Deserialize)]
struct Slow {
    job_id: String,
    node: String,
    rank: Option<u32>,
    class: String,
    percent: i64,
    since: String,
    drained: Option<String>,
}

impl Chapter {
    pub const ALL: [Self; 4] = [Self::Money, Self::Loans, Self::Waits, Self::Slow];

    /// What it answers.
    pub fn question(self) -> &'static str {
        match self {
            Self::Money => "Where does the money go?",
            Self::Loans => "What was lent at night, and did it come back in time?",
            Self::Waits => "Why does a job wait?",
            Self::Slow => "Who is slow?",
        }
    }

    /// Question and answer; `None` while the tables have no rows for it.
    ///
    /// # Errors
    /// The tables cannot be asked.
    pub async fn lines(self, service: &QueryService) -> Result<Option<Vec<String>>, CommandError> {
        let answer = match self {
            Self::Money => money(&ask(service, MONEY).await?),
            Self::Loans => ask(service, LOANS).await?.first().and_then(loans),
            Self::Waits => ask(service, WAITS).await?.first().map(waits),
            Self::Slow => ask(service, SLOW).await?.first().map(slow),
        };
        let title = style(self.question()).bold().to_string();
        Ok(answer.map(|answer| std::iter::once(title).chain(answer).collect()))
    }
}

fn money(classes: &[Class]) -> Option<Vec<String>> {
    let most = classes.first().map(|class| class.cost).filter(|cost| *cost > 0.0)?;
    let (all, paid) = classes.iter().fold((0.0, 0.0), |(h, c), class| (h + class.gpu_hours, c + class.cost));
    let line = |class: &Class| {
        let bar = style(bar(class.cost / most, BAR)).green();
        format!("  {:<20} {bar} {:>7.0} GPU-h {:>7.0} EUR", shown(&class.class), class.gpu_hours, class.cost)
    };
    let head = format!("  {all:.0} GPU-hours for {paid:.0} EUR since agents watch the site:");
    Some(std::iter::once(head).chain(classes.iter().take(CLASSES).map(line)).collect())
}

fn loans(answer: &Loans) -> Option<Vec<String>> {
    let Loans { loans, gpus, returns, slowest_ms, short_gpu_hours } = answer;
    let slowest = slowest_ms.filter(|_| *loans > 0 && *returns > 0)? as f64 / 60_000.0;
    let short = short_gpu_hours.unwrap_or(0.0);
    Some(vec![
        format!(
            "  Serving lent training {gpus} GPUs in {loans} loans. They were taken back {returns} times,"
        ),
        format!("  in {slowest:.0} minutes at most, and serving lacked GPUs for {short:.1} GPU-hours."),
    ])
}

fn waits(wait: &Wait) -> Vec<String> {
    let team = wait.team.as_deref().unwrap_or("nobody");
    let mut lines = vec![
        format!(
            "  {} jobs wait. The largest, {} of {}, since {} UTC:",
            wait.jobs,
            shown(&wait.job_id),
            shown(team),
            wait.since
        ),
        format!("  {}.", shown(wait.evidence.as_deref().unwrap_or("the scheduler does not say why"))),
    ];
    lines.extend(wait.starts_when.as_deref().map(|when| format!("  It starts when {}.", shown(when))));
    lines
}

fn slow(slow: &Slow) -> Vec<String> {
    let rank = slow.rank.map_or_else(String::new, |rank| format!("rank {rank} on "));
    let mut lines = vec![format!(
        "  Job {} is {} % slower since {} UTC: it waits for {rank}{} ({}).",
        shown(&slow.job_id),
        slow.percent,
        slow.since,
        shown(&slow.node),
        shown(&slow.class)
    )];
    let drained = slow.drained.as_ref();
    lines.extend(drained.map(|at| format!("  The autopilot drained {} at {at} UTC.", shown(&slow.node))));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chapter_without_rows_is_not_told() {
        assert!(money(&[]).is_none());
        let none = Loans { loans: 0, gpus: 0, returns: 0, slowest_ms: None, short_gpu_hours: None };
        assert!(loans(&none).is_none());
        let told = loans(&Loans { loans: 2, gpus: 16, returns: 2, slowest_ms: Some(240_000), ..none });
        assert!(told.is_some_and(|lines| lines[1].contains("in 4 minutes at most")));
    }

    #[test]
    fn the_largest_costs_come_first_and_names_are_escaped() {
        let class = |class: &str, cost| Class { class: class.into(), gpu_hours: cost, cost };
        let lines = money(&[class("productive\u{1b}", 75.0), class("idle_held", 25.0)]).unwrap();
        assert!(lines[0].contains("100 EUR") && !lines[1].contains('\u{1b}'), "{lines:?}");
    }
}
