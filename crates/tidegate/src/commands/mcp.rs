//! `tidegate mcp`: the tables for assistants that speak the Model Context Protocol.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use clap::Args;
use tidegate_server::QueryLimits;

use super::{CommandResult, DataArgs, block_on};

mod protocol;
mod tools;

use protocol::{Incoming, MAX_BYTES};
use tools::Tools;

/// Answer an assistant that speaks the Model Context Protocol (MCP) on standard input and output
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate mcp --data tidegate-data
  claude mcp add tidegate -- tidegate mcp --data /var/lib/tidegate

The assistant starts this command and asks in JSON, one message a line. It can list and describe
tables, find questions with their SQL, run queries, and explain jobs and decisions. Nothing changes:
queries only read, see what was committed, and give 200 rows unless it asks for more. A query takes
at most --timeout and --memory.")]
pub struct McpArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Time limit of a query, e.g. 90s or 10m
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = super::sql::duration)]
    timeout: std::time::Duration,
    /// Memory of a query, e.g. 512M or 4G
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = super::query_memory)]
    memory: usize,
}

pub fn run(args: McpArgs) -> CommandResult {
    let limits = QueryLimits { memory_bytes: args.memory, time_max: args.timeout, ..QueryLimits::default() };
    block_on(async move {
        let mut tools = Tools::open(args.data, limits).await?;
        // Nobody else waits on this thread: messages are answered one after the other.
        let mut input = std::io::stdin().lock();
        while let Some(incoming) = next(&mut input)? {
            if let Some(answer) = protocol::answer(&mut tools, incoming).await {
                let mut line = serde_json::to_vec(&answer)?;
                line.push(b'\n');
                let mut out = std::io::stdout().lock();
                out.write_all(&line).and_then(|()| out.flush()).map_err(|e| format!("answer: {e}"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })?
}

/// The next message; `None` at the end of the input. The rest of a line that is too long is passed
/// over, and nothing of it is kept.
fn next(input: &mut impl BufRead) -> std::io::Result<Option<Incoming>> {
    let (mut line, mut is_too_long) = (Vec::new(), false);
    loop {
        let buffered = input.fill_buf()?;
        if buffered.is_empty() {
            return Ok((!line.is_empty() || is_too_long).then(|| Incoming::read(&line, is_too_long)));
        }
        let end = buffered.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(buffered.len());
        is_too_long |= line.len() + taken > MAX_BYTES;
        if !is_too_long {
            line.extend_from_slice(&buffered[..taken]);
        }
        input.consume(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Ok(Some(Incoming::read(&line, is_too_long)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn lines_are_bounded() {
        let long = "x".repeat(MAX_BYTES + 1);
        let mut input = Cursor::new(format!("{{\"method\":\"ping\",\"id\":1}}\n{long}\n{{}}"));
        assert!(matches!(next(&mut input).unwrap(), Some(Incoming::Message(_))));
        assert!(matches!(next(&mut input).unwrap(), Some(Incoming::Refused(_))));
        assert!(matches!(next(&mut input).unwrap(), Some(Incoming::Message(_))));
        assert!(next(&mut input).unwrap().is_none());
    }
}
