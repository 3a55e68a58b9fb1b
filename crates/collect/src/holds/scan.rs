//! Finds the Slurm jobs on this node and the job of a process, by cgroups and process environments.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::process::Process;

/// Folders to scan. Tests use others, and a container the node's own that it has mounted.
#[derive(Debug, Clone)]
pub struct ScanRoots {
    /// `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
}

impl Default for ScanRoots {
    fn default() -> Self {
        Self { cgroup: "/sys/fs/cgroup".into(), proc: "/proc".into() }
    }
}

/// How the job of a process was found. The text is that of `hold_evidence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// By its cgroup.
    Cgroup,
    /// By its environment.
    Pid,
}

impl Evidence {
    /// The contract's text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Pid => "pid",
        }
    }
}

/// The job of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOfProcess {
    /// Job number, without an array index.
    pub number: String,
    /// Job id as accounting writes it, e.g. `123_4`, if the process's environment shows it.
    pub full_id: Option<String>,
    /// How it was found.
    pub evidence: Evidence,
}

/// Jobs with cgroups on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobCgroups {
    /// By number, each with one of its processes if there is any.
    pub numbers: BTreeMap<String, Option<u32>>,
    /// Their owners, where the name of the cgroup has the number: by number, the user of a process.
    pub owners: BTreeMap<String, u32>,
    /// Whether the list is complete. Some cgroups have names without the number.
    pub complete: bool,
}

impl ScanRoots {
    /// The job of a process. `None` if it has no job, is gone, or may not be read.
    pub fn job_of(&self, pid: u32) -> Option<JobOfProcess> {
        let cgroups = fs::read_to_string(self.proc.join(pid.to_string()).join("cgroup")).unwrap_or_default();
        let name = cgroups.lines().find_map(|line| job_in_path(line.splitn(3, ':').nth(2)?));
        let environment = self.environment(pid);
        let number = match name {
            Some(name) if is_number(name) => Some((name.to_owned(), Evidence::Cgroup)),
            // Slurm 26.05 names cgroups by an id that only Slurm can read.
            Some(_) => environment.get("SLURM_JOB_ID").map(|number| (number.clone(), Evidence::Cgroup)),
            None => environment.get("SLURM_JOB_ID").map(|number| (number.clone(), Evidence::Pid)),
        };
        let (number, evidence) = number.filter(|(number, _)| is_number(number))?;
        // A process's environment counts for its own job only.
        let own = environment.get("SLURM_JOB_ID") == Some(&number);
        let full_id = own.then(|| full_id_of(&number, &environment)).flatten();
        Some(JobOfProcess { number, full_id, evidence })
    }

    /// The job of a process by its cgroup alone, as far as the cgroup's name tells: number, and
    /// full id by the process's environment, which its user may have written.
    pub fn proven_job_of(&self, pid: u32) -> Option<(String, Option<String>)> {
        let cgroups = fs::read_to_string(self.proc.join(pid.to_string()).join("cgroup")).unwrap_or_default();
        let number = cgroups.lines().find_map(|line| job_in_path(line.splitn(3, ':').nth(2)?))?;
        let number = Some(number.to_owned()).filter(|number| is_number(number))?;
        let environment = self.environment(pid);
        let own = environment.get("SLURM_JOB_ID") == Some(&number);
        let full_id = own.then(|| full_id_of(&number, &environment)).flatten();
        Some((number, full_id))
    }

    /// The user of a process of a job. `None` for root, as which Slurm's own processes run, and if
    /// the process is not of the job any more.
    fn owner(&self, pid: u32, number: &str) -> Option<u32> {
        let uid = Process::read(&self.proc, pid)?.uid;
        (uid != 0 && self.proven_job_of(pid)?.0 == number).then_some(uid)
    }

    /// Slurm's variables in a process's environment; empty if it may not be read.
    fn environment(&self, pid: u32) -> BTreeMap<String, String> {
        let bytes = fs::read(self.proc.join(pid.to_string()).join("environ")).unwrap_or_default();
        let variables = bytes.split(|byte| *byte == 0).filter_map(|variable| {
            let (name, value) = std::str::from_utf8(variable).ok()?.split_once('=')?;
            name.starts_with("SLURM_").then(|| (name.to_owned(), value.to_owned()))
        });
        variables.collect()
    }

    /// Full ids of jobs by their numbers, from the environments of all processes: for nodes where
    /// jobs have no cgroups.
    pub fn names(&self, numbers: &BTreeSet<String>) -> BTreeMap<String, String> {
        let pids = folders(&self.proc).into_iter().filter_map(|(name, _)| name.parse::<u32>().ok());
        let jobs = pids.filter(|_| !numbers.is_empty()).filter_map(|pid| {
            let environment = self.environment(pid);
            let number = environment.get("SLURM_JOB_ID").filter(|number| numbers.contains(*number))?;
            Some((number.clone(), full_id_of(number, &environment)?))
        });
        jobs.collect()
    }

    /// Jobs with a cgroup. `None` without Slurm cgroups, when nothing can be concluded.
    pub fn jobs(&self) -> Option<JobCgroups> {
        let mut jobs = JobCgroups { complete: true, ..JobCgroups::default() };
        let mut any = false;
        for scope in self.scopes() {
            any = true;
            for (name, folder) in folders(&scope) {
                let Some(name) = name.strip_prefix("job_") else {
                    continue;
                };
                let pid = first_process(&folder);
                if let Some(uid) = pid.filter(|_| is_number(name)).and_then(|pid| self.owner(pid, name)) {
                    jobs.owners.insert(name.to_owned(), uid);
                }
                let number = match is_number(name) {
                    true => Some(name.to_owned()),
                    false => pid.and_then(|pid| self.environment(pid).get("SLURM_JOB_ID").cloned()),
                };
                match number {
                    Some(number) => {
                        let known = jobs.numbers.entry(number).or_default();
                        *known = known.or(pid);
                    }
                    None => jobs.complete = false,
                }
            }
        }
        any.then_some(jobs)
    }

    /// Folders whose children are jobs' cgroups: `system.slice/NODE_slurmstepd.scope` with version
    /// 2, `CONTROLLER/slurm_NODE/uid_N` with version 1. An idle node has no job folders with
    /// version 1, but Slurm's root shows that it uses cgroups.
    fn scopes(&self) -> Vec<PathBuf> {
        let mut scopes = Vec::new();
        for (name, folder) in folders(&self.cgroup.join("system.slice")) {
            if name.ends_with("slurmstepd.scope") {
                scopes.push(folder);
            }
        }
        for controller in ["freezer", "cpuset", "memory", "devices", "cpu,cpuacct"] {
            for (name, folder) in folders(&self.cgroup.join(controller)) {
                if name == "slurm" || name.starts_with("slurm_") {
                    scopes.push(folder.clone());
                    let users = folders(&folder).into_iter().filter(|(name, _)| name.starts_with("uid_"));
                    scopes.extend(users.map(|(_, folder)| folder));
                }
            }
        }
        scopes
    }
}

/// The id of a process's job as `sacct` writes it: `123`, or `123_4` in an array.
///
/// `None` for a process without `SLURM_PROCID`, which Slurm sets for batch scripts and tasks. A
/// prolog has the job's number but not its array index, so its environment must not name the job.
fn full_id_of(number: &str, environment: &BTreeMap<String, String>) -> Option<String> {
    environment.get("SLURM_PROCID")?;
    match environment.get("SLURM_ARRAY_JOB_ID").zip(environment.get("SLURM_ARRAY_TASK_ID")) {
        Some((array, task)) if is_number(array) && is_number(task) => Some(format!("{array}_{task}")),
        _ => Some(number.to_owned()),
    }
}

fn folders(parent: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect()
}

/// Any process in a cgroup or below it, preferably of a task: Slurm's own processes know less.
fn first_process(cgroup: &Path) -> Option<u32> {
    let below = folders(cgroup);
    let (slurm_own, others): (Vec<_>, Vec<_>) = below.into_iter().partition(|(name, _)| name == "slurm");
    let deeper = others.iter().chain(&slurm_own).find_map(|(_, folder)| first_process(folder));
    deeper.or_else(|| fs::read_to_string(cgroup.join("cgroup.procs")).ok()?.lines().next()?.parse().ok())
}

/// `123` of `/system.slice/slurmstepd.scope/job_123/step_0/user/task_0`,
/// `/slurm/uid_1000/job_123/step_batch`, …
///
/// Only where Slurm puts them: users name cgroups below their own as they like.
fn job_in_path(path: &str) -> Option<&str> {
    // An agent in a container sees the node's cgroups above its own.
    let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != "..");
    match parts.next()? {
        "system.slice" => parts.next().filter(|part| part.ends_with("slurmstepd.scope"))?,
        first => Some(first).filter(|part| *part == "slurm" || part.starts_with("slurm_"))?,
    };
    parts.find_map(|part| part.strip_prefix("job_")).filter(|name| !name.is_empty())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_up() -> (tempfile::TempDir, ScanRoots) {
        let folder = tempfile::tempdir().unwrap();
        let roots = ScanRoots { cgroup: folder.path().join("cgroup"), proc: folder.path().join("proc") };
        (folder, roots)
    }

    fn process(roots: &ScanRoots, pid: u32, cgroup: &str, environment: &[&str]) {
        let folder = roots.proc.join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup"), cgroup).unwrap();
        fs::write(folder.join("environ"), environment.join("\0")).unwrap();
    }

    #[test]
    fn processes_belong_to_jobs_in_all_layouts() {
        let (_folder, roots) = made_up();
        let array = ["SLURM_JOB_ID=7", "SLURM_ARRAY_JOB_ID=5", "SLURM_ARRAY_TASK_ID=3", "SLURM_PROCID=0"];
        let cases = [
            (
                "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
                &array[..],
                Some(("7", Some("5_3"), Evidence::Cgroup)),
            ),
            (
                "0::/system.slice/n1_slurmstepd.scope/job_8/step_batch\n",
                &[],
                Some(("8", None, Evidence::Cgroup)),
            ),
            (
                "5:cpuset:/\n4:freezer:/slurm/uid_0/job_9/step_0\n",
                &["SLURM_JOB_ID=9", "SLURM_PROCID=1"],
                Some(("9", Some("9"), Evidence::Cgroup)),
            ),
            (
                "4:devices:/slurm_n2/uid_1/job_9/step_0\n",
                &["SLURM_JOB_ID=4"],
                Some(("9", None, Evidence::Cgroup)),
            ),
            (
                "0::/system.slice/slurmstepd.scope/job_s7Q2K/step_0\n",
                &["SLURM_JOB_ID=11", "SLURM_PROCID=0"],
                Some(("11", Some("11"), Evidence::Cgroup)),
            ),
            ("0::/system.slice/slurmstepd.scope/job_s7Q2K/step_0\n", &[], None),
            (
                "0::/user.slice\n",
                &["SLURM_JOB_ID=12", "SLURM_PROCID=0"],
                Some(("12", Some("12"), Evidence::Pid)),
            ),
            // A prolog; its job may belong to an array.
            ("0::/system.slice/slurmd.service\n", &["SLURM_JOB_ID=7"], Some(("7", None, Evidence::Pid))),
            ("0::/user.slice\n", &["SLURM_JOB_ID=../12"], None),
            ("0::/user.slice/job_5\n", &["HOME=/"], None),
            // Users make such cgroups below their own.
            (
                "0::/user.slice/user-1.slice/user@1.service/x_slurmstepd.scope/job_5/step_0\n",
                &["HOME=/"],
                None,
            ),
            ("0::/user.slice/user-1.slice/user@1.service/slurm/job_5/step_0\n", &["HOME=/"], None),
            (
                "0::/../../system.slice/slurmstepd.scope/job_8/step_0\n",
                &[],
                Some(("8", None, Evidence::Cgroup)),
            ),
        ];
        for (at, (cgroup, environment, expected)) in cases.into_iter().enumerate() {
            let pid = 100 + at as u32;
            process(&roots, pid, cgroup, environment);
            let expected = expected.map(|(number, full_id, evidence)| JobOfProcess {
                number: number.to_owned(),
                full_id: full_id.map(str::to_owned),
                evidence,
            });
            assert_eq!(roots.job_of(pid), expected, "{cgroup}");
        }
        assert_eq!(roots.job_of(99), None, "a process that is gone");
    }

    #[test]
    fn jobs_are_those_that_have_cgroups() {
        let (_folder, roots) = made_up();
        assert_eq!(roots.jobs(), None, "nothing is known without Slurm's cgroups");
        let scope = roots.cgroup.join("system.slice/slurmstepd.scope");
        fs::create_dir_all(scope.join("system")).unwrap();
        assert_eq!(roots.jobs(), Some(JobCgroups { complete: true, ..JobCgroups::default() }));
        for (cgroup, pid) in
            [("job_7/step_0/user/task_0", "70"), ("job_7/step_0/slurm", "69"), ("job_s1/step_0/user", "80")]
        {
            fs::create_dir_all(scope.join(cgroup)).unwrap();
            fs::write(scope.join(cgroup).join("cgroup.procs"), format!("{pid}\n")).unwrap();
        }
        let jobs = roots.jobs().unwrap();
        assert_eq!((jobs.numbers, jobs.complete), (BTreeMap::from([("7".into(), Some(70))]), false));
        process(&roots, 80, "0::/system.slice/slurmstepd.scope/job_s1/step_0/user\n", &["SLURM_JOB_ID=12"]);
        let jobs = roots.jobs().unwrap();
        assert!(jobs.complete && jobs.numbers["12"] == Some(80), "{jobs:?}");
    }

    #[test]
    fn version_1_has_users_in_between() {
        let (_folder, roots) = made_up();
        fs::create_dir_all(roots.cgroup.join("freezer/slurm_n1/uid_1000/job_31/step_batch")).unwrap();
        fs::create_dir_all(roots.cgroup.join("memory/slurm_n1/uid_1000/job_31")).unwrap();
        let jobs = roots.jobs().unwrap();
        assert_eq!(jobs.numbers.keys().collect::<Vec<_>>(), ["31"]);
    }

    #[test]
    fn the_environment_of_a_real_process_is_read() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .envs([("SLURM_JOB_ID", "4711"), ("SLURM_PROCID", "0")])
            .envs([("SLURM_ARRAY_JOB_ID", "4700"), ("SLURM_ARRAY_TASK_ID", "11")])
            .spawn()
            .unwrap();
        let roots = ScanRoots::default();
        // The new program's environment is there once it has been started.
        let begun = std::time::Instant::now();
        let mut job = roots.job_of(child.id());
        while job.as_ref().is_none_or(|job| job.number != "4711") && begun.elapsed().as_secs() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            job = roots.job_of(child.id());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let job = job.unwrap();
        assert_eq!(
            (job.number.as_str(), job.full_id.as_deref(), job.evidence),
            ("4711", Some("4700_11"), Evidence::Pid)
        );
    }
}
