//! Drives a runner through a site's time as `tidegate up` does, as fast as the machine can: what a
//! minute of data costs is counted in CPU time, so nothing has to run for a minute.

use tidegate_lake::runner::{Runner, Step};
use tidegate_workspace::CommandError;

use super::feed::Feed;
use super::spread::Took;
use crate::bench::Stopwatch;

/// A commit every ten seconds of data, as the default pace has it.
pub const ROUND_MS: i64 = 10_000;
/// Joined tables are updated once a minute.
const ROUNDS_TO_JOINED: u32 = 6;
/// `tidegate up` shows new events twice a second.
pub const REFRESHES: u32 = 20;

/// What a minute ends with.
#[cfg(test)]
pub const STEPS: [Step; 3] = [Step::Refresh, Step::Flush, Step::Joined];

/// What the pipelines took of some rounds. Appending to the log is not in it.
#[derive(Debug, Default)]
pub struct Costs {
    pub cpu_s: f64,
    /// Of each commit, maintenance included.
    pub flush: Vec<Took>,
    /// Of each update of joined tables.
    pub joined: Vec<Took>,
    pub commits: u64,
    pub files: u64,
    pub bytes: u64,
}

/// Feeds `rounds` rounds from `from_ms` on and keeps the tables up to date, with `refreshes` a
/// round for queries. Both feed and time begin at a minute.
pub async fn rounds(
    runner: &mut Runner,
    feed: &mut Feed<'_>,
    from_ms: i64,
    rounds: u32,
    refreshes: u32,
) -> Result<Costs, CommandError> {
    let mut costs = Costs::default();
    let before = runner.progress().clone();
    let (messages, _) = feed.round();
    for round in 0..rounds {
        let at_ms = from_ms + i64::from(round) * ROUND_MS;
        feed.append_events(at_ms, at_ms + ROUND_MS)?;
        for part in 1..=refreshes {
            let until = |part: u32| u64::from(messages) * u64::from(part) / u64::from(refreshes);
            feed.append_messages((until(part) - until(part - 1)) as u32)?;
            costs.timed(runner, Step::Refresh).await?;
        }
        let flushed = costs.timed(runner, Step::Flush).await?;
        costs.flush.push(flushed);
        if (round + 1) % ROUNDS_TO_JOINED == 0 {
            let updated = costs.timed(runner, Step::Joined).await?;
            costs.joined.push(updated);
        }
    }
    let after = runner.progress();
    costs.commits = after.commits - before.commits;
    costs.files = after.files - before.files;
    costs.bytes = after.bytes - before.bytes;
    Ok(costs)
}

impl Costs {
    async fn timed(&mut self, runner: &mut Runner, step: Step) -> Result<Took, CommandError> {
        let watch = Stopwatch::start()?;
        runner.step(step).await?;
        let (cpu, wall) = watch.read()?;
        self.cpu_s += cpu;
        Ok(Took { cpu, wall })
    }
}
