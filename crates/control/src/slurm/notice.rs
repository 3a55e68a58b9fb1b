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

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    ready: bool,
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
    let text = serde_json::json!({
        "action": action.id,
        "job": id,
        "ready_by_us": since_us + Millis(action.notice_ms).to_micros().0,
    })
    .to_string();
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
        });
        snapshot.notes.actions.insert(action.id.clone(), Entry { notified_us: Some(since_us), ..entry });
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
    let by_file = ways.folder.as_deref().and_then(|folder| ready_file(folder, &id, &user, &action.id));
    // A file may claim any time.
    let by_file = by_file.map(|at_us| at_us.clamp(since_us, now_us().max(since_us)));
    let by_hook = || ways.url.as_deref().filter(|url| hook_says_ready(url, &text)).map(|_| now_us());
    Ok(match by_file.or_else(by_hook) {
        Some(at_us) => Notice::Acknowledged { at_us },
        None => Notice::Waiting { since_us },
    })
}

/// When `JOB.ready` was written, if it is the file of the job's user and holds the id of this
/// action and not of an earlier one.
fn ready_file(folder: &Path, job: &str, user: &str, action: &str) -> Option<i64> {
    let path = folder.join(format!("{job}.ready"));
    match user_file::read(&path, user_file::uid(user)?, ANSWER_BYTES) {
        Ok(file) => (file.text.trim() == action).then_some(file.modified_us),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!("{} acknowledges nothing: {error}", path.display());
            None
        }
    }
}

/// Whether the hook acknowledges; one that cannot be reached does not.
fn hook_says_ready(url: &str, text: &str) -> bool {
    let config = ureq::Agent::config_builder().timeout_global(Some(HOOK)).build();
    let agent = ureq::Agent::new_with_config(config);
    let sent = agent.post(url).header("Content-Type", "application/json").send(text);
    let answer = sent
        .ok()
        .and_then(|mut response| response.body_mut().with_config().limit(ANSWER_BYTES).read_to_string().ok());
    answer.and_then(|text| serde_json::from_str::<Answer>(&text).ok()).is_some_and(|answer| answer.ready)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

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
        assert!((now_us() - ready(&me).unwrap()).abs() < 60_000_000);
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
    fn a_hook_must_say_that_it_is_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let answers = ["{\"ready\": false}", "", "{\"ready\": true}"];
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
        let said: Vec<bool> = answers.iter().map(|_| hook_says_ready(&url, "{}")).collect();
        assert_eq!(said, [false, false, true]);
        server.join().unwrap();
        assert!(!hook_says_ready(&url, "{}"), "nobody listens");
    }
}
