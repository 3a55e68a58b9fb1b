//! Limits and rights in slurmdbd: `sacctmgr show`.

use crate::client::{CommandError, SlurmClient};
use crate::error::ParseError;
use crate::tres::TresGpus;

/// A `GrpTRES` limit, of which the GPUs are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrpTres(String);

impl GrpTres {
    /// The limit on GPUs of any model; `None` without one, or if it is not a number.
    pub fn untyped_gpus(&self) -> Option<u64> {
        self.0.split(',').find_map(|part| part.strip_prefix("gres/gpu="))?.parse().ok()
    }

    /// The limit on GPUs: of any model, else the sum over models; `None` without one.
    ///
    /// # Errors
    /// It is not a number that u32 holds.
    pub fn gpus(&self) -> Result<Option<u32>, ParseError> {
        if !self.0.contains("gres/gpu") {
            return Ok(None);
        }
        let unreadable = || ParseError::number(format!("{:?} is not a limit of GPUs", self.0));
        u32::try_from(TresGpus::parse(&self.0)?.gpus).map(Some).map_err(|_| unreadable())
    }
}

/// An association: an account, or one user's or partition's part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssociationRecord {
    /// Account.
    pub account: String,
    /// User; empty for the account itself.
    pub user: String,
    /// Partition; empty for all.
    pub partition: String,
    /// `GrpTRES`.
    pub limit: GrpTres,
}

impl AssociationRecord {
    /// Whether it stands for the account itself.
    pub fn is_account(&self) -> bool {
        self.user.is_empty() && self.partition.is_empty()
    }
}

/// A QOS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QosRecord {
    /// Name.
    pub name: String,
    /// `GrpTRES`.
    pub limit: GrpTres,
    /// Description, in lower case as sacctmgr stores it; `None` if it was not asked for.
    pub description: Option<String>,
}

/// What a user may change in Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdminLevel {
    /// Only what is the user's own.
    None,
    /// Jobs of others, reservations, limits of accounts.
    Operator,
    /// Everything.
    Administrator,
}

impl AdminLevel {
    fn parse(text: &str) -> Self {
        match text {
            "Administrator" | "Admin" => Self::Administrator,
            "Operator" => Self::Operator,
            _ => Self::None,
        }
    }
}

/// Rows of an answer; a row that cannot be read is an error of its own.
pub type Rows<T> = Vec<Result<T, CommandError>>;

impl SlurmClient {
    /// Associations of a cluster.
    ///
    /// # Errors
    /// sacctmgr failed.
    pub fn associations(&self, cluster: &str) -> Result<Rows<AssociationRecord>, CommandError> {
        let cluster = format!("cluster={cluster}");
        let answer = self.show_table(&["association", &cluster, "format=Account,User,Partition,GrpTRES"])?;
        Ok(parse_associations(&answer))
    }

    /// All QOS, without their descriptions.
    ///
    /// # Errors
    /// sacctmgr failed.
    pub fn qos_limits(&self) -> Result<Rows<QosRecord>, CommandError> {
        Ok(parse_qos(&self.show_table(&["qos", "format=Name,GrpTRES"])?))
    }

    /// All QOS with their descriptions.
    ///
    /// # Errors
    /// sacctmgr failed.
    pub fn qos(&self) -> Result<Rows<QosRecord>, CommandError> {
        Ok(parse_qos(&self.show_table(&["qos", "format=Name,GrpTRES,Description"])?))
    }

    /// Rights of one user.
    ///
    /// # Errors
    /// sacctmgr failed.
    pub fn admin_level(&self, user: &str) -> Result<AdminLevel, CommandError> {
        let answer = self.show_table(&["user", user, "format=AdminLevel"])?;
        Ok(AdminLevel::parse(answer.trim()))
    }

    /// Rights of all users that slurmdbd knows.
    ///
    /// # Errors
    /// sacctmgr failed.
    pub fn admin_levels(&self) -> Result<Vec<(String, AdminLevel)>, CommandError> {
        let answer = self.show_table(&["user", "format=User,AdminLevel"])?;
        let rows = answer.lines().filter_map(|line| line.split_once('|'));
        Ok(rows.map(|(user, level)| (user.to_owned(), AdminLevel::parse(level))).collect())
    }

    fn show_table(&self, what: &[&str]) -> Result<String, CommandError> {
        let common = ["--noheader", "--parsable2", "--readonly", "show"];
        self.text("sacctmgr", &[&common, what].concat())
    }
}

fn unreadable(line: &str) -> CommandError {
    CommandError::unusable("sacctmgr", format!("a line has another number of columns: {line:?}"))
}

/// Parses lines `Account|User|Partition|GrpTRES`.
pub fn parse_associations(answer: &str) -> Rows<AssociationRecord> {
    let record = |line: &str| match line.split('|').collect::<Vec<_>>()[..] {
        [account, user, partition, limit] => Ok(AssociationRecord {
            account: account.to_owned(),
            user: user.to_owned(),
            partition: partition.to_owned(),
            limit: GrpTres(limit.to_owned()),
        }),
        _ => Err(unreadable(line)),
    };
    answer.lines().filter(|line| !line.is_empty()).map(record).collect()
}

/// Parses lines `Name|GrpTRES` or `Name|GrpTRES|Description`; a description may hold `|`.
pub fn parse_qos(answer: &str) -> Rows<QosRecord> {
    let record = |line: &str| {
        let mut columns = line.splitn(3, '|').map(str::to_owned);
        match (columns.next(), columns.next()) {
            (Some(name), Some(limit)) => {
                Ok(QosRecord { name, limit: GrpTres(limit), description: columns.next() })
            }
            _ => Err(unreadable(line)),
        }
    };
    answer.lines().filter(|line| !line.is_empty()).map(record).collect()
}
