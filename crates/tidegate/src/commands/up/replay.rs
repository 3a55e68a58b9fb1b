//! `--demo philly`: replays a real trace while its ledger is shown.

use std::sync::Arc;

use tidegate_lake::runner::Runner;
use tidegate_log::EventLog;
use tidegate_server::{Metrics, QueryService};
use tokio::sync::watch;

use super::UpArgs;
use super::demo::{Demo, Speed, Trace};
use super::view::View;
use crate::commands::{CommandError, Workspace};

/// Replays what the log lacks of the trace, and says what to try next.
///
/// # Errors
/// The trace cannot be used, or log or tables cannot be written.
pub async fn run(
    args: &UpArgs,
    runner: &mut Runner,
    metrics: &Metrics,
    workspace: &Workspace,
    service: &QueryService,
    url: &str,
    stopped: &watch::Receiver<bool>,
) -> Result<(), CommandError> {
    let trace = args.trace.unwrap_or(Trace::PhillyMultigpuAttempts);
    let demo = Demo::load(trace)?;
    let speed = args.speed.unwrap_or_else(|| demo.default_speed());
    let lake = workspace.folder.lake();
    let view = View::new(service.clone(), trace.name(), demo.span_ms(), lake, url.to_owned());
    let whole = replay(runner, metrics, demo, speed, Arc::clone(&workspace.log), view, stopped).await?;
    say!("{}", what_next(args, url, trace, whole));
    Ok(())
}

/// Replays the trace, while the runner updates the tables and the view draws them. Returns whether
/// the whole trace is in the tables.
async fn replay(
    runner: &mut Runner,
    metrics: &Metrics,
    demo: Demo,
    speed: Speed,
    log: Arc<dyn EventLog>,
    view: View,
    stopped: &watch::Receiver<bool>,
) -> Result<bool, CommandError> {
    let (replaying, ended) = watch::channel(false);
    let replaying = EndsWhenDropped(replaying);
    let stopped = stopped.clone();
    let replayed = tokio::spawn(async move {
        let _replaying = replaying;
        demo.replay(log.as_ref(), speed, stopped).await
    });
    let view = tokio::spawn(view.follow(ended.clone()));
    runner.run(ended, &mut |p| metrics.observe(p)).await?;
    let whole = replayed.await??;
    if whole {
        // The runner may have seen the end before it read the last records.
        runner.catch_up(&mut |p| metrics.observe(p)).await?;
    }
    view.await?.finish().await?;
    Ok(whole)
}

/// Signals the end of what holds it when dropped.
pub struct EndsWhenDropped(pub watch::Sender<bool>);

impl Drop for EndsWhenDropped {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

fn what_next(args: &UpArgs, url: &str, trace: Trace, whole: bool) -> String {
    let data = args.data.data.display();
    let log = args.log.kafka().map_or_else(String::new, |url| format!(" --log {url}"));
    if !whole {
        return format!(
            "\nStopped; what was replayed is committed. Go on: tidegate up --trace {} --data {data}{log}",
            trace.name()
        );
    }
    let query =
        "SELECT team, sum(gpu_ms_lost) / 3600000 AS gpu_hours_lost FROM jobs GROUP BY team ORDER BY 2 DESC";
    let live = if args.exit_when_done {
        format!("tidegate up --data {data}{log}")
    } else {
        format!("curl --data '{query}' {url}/v1/sql   (until Ctrl-C)")
    };
    format!(
        "\nThe whole trace is in the tables. Try next:\n  tidegate sql --data {data} \"{query}\"\n  tidegate sql --data {data} describe\n  {live}"
    )
}
