//! Configuration, nodes, partitions, reservations and topology: the text of `scontrol show`, which
//! all versions print alike.

mod topology;

use std::collections::BTreeMap;

pub use topology::{Neighbours, parse_topology};

use crate::client::{CommandError, SlurmClient};
use crate::error::ParseError;
use crate::hostlist::HostList;
use crate::node_state::NodeState;
use crate::spelling::is_null;
use crate::tres::{GresGpus, TresGpus};

/// Answer of `scontrol ping`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ping {
    /// Whether a slurmctld is up.
    pub is_up: bool,
    /// What scontrol printed.
    pub message: String,
}

/// Answer of `scontrol show config`: `slurm.conf` with all defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterConfig {
    values: BTreeMap<String, String>,
}

impl ClusterConfig {
    /// Parses lines `Name = value`; of a name that stands there twice the first counts.
    pub fn parse(text: &str) -> Self {
        let mut values = BTreeMap::new();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            values.entry(name.trim().to_owned()).or_insert_with(|| value.trim().to_owned());
        }
        values.retain(|_, value| value != "(null)");
        Self { values }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// `ClusterName`, by which accounting knows the cluster.
    pub fn cluster_name(&self) -> Option<&str> {
        self.get("ClusterName")
    }

    /// Version of Slurm.
    pub fn version(&self) -> Option<&str> {
        self.get("SLURM_VERSION")
    }

    /// User that slurmctld runs as.
    pub fn slurm_user(&self) -> Option<&str> {
        self.get("SlurmUser").and_then(|text| text.split('(').next())
    }

    /// `AccountingStorageType`.
    pub fn accounting_storage(&self) -> Option<&str> {
        self.get("AccountingStorageType")
    }

    /// Whether there is a slurmdbd.
    pub fn has_slurmdbd(&self) -> bool {
        self.accounting_storage().is_some_and(|kind| kind.ends_with("slurmdbd"))
    }

    /// Whether `AccountingStorageTRES` lists `gres/gpu`, which it cannot without slurmdbd. If it
    /// does not, TRES name no GPUs, and do not tell a job without any from one with eight.
    pub fn tracks_gpus(&self) -> bool {
        self.get("AccountingStorageTRES").unwrap_or_default().split(',').any(|tres| tres == "gres/gpu")
    }

    /// `SelectType`; only `select/cons_tres` schedules GPUs.
    pub fn select_type(&self) -> Option<&str> {
        self.get("SelectType")
    }

    /// Whether jobs may be requeued unless they say otherwise.
    pub fn requeues_jobs(&self) -> bool {
        self.get("JobRequeue") != Some("0")
    }

    /// How long jobs may go on after the end of their reservation; `None`: not at all.
    pub fn reservation_overrun(&self) -> Option<&str> {
        self.get("ResvOverRun").filter(|value| !value.starts_with("0 "))
    }
}

/// A node of `scontrol show node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredNode {
    /// Name.
    pub name: String,
    /// State.
    pub state: NodeState,
    /// Configured GPUs.
    pub gpus: u64,
    /// Model of the GPUs.
    pub gpu_model: Option<String>,
    /// Partitions, comma separated.
    pub partitions: Option<String>,
    /// Logical CPUs.
    pub cpus: Option<u64>,
    /// Memory, MiB.
    pub memory_mib: Option<u64>,
    /// Reason of a drain or failure, without user and time.
    pub reason: Option<String>,
}

/// A partition of `scontrol show partition`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRecord {
    /// Name.
    pub name: String,
    /// State, e.g. `UP`.
    pub state: Option<String>,
    /// GPUs and their model, where TRES name them.
    pub gpus: Option<(u64, Option<String>)>,
    /// Its nodes; `None` also if the list cannot be read.
    pub nodes: Option<HostList>,
}

/// A reservation of `scontrol show reservation`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationRecord {
    /// Name.
    pub name: Option<String>,
    /// Its nodes.
    pub nodes: Result<Option<HostList>, ParseError>,
    /// GPUs, where TRES name them: reservations of whole nodes do not.
    pub gpus: Option<u64>,
    /// Accounts that may use it.
    pub accounts: Vec<String>,
    /// Users that may use it.
    pub users: Vec<String>,
    /// Flags, e.g. `MAGNETIC`.
    pub flags: Vec<String>,
    /// Start, seconds since 1970.
    pub start_s: Option<i64>,
    /// End, seconds since 1970.
    pub end_s: Option<i64>,
    /// Partition.
    pub partition: Option<String>,
    /// State, e.g. `ACTIVE`.
    pub state: Option<String>,
}

impl SlurmClient {
    /// Whether slurmctld answers. Other programs keep trying for seconds when it does not.
    ///
    /// # Errors
    /// scontrol failed.
    pub fn ping(&self) -> Result<Ping, CommandError> {
        let text = self.text("scontrol", &["ping"])?;
        Ok(Ping { is_up: text.contains("is UP"), message: text.trim().to_owned() })
    }

    /// The cluster's configuration.
    ///
    /// # Errors
    /// scontrol failed.
    pub fn config(&self) -> Result<ClusterConfig, CommandError> {
        Ok(ClusterConfig::parse(&self.text("scontrol", &["show", "config"])?))
    }

    /// All nodes, hidden ones too.
    ///
    /// # Errors
    /// scontrol failed, or its answer cannot be read.
    pub fn configured_nodes(&self) -> Result<Vec<ConfiguredNode>, CommandError> {
        let answer = self.show("node")?;
        let lines = lines(&answer, "scontrol show node", "NodeName=")?;
        Ok(lines.into_iter().map(node).collect())
    }

    /// All partitions, hidden ones too.
    ///
    /// # Errors
    /// scontrol failed, or its answer cannot be read.
    pub fn partitions(&self) -> Result<Vec<PartitionRecord>, CommandError> {
        let answer = self.show("partition")?;
        let lines = lines(&answer, "scontrol show partition", "PartitionName=")?;
        Ok(lines.into_iter().map(partition).collect())
    }

    /// All reservations.
    ///
    /// # Errors
    /// scontrol failed, or its answer cannot be read.
    pub fn reservations(&self) -> Result<Vec<ReservationRecord>, CommandError> {
        parse_reservations(&self.show("reservation")?)
    }

    fn show(&self, what: &str) -> Result<String, CommandError> {
        self.text("scontrol", &["--all", "--oneliner", "show", what])
    }
}

/// Parses the answer of `scontrol --oneliner show reservation`.
///
/// # Errors
/// The answer is empty, or a line of it is not a reservation.
pub fn parse_reservations(answer: &str) -> Result<Vec<ReservationRecord>, CommandError> {
    let lines = lines(answer, "scontrol show reservation", "ReservationName=")?;
    Ok(lines.into_iter().map(reservation).collect())
}

/// Fields of a line `Name=value Name=value …`. Values may hold blanks; a name is a word before the
/// first `=` after one.
fn fields(line: &str) -> BTreeMap<&str, &str> {
    let mut fields = BTreeMap::new();
    let mut rest = line.trim();
    while let Some((name, after)) = rest.split_once('=') {
        // The text of a reason is anybody's: it ends the fields that count.
        if name == "Reason" {
            fields.insert(name, after.trim());
            break;
        }
        let is_name = |word: &str| {
            word.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty()
                    && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | ':'))
            })
        };
        // No name follows a blank that another one follows: a line of blanks is read once.
        let end = after.match_indices(' ').map(|(at, _)| at).find(|at| {
            let next = after[at + 1..].split(' ').next();
            next.is_some_and(is_name)
        });
        let end = end.unwrap_or(after.len());
        fields.entry(name).or_insert_with(|| after[..end].trim());
        rest = after[end..].trim_start();
    }
    fields
}

/// The lines that begin with the name, one per record. Other lines continue a text that somebody
/// typed with line breaks, such as a reason; they are skipped. `No reservations in the system`
/// means no records.
///
/// # Errors
/// The answer is empty, or its first line begins with something else.
fn lines<'a>(answer: &'a str, program: &str, name: &str) -> Result<Vec<&'a str>, CommandError> {
    let lines: Vec<&str> = answer.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.len() == 1 && lines[0].starts_with("No ") {
        return Ok(Vec::new());
    }
    match lines.first() {
        Some(first) if first.starts_with(name) => {
            Ok(lines.into_iter().filter(|line| line.starts_with(name)).collect())
        }
        Some(first) => {
            Err(CommandError::unusable(program, format!("it does not begin with {name}: {first:?}")))
        }
        None => Err(CommandError::unusable(program, "it is empty")),
    }
}

fn text<'a>(fields: &BTreeMap<&str, &'a str>, name: &str) -> Option<&'a str> {
    fields.get(name).copied().filter(|value| !is_null(value))
}

fn owned(fields: &BTreeMap<&str, &str>, name: &str) -> Option<String> {
    text(fields, name).map(str::to_owned)
}

fn number<T: std::str::FromStr>(fields: &BTreeMap<&str, &str>, name: &str) -> Option<T> {
    fields.get(name).and_then(|value| value.parse().ok())
}

fn tres_gpus(tres: Option<&str>) -> Option<(u64, Option<String>)> {
    let gpus = TresGpus::parse(tres?).ok()?;
    let model = (!gpus.models.is_empty()).then(|| gpus.models.to_string());
    u64::try_from(gpus.gpus).ok().filter(|gpus| *gpus > 0).map(|gpus| (gpus, model))
}

fn node(line: &str) -> ConfiguredNode {
    let fields = fields(line);
    let gres = GresGpus::parse(fields.get("Gres").copied().unwrap_or_default());
    let (gpus, model) = tres_gpus(text(&fields, "CfgTRES")).unwrap_or((gres.count, None));
    // User and time follow the reason in brackets.
    let reason = text(&fields, "Reason").map(|reason| reason.rsplit_once(" [").map_or(reason, |(r, _)| r));
    ConfiguredNode {
        name: owned(&fields, "NodeName").unwrap_or_default(),
        state: NodeState::parse(fields.get("State").copied().unwrap_or("UNKNOWN")),
        gpus,
        gpu_model: model.or(gres.model),
        partitions: owned(&fields, "Partitions"),
        cpus: number(&fields, "CPUTot"),
        memory_mib: number(&fields, "RealMemory"),
        reason: reason.map(str::to_owned),
    }
}

fn partition(line: &str) -> PartitionRecord {
    let fields = fields(line);
    PartitionRecord {
        name: owned(&fields, "PartitionName").unwrap_or_default(),
        state: owned(&fields, "State"),
        gpus: tres_gpus(text(&fields, "TRES")),
        nodes: text(&fields, "Nodes").and_then(|list| HostList::parse(list).ok()),
    }
}

fn reservation(line: &str) -> ReservationRecord {
    let fields = fields(line);
    let list = |name: &str| -> Vec<String> {
        text(&fields, name).into_iter().flat_map(|list| list.split(',')).map(str::to_owned).collect()
    };
    ReservationRecord {
        name: owned(&fields, "ReservationName"),
        nodes: text(&fields, "Nodes").map(HostList::parse).transpose(),
        gpus: tres_gpus(text(&fields, "TRES")).map(|(gpus, _)| gpus),
        accounts: list("Accounts"),
        users: list("Users"),
        flags: list("Flags"),
        start_s: number(&fields, "StartTime"),
        end_s: number(&fields, "EndTime"),
        partition: owned(&fields, "PartitionName"),
        state: owned(&fields, "State"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_several_lines_hides_no_other_node() {
        let answer = "NodeName=n1 CPUTot=64 Gres=gpu:h200:8 State=IDLE+DRAIN Reason=fan\nsee ticket 7 [root@1795658372]\n\
                      NodeName=n2 CPUTot=64 Gres=gpu:a100:4 State=IDLE\n";
        let nodes = lines(answer, "scontrol show node", "NodeName=").unwrap();
        let nodes: Vec<_> = nodes.into_iter().map(node).collect();
        let found: Vec<_> =
            nodes.iter().map(|node| (node.name.as_str(), node.gpus, node.reason.as_deref())).collect();
        assert_eq!(found, [("n1", 8, Some("fan")), ("n2", 4, None)]);
        assert!(lines("slurm_load_node error\n", "scontrol show node", "NodeName=").is_err());
    }
    #[test]
    fn a_line_of_blanks_is_read_once() {
        let blanks = " ".repeat(1 << 20);
        let line = format!("NodeName=n1 OS=Linux{blanks}x State=IDLE");
        let begun = std::time::Instant::now();
        assert_eq!(fields(&line).get("State"), Some(&"IDLE"));
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
