//! Loans by QOS: GPUs added to the limit of the borrower's QOS, and taken off again.

use std::collections::BTreeSet;

use tidegate_autopilot::action::UnmetPrecondition;
use tidegate_autopilot::target::TargetError;
use tidegate_events::Micros;
use tidegate_slurm::JobPhase as Phase;

use super::capacity::time;
use super::{Act, Before};
use crate::slurm::ask::{ChangeError, SLURM, unknown};
use crate::slurm::config::{LendBy, is_word};
use crate::slurm::inventory::{self, QosLimit};
use crate::slurm::probe::Rights;
use crate::slurm::qos_loans::{self, QosLoan, QosLoans};
use crate::slurm::queue;
use crate::slurm::snapshot::Snapshot;

/// Script that ends a loan.
const RESTORE: &str = include_str!("restore.sh");

/// A loan to be opened or extended.
struct LoanSpec<'a> {
    qos: &'a str,
    id: &'a str,
    gpus: u32,
    end_us: i64,
}

impl Act<'_> {
    /// The QOS whose limit a loan of `from` to `to` raises; `None`: nodes are lent instead.
    pub(super) fn lends_by(&self, from: &str, to: &str, pool: &str) -> Result<Option<&str>, TargetError> {
        let share = |owner: &str| self.config.owners.get(owner).and_then(|owner| owner.shares.get(pool));
        if share(from).is_none_or(|share| share.lend_by != LendBy::Qos) {
            return Ok(None);
        }
        self.may_change_qos()?;
        match share(to).and_then(|share| share.quota_qos.as_deref()).filter(|qos| is_word(qos)) {
            Some(qos) => Ok(Some(qos)),
            None => Err(self.refuse(format!("{to} has no quota_qos in {pool} to which GPUs could be lent"))),
        }
    }

    fn may_change_qos(&self) -> Result<(), TargetError> {
        if self.setup.rights == Rights::Administrator && self.setup.accounting {
            return Ok(());
        }
        Err(TargetError::Unsupported {
            target: SLURM.to_owned(),
            kind: self.action.change.kind(),
            why: format!("only Administrators change a QOS in slurmdbd, and {} is not", self.setup.user),
        })
    }

    pub(super) fn check_lend_by_limit(
        &self,
        snapshot: &Snapshot,
        qos: &str,
        gpus: u32,
    ) -> Result<Before, TargetError> {
        let shown =
            snapshot.limits.qos.get(qos).ok_or_else(|| self.refuse(format!("there is no QOS {qos}")))?;
        self.standing(qos, shown)?;
        // The id goes into a condition of sacctmgr, which would change these characters.
        if gpus == 0 || self.action.id.contains(|c: char| c.is_ascii_uppercase() || c == '@') {
            return Err(self.refuse("nothing is lent, or its id cannot stand in a description"));
        }
        if shown.description.contains([',', '"', '\'', '`', '\\', '=']) {
            return Err(self.refuse(format!(
                "the description of QOS {qos} has signs that sacctmgr does not look for as they are: {:?}",
                shown.description
            )));
        }
        Ok(Before::default())
    }

    /// The loans on a QOS. Fails if the limit is not what we wrote: a person changed it.
    fn standing(&self, qos: &str, shown: &QosLimit) -> Result<QosLoans, TargetError> {
        let gpus = shown.gpus.ok_or_else(|| {
            self.refuse(format!(
                "QOS {qos} has no limit of gres/gpu: its jobs may use everything without a loan"
            ))
        })?;
        let lent = QosLoans::parse(&shown.description).unwrap_or_else(|| QosLoans {
            text: shown.description.clone(),
            base: gpus,
            ..QosLoans::default()
        });
        if let Some(seen) = lent.loans.values().map(|word| word.generation).max()
            && seen > self.action.generation
        {
            return Err(TargetError::StaleGeneration { generation: self.action.generation, seen });
        }
        if lent.limit() != gpus {
            let expected = format!("the limit of QOS {qos} is {} with what is lent", lent.limit());
            return Err(TargetError::Precondition(UnmetPrecondition {
                expected,
                found: format!("it is {gpus}"),
            }));
        }
        Ok(lent)
    }

    fn qos_now(&self, qos: &str) -> Result<QosLimit, TargetError> {
        let shown = inventory::limits(self.slurm, &self.setup.cluster)?.qos.remove(qos);
        shown.ok_or_else(|| self.refuse(format!("there is no QOS {qos}")))
    }

    /// Writes limit and description in one message, if the description is still the one that was
    /// read.
    fn rewrite(&self, qos: &str, shown: &QosLimit, wanted: &QosLoans) -> Result<String, TargetError> {
        let (which, found) = (format!("name={qos}"), format!("description={}", shown.description));
        let (limit, text) = (wanted.limit(), wanted.description());
        let set = [format!("GrpTRES=gres/gpu={limit}"), format!("Description={text}")];
        let mut args = vec!["-i", "modify", "qos", "where", &which];
        // sacctmgr cannot match an empty description.
        if !shown.description.is_empty() {
            args.push(&found);
        }
        args.extend(["set", &set[0], &set[1]]);
        let answer = self.slurm.run("sacctmgr", &args);
        let now = self.qos_now(qos)?;
        match answer {
            _ if now.description == text && now.gpus == Some(limit) => {
                Ok(format!("sacctmgr modify qos {qos} set {}", set[0]))
            }
            Err(ChangeError::Rejected(_)) if now.description != shown.description => {
                let expected = format!("the description of QOS {qos} is {:?}", shown.description);
                Err(TargetError::Precondition(UnmetPrecondition {
                    expected,
                    found: format!("it is {:?}", now.description),
                }))
            }
            Err(failed) => Err(failed.as_error(&self.action.id)),
            Ok(_) => Err(unknown(format!("QOS {qos} was given {limit} GPUs, but Slurm shows {now:?}"))),
        }
    }

    pub(super) fn lend_by_limit(&self, qos: &str, gpus: u32, end_us: i64) -> Result<String, TargetError> {
        self.set_loan(&LoanSpec { qos, id: &self.action.id, gpus, end_us })
    }

    pub(super) fn extend_limit(
        &self,
        snapshot: &Snapshot,
        loan: &str,
        end_us: i64,
    ) -> Result<String, TargetError> {
        let (qos, _, lent) =
            qos_loans::of_loan(snapshot, loan).ok_or_else(|| self.refuse(format!("loan {loan} is over")))?;
        self.set_loan(&LoanSpec { qos, id: loan, gpus: lent.loans[loan].to_gpus, end_us })
    }

    /// Submits the job that ends the loan, then raises the limit: never one that nothing lowers.
    fn set_loan(&self, wanted: &LoanSpec<'_>) -> Result<String, TargetError> {
        let LoanSpec { qos, id, gpus, end_us } = *wanted;
        let shown = self.qos_now(qos)?;
        let mut lent = self.standing(qos, &shown)?;
        let end_s = Micros(end_us).floor_secs();
        let word = QosLoan { to_gpus: gpus, gpus, end_s, generation: self.action.generation };
        if lent.loans.get(id).is_some_and(|there| (there.to_gpus, there.end_s) == (gpus, end_s)) {
            return Ok(format!("QOS {qos} has loan {id} already"));
        }
        self.will_end(qos, id, end_us)?;
        lent.loans.insert(id.to_owned(), word);
        self.rewrite(qos, &shown, &lent)
    }

    /// Submits the job that begins when the loan ends and takes it off the limit (`restore.sh`),
    /// unless it is there.
    fn will_end(&self, qos: &str, id: &str, end_us: i64) -> Result<(), TargetError> {
        let end_s = Micros(end_us).floor_secs().to_string();
        let name = format!("{}.{end_s}", restore_name(id));
        let there = |job: &queue::QueueJob| {
            job.name == name && job.phase == Phase::Waiting && job.user == self.setup.user
        };
        if queue::jobs(self.slurm)?.iter().any(there) {
            return Ok(());
        }
        let mut args = vec![
            format!("--job-name={name}"),
            format!("--begin={}", time(end_us)?),
            format!("--comment=ends a loan of the autopilot: do not cancel ({})", self.marker()),
            // It must run before jobs that wait for the GPUs.
            "--priority=4294967293".to_owned(),
            "--requeue".to_owned(),
        ];
        args.extend(["--nodes=1", "--ntasks=1", "--mem=1", "--time=30"].map(str::to_owned));
        args.extend(["--output=/dev/null", "--chdir=/"].map(str::to_owned));
        args.extend(self.config.notes.options());
        let programs = self.config.programs.as_ref().map(|folder| folder.display().to_string());
        let env = [
            ("TIDEGATE_QOS", qos),
            ("TIDEGATE_END", end_s.as_str()),
            ("TIDEGATE_PROGRAMS", programs.as_deref().unwrap_or_default()),
        ];
        let result = self.slurm.submit(&args, RESTORE, &env);
        result.map(|_| ()).map_err(|failed| failed.as_error(&self.action.id))
    }

    pub(super) fn check_reclaim_limit(
        &self,
        (qos, shown): (&str, &QosLimit),
        nodes: &BTreeSet<String>,
    ) -> Result<Before, TargetError> {
        self.may_change_qos()?;
        if !nodes.is_empty() {
            return Err(self.refuse(format!("a number of GPUs was lent by QOS {qos}, and no nodes")));
        }
        self.standing(qos, shown).map(|_| Before::default())
    }

    /// Lowers the limit: no job starts on what is called back. Running jobs are stopped by other
    /// actions.
    pub(super) fn reclaim_limit(
        &self,
        snapshot: &Snapshot,
        loan: &str,
        to_gpus: u32,
    ) -> Result<String, TargetError> {
        let Some((qos, ..)) = qos_loans::of_loan(snapshot, loan) else {
            return Ok(format!("loan {loan} is over"));
        };
        let shown = self.qos_now(qos)?;
        let mut lent = self.standing(qos, &shown)?;
        match lent.loans.get_mut(loan) {
            Some(word) if word.to_gpus > to_gpus => {
                (word.to_gpus, word.generation) = (to_gpus, self.action.generation);
            }
            _ => return Ok(format!("loan {loan} keeps {to_gpus} GPUs already")),
        }
        self.rewrite(qos, &shown, &lent)
    }

    /// Removes a loan that was called back as a whole from the description.
    pub(in crate::slurm) fn forget(&self, snapshot: &Snapshot, loan: &str) {
        let Some((qos, shown, mut lent)) = qos_loans::of_loan(snapshot, loan) else { return };
        let is_over = lent.loans.remove(loan).is_some_and(|word| word.to_gpus == 0);
        if is_over && shown.gpus == Some(lent.limit()) && self.rewrite(qos, shown, &lent).is_ok() {
            // The job that would have ended it is not needed; if it runs, it finds nothing to do.
            let name = format!("{}.", restore_name(loan));
            for job in
                snapshot.jobs.iter().filter(|job| job.name.starts_with(&name) && job.user == self.setup.user)
            {
                self.slurm.run("scancel", &["--state=PENDING", &job.id]).ok();
            }
        }
    }
}

/// Name of the jobs that end a loan, without the time.
fn restore_name(loan: &str) -> String {
    format!("tidegate-restore.{loan}")
}
