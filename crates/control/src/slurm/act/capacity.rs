//! Quotas and reservations.

use chrono::{Local, TimeZone};
use tidegate_autopilot::action::Adjustment;
use tidegate_autopilot::target::TargetError;
use tidegate_events::Micros;

use super::{Act, Before};
use crate::slurm::ask::{ChangeError, SLURM, unknown};
use crate::slurm::config::is_word;
use crate::slurm::inventory;
use crate::slurm::marker;
use crate::slurm::probe::Rights;
use crate::slurm::qos_loans::QosLoans;
use crate::slurm::snapshot::Snapshot;

/// A time as Slurm's programs take it: in this machine's zone, cut to whole seconds.
pub(super) fn time(us: i64) -> Result<String, TargetError> {
    let at = Local.timestamp_opt(Micros(us).floor_secs(), 0).single();
    let at = at.ok_or_else(|| unknown(format!("{us} us is not a time of this machine's calendar")))?;
    Ok(at.format("%Y-%m-%dT%H:%M:%S").to_string())
}

/// Where Slurm keeps a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::slurm) enum QuotaPlace<'a> {
    Account(&'a str),
    Qos(&'a str),
}

fn has_loans(snapshot: &Snapshot, qos: &str) -> bool {
    let lent = snapshot.limits.qos.get(qos).and_then(|lent| QosLoans::parse(&lent.description));
    lent.is_some_and(|lent| !lent.loans.is_empty())
}

impl<'a> Act<'a> {
    /// Where the quota of an owner in a pool is kept, if Slurm keeps it.
    pub(in crate::slurm) fn place(&self, owner: &str, pool: &str) -> Option<QuotaPlace<'a>> {
        let share = self.config.owners.get(owner)?.shares.get(pool)?;
        match (&share.quota_account, &share.quota_qos) {
            (Some(account), _) => Some(QuotaPlace::Account(account)),
            (_, Some(qos)) => Some(QuotaPlace::Qos(qos)),
            _ => None,
        }
    }

    /// Number of the pool's nodes that makes this many GPUs.
    pub(super) fn nodes_of(&self, snapshot: &Snapshot, pool: &str, gpus: u32) -> Result<u32, TargetError> {
        let of_pool = snapshot.nodes.iter().filter(|(name, node)| {
            node.gpus > 0 && snapshot.pool_of(self.config, name).as_deref() == Some(pool)
        });
        let sizes: std::collections::BTreeSet<u32> = of_pool.map(|(_, node)| node.gpus).collect();
        match sizes.iter().copied().collect::<Vec<_>>()[..] {
            [each] if gpus > 0 && gpus.is_multiple_of(each) => Ok(gpus / each),
            [each] => Err(self.refuse(format!(
                "Slurm reserves whole nodes, of {each} GPUs in pool {pool}: {gpus} are none"
            ))),
            _ => Err(self.refuse(format!("nodes of pool {pool} have {sizes:?} GPUs: name the nodes"))),
        }
    }

    pub(super) fn check_adjust(
        &self,
        snapshot: &Snapshot,
        adjust: &Adjustment,
    ) -> Result<Before, TargetError> {
        let unsupported = |why: String| TargetError::Unsupported {
            target: SLURM.to_owned(),
            kind: self.action.change.kind(),
            why,
        };
        match adjust {
            Adjustment::Commitment { .. } => {
                Err(unsupported("what is bought for a term is a person's to decide".to_owned()))
            }
            Adjustment::Quota { .. } if !self.setup.accounting => {
                Err(unsupported("without slurmdbd there are no quotas".to_owned()))
            }
            Adjustment::Quota { owner, pool, .. } => match self.place(owner, pool) {
                None => Err(unsupported(format!(
                    "Slurm does not keep the quota of {owner} in {pool}: set quota_account or quota_qos"
                ))),
                Some(QuotaPlace::Qos(qos)) if self.setup.rights < Rights::Administrator => Err(unsupported(
                    format!("only Administrators change a QOS, here {qos}, and {} is not", self.setup.user),
                )),
                Some(QuotaPlace::Qos(qos)) if has_loans(snapshot, qos) => Err(self
                    .refuse(format!("loans stand on QOS {qos}: its own limit changes when they are over"))),
                Some(_) => Ok(Before::default()),
            },
            Adjustment::Reservation { name, pool, owner, to_gpus, from_gpus, .. } => {
                let accounts = self.config.accounts(owner);
                self.words(accounts.iter().chain([name]))?;
                if marker::loan_of(name).is_some() {
                    return Err(self.refuse(format!("{name} is the name of a loan")));
                }
                match (snapshot.reservations.contains_key(name), *from_gpus) {
                    (true, 0) => return Err(self.refuse(format!("there is a reservation {name} already"))),
                    (false, 1..) => return Err(self.refuse(format!("there is no reservation {name}"))),
                    _ => {}
                }
                if *to_gpus > 0 {
                    self.nodes_of(snapshot, pool, *to_gpus)?;
                }
                Ok(Before::default())
            }
        }
    }

    pub(super) fn adjust(&self, snapshot: &Snapshot, adjust: &Adjustment) -> Result<String, TargetError> {
        match adjust {
            Adjustment::Quota { owner, pool, to_gpus, .. } => self.set_quota(owner, pool, *to_gpus),
            Adjustment::Reservation { name, owner, pool, to_gpus, start_us, end_us, .. } => {
                let is_there = snapshot.reservations.contains_key(name);
                if *to_gpus == 0 {
                    if is_there {
                        self.slurm
                            .run("scontrol", &["delete", &format!("ReservationName={name}")])
                            .map_err(|failed| failed.as_error(&self.action.id))?;
                    }
                    return Ok(format!("scontrol delete reservation {name}"));
                }
                let mut values = vec![
                    format!("ReservationName={name}"),
                    format!("EndTime={}", time(*end_us)?),
                    format!("NodeCnt={}", self.nodes_of(snapshot, pool, *to_gpus)?),
                ];
                if is_there {
                    self.update(&values)?;
                    return Ok(format!("scontrol update {name} {}", values[2]));
                }
                // A start that has passed meanwhile becomes now.
                let start = if *start_us <= snapshot.at_us { "now".to_owned() } else { time(*start_us)? };
                values.push(format!("StartTime={start}"));
                values.push(format!("Accounts={}", self.config.accounts(owner).join(",")));
                values.push(format!("PartitionName={}", self.config.partition(pool)));
                // The owner's jobs do not know its name, and may outlast it.
                values.push("Flags=MAGNETIC,FLEX".to_owned());
                self.create(name, &values)?;
                Ok(format!("scontrol create reservation {name} {}", values[2]))
            }
            Adjustment::Commitment { .. } => {
                Err(self.refuse("what is bought for a term is a person's to decide"))
            }
        }
    }

    /// Creates a reservation unless one of that name exists. Names are unique: of two processes
    /// that try, one creates it.
    pub(super) fn create(&self, name: &str, values: &[String]) -> Result<(), TargetError> {
        let args: Vec<&str> =
            ["create", "reservation"].into_iter().chain(values.iter().map(String::as_str)).collect();
        let Err(failed) = self.slurm.run("scontrol", &args) else { return Ok(()) };
        if let ChangeError::Rejected(_) = &failed
            && inventory::reservations(self.slurm)?.contains_key(name)
        {
            return Ok(());
        }
        Err(failed.as_error(&self.action.id))
    }

    fn set_quota(&self, owner: &str, pool: &str, gpus: u32) -> Result<String, TargetError> {
        let place = self.place(owner, pool).ok_or_else(|| self.refuse("Slurm does not keep its quota"))?;
        let limit = format!("GrpTRES=gres/gpu={gpus}");
        let cluster = format!("cluster={}", self.setup.cluster);
        let (name, mut args) = match place {
            QuotaPlace::Account(name) => (name, vec!["-i", "modify", "account"]),
            QuotaPlace::Qos(name) => (name, vec!["-i", "modify", "qos"]),
        };
        if !is_word(name) {
            return Err(self.refuse(format!("{name:?} is not a name of an account or QOS")));
        }
        let which = format!("name={name}");
        args.push(&which);
        if matches!(place, QuotaPlace::Account(_)) {
            args.push(&cluster);
        }
        args.extend(["set", &limit]);
        self.slurm.run("sacctmgr", &args).map_err(|failed| failed.as_error(&self.action.id))?;
        Ok(format!("sacctmgr {}", args[1..].join(" ")))
    }
}
