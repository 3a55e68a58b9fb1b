//! Principals: who asks, and what they are bound to.

use std::fmt;
use std::sync::Arc;

use tidegate_events::Event;
use tidegate_lake::catalog::Sight;

use super::permission::{Action, Role};

/// Who sent a request, as its token or the lack of one says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Name in the token file, for logs.
    pub id: Arc<str>,
    /// What it is to the site.
    pub role: Role,
    /// What it may speak of or see.
    pub bounds: Bounds,
}

/// What a principal is bound to, by role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bounds {
    /// Everything that the role may do.
    Whole,
    /// An agent: nodes of one cluster.
    Nodes {
        /// Name of the cluster, as in events.
        cluster: String,
        /// Names of the nodes.
        nodes: Vec<String>,
    },
    /// A watcher: one cluster.
    Cluster(String),
    /// A viewer: rows of these teams.
    Teams(Arc<[String]>),
}

/// A principal may not do what it asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Forbidden {
    /// Which principal, what it may not do, and whom to ask.
    what: String,
}

impl Principal {
    /// Whoever reaches a loopback address that asks for no token.
    pub fn local() -> Self {
        Self { id: "local".into(), role: Role::Local, bounds: Bounds::Whole }
    }

    /// How much of the tables it sees.
    pub fn sight(&self) -> Sight {
        match &self.bounds {
            Bounds::Teams(teams) => Sight::Teams(teams.to_vec()),
            _ if self.role.may(Action::Audit) => Sight::Whole,
            _ => Sight::WithoutAudit,
        }
    }

    /// The teams whose rows alone it may see; `None` if it may see all.
    pub fn teams(&self) -> Option<&Arc<[String]>> {
        match &self.bounds {
            Bounds::Teams(teams) => Some(teams),
            _ => None,
        }
    }

    /// Whether it may do it at all.
    ///
    /// # Errors
    /// [`Forbidden`] if it may not.
    pub fn check(&self, action: Action) -> Result<(), Forbidden> {
        // These are of the whole site, and cannot be cut by team.
        let cut = matches!(action, Action::Status | Action::Autopilot) && self.teams().is_some();
        match self.role.may(action) && !cut {
            true => Ok(()),
            false => self.forbid(format_args!("may not {}", action.name())),
        }
    }

    /// Whether it may tell the autopilot what to do. On a cluster that is `simulated` whoever
    /// reaches an open loopback port may, since nothing real can come to harm.
    ///
    /// # Errors
    /// [`Forbidden`] if it may not.
    pub fn check_steering(&self, action: Action, simulated: bool) -> Result<(), Forbidden> {
        if self.role != Role::Local {
            return self.check(action);
        }
        match simulated {
            true => Ok(()),
            false => Err(Forbidden {
                what: format!(
                    "who shows no token may not {}, as every user of this machine reaches this address; make a token \
                     (tidegate token new --tokens tokens.toml --role operator --id NAME) and start the server with \
                     --tokens tokens.toml, or use the command tidegate autopilot",
                    action.name()
                ),
            }),
        }
    }

    /// Whether it may append the event as this producer.
    ///
    /// Where a principal is bound, the producer, the event's source and what it speaks of must be
    /// its own: a producer's epoch decides whose records the log takes.
    ///
    /// # Errors
    /// [`Forbidden`] if it may not.
    pub fn check_append(&self, producer: &str, event: &Event) -> Result<(), Forbidden> {
        self.check(Action::appending(event))?;
        let (cluster, source) = event
            .envelope()
            .map_or(("", ""), |envelope| (envelope.cluster.as_str(), envelope.source.as_str()));
        let speaks_as = |own: &str| speaks_as(own, cluster, source, producer);
        let (own_cluster, is_own_source) = match &self.bounds {
            Bounds::Whole | Bounds::Teams(_) => return Ok(()),
            Bounds::Cluster(own) => (own, speaks_as(&format!("watch/slurm/{own}"))),
            Bounds::Nodes { cluster: own, nodes } => {
                if let Some(node) = node_of(event)
                    && !nodes.iter().any(|own| own == node)
                {
                    return self.forbid(format_args!("may not speak of node {node:?}"));
                }
                (own, nodes.iter().any(|node| speaks_as(&format!("agent/{node}"))))
            }
        };
        if cluster != own_cluster {
            return self.forbid(format_args!("may not speak of cluster {cluster:?}"));
        }
        if !is_own_source {
            return self.forbid(format_args!("may not speak as {source:?}, nor append as {producer:?}"));
        }
        match event {
            Event::DeadLetter(letter) if letter.origin != source => {
                self.forbid(format_args!("may not write dead letters of {:?}", letter.origin))
            }
            _ => Ok(()),
        }
    }

    fn forbid(&self, what: fmt::Arguments<'_>) -> Result<(), Forbidden> {
        let Self { id, role, .. } = self;
        let mut what = format!("{id:?} ({role}) {what}; `tidegate token list` shows what tokens are for");
        what.retain(|letter| !letter.is_control());
        Err(Forbidden { what })
    }
}

/// Whether an event comes from the collector `own`. Its source is then `own`, and its producer
/// `own@CLUSTER`. A report that two collectors use one name has a source of its own,
/// `own/conflict/…`, which is its producer too.
fn speaks_as(own: &str, cluster: &str, source: &str, producer: &str) -> bool {
    let in_conflict = || source.strip_prefix(own).is_some_and(|rest| rest.starts_with("/conflict/"));
    match source == own {
        true => producer.strip_prefix(own).and_then(|rest| rest.strip_prefix('@')) == Some(cluster),
        false => in_conflict() && producer == source,
    }
}

/// The node that an agent's event is about. An event that needs a node and names none has the empty
/// name, which is nobody's.
fn node_of(event: &Event) -> Option<&str> {
    match event {
        Event::Node(event) => Some(&event.node),
        Event::GpuSamples(batch) => Some(&batch.node),
        Event::Step(report) => Some(report.node.as_deref().unwrap_or_default()),
        Event::Job(job) => Some(job.node.as_deref().unwrap_or_default()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_events::v1::{DeadLetter, Envelope, NodeEvent, NodeEventKind};

    use super::*;

    fn agent() -> Principal {
        let bounds = Bounds::Nodes { cluster: "c".into(), nodes: vec!["n1".into()] };
        Principal { id: "a".into(), role: Role::Agent, bounds }
    }

    fn event(cluster: &str, source: &str, node: &str) -> Event {
        let envelope = Envelope { cluster: cluster.into(), source: source.into(), ..Envelope::default() };
        let kind = NodeEventKind::DeviceEvent.into();
        Event::Node(NodeEvent { envelope: Some(envelope), kind, node: node.into(), ..NodeEvent::default() })
    }

    #[test]
    fn an_agent_speaks_of_its_own_nodes_as_itself() {
        let agent = agent();
        let check = |producer, cluster, source, node| {
            agent.check_append(producer, &event(cluster, source, node)).map_err(|e| e.to_string())
        };
        assert_eq!(check("agent/n1@c", "c", "agent/n1", "n1"), Ok(()));
        assert_eq!(check("agent/n1/conflict/7", "c", "agent/n1/conflict/7", "n1"), Ok(()));
        for (producer, cluster, source, node, word) in [
            ("agent/n1@c", "c", "agent/n1", "n2", "node \"n2\""),
            ("agent/n1@c", "d", "agent/n1", "n1", "cluster \"d\""),
            // A forged epoch of another node's producer would stop that node's agent.
            ("agent/n2@c", "c", "agent/n1", "n1", "append as \"agent/n2@c\""),
            ("agent/n1@c", "c", "agent/n2", "n1", "speak as \"agent/n2\""),
            ("agent/n1@d", "c", "agent/n1", "n1", "append as"),
            ("agent/n1@c", "c", "agent/n1/conflict/7", "n1", "append as"),
            ("agent/n11@c", "c", "agent/n11", "n1", "speak as"),
            ("agent/n1@c", "c", "agent/n1", "", "node \"\""),
        ] {
            let refused = check(producer, cluster, source, node).unwrap_err();
            assert!(refused.contains(word), "{producer} {cluster} {source} {node}: {refused}");
        }
    }

    #[test]
    fn dead_letters_are_of_their_sender() {
        let envelope = Envelope { cluster: "c".into(), source: "agent/n1".into(), ..Envelope::default() };
        let letter = |origin: &str| {
            let envelope = Some(envelope.clone());
            Event::DeadLetter(DeadLetter { envelope, origin: origin.into(), ..DeadLetter::default() })
        };
        assert_eq!(agent().check_append("agent/n1@c", &letter("agent/n1")), Ok(()));
        assert!(agent().check_append("agent/n1@c", &letter("agent/n2")).is_err());
    }

    #[test]
    fn a_viewer_of_teams_sees_no_metrics() {
        let teams = Bounds::Teams(["vision".to_owned()].into());
        let viewer = Principal { id: "v".into(), role: Role::Viewer, bounds: teams };
        assert!(viewer.check(Action::Query).is_ok() && viewer.check(Action::Status).is_err());
        assert!(viewer.check(Action::Autopilot).is_err());
    }

    #[test]
    fn who_shows_no_token_steers_a_simulated_cluster_alone() {
        let steering: Vec<Action> = Action::ALL.into_iter().filter(|action| action.is_steering()).collect();
        assert_eq!(steering, [Action::Decide, Action::Pause, Action::Resume]);
        for action in steering {
            assert_eq!(Principal::local().check_steering(action, true), Ok(()));
            let refused = Principal::local().check_steering(action, false).unwrap_err().to_string();
            assert!(refused.contains("tidegate token new") && refused.contains(action.name()), "{refused}");
            assert!(Principal::local().check(action).is_err());
            let of = |role| Principal { id: "a".into(), role, bounds: Bounds::Whole };
            for (role, may) in [(Role::Operator, true), (Role::Viewer, false), (Role::Service, false)] {
                for simulated in [true, false] {
                    assert_eq!(of(role).check_steering(action, simulated).is_ok(), may, "{role}");
                }
            }
        }
    }
}
