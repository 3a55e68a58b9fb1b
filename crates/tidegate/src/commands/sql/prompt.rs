//! The SQL prompt, with history.

use std::path::PathBuf;
use std::time::Instant;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tidegate_server::Format;
use tidegate_text::shown_lines;

use crate::commands::{CommandError, Committed, chain};

const HELP: &str = "\
  SELECT …;          a query; it may go over several lines and ends with ;
  \\d                 tables            \\d TABLE   columns of a table
  \\df                functions         \\f FORMAT  table, json, jsonl or csv
  \\?                 this help         \\q         end (or Ctrl-D)
  Ctrl-C ends a running query.";

/// Runs queries until the user exits. Rows go to standard output, everything else to standard
/// error.
pub(super) async fn run(tables: &mut Committed, mut format: Format) -> Result<(), CommandError> {
    let mut editor = DefaultEditor::new()?;
    let history = history_file();
    if let Some(file) = &history {
        // A missing history file is fine.
        editor.load_history(file).ok();
    }
    eprintln!("{} tables; \\d lists them, \\? helps, \\q ends", tables.service().catalog().tables.len());
    while let Some(entry) = read_entry(&mut editor)? {
        editor.add_history_entry(&entry)?;
        let words: Vec<&str> = entry.split_whitespace().collect();
        match words[..] {
            ["\\q" | "exit" | "quit" | "exit;" | "quit;"] => break,
            ["\\?" | "help" | "help;"] => eprintln!("{HELP}"),
            ["\\d"] => answer(tables, "describe", format).await,
            ["\\d", table] => {
                answer(tables, &format!("describe {}", table.trim_end_matches(';')), format).await
            }
            ["\\df"] => answer(tables, "describe functions", format).await,
            ["\\f", name] => match name.parse::<Format>() {
                Ok(chosen) if chosen.is_text() => format = chosen,
                Ok(other) => {
                    eprintln!("{other} is not for terminals; use --format {other} --output FILE")
                }
                Err(e) => eprintln!("{}", shown_lines(&e.to_string())),
            },
            _ if entry.starts_with('\\') => eprintln!("unknown command {entry}; \\? lists them"),
            _ => answer(tables, &entry, format).await,
        }
    }
    if let Some(file) = history {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).map_err(|e| format!("create {}: {e}", folder.display()))?;
        }
        editor.save_history(&file).map_err(|e| format!("save the history in {}: {e}", file.display()))?;
    }
    Ok(())
}

/// Reads one command, or a query up to its semicolon; `None` at the end of input.
fn read_entry(editor: &mut DefaultEditor) -> Result<Option<String>, CommandError> {
    let mut entry = String::new();
    loop {
        match editor.readline(if entry.is_empty() { "tidegate> " } else { "     ...> " }) {
            Ok(line) => entry.push_str(line.trim_end()),
            Err(ReadlineError::Interrupted) => {
                entry.clear();
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let text = entry.trim();
        if is_complete(text) {
            return Ok(Some(text.to_owned()));
        }
        if !text.is_empty() {
            entry.push('\n');
        }
    }
}

fn is_complete(text: &str) -> bool {
    text.ends_with(';') || text.starts_with('\\') || matches!(text, "exit" | "quit" | "help" | "describe")
}

/// Errors end the query, not the prompt.
async fn answer(tables: &mut Committed, sql: &str, format: Format) {
    let started = Instant::now();
    let result = tokio::select! {
        result = refreshed(tables, sql, format) => result,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    match result {
        Ok(rows) => {
            eprintln!("{} rows in {:.3} s", rows.unwrap_or_default(), started.elapsed().as_secs_f64())
        }
        Err(error) => eprintln!("{}", shown_lines(&chain(error.as_ref()))),
    }
}

async fn refreshed(tables: &mut Committed, sql: &str, format: Format) -> Result<Option<u64>, CommandError> {
    tables.refresh().await?;
    super::answer(tables, sql, format, &mut std::io::stdout()).await
}

/// `$XDG_STATE_HOME/tidegate/sql_history`; none without a home.
fn history_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("tidegate/sql_history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_end_with_a_semicolon_and_commands_with_their_line() {
        for complete in ["select 1;", "select\n1;", "\\d jobs", "describe", "quit"] {
            assert!(is_complete(complete), "{complete}");
        }
        for open in ["", "select 1", "select ';' as x"] {
            assert!(!is_complete(open), "{open}");
        }
    }
}
