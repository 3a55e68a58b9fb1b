//! `tidegate top`: the cluster as it is now, drawn anew on a terminal.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ratatui::Terminal;
use ratatui::backend::{TermionBackend, TestBackend};
use termion::event::Key;
use termion::input::TermRead;
use termion::raw::IntoRawMode;
use termion::screen::IntoAlternateScreen;
use tidegate_server::QueryLimits;
use tokio::sync::{mpsc, watch};

use super::{CommandError, CommandResult, Committed, DataArgs, block_on, chain, stop_on_signals};

mod draw;
mod facts;

use draw::View;
use facts::Facts;

/// Columns and lines of a frame that no terminal shows.
const PRINTED: (u16, u16) = (120, 46);

/// Watch pools, teams, waiting jobs, stragglers and decisions
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate top
  tidegate top --data /var/lib/tidegate --every 10s
  tidegate top --once

It reads what was committed, beside the process that writes it. Keys: Tab chooses a table, arrows
scroll it, space pauses, q ends. Without a terminal, or with --once, it prints one frame and ends.
Colours follow NO_COLOR.")]
pub struct TopArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Time between two frames, e.g. 2s or 1m
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = super::sql::duration)]
    every: Duration,
    /// Print one frame and end
    #[arg(long)]
    once: bool,
}

pub fn run(args: TopArgs) -> CommandResult {
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    block_on(async move {
        let mut tables = Committed::open(&args.data, QueryLimits::default()).await?;
        if args.once || !is_terminal {
            print(&Facts::read(&tables).await?)?;
        } else {
            follow(&mut tables, args.every).await?;
        }
        Ok(ExitCode::SUCCESS)
    })?
}

/// Prints one frame without colours.
fn print(facts: &Facts) -> Result<(), CommandError> {
    let (columns, lines) = PRINTED;
    let mut terminal = Terminal::new(TestBackend::new(columns, lines))?;
    let view = View::plain();
    terminal.draw(|frame| view.draw(frame, facts))?;
    let buffer = terminal.backend().buffer();
    let text: Vec<String> = buffer
        .content
        .chunks(columns.into())
        .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned())
        .collect();
    say!("{}", text.join("\n").trim_end());
    Ok(())
}

/// Draws frames until somebody ends it. The terminal is as before afterwards, after a panic too.
async fn follow(tables: &mut Committed, every: Duration) -> Result<(), CommandError> {
    let (stop, mut stopped) = watch::channel(false);
    stop_on_signals(stop)?;
    let mut keys = keys();
    let screen = std::io::stdout().into_raw_mode()?.into_alternate_screen()?;
    let mut terminal = Terminal::new(TermionBackend::new(screen))?;
    terminal.hide_cursor()?;
    let mut view = View::new();
    let mut facts = Facts::read(tables).await?;
    let mut next = tokio::time::interval(every);
    next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    next.tick().await;
    loop {
        terminal.draw(|frame| view.draw(frame, &facts))?;
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => break,
            key = keys.recv() => match key {
                None | Some(Key::Char('q') | Key::Esc | Key::Ctrl('c' | 'd')) => break,
                Some(key) => view.press(key),
            },
            _ = next.tick(), if !view.is_paused() => {
                match read(tables).await {
                    Ok(newer) => (facts, view.trouble) = (newer, None),
                    // The last figures stay, under the reason why no newer ones come.
                    Err(error) => view.trouble = Some(chain(error.as_ref())),
                }
            }
        }
    }
    terminal.show_cursor()?;
    Ok(())
}

async fn read(tables: &mut Committed) -> Result<Facts, CommandError> {
    tables.refresh().await?;
    Facts::read(tables).await
}

/// Keys as they are pressed. The thread that waits for them ends with the process.
fn keys() -> mpsc::Receiver<Key> {
    let (press, pressed) = mpsc::channel(16);
    std::thread::spawn(move || {
        for key in std::io::stdin().keys().map_while(Result::ok) {
            if press.blocking_send(key).is_err() {
                break;
            }
        }
    });
    pressed
}
