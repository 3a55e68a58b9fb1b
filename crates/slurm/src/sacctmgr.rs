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
    /// A coordinator may choose names of accounts and users, line breaks and `|` too, and sacctmgr
    /// knows no other delimiter. So the ids alone, which Slurm counts, are asked for first: a name
    /// that breaks a line does not agree with them.
    ///
    /// # Errors
    /// sacctmgr failed, or a name breaks a line: the message says of which association.
    pub fn associations(&self, cluster: &str) -> Result<Rows<AssociationRecord>, CommandError> {
        let cluster = format!("cluster={cluster}");
        let ids = self.show_table(&["association", &cluster, "format=ID"])?;
        let table =
            self.show_table(&["association", &cluster, "format=ID,Account,User,Partition,GrpTRES"])?;
        Ok(parse_associations(without_ids(&ids, &table)?))
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

    /// Users that are Operators or Administrators.
    ///
    /// Only those are asked for: a coordinator may choose the names of other users, and one of them
    /// could read like a line about somebody else.
    ///
    /// # Errors
    /// sacctmgr failed.
    pub fn admin_levels(&self) -> Result<Vec<(String, AdminLevel)>, CommandError> {
        let mut users = Vec::new();
        for (name, level) in
            [("Operator", AdminLevel::Operator), ("Administrator", AdminLevel::Administrator)]
        {
            let level_is = format!("adminlevel={name}");
            let answer = self.show_table(&["user", "where", &level_is, "format=User"])?;
            users.extend(answer.lines().map(|user| (user.to_owned(), level)));
        }
        Ok(users)
    }

    fn show_table(&self, what: &[&str]) -> Result<String, CommandError> {
        let common = ["--noheader", "--parsable2", "--readonly", "show"];
        self.text("sacctmgr", &[&common, what].concat())
    }
}

fn unreadable(line: &str) -> CommandError {
    CommandError::unusable("sacctmgr", format!("a line has another number of columns: {line:?}"))
}

/// The lines of a table behind the id in each, if these are the ids.
fn without_ids<'a>(ids: &str, table: &'a str) -> Result<Vec<&'a str>, CommandError> {
    let mut lines = table.lines();
    let mut rows = Vec::new();
    let mut before = None;
    for id in ids.lines() {
        let row = lines.next().and_then(|line| line.strip_prefix(id)?.strip_prefix('|'));
        let Some(row) = row else { return Err(broken(before)) };
        rows.push(row);
        before = Some(id);
    }
    match lines.next() {
        Some(_) => Err(broken(before)),
        None => Ok(rows),
    }
}

/// Error for a table whose lines are not the associations that there are.
fn broken(before: Option<&str>) -> CommandError {
    let of = before.map_or_else(String::new, |id| format!(" of association {id}, or of one before it,"));
    CommandError::unusable(
        "sacctmgr",
        format!(
            "a name{of} breaks a line, or associations were changed meanwhile; give the account or user another name"
        ),
    )
}

/// Parses lines `Account|User|Partition|GrpTRES`.
pub fn parse_associations<'a>(lines: impl IntoIterator<Item = &'a str>) -> Rows<AssociationRecord> {
    let record = |line: &str| match line.split('|').collect::<Vec<_>>()[..] {
        [account, user, partition, limit] => Ok(AssociationRecord {
            account: account.to_owned(),
            user: user.to_owned(),
            partition: partition.to_owned(),
            limit: GrpTres(limit.to_owned()),
        }),
        _ => Err(unreadable(line)),
    };
    lines.into_iter().filter(|line| !line.is_empty()).map(record).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As sacctmgr of 22.05 prints them; the name of the account is
    /// `evil\n6|victim|||gres/gpu=0\n7|x`.
    #[test]
    fn a_name_that_breaks_a_line_makes_no_limit() {
        let honest = "1|root|||\n3|ai|||gres/gpu=24\n4|ai|ann||\n";
        let rows = parse_associations(without_ids("1\n3\n4\n", honest).unwrap());
        let limits: Vec<_> = rows.iter().map(|row| row.as_ref().unwrap().limit.untyped_gpus()).collect();
        assert_eq!(limits, [None, Some(24), None]);
        let hostile = "1|root|||\n5|evil\n6|victim|||gres/gpu=0\n7|x|||\n6|ai|||\n";
        let error = without_ids("1\n5\n6\n", hostile).unwrap_err().to_string();
        assert!(error.contains("association 6"), "{error}");
        let last = "1|root|||\n5|evil\n6|victim|||gres/gpu=0\n7|x|||\n";
        let error = without_ids("1\n5\n", last).unwrap_err().to_string();
        assert!(error.contains("association 5"), "{error}");
        assert!(without_ids("1\n3\n4\n", "1|root|||\n3|ai|||\n").is_err(), "one is missing");
        let bar = parse_associations(without_ids("5\n", "5|ev|il|||\n").unwrap());
        assert!(bar[0].is_err(), "{bar:?}");
    }
}
