//! The pods on this node. A process's cgroup has its pod's UID, and the kubelet's folder of the
//! pod's logs, `NAMESPACE_NAME_UID`, its name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most pods looked at: a node has some hundred.
const MAX_PODS: usize = 10_000;
/// How long the list of folders is used. A pod's folder is there before its first process.
const LIST_FOR: Duration = Duration::from_secs(5);
/// The list is read at most so often for pods that it does not have.
const LIST_AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Pods {
    folder: PathBuf,
    listed: Mutex<Listed>,
}

#[derive(Debug, Default)]
struct Listed {
    at: Option<Instant>,
    /// `NAMESPACE/POD` by UID.
    names: BTreeMap<String, String>,
}

impl Pods {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, listed: Mutex::default() }
    }

    /// The pod of a process, as `NAMESPACE/POD`.
    pub fn of_process(&self, proc: &Path, pid: u32) -> Option<String> {
        let cgroups = fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).ok()?;
        let uid = cgroups.lines().find_map(|line| uid_in_path(line.splitn(3, ':').nth(2)?))?;
        self.find(|names| names.get(&uid).cloned())
    }

    /// Whether `NAMESPACE/POD` is on this node.
    pub fn is_known(&self, job: &str) -> bool {
        // A Slurm job has no slash, and needs no list.
        job.contains('/') && self.find(|names| names.values().any(|name| name == job).then_some(())).is_some()
    }

    fn find<T>(&self, pick: impl Fn(&BTreeMap<String, String>) -> Option<T>) -> Option<T> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let age = listed.at.map(|at| at.elapsed());
        if age.is_some_and(|age| age < LIST_FOR)
            && let Some(found) = pick(&listed.names)
        {
            return Some(found);
        }
        if age.is_none_or(|age| age >= LIST_AGAIN) {
            *listed = Listed { at: Some(Instant::now()), names: list(&self.folder) };
        }
        pick(&listed.names)
    }
}

fn list(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_PODS);
    let pods = entries.filter_map(|entry| {
        let name = entry.file_name();
        // Neither names nor UIDs of Kubernetes have an underscore.
        let mut parts = name.to_str()?.split('_');
        let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then(|| (uid.to_owned(), format!("{namespace}/{pod}")))
    });
    pods.collect()
}

/// Parses the pod's UID from a cgroup path, with either cgroup driver of the kubelet:
/// `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/…` (systemd) or
/// `/kubepods/burstable/podUID/…` (cgroupfs).
///
/// Only the levels that the kubelet creates count: below them, users choose the names of cgroups.
fn uid_in_path(path: &str) -> Option<String> {
    let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != "..");
    match parts.next()? {
        // systemd's names have no dash within a part: the UID's are underscores.
        "kubepods.slice" => parts.find_map(|part| {
            let (_, uid) = part.strip_suffix(".slice")?.split_once("-pod")?;
            Some(uid.replace('_', "-"))
        }),
        "kubepods" => parts.find_map(|part| part.strip_prefix("pod")).map(str::to_owned),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2a3b-11ee";

    #[test]
    fn the_kubelets_cgroups_have_the_uid() {
        for (path, expected) in [
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2a3b_11ee.slice/cri-x.scope",
                true,
            ),
            ("/kubepods.slice/kubepods-pod2a3b_11ee.slice/cri-containerd-x.scope", true),
            ("/../../kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod2a3b_11ee.slice", true),
            ("/kubepods/burstable/pod2a3b-11ee/0123", true),
            ("/kubepods/pod2a3b-11ee/0123", true),
            ("/kubepods.slice/kubepods-burstable.slice", false),
            // Users make such cgroups below their own.
            ("/user.slice/user-1.slice/user@1.service/kubepods/pod2a3b-11ee", false),
            ("/system.slice/docker-1.scope/kubepods.slice/kubepods-pod2a3b_11ee.slice", false),
        ] {
            assert_eq!(uid_in_path(path).as_deref(), expected.then_some(UID), "{path}");
        }
    }

    #[test]
    fn a_pods_name_is_that_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (logs, proc) = (folder.path().join("pods"), folder.path().join("proc"));
        fs::create_dir_all(logs.join(format!("train_llama-0_{UID}"))).unwrap();
        fs::create_dir_all(logs.join("lost+found")).unwrap();
        fs::create_dir_all(logs.join("a_b_c_d")).unwrap();
        fs::create_dir_all(proc.join("9")).unwrap();
        fs::write(proc.join("9/cgroup"), "0::/kubepods/burstable/pod2a3b-11ee/0123\n").unwrap();
        let pods = Pods::new(logs);
        assert_eq!(pods.of_process(&proc, 9).as_deref(), Some("train/llama-0"));
        assert_eq!(pods.of_process(&proc, 10), None);
        assert!(pods.is_known("train/llama-0"));
        assert!(!pods.is_known("train/llama") && !pods.is_known("b/c") && !pods.is_known("4711"));
        assert!(!Pods::new(folder.path().join("nowhere")).is_known("train/llama-0"));
    }
}
