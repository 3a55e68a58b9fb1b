//! The first lines of `tidegate up`: what runs, where, and what to try.

use std::path::Path;

use tidegate_server::QueryService;

use super::UpArgs;
use super::demo::Kind;
use crate::commands::{CommandError, table_counts};

/// What one would ask first.
const FIRST_QUESTION: &str =
    "SELECT class, sum(gpu_ms) / 3600000 AS gpu_hours FROM ledger_1h GROUP BY 1 ORDER BY 2 DESC";

/// The device file of the first NVIDIA GPU of a machine.
const FIRST_GPU: &str = "/dev/nvidia0";

/// How the demo watches this machine's GPU too.
fn offer(takes_events: bool, url: &str) -> String {
    let agent = format!("tidegate agent --source nvml --cluster here --spool gpu-spool --log {url}");
    match takes_events {
        true => format!("this machine has a GPU; `{agent}` watches it beside the site"),
        false => format!("this machine has a GPU; to watch it too, add --ingest and run `{agent}`"),
    }
}

/// At most five lines, and one more on a machine with a GPU; said as they are known.
///
/// # Errors
/// The tables cannot be read.
pub async fn greet(
    args: &UpArgs,
    url: &str,
    demo: Option<Kind>,
    service: &QueryService,
) -> Result<(), CommandError> {
    match demo {
        Some(Kind::Cluster) => {
            say!("demo    a simulated site of {} GPUs; its past week is made now", tidegate_demo::GPUS);
        }
        Some(Kind::Philly) => say!("demo    a real trace of three months, replayed"),
        None => {}
    }
    say!("data    {}\npage    {url}/\nSQL     {url}/v1/sql", args.data.data.display());
    if args.ingest {
        say!("events  {url}  (tidegate agent --log {url})");
    } else {
        say!("try     curl --data '{FIRST_QUESTION}' {url}/v1/sql");
    }
    if demo == Some(Kind::Cluster) && Path::new(FIRST_GPU).exists() {
        say!("gpu     {}", offer(args.ingest, url));
    }
    if demo.is_none() {
        let tables = table_counts(service).await?;
        let filled = tables.iter().filter(|table| !table.is_empty()).count();
        say!("tables  {filled} of {} have rows", tables.len());
    }
    Ok(())
}
