//! `tidegate token kafka-acls`: the permissions of a role as ACLs of Kafka.

use std::collections::BTreeSet;

use clap::Args;
use tidegate_log::KafkaUrl;
use tidegate_server::access::{Action, Role};

use crate::commands::CommandError;

/// Print what grants a Kafka user the permissions of a role, for kafka-acls.sh
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate token kafka-acls --log kafka://kafka-0:9092/gpu --role agent --cluster prod --node n1 --user n1
  tidegate token kafka-acls --log kafka://kafka-0:9092/gpu --role watcher --cluster prod --user watcher
  tidegate token kafka-acls --log kafka://kafka-0:9092/gpu --role service --user tidegate

Each line has the arguments of one kafka-acls.sh: append `| xargs -L1 kafka-acls.sh
--bootstrap-server kafka-0:9092`.

Start a service before agents: it makes the topics. Kafka knows topics, not nodes: a user that may
write a topic may write it for every node, and how far each source got (PREFIX.progress) for every
source. Where that is too much, let agents send to `tidegate up --ingest`.")]
pub struct KafkaAclArgs {
    /// The log whose topics it is about
    #[arg(long, value_name = "URL")]
    log: KafkaUrl,
    /// Role: agent, watcher or service
    #[arg(long)]
    role: Role,
    /// Kafka's user, without `User:`
    #[arg(long, value_name = "NAME")]
    user: String,
    /// Cluster of an agent or watcher, as its --cluster
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Node of an agent, as its --node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

pub fn print(args: &KafkaAclArgs) -> Result<(), CommandError> {
    acls(args)?.iter().for_each(|acl| say!("{acl}"));
    Ok(())
}

fn acls(args: &KafkaAclArgs) -> Result<Vec<String>, CommandError> {
    let names =
        [Some(args.log.prefix()), Some(args.user.as_str()), args.cluster.as_deref(), args.node.as_deref()];
    let is_word = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "._-=,".contains(c));
    if let Some(odd) = names.into_iter().flatten().find(|name| !is_word(name)) {
        return Err(format!("{odd:?} has letters that a shell or kafka-acls.sh may read otherwise").into());
    }
    let prefix = args.log.prefix();
    let allow = |operations: &[&str], on: String| {
        let operations: Vec<String> = operations.iter().map(|name| format!(" --operation {name}")).collect();
        format!("--add --allow-principal User:{}{} {on}", args.user, operations.concat())
    };
    let source = match (args.role, &args.cluster, &args.node) {
        (Role::Agent, Some(cluster), Some(node)) => (format!("agent/{node}"), cluster),
        (Role::Agent, ..) => return Err("the role agent needs --cluster and --node".into()),
        (Role::Watcher, Some(cluster), None) => (format!("watch/slurm/{cluster}"), cluster),
        (Role::Watcher, ..) => return Err("the role watcher needs --cluster, and no --node".into()),
        (Role::Service, None, None) => {
            let all = "--resource-pattern-type prefixed";
            return Ok(vec![
                allow(&["All"], format!("{all} --topic {prefix}.")),
                allow(&["All"], format!("{all} --transactional-id {prefix}.")),
                allow(&["All"], format!("{all} --group {prefix}")),
            ]);
        }
        (role, ..) => {
            return Err(format!(
                "the role {role} uses no Kafka, or has no cluster and node; it asks over HTTP"
            )
            .into());
        }
    };
    let appends = Action::ALL.into_iter().filter(|action| args.role.may(*action));
    let topics: BTreeSet<&str> = appends.filter_map(Action::topic).collect();
    let topics: Vec<String> = topics.into_iter().map(|topic| format!("--topic {prefix}.{topic}")).collect();
    let (own, cluster) = source;
    Ok(vec![
        allow(&["Write", "Describe", "DescribeConfigs"], topics.join(" ")),
        allow(&["Read", "Write", "Describe", "DescribeConfigs"], format!("--topic {prefix}.progress")),
        // Readers take part in no group of this name, but Kafka asks for a right to it.
        allow(&["Read", "Describe"], format!("--group {prefix}.readers")),
        allow(&["Write", "Describe"], format!("--transactional-id {prefix}.source.{own}@{cluster}")),
        allow(
            &["Write", "Describe"],
            format!("--resource-pattern-type prefixed --transactional-id {prefix}.source.{own}/conflict/"),
        ),
    ])
}
