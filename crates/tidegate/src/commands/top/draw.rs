//! One frame: a line of totals, and tables below it.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table};
use termion::event::Key;
use tidegate_text::shown;

use super::facts::{Decision, Facts, Pool, Straggler, Team, Wait};
use crate::commands::up::view::bar;

const BAR: usize = 12;
/// Columns between two tables.
const GAP: u16 = 2;
/// Rows of pools, teams and classes that a frame has room for.
const GROUPS: usize = 8;

/// The tables that scroll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Waits,
    Stragglers,
    Decisions,
}

impl Part {
    const ALL: [Self; 3] = [Self::Waits, Self::Stragglers, Self::Decisions];
}

/// How the facts are shown: colours, which table scrolls and how far each did.
#[derive(Debug)]
pub struct View {
    has_colors: bool,
    is_interactive: bool,
    is_paused: bool,
    chosen: Part,
    scrolled: [usize; 3],
    /// Why the newest figures could not be read.
    pub trouble: Option<String>,
}

impl View {
    /// For a terminal.
    pub fn new() -> Self {
        Self { has_colors: console::colors_enabled(), is_interactive: true, ..Self::plain() }
    }

    /// For a pipe or a file.
    pub fn plain() -> Self {
        Self {
            has_colors: false,
            is_interactive: false,
            is_paused: false,
            chosen: Part::Waits,
            scrolled: [0; 3],
            trouble: None,
        }
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Does what the key says; others are passed over.
    pub fn press(&mut self, key: Key) {
        let place = self.chosen as usize;
        let scrolled = &mut self.scrolled[place];
        match key {
            Key::Char(' ') => self.is_paused = !self.is_paused,
            Key::Char('\t') => self.chosen = Part::ALL[(place + 1) % Part::ALL.len()],
            Key::Down | Key::Char('j') => *scrolled += 1,
            Key::Up | Key::Char('k') => *scrolled = scrolled.saturating_sub(1),
            Key::PageDown => *scrolled += 10,
            Key::PageUp => *scrolled = scrolled.saturating_sub(10),
            Key::Home => *scrolled = 0,
            _ => {}
        }
    }

    pub fn draw(&self, frame: &mut Frame<'_>, facts: &Facts) {
        let groups = facts.pools.len().max(facts.teams.len()).max(facts.classes.len()).clamp(1, GROUPS);
        let [head, top, waits, below, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(groups as u16 + 3),
            Constraint::Fill(3),
            Constraint::Fill(4),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let [pools, teams, classes] =
            Layout::horizontal([Constraint::Fill(9), Constraint::Fill(9), Constraint::Fill(10)])
                .spacing(GAP)
                .areas(top);
        let [stragglers, decisions] =
            Layout::horizontal([Constraint::Fill(4), Constraint::Fill(7)]).spacing(GAP).areas(below);
        frame.render_widget(self.totals(facts), head);
        self.pools(frame, pools, &facts.pools);
        self.teams(frame, teams, &facts.teams);
        self.classes(frame, classes, facts);
        self.waits(frame, waits, &facts.waits);
        self.stragglers(frame, stragglers, &facts.stragglers);
        self.decisions(frame, decisions, &facts.decisions);
        if self.is_interactive {
            frame.render_widget(self.foot(), foot);
        }
    }

    fn totals(&self, facts: &Facts) -> Paragraph<'static> {
        let sum = |of: fn(&Pool) -> f64| facts.pools.iter().map(of).sum::<f64>();
        let (gpus, held) = (sum(|pool| pool.gpus), sum(|pool| pool.held));
        let waiting: u64 = facts.teams.iter().filter_map(|team| team.waiting).sum();
        let wanted: f64 = facts.teams.iter().filter_map(|team| team.wanted).sum();
        let as_of = facts.as_of.as_deref().and_then(|at| at.get(..16)).map(|at| at.replace('T', " "));
        let as_of = as_of.map_or_else(|| "nothing recorded yet".into(), |at| format!("{at} UTC"));
        let mut spans = vec![
            Span::styled("tidegate", self.paint(Color::Cyan).add_modifier(Modifier::BOLD)),
            Span::styled(format!("  {as_of}"), self.dim()),
            Span::raw(format!("   {gpus:.0} GPUs: {held:.0} held, ")),
            Span::raw(format!("{:.0} free, {:.0} not usable", sum(|it| it.free), sum(|it| it.unusable))),
            Span::raw(format!("   {waiting} jobs wait for {wanted:.0} GPUs")),
        ];
        if !facts.unhealthy.is_empty() {
            let names: Vec<_> = facts
                .unhealthy
                .iter()
                .take(3)
                .map(|it| format!("{} {}", shown(&it.node), shown(&it.state)))
                .collect();
            let more = if facts.unhealthy.len() > 3 { ", …" } else { "" };
            let text = format!("   {}{more}", names.join(", "));
            spans.push(Span::styled(text, self.paint(Color::Red)));
        }
        Paragraph::new(Line::from(spans))
    }

    fn pools(&self, frame: &mut Frame<'_>, area: Rect, pools: &[Pool]) {
        let rows = pools.iter().map(|pool| {
            let held = Cell::from(bar(pool.held / pool.gpus, BAR)).style(self.paint(Color::Green));
            let active = pool.active.map_or_else(|| "–".into(), percent);
            Row::new([
                name(pool.pool.as_deref(), "(no pool)"),
                held,
                right(format!("{:.0}/{:.0}", pool.held, pool.gpus)),
                right(format!("{:.0}", pool.free)),
                right(active),
            ])
        });
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(BAR as u16),
            Constraint::Length(9),
            Constraint::Length(5),
            Constraint::Length(6),
        ];
        let head = [Cell::from("pool"), "".into(), right("held"), right("free"), right("active")];
        frame.render_widget(self.table("Pools", rows.collect(), widths, head), area);
    }

    fn teams(&self, frame: &mut Frame<'_>, area: Rect, teams: &[Team]) {
        let rows = teams.iter().map(|team| {
            Row::new([
                name(team.team.as_deref(), "(no team)"),
                right(team.running.unwrap_or_default().to_string()),
                right(format!("{:.0}", team.held.unwrap_or_default())),
                right(team.waiting.unwrap_or_default().to_string()),
                right(format!("{:.0}", team.wanted.unwrap_or_default())),
            ])
        });
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(5),
            Constraint::Length(6),
            Constraint::Length(5),
            Constraint::Length(7),
        ];
        let head = [Cell::from("team"), right("jobs"), right("GPUs"), right("wait"), right("wanted")];
        frame.render_widget(self.table("Teams", rows.collect(), widths, head), area);
    }

    fn classes(&self, frame: &mut Frame<'_>, area: Rect, facts: &Facts) {
        let all: f64 = facts.classes.iter().map(|class| class.gpu_hours).sum();
        let rows = facts.classes.iter().map(|class| {
            let cost = class.cost.map_or_else(|| "–".into(), |cost| format!("{cost:.0}"));
            let color = if class.class == "productive" { Color::Green } else { Color::Yellow };
            Row::new([
                Cell::from(shown(&class.class).into_owned()).style(self.paint(color)),
                right(percent(class.gpu_hours / all.max(f64::MIN_POSITIVE))),
                right(format!("{:.1}", class.gpu_hours)),
                right(cost),
            ])
        });
        let widths =
            [Constraint::Fill(1), Constraint::Length(5), Constraint::Length(6), Constraint::Length(6)];
        let head = [Cell::from("class"), right(""), right("GPU-h"), right("money")];
        frame.render_widget(self.table("GPU time of the newest hour", rows.collect(), widths, head), area);
    }

    fn waits(&self, frame: &mut Frame<'_>, area: Rect, waits: &[Wait]) {
        let rows = waits.iter().map(|wait| {
            let when = wait.starts_when.as_deref().unwrap_or_default();
            Row::new([
                name(Some(&wait.job_id), ""),
                name(wait.team.as_deref(), "–"),
                name(wait.pool.as_deref(), "–"),
                right(format!("{:.0}", wait.gpus)),
                right(wait.waited_min.map_or_else(|| "–".into(), minutes)),
                name(wait.constraint.as_deref(), "unknown").style(self.paint(Color::Yellow)),
                name(Some(when), ""),
            ])
        });
        let widths = [
            Constraint::Length(12),
            Constraint::Length(12),
            Constraint::Length(10),
            Constraint::Length(5),
            Constraint::Length(11),
            Constraint::Length(18),
            Constraint::Fill(1),
        ];
        let head = [
            Cell::from("job"),
            "team".into(),
            "pool".into(),
            right("GPUs"),
            right("waits"),
            "for".into(),
            "starts when".into(),
        ];
        let rows = self.scrolled(Part::Waits, rows.collect());
        frame.render_widget(self.table(&self.title(Part::Waits, "Jobs that wait"), rows, widths, head), area);
    }

    fn stragglers(&self, frame: &mut Frame<'_>, area: Rect, stragglers: &[Straggler]) {
        let rows = stragglers.iter().map(|it| {
            let place = match (it.rank, it.node.as_deref()) {
                (Some(rank), Some(node)) => format!("rank {rank}, {node}"),
                (None, Some(node)) => node.to_owned(),
                (Some(rank), None) => format!("rank {rank}"),
                (None, None) => "–".into(),
            };
            let color = if it.state == "CONFIRMED" { Color::Red } else { Color::Yellow };
            Row::new([
                name(Some(&it.job_id), ""),
                name(Some(&place), ""),
                name(it.class.as_deref(), "–").style(self.paint(color)),
                right(it.percent.map_or_else(|| "–".into(), |percent| format!("{percent:.0} %"))),
                right(it.lost_gpu_hours.map_or_else(|| "–".into(), |hours| format!("{hours:.1}"))),
            ])
        });
        let widths = [
            Constraint::Length(6),
            Constraint::Fill(1),
            Constraint::Length(15),
            Constraint::Length(5),
            Constraint::Length(5),
        ];
        let head = [Cell::from("job"), "slow".into(), "class".into(), right("by"), right("GPU-h")];
        let rows = self.scrolled(Part::Stragglers, rows.collect());
        let title = self.title(Part::Stragglers, "Stragglers");
        frame.render_widget(self.table(&title, rows, widths, head), area);
    }

    fn decisions(&self, frame: &mut Frame<'_>, area: Rect, decisions: &[Decision]) {
        let rows = decisions.iter().map(|it| {
            let color = match it.state.as_str() {
                "VERIFIED" => Color::Green,
                "REJECTED" | "FAILED" => Color::Red,
                _ => Color::Reset,
            };
            Row::new([
                name(Some(&it.at), ""),
                name(Some(&it.decision_kind), ""),
                name(Some(&it.object), ""),
                right(it.gpus.map_or_else(|| "–".into(), |gpus| gpus.to_string())),
                name(Some(if it.state == "PROPOSED" { &it.mode } else { &it.state }), "")
                    .style(self.paint(color)),
                name(it.why.as_deref(), ""),
            ])
        });
        let widths = [
            Constraint::Length(11),
            Constraint::Length(18),
            Constraint::Length(12),
            Constraint::Length(4),
            Constraint::Length(9),
            Constraint::Fill(1),
        ];
        let head = [
            Cell::from("decided"),
            "action".into(),
            "on".into(),
            right("GPUs"),
            "state".into(),
            "why".into(),
        ];
        let rows = self.scrolled(Part::Decisions, rows.collect());
        let title = self.title(Part::Decisions, "Decisions of the autopilot");
        frame.render_widget(self.table(&title, rows, widths, head), area);
    }

    fn foot(&self) -> Paragraph<'static> {
        let keys = "q ends   Tab chooses a table   arrows scroll it   space pauses";
        match (&self.trouble, self.is_paused) {
            (Some(why), _) => Paragraph::new(shown(why).into_owned()).style(self.paint(Color::Red)),
            (None, true) => Paragraph::new("paused; space goes on").style(self.paint(Color::Yellow)),
            (None, false) => Paragraph::new(keys).style(self.dim()),
        }
    }

    fn table<const N: usize>(
        &self,
        title: &str,
        rows: Vec<Row<'static>>,
        widths: [Constraint; N],
        head: [Cell<'static>; N],
    ) -> Table<'static> {
        let empty = rows.is_empty();
        let title = if empty { format!(" {title}: none ") } else { format!(" {title} ") };
        let block = Block::new().borders(Borders::TOP).title(title).border_style(self.dim());
        let table = Table::new(rows, widths).block(block).column_spacing(1);
        if empty { table } else { table.header(Row::new(head).style(self.dim())) }
    }

    fn title(&self, part: Part, title: &str) -> String {
        if self.is_interactive && self.chosen == part { format!("▸ {title}") } else { title.into() }
    }

    /// Without the rows that were scrolled away; the last one stays.
    fn scrolled(&self, part: Part, mut rows: Vec<Row<'static>>) -> Vec<Row<'static>> {
        let away = self.scrolled[part as usize].min(rows.len().saturating_sub(1));
        rows.split_off(away)
    }

    fn paint(&self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    fn dim(&self) -> Style {
        if self.is_interactive { Style::new().add_modifier(Modifier::DIM) } else { Style::new() }
    }
}

/// A name from outside, with control characters escaped.
fn name(text: Option<&str>, none: &str) -> Cell<'static> {
    Cell::from(shown(text.unwrap_or(none)).into_owned())
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Cell::from(Line::from(text.into()).alignment(Alignment::Right))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A time in its two largest units.
fn minutes(minutes: i64) -> String {
    match minutes {
        ..60 => format!("{minutes} min"),
        60..1440 => format!("{} h {} min", minutes / 60, minutes % 60),
        _ => format!("{} d {} h", minutes / 1440, minutes % 1440 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_scroll_the_chosen_table_and_the_last_row_stays() {
        let mut view = View::plain();
        view.press(Key::Char('\t'));
        view.press(Key::PageDown);
        view.press(Key::Up);
        let rows = |count| vec![Row::new(["a"]); count];
        assert_eq!(view.scrolled(Part::Stragglers, rows(20)).len(), 11);
        assert_eq!(view.scrolled(Part::Stragglers, rows(3)).len(), 1);
        assert_eq!(view.scrolled(Part::Waits, rows(20)).len(), 20);
        assert!(view.scrolled(Part::Stragglers, rows(0)).is_empty());
    }

    #[test]
    fn waits_are_told_in_two_units() {
        assert_eq!([59, 61, 1501].map(minutes), ["59 min", "1 h 1 min", "1 d 1 h"]);
    }
}
