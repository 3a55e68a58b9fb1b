//! Quotas and reservations.

use chrono::{Local, TimeZone};
use tidegate_autopilot::action::Adjustment;
use tidegate_autopilot::target::TargetError;

use super::{Act, Before};
use crate::slurm::ask::{Failed, SLURM, unknown};
use crate::slurm::config::is_word;
use crate::slurm::inventory;
use crate::slurm::lent::Lent;
use crate::slurm::marker;
use crate::slurm::observe::Look;
use crate::slurm::probe::Rights;

/// A time as Slurm takes it, in the zone of this machine, which its programs share; whole seconds,
/// the rest is cut off.
pub(super) fn time(us: i64) -> Result<String, TargetError> {
    let at = Local.timestamp_opt(us.div_euclid(1_000_000), 0).single();
    let at = at.ok_or_else(|| unknown(format!("{us} us is no time of this machine's calendar")))?;
    Ok(at.format("%Y-%m-%dT%H:%M:%S").to_string())
}

/// Where a quota stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::slurm) enum Place<'a> {
    Account(&'a str),
    Qos(&'a str),
}

fn has_loans(look: &Look, qos: &str) -> bool {
    let told = look.limits.qos.get(qos).and_then(|told| Lent::read(&told.description));
    told.is_some_and(|lent| !lent.loans.is_empty())
}

impl<'a> Act<'a> {
    /// Where the quota of an owner in a pool stands, if it stands in Slurm.
    pub(in crate::slurm) fn place(&self, owner: &str, pool: &str) -> Option<Place<'a>> {
        let share = self.config.owners.get(owner)?.shares.get(pool)?;
        match (&share.quota_account, &share.quota_qos) {
            (Some(account), _) => Some(Place::Account(account)),
            (_, Some(qos)) => Some(Place::Qos(qos)),
            _ => None,
        }
    }

    /// Nodes of a pool that make so many GPUs.
    pub(super) fn nodes_of(&self, look: &Look, pool: &str, gpus: u32) -> Result<u32, TargetError> {
        let of_pool = look
            .nodes
            .iter()
            .filter(|(name, node)| node.gpus > 0 && look.pool_of(self.config, name).as_deref() == Some(pool));
        let sizes: std::collections::BTreeSet<u32> = of_pool.map(|(_, node)| node.gpus).collect();
        match sizes.iter().copied().collect::<Vec<_>>()[..] {
            [each] if gpus > 0 && gpus.is_multiple_of(each) => Ok(gpus / each),
            [each] => Err(self.refuse(format!(
                "Slurm reserves whole nodes, of {each} GPUs in pool {pool}: {gpus} are none"
            ))),
            _ => Err(self.refuse(format!("nodes of pool {pool} have {sizes:?} GPUs: name the nodes"))),
        }
    }

    pub(super) fn check_adjust(&self, look: &Look, adjust: &Adjustment) -> Result<Before, TargetError> {
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
                    "the quota of {owner} in {pool} does not stand in Slurm: set quota_account or quota_qos"
                ))),
                Some(Place::Qos(qos)) if self.setup.rights < Rights::Administrator => Err(unsupported(
                    format!("only Administrators change a QOS, here {qos}, and {} is not", self.setup.user),
                )),
                Some(Place::Qos(qos)) if has_loans(look, qos) => Err(self
                    .refuse(format!("loans stand on QOS {qos}: its own limit changes when they are over"))),
                Some(_) => Ok(Before::default()),
            },
            Adjustment::Reservation { name, pool, owner, to_gpus, from_gpus, .. } => {
                let accounts = self.config.accounts(owner);
                self.words(accounts.iter().chain([name]))?;
                if marker::loan_of(name).is_some() {
                    return Err(self.refuse(format!("{name} is the name of a loan")));
                }
                match (look.reservations.contains_key(name), *from_gpus) {
                    (true, 0) => return Err(self.refuse(format!("there is a reservation {name} already"))),
                    (false, 1..) => return Err(self.refuse(format!("there is no reservation {name}"))),
                    _ => {}
                }
                if *to_gpus > 0 {
                    self.nodes_of(look, pool, *to_gpus)?;
                }
                Ok(Before::default())
            }
        }
    }

    pub(super) fn adjust(&self, look: &Look, adjust: &Adjustment) -> Result<String, TargetError> {
        match adjust {
            Adjustment::Quota { owner, pool, to_gpus, .. } => self.set_quota(owner, pool, *to_gpus),
            Adjustment::Reservation { name, owner, pool, to_gpus, start_us, end_us, .. } => {
                let is_there = look.reservations.contains_key(name);
                if *to_gpus == 0 {
                    if is_there {
                        self.slurm
                            .tell("scontrol", &["delete", &format!("ReservationName={name}")])
                            .map_err(|failed| failed.as_error(&self.action.id))?;
                    }
                    return Ok(format!("scontrol delete reservation {name}"));
                }
                let mut values = vec![
                    format!("ReservationName={name}"),
                    format!("EndTime={}", time(*end_us)?),
                    format!("NodeCnt={}", self.nodes_of(look, pool, *to_gpus)?),
                ];
                if is_there {
                    self.update(&values)?;
                    return Ok(format!("scontrol update {name} {}", values[2]));
                }
                // A start that has passed meanwhile is now.
                let start = if *start_us <= look.at_us { "now".to_owned() } else { time(*start_us)? };
                values.push(format!("StartTime={start}"));
                values.push(format!("Accounts={}", self.config.accounts(owner).join(",")));
                values.push(format!("PartitionName={}", self.config.partition(pool)));
                self.create(name, &values)?;
                Ok(format!("scontrol create reservation {name} {}", values[2]))
            }
            Adjustment::Commitment { .. } => {
                Err(self.refuse("what is bought for a term is a person's to decide"))
            }
        }
    }

    /// Makes a reservation, unless one of the name is there: names are unique, so of two that try
    /// one makes it.
    pub(super) fn create(&self, name: &str, values: &[String]) -> Result<(), TargetError> {
        let args: Vec<&str> =
            ["create", "reservation"].into_iter().chain(values.iter().map(String::as_str)).collect();
        let Err(failed) = self.slurm.tell("scontrol", &args) else { return Ok(()) };
        if let Failed::Said(_) = &failed
            && inventory::reservations(self.slurm)?.contains_key(name)
        {
            return Ok(());
        }
        Err(failed.as_error(&self.action.id))
    }

    fn set_quota(&self, owner: &str, pool: &str, gpus: u32) -> Result<String, TargetError> {
        let place =
            self.place(owner, pool).ok_or_else(|| self.refuse("its quota does not stand in Slurm"))?;
        let limit = format!("GrpTRES=gres/gpu={gpus}");
        let cluster = format!("cluster={}", self.setup.cluster);
        let (name, mut args) = match place {
            Place::Account(name) => (name, vec!["-i", "modify", "account"]),
            Place::Qos(name) => (name, vec!["-i", "modify", "qos"]),
        };
        if !is_word(name) {
            return Err(self.refuse(format!("{name:?} is no name of an account or QOS")));
        }
        let which = format!("name={name}");
        args.push(&which);
        if matches!(place, Place::Account(_)) {
            args.push(&cluster);
        }
        args.extend(["set", &limit]);
        self.slurm.tell("sacctmgr", &args).map_err(|failed| failed.as_error(&self.action.id))?;
        Ok(format!("sacctmgr {}", args[1..].join(" ")))
    }
}
