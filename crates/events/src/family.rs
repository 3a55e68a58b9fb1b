//! Families: jobs that are runs of the same program.

use crate::v1::{JobEvent, JobEventKind};

/// Longest name of a family, bytes; a job whose parts are longer is a family of its own.
const MAX_BYTES: usize = 512;

/// Team, user, name and GPU model of a job, from its events. Jobs with equal values are assumed to
/// scale alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct JobFamily {
    /// Team or account.
    pub team: Option<String>,
    /// User that submitted the job.
    pub user_name: Option<String>,
    /// Name of the job, not of its steps.
    pub job_name: Option<String>,
    /// Model of the GPUs, e.g. `h100`.
    pub gpu_model: Option<String>,
}

impl JobFamily {
    /// Adds what an event states. Events of a job's steps are ignored: they carry the step's name.
    pub fn learn(&mut self, event: &JobEvent) {
        if event.step_id.is_some() || event.kind() == JobEventKind::Observed {
            return;
        }
        let parts = [
            (&mut self.team, &event.team),
            (&mut self.user_name, &event.user_name),
            (&mut self.job_name, &event.job_name),
            (&mut self.gpu_model, &event.gpu_model),
        ];
        for (known, stated) in parts {
            if stated.as_ref().is_some_and(|stated| !stated.is_empty()) {
                known.clone_from(stated);
            }
        }
    }

    /// Adds what `later` has.
    pub fn merge(&mut self, later: &Self) {
        self.team = later.team.clone().or(self.team.take());
        self.user_name = later.user_name.clone().or(self.user_name.take());
        self.job_name = later.job_name.clone().or(self.job_name.take());
        self.gpu_model = later.gpu_model.clone().or(self.gpu_model.take());
    }

    /// Whether the family has a name; otherwise each job is a family of its own.
    pub fn is_named(&self) -> bool {
        self.job_name.is_some()
            && self.parts().iter().flatten().map(|part| part.len()).sum::<usize>() <= MAX_BYTES
    }

    /// Name of the family of the job `job_id`, as `schemas/scaling_curve.proto` has it. A `/` in a
    /// part is `%2F`.
    pub fn name(&self, job_id: &str) -> String {
        if !self.is_named() {
            return format!("job/{job_id}");
        }
        let part = |part: &Option<&str>| part.map_or_else(|| "-".to_owned(), |part| part.replace('/', "%2F"));
        self.parts().iter().map(part).collect::<Vec<_>>().join("/")
    }

    fn parts(&self) -> [Option<&str>; 4] {
        [&self.team, &self.user_name, &self.job_name, &self.gpu_model].map(Option::as_deref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_several_events_make_the_name() {
        let mut family = JobFamily::default();
        assert_eq!(family.name("7"), "job/7");
        family.learn(&JobEvent {
            team: Some("vision".into()),
            job_name: Some("a/b".into()),
            ..Default::default()
        });
        family.learn(&JobEvent {
            gpu_model: Some("h100".into()),
            job_name: Some(String::new()),
            ..Default::default()
        });
        // Its steps have names of their own.
        let step =
            JobEvent { step_id: Some("0".into()), job_name: Some("python".into()), ..Default::default() };
        family.learn(&step);
        assert_eq!(family.name("7"), "vision/-/a%2Fb/h100");
        let mut merged = JobFamily { user_name: Some("u".into()), ..JobFamily::default() };
        merged.merge(&family);
        assert_eq!(merged.name("7"), "vision/u/a%2Fb/h100");
    }

    #[test]
    fn a_family_name_that_is_too_long_is_ignored() {
        let family = JobFamily { job_name: Some("x".repeat(600)), ..JobFamily::default() };
        assert_eq!(family.name("7"), "job/7");
    }
}
