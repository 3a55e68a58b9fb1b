//! Shows the figures of `tidegate up`: redrawn in place on a terminal, else a line now and then.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use chrono::DateTime;
use console::{Term, style, truncate_str};
use indicatif::{HumanBytes, HumanCount};
use tidegate_server::QueryService;
use tidegate_text::shown;
use tokio::sync::watch;

use super::ledger::{Ledger, Team};
use crate::commands::CommandError;
use crate::commands::folder_bytes;

const REDRAW_EVERY: Duration = Duration::from_millis(500);
const LINE_EVERY: Duration = Duration::from_secs(3);
const BAR: usize = 36;
const MS_PER_HOUR: f64 = 3_600_000.0;

pub struct View {
    term: Term,
    service: QueryService,
    /// The replayed trace and its range of event times, ms since the epoch.
    title: &'static str,
    span_ms: (i64, i64),
    lake: PathBuf,
    /// Where it is served, e.g. `http://127.0.0.1:8433`.
    url: String,
    /// Lines of the current frame, which the next one overwrites.
    drawn: usize,
    /// Time of the first figures, and the events then.
    begun: Option<(Instant, u64)>,
}

impl View {
    pub fn new(
        service: QueryService,
        title: &'static str,
        span_ms: (i64, i64),
        lake: PathBuf,
        url: String,
    ) -> Self {
        Self { term: Term::stdout(), service, title, span_ms, lake, url, drawn: 0, begun: None }
    }

    /// Shows the figures until stopped. A failed query does not stop recording.
    pub async fn follow(mut self, mut stop: watch::Receiver<bool>) -> Self {
        let every = if self.term.is_term() { REDRAW_EVERY } else { LINE_EVERY };
        loop {
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                _ = stop.wait_for(|stop| *stop) => return self,
            }
            if let Err(error) = self.update().await {
                tracing::warn!(%error, "the ledger cannot be shown");
            }
        }
    }

    async fn update(&mut self) -> Result<(), CommandError> {
        let ledger = Ledger::read(&self.service).await?;
        let rate = self.events_per_s(ledger.events);
        if self.term.is_term() {
            self.draw(&ledger, Some(rate))?;
        } else {
            self.term.write_line(&line(&ledger, rate))?;
        }
        Ok(())
    }

    /// Draws the final figures.
    pub async fn finish(mut self) -> Result<(), CommandError> {
        let ledger = Ledger::read(&self.service).await?;
        self.draw(&ledger, None)
    }

    fn draw(&mut self, ledger: &Ledger, events_per_s: Option<u64>) -> Result<(), CommandError> {
        let (rows, columns) =
            self.term.size_checked().map_or((usize::MAX, 100), |(h, w)| (h.into(), w.into()));
        let mut frame = self.frame(ledger, events_per_s);
        // A line that wraps or scrolls away cannot be overwritten.
        frame.truncate(rows.saturating_sub(1));
        let text: String =
            frame.iter().map(|line| format!("{}\n", truncate_str(line, columns, "…"))).collect();
        self.term.clear_last_lines(std::mem::replace(&mut self.drawn, frame.len()))?;
        Ok(self.term.write_str(&text)?)
    }

    fn frame(&self, ledger: &Ledger, events_per_s: Option<u64>) -> Vec<String> {
        let observed_ms = ledger.observed_to.as_deref().and_then(|t| DateTime::parse_from_rfc3339(t).ok());
        let observed_ms = observed_ms.map_or(self.span_ms.0, |t| t.timestamp_millis());
        let length_ms = (self.span_ms.1 - self.span_ms.0).max(1);
        let part = ((observed_ms - self.span_ms.0) as f64 / length_ms as f64).clamp(0.0, 1.0);
        let pace = events_per_s.map_or_else(
            || format!("{} events", HumanCount(ledger.events)),
            |rate| format!("{} events, {}/s", HumanCount(ledger.events), HumanCount(rate)),
        );
        let mut frame = vec![
            String::new(),
            format!(
                "  {}  {}",
                style("tidegate").bold().cyan(),
                style(format!("replaying {}", self.title)).dim()
            ),
            format!(
                "  {}  {} {:>3.0} %  {}",
                style(date(ledger)).bold(),
                style(bar(part, 24)).cyan(),
                part * 100.0,
                style(pace).dim()
            ),
            String::new(),
            format!(
                "  {}       {} finished   {} running   {} waiting",
                style("jobs").dim(),
                number(ledger.finished),
                number(ledger.running),
                number(ledger.waiting)
            ),
            format!("  {}  {} held", style("GPU-hours").dim(), number(hours(ledger.gpu_ms_held))),
            format!(
                "             {} in attempts that were followed by another: {} of the GPU time",
                style(HumanCount(hours(ledger.gpu_ms_lost))).yellow().bold(),
                style(percent(ledger.lost_share())).yellow().bold()
            ),
            format!(
                "  {}      p50 {}   p95 {}",
                style("queue").dim(),
                style(delay(ledger.queue_ms_p50)).bold(),
                style(delay(ledger.queue_ms_p95)).bold()
            ),
            String::new(),
        ];
        let most = ledger.teams.first().map_or(1, |team| team.gpu_ms_held.max(1));
        frame.extend(ledger.teams.iter().map(|team| team_line(team, most, ledger.gpu_ms_held)));
        frame.push(String::new());
        let lake =
            folder_bytes(&self.lake).map_or_else(|_| "…".into(), |bytes| HumanBytes(bytes).to_string());
        frame.push(style(format!("  lake {lake}   SQL at {}/v1/sql", self.url)).dim().to_string());
        frame
    }

    /// Mean rate since the first figures.
    fn events_per_s(&mut self, events: u64) -> u64 {
        let (then, earlier) = *self.begun.get_or_insert((Instant::now(), events));
        (events.saturating_sub(earlier) as f64 / then.elapsed().as_secs_f64().max(1.0)) as u64
    }
}

/// The figures on one line, for logs and pipes.
fn line(ledger: &Ledger, events_per_s: u64) -> String {
    format!(
        "{}  jobs: {} finished, {} running, {} waiting  GPU-hours: {} held, {} lost in repeated attempts  queue: p50 {}, p95 {}  {} events/s",
        date(ledger),
        HumanCount(ledger.finished),
        HumanCount(ledger.running),
        HumanCount(ledger.waiting),
        HumanCount(hours(ledger.gpu_ms_held)),
        percent(ledger.lost_share()),
        delay(ledger.queue_ms_p50),
        delay(ledger.queue_ms_p95),
        HumanCount(events_per_s),
    )
}

fn team_line(team: &Team, most: i64, all: i64) -> String {
    let name = shown(team.team.as_deref().unwrap_or("(no team)"));
    let length = team.gpu_ms_held as f64 / most as f64;
    let share = team.gpu_ms_held as f64 / all.max(1) as f64;
    let name = console::pad_str(&name, 10, console::Alignment::Left, Some("…"));
    let figures = format!("{:>9} {:>7}", HumanCount(hours(team.gpu_ms_held)).to_string(), percent(share));
    format!("  {name} {} {figures}", style(bar(length, BAR)).green())
}

fn number(value: u64) -> String {
    style(HumanCount(value)).bold().to_string()
}

fn hours(gpu_ms: i64) -> u64 {
    (gpu_ms as f64 / MS_PER_HOUR).round() as u64
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn date(ledger: &Ledger) -> String {
    ledger
        .observed_to
        .as_deref()
        .and_then(|time| time.get(..16))
        .map_or_else(|| "(nothing yet)        ".into(), |time| format!("{} UTC", time.replace('T', " ")))
}

/// A bar of `width` cells, filled in eighths of a cell.
pub fn bar(part: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (part.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let text = format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8]);
    let used = text.chars().count();
    text + &"·".repeat(width.saturating_sub(used))
}

/// Formats a duration in its two largest units.
fn delay(ms: Option<i64>) -> String {
    let Some(ms) = ms else { return "-".into() };
    let (s, min, h) = (ms / 1000, ms / 60_000, ms / 3_600_000);
    match s {
        _ if h >= 24 => format!("{} d {} h", h / 24, h % 24),
        _ if h > 0 => format!("{h} h {} min", min % 60),
        _ if min > 0 => format!("{min} min {} s", s % 60),
        s => format!("{s} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_their_width() {
        for (part, text) in [(0.0, "····"), (0.5, "██··"), (0.53, "██▏·"), (1.0, "████"), (7.0, "████")]
        {
            assert_eq!(bar(part, 4), text);
        }
    }

    #[test]
    fn delays_are_told_in_two_units() {
        let cases = [
            (999, "0 s"),
            (51_000, "51 s"),
            (8_409_000, "2 h 20 min"),
            (100_000_000, "1 d 3 h"),
            (61_000, "1 min 1 s"),
        ];
        for (ms, text) in cases {
            assert_eq!(delay(Some(ms)), text);
        }
        assert_eq!(delay(None), "-");
    }
}
