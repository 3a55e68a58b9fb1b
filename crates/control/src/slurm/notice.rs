//! Notifies a job that it will be disturbed, and waits for its acknowledgement.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tidegate_autopilot::action::Action;
use tidegate_autopilot::target::{Notice, TargetError};
use tidegate_events::Millis;

use super::ask::{Slurm, now_us, refused};
use super::config::SlurmConfig;
use super::declare::Declaration;
use super::notes::Entry;
use super::snapshot::Snapshot;
use super::user_file;

/// Time limit of a hook's answer.
const HOOK: Duration = Duration::from_secs(5);
/// Longest answer of a hook, and longest acknowledgement in a file, bytes.
const ANSWER_BYTES: u64 = 4096;

/// Greatest step an acknowledgement may name: up to it JSON's numbers are whole in every language.
const MOST_STEP: u64 = 1 << 53;

/// Answer of a hook.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    ready: bool,
    #[serde(default)]
    saved_step: Option<u64>,
}

/// Content of `JOB.ready`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct ReadyFile {
    action: String,
    #[serde(default)]
    saved_step: Option<u64>,
}

/// That a job is ready, and the step its checkpoint holds, if it names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ready {
    /// `None`: the hook said so, now.
    at_us: Option<i64>,
    saved_step: Option<u64>,
}

/// Notifies the job of `action` once; afterwards checks whether it is ready. Only jobs whose
/// comment declares `notice` are notified.
pub(super) fn notify(
    slurm: &Slurm,
    config: &SlurmConfig,
    snapshot: &mut Snapshot,
    action: &Action,
) -> Result<Notice, TargetError> {
    let ways = &config.notice;
    let Some(job) = action.change.job().and_then(|id| snapshot.job(id)) else {
        return Ok(Notice::Unsupported);
    };
    let no_way = ways.signal.is_none() && ways.folder.is_none() && ways.url.is_none();
    if no_way || !Declaration::parse(&job.comment).notice {
        return Ok(Notice::Unsupported);
    }
    let (id, user) = (job.id.clone(), job.user.clone());
    let known = snapshot.notes.actions.get(&action.id).cloned();
    let first = known.as_ref().is_none_or(|entry| entry.notified_us.is_none());
    let since_us = known.as_ref().and_then(|entry| entry.notified_us).unwrap_or_else(now_us);
    let ready_by_us = since_us + Millis(action.notice_ms).to_micros().0;
    let text = serde_json::json!({"action": action.id, "job": id, "ready_by_us": ready_by_us}).to_string();
    if first {
        // Noted first: a job that is notified twice would write two checkpoints. One that is not
        // notified is disturbed when the notice runs out.
        let entry = known.unwrap_or_else(|| Entry {
            generation: action.generation,
            begun_us: None,
            done_us: None,
            expires_us: action.expires_us,
            change: action.change.clone(),
            restarts: None,
            nodes: Vec::new(),
            notified_us: None,
            ready_by_us: None,
        });
        let entry = Entry { notified_us: Some(since_us), ready_by_us: Some(ready_by_us), ..entry };
        snapshot.notes.actions.insert(action.id.clone(), entry);
        snapshot.notes.write(slurm, &config.notes, action)?;
        if let Some(folder) = &ways.folder {
            user_file::write(&folder.join(format!("{id}.notice")), &text).map_err(|error| {
                refused(&action.id, format!("the notice cannot be written to {}: {error}", folder.display()))
            })?;
        }
        if let Some(signal) = &ways.signal {
            let sent = slurm.run("scancel", &[&format!("--signal={signal}"), &id]);
            sent.map_err(|failed| failed.as_error(&action.id))?;
        }
    }
    let by_file = || ways.folder.as_deref().and_then(|folder| ready_file(folder, &id, &user, &action.id));
    let by_hook = || ways.url.as_deref().and_then(|url| hook_ready(url, &text));
    Ok(match by_file().or_else(by_hook) {
        Some(Ready { at_us, saved_step }) => {
            let now_us = now_us().max(since_us);
            // A file may claim any time.
            Notice::Acknowledged { at_us: at_us.unwrap_or(now_us).clamp(since_us, now_us), saved_step }
        }
        None => Notice::Waiting { since_us },
    })
}

/// What `JOB.ready` says, if it is the file of the job's user and about this action and not an
/// earlier one.
fn ready_file(folder: &Path, job: &str, user: &str, action: &str) -> Option<Ready> {
    let path = folder.join(format!("{job}.ready"));
    let read = || -> Result<Option<Ready>, String> {
        let Some(uid) = user_file::uid(user) else { return Ok(None) };
        let file = match user_file::read(&path, uid, ANSWER_BYTES) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| error.to_string())?,
        };
        let ready = ReadyFile::parse(file.text.trim())?;
        let is_ours = ready.action == action;
        Ok(is_ours.then_some(Ready { at_us: Some(file.modified_us), saved_step: ready.saved_step }))
    };
    read().unwrap_or_else(|why| {
        tracing::warn!("{} acknowledges nothing: {why}", path.display());
        None
    })
}

impl ReadyFile {
    /// Parses the bare id of an action, or JSON: `{"action": "preempt-1", "saved_step": 1200}`.
    ///
    /// # Errors
    /// It is broken JSON, or its step is no step.
    fn parse(text: &str) -> Result<Self, String> {
        // The id of an action is a word.
        if !text.starts_with('{') {
            return Ok(Self { action: text.to_owned(), saved_step: None });
        }
        let ready: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match ready.saved_step {
            Some(step) if step > MOST_STEP => Err(format!("saved_step {step} is above {MOST_STEP}")),
            _ => Ok(ready),
        }
    }
}

/// The hook's acknowledgement; one that cannot be reached gives none.
fn hook_ready(url: &str, text: &str) -> Option<Ready> {
    let config = ureq::Agent::config_builder().timeout_global(Some(HOOK)).build();
    let agent = ureq::Agent::new_with_config(config);
    let sent = agent.post(url).header("Content-Type", "application/json").send(text);
    let answer = sent
        .ok()
        .and_then(|mut response| response.body_mut().with_config().limit(ANSWER_BYTES).read_to_string().ok());
    let answer: Answer = serde_json::from_str(&answer?).ok()?;
    let is_step = answer.saved_step.is_none_or(|step| step <= MOST_STEP);
    (answer.ready && is_step).then_some(Ready { at_us: None, saved_step: answer.saved_step })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use tidegate_autopilot::action::Change;
    use tidegate_autopilot::forecast::RecordedForecast;
    use tidegate_autopilot::planner::plan;
    use tidegate_autopilot::policy::Policy;
    use tidegate_slurm::NodeState;

    use super::super::inventory::{Limits, SlurmNode};
    use super::super::notes::Notes;
    use super::super::{observe, queue};
    use super::*;

    /// Slurm's answers about a node with 8 GPUs and its two jobs: one runs there, and one of higher
    /// priority waits for it.
    fn contended(comment: &str) -> Snapshot {
        let job = |rest: &str| format!(r#"{{"partition": "p", "submit_time": 5, {rest}}}"#);
        let jobs = [
            job(&format!(
                r#""job_id": 1, "account": "ada", "comment": "{comment}", "job_state": "RUNNING",
                "start_time": 6, "nodes": "n1", "gres_detail": ["gpu:h200:8(IDX:0-7)"]"#
            )),
            job(r#""job_id": 2, "account": "ben", "comment": "tidegate:", "job_state": "PENDING",
                "tres_per_job": "gres:gpu:8", "priority": 9"#),
        ];
        let answer = format!(r#"{{"meta": {{}}, "errors": [], "jobs": [{}]}}"#, jobs.join(","));
        let node = SlurmNode {
            gpus: 8,
            model: "h200".to_owned(),
            partitions: vec!["p".to_owned()],
            features: Vec::new(),
            state: NodeState::parse("ALLOCATED"),
            reason: String::new(),
            reason_ms: None,
            comment: String::new(),
            extra: String::new(),
        };
        Snapshot {
            at_us: 4_000_000_000,
            jobs: queue::read(answer.as_bytes()).unwrap(),
            nodes: [("n1".to_owned(), node)].into(),
            reservations: BTreeMap::new(),
            limits: Limits::default(),
            notes: Notes::default(),
        }
    }

    #[test]
    fn a_plan_on_what_slurm_tells_announces_the_stop_to_a_job_that_declares_notice() {
        let stop = |comment: &str| {
            let snapshot = contended(comment);
            let state = observe::state(&SlurmConfig::default(), "c", &snapshot);
            assert_eq!(state.jobs["1"].checkpoint.save_ms, None, "Slurm does not tell it");
            let forecast = RecordedForecast::default();
            let (plan, report) = plan(&Policy::shipped(), &state, &forecast, None, snapshot.at_us, 7);
            let stops =
                |action: &&Action| matches!(&action.change, Change::Preempt { job, .. } if job == "1");
            let stop = plan.decisions.iter().map(|decision| &decision.action).find(stops);
            stop.unwrap_or_else(|| panic!("{report:?}")).notice_ms
        };
        assert_eq!(stop("tidegate:preemptible"), 0);
        assert_eq!(stop("tidegate:preemptible,notice"), 120_000);
    }

    #[test]
    fn only_the_answer_of_the_jobs_user_to_this_action_counts() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let me = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).unwrap().unwrap().name;
        let ready = |user: &str| ready_file(folder.path(), "7", user, "a-1");
        assert_eq!(ready(&me), None);
        fs::write(at("7.ready"), "a-0\n").unwrap();
        assert_eq!(ready(&me), None, "of an earlier action");
        fs::write(at("7.ready"), "a-1\n").unwrap();
        let plain = ready(&me).unwrap();
        assert!((now_us() - plain.at_us.unwrap()).abs() < 60_000_000 && plain.saved_step.is_none());
        fs::write(at("7.ready"), "{\"action\": \"a-1\", \"saved_step\": 1200}\n").unwrap();
        assert_eq!(ready(&me).unwrap().saved_step, Some(1200));
        let other = if me == "daemon" { "root" } else { "daemon" };
        assert_eq!(ready(other), None, "somebody else wrote it");
        fs::rename(at("7.ready"), at("elsewhere")).unwrap();
        std::os::unix::fs::symlink(at("elsewhere"), at("7.ready")).unwrap();
        assert_eq!(ready(&me), None, "a link");
        fs::remove_file(at("7.ready")).unwrap();
        // Whoever opens a pipe waits for a writer, who never comes.
        nix::unistd::mkfifo(&at("7.ready"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(ready(&me), None, "a pipe");
    }

    #[test]
    fn an_acknowledgement_is_the_id_or_json_with_a_step_that_may_be_one() {
        let of = ReadyFile::parse;
        let ready = |saved_step| Ok(ReadyFile { action: "a-1".to_owned(), saved_step });
        assert_eq!(of("a-1"), ready(None));
        assert_eq!(of(r#"{"action": "a-1"}"#), ready(None));
        assert_eq!(of(r#"{"action": "a-1", "saved_step": null}"#), ready(None));
        assert_eq!(of(r#"{"action": "a-1", "saved_step": 0, "more": [1]}"#), ready(Some(0)));
        let most = format!(r#"{{"action": "a-1", "saved_step": {MOST_STEP}}}"#);
        assert_eq!(of(&most), ready(Some(MOST_STEP)));
        for broken in ["-1", "1.5", "\"7\"", "9007199254740993", "99999999999999999999"] {
            let text = format!(r#"{{"action": "a-1", "saved_step": {broken}}}"#);
            assert!(of(&text).is_err(), "{broken}");
        }
        assert!(of(r#"{"action": "a-1", "saved_step": 7"#).is_err(), "written in part");
        assert!(of(r#"{"saved_step": 7}"#).is_err(), "of which action?");
    }

    #[test]
    fn a_hook_must_say_that_it_is_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let answers = [
            "{\"ready\": false}",
            "",
            "{\"ready\": true, \"saved_step\": -1}",
            "{\"ready\": true}",
            "{\"ready\": true, \"saved_step\": 9}",
        ];
        let server = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 4096];
                let _length = stream.read(&mut asked).unwrap();
                let length = answer.len();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}"
                )
                .unwrap();
            }
        });
        let steps = answers.map(|_| hook_ready(&url, "{}").map(|ready| ready.saved_step));
        assert_eq!(steps, [None, None, None, Some(None), Some(Some(9))]);
        server.join().unwrap();
        assert_eq!(hook_ready(&url, "{}"), None, "nobody listens");
    }
}
