//! Growth by satellites: submitted as the job's own user, from the script that the job names, and
//! cancelled when it ends.

use std::path::Path;

use tidegate_autopilot::target::TargetError;
use tidegate_events::{Micros, Millis};
use tidegate_slurm::JobPhase as Phase;

use super::{Act, Before};
use crate::slurm::ask::SLURM;
use crate::slurm::declare::Declaration;
use crate::slurm::notes::Entry;
use crate::slurm::queue::{self, QueueJob};
use crate::slurm::satellites;
use crate::slurm::snapshot::Snapshot;
use crate::slurm::user_file;

/// Longest script, bytes.
const MOST_BYTES: u64 = 1 << 20;
/// Script that cancels the satellites when their job has ended.
const LEAVE: &str = "#!/bin/bash\nPATH=\"$PATH:/usr/bin:/bin\"\n[ -z \"$TIDEGATE_PROGRAMS\" ] || PATH=\"$TIDEGATE_PROGRAMS:$PATH\"\n\
    scancel --user=\"$TIDEGATE_USER\" --name=\"$TIDEGATE_NAME\"\n";

/// Options that a script may set, `#SBATCH --NAME=VALUE`. As root submits it, others could give the
/// job what its user may not have, e.g. `--priority`.
const OPTIONS: [&str; 10] = [
    "output",
    "error",
    "open-mode",
    "signal",
    "cpus-per-task",
    "cpus-per-gpu",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "ntasks-per-node",
];

/// The first line of a script that sets other options than [`OPTIONS`].
fn asks_for_more(script: &str) -> Option<&str> {
    let known = |word: &str| {
        let option = word.strip_prefix("--").and_then(|option| option.split_once('='));
        option.is_some_and(|(name, _)| OPTIONS.contains(&name))
    };
    let mut asked = script.lines().filter_map(|line| Some((line, line.strip_prefix("#SBATCH")?)));
    asked.find(|(_, options)| !options.split_whitespace().all(known)).map(|(line, _)| line)
}

impl Act<'_> {
    pub(super) fn check_join(
        &self,
        snapshot: &Snapshot,
        job: &QueueJob,
        to_gpus: u32,
    ) -> Result<Before, TargetError> {
        let held: u32 =
            satellites::placement(&snapshot.jobs, job).iter().flat_map(|held| held.values()).sum();
        self.nodes_for(job, to_gpus.saturating_sub(held))?;
        if !self.setup.is_root && job.user != self.setup.user {
            let why = format!(
                "job {} is {}'s, and sbatch says \"--uid only permitted by root user\": run as root, or let it declare grow=requeue",
                job.id, job.user
            );
            return Err(TargetError::Unsupported {
                target: SLURM.to_owned(),
                kind: self.action.change.kind(),
                why,
            });
        }
        self.script(job)?;
        Ok(Before { restarts: Some(job.restarts), nodes: Vec::new() })
    }

    /// Reads the script of a job's satellites. It runs as the job's user, but coordinators and
    /// Operators can change the comment that names it: so it must belong to that user, and nobody
    /// else may be able to write it.
    fn script(&self, job: &QueueJob) -> Result<String, TargetError> {
        let path = Declaration::parse(&job.comment).elastic.and_then(|elastic| elastic.satellite);
        let path =
            path.ok_or_else(|| self.refuse(format!("job {} names no script of its satellites", job.id)))?;
        let wrong =
            |why: &str| self.refuse(format!("the script of the satellites of job {}, {path}: {why}", job.id));
        let owner =
            user_file::uid(&job.user).ok_or_else(|| wrong(&format!("{} is no user here", job.user)))?;
        let file = user_file::read(Path::new(&path), owner, MOST_BYTES);
        let file = file.map_err(|error| wrong(&error.to_string()))?;
        if file.is_writable_by_others {
            return Err(wrong(&format!("others than {} may write it; chmod go-w {path}", job.user)));
        }
        match asks_for_more(&file.text) {
            Some(line) => Err(wrong(&format!("{line:?}: only #SBATCH --NAME=VALUE of {OPTIONS:?}"))),
            None => Ok(file.text),
        }
    }

    /// Submits the satellites as one array of one-node jobs: all of them or none.
    pub(super) fn join(&self, id: &str, more_gpus: u32, entry: &Entry) -> Result<String, TargetError> {
        let jobs = queue::jobs(self.slurm)?;
        let of_action = |job: &&QueueJob| satellites::read(&job.name) == Some((id, self.action.id.as_str()));
        let parent = jobs.iter().find(|job| job.id == id && job.is_open());
        let Some(parent) =
            parent.filter(|job| job.phase == Phase::Running && Some(job.restarts) == entry.restarts)
        else {
            return Err(self.refuse(format!("job {id} was stopped meanwhile")));
        };
        let arrays = |job: &QueueJob| job.id.split('_').next().and_then(|id| id.parse::<u64>().ok());
        let mut there: Vec<u64> =
            jobs.iter().filter(of_action).filter(|job| job.user == parent.user).filter_map(arrays).collect();
        there.sort_unstable();
        there.dedup();
        if let Some((first, twice)) = there.split_first() {
            // Submitted twice because the first answer was lost: cancel the later ones.
            for later in twice {
                let result = self.slurm.run("scancel", &[&later.to_string()]);
                result.map_err(|failed| failed.as_error(&self.action.id))?;
            }
            return Ok(format!("job {first} joins job {id}"));
        }
        let script = self.script(parent)?;
        let nodes = self.nodes_for(parent, more_gpus)?;
        let name = satellites::name(id, &self.action.id, self.action.generation);
        self.will_leave(parent, &name, &jobs)?;
        let user = nix::unistd::User::from_name(&parent.user).ok().flatten();
        let home = user.map_or_else(|| "/".to_owned(), |user| user.dir.display().to_string());
        let env = [
            ("USER", parent.user.as_str()),
            ("LOGNAME", parent.user.as_str()),
            ("HOME", home.as_str()),
            ("TIDEGATE_JOINS", id),
            ("TIDEGATE_JOINS_NODE", parent.batch_host.as_deref().unwrap_or_default()),
        ];
        let job = self.slurm.submit(&self.options(parent, &name, nodes), &script, &env);
        let job = job.map_err(|failed| failed.as_error(&self.action.id))?;
        Ok(format!("sbatch {name}: job {job} of {nodes} nodes"))
    }

    fn options(&self, parent: &QueueJob, name: &str, nodes: u32) -> Vec<String> {
        let mut args = vec![
            format!("--job-name={name}"),
            format!("--array=1-{nodes}"),
            "--nodes=1".to_owned(),
            format!("--gres={}", parent.gres_per_node),
            format!("--account={}", parent.account),
            format!("--partition={}", parent.partition),
            format!("--qos={}", parent.qos),
            format!("--chdir={}", parent.folder),
            format!("--dependency=after:{}", parent.id),
            format!("--comment={}", satellites::comment(&parent.id, &self.action.id, self.action.generation)),
            "--no-requeue".to_owned(),
            "--ignore-pbs".to_owned(),
        ];
        // Without accounting there is no account and no QOS.
        args.retain(|arg| !arg.ends_with('='));
        if self.setup.is_root {
            args.extend([format!("--uid={}", parent.user), format!("--gid={}", parent.group)]);
        }
        if let Some(limit_ms) = parent.limit_ms {
            // Not longer than the job's own time limit, even if nothing cancels them.
            args.push(format!("--time={}", minutes_left(limit_ms, crate::slurm::ask::now_us())));
        }
        args
    }

    /// Submits a job that runs when the joined job has ended, and cancels the satellites.
    fn will_leave(&self, parent: &QueueJob, name: &str, jobs: &[QueueJob]) -> Result<(), TargetError> {
        let own = format!("tidegate-leave.{name}");
        let there = |job: &QueueJob| job.name == own && job.is_open() && job.user == self.setup.user;
        if jobs.iter().any(there) {
            return Ok(());
        }
        let mut args = vec![
            format!("--job-name={own}"),
            format!("--dependency=afterany:{}", parent.id),
            format!("--comment=ends what joined job {}: do not cancel", parent.id),
        ];
        args.extend(["--nodes=1", "--ntasks=1", "--mem=1", "--time=5"].map(str::to_owned));
        args.extend(["--output=/dev/null", "--chdir=/"].map(str::to_owned));
        args.extend(self.config.notes.options());
        let programs = self.config.programs.as_ref().map(|folder| folder.display().to_string());
        let env = [
            ("TIDEGATE_USER", parent.user.as_str()),
            ("TIDEGATE_NAME", name),
            ("TIDEGATE_PROGRAMS", programs.as_deref().unwrap_or_default()),
        ];
        let result = self.slurm.submit(&args, LEAVE, &env);
        result.map(|_| ()).map_err(|failed| failed.as_error(&self.action.id))
    }

    /// Cancels satellites of a job: all, or those on other nodes than `keep` or on none yet.
    pub(super) fn leave(
        &self,
        parent: &QueueJob,
        keep: Option<&std::collections::BTreeSet<String>>,
    ) -> Result<(), TargetError> {
        let jobs = queue::jobs(self.slurm)?;
        let stays =
            |job: &QueueJob| keep.is_some_and(|keep| !job.nodes.is_empty() && job.nodes.is_subset(keep));
        let go: Vec<String> = satellites::of(&jobs, parent)
            .filter(|job| job.is_open() && job.phase != Phase::Ending && !stays(job))
            .map(|job| job.id.clone())
            .collect();
        for id in go {
            self.slurm.run("scancel", &[&id]).map_err(|failed| failed.as_error(&self.action.id))?;
        }
        Ok(())
    }
}

/// Whole minutes to a time limit, rounded down. At least one: for Slurm, zero is no limit.
fn minutes_left(limit_ms: i64, now_us: i64) -> i64 {
    Micros(Millis(limit_ms).to_micros().0.saturating_sub(now_us)).floor_minutes().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_seconds_is_a_minute_and_not_none() {
        let left = |s: i64| minutes_left(Millis::from_secs(1_000 + s).0, Micros::from_secs(1_000).0);
        assert_eq!([-60, 0, 30, 119, 120].map(left), [1, 1, 1, 1, 2]);
    }

    #[test]
    fn a_script_asks_for_nothing_that_its_user_may_not_have() {
        let allowed = "#!/bin/bash\n#SBATCH --output=/tmp/x --mem=4G\n# SBATCH --priority=9\nsrun train\n";
        assert_eq!(asks_for_more(allowed), None);
        for line in [
            "#SBATCH --priority=9",
            "#SBATCH --mem=1 --nice=-9",
            "#SBATCH -N 4",
            "#SBATCH hetjob",
            "#SBATCH--uid=0",
        ] {
            assert_eq!(asks_for_more(&format!("#!/bin/sh\ntrue\n{line}\n")), Some(line));
        }
    }
}
