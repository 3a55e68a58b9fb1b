//! Nodes: whether one is drained, returned or lent.

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::state::{DrainedBy, Node, NodeState, Object};

use super::{Eligibility, View, considered, not_considered};

/// Where a node stands.
pub(super) fn entries(view: &View<'_>, name: &str, node: &Node) -> Vec<Eligibility> {
    let object = Object::Node(name.to_owned());
    let first =
        if node.drain.is_some() { back(view, &object, name, node) } else { drain(view, &object, node) };
    vec![first, lend(view, &object, name, node)]
}

fn drain(view: &View<'_>, object: &Object, node: &Node) -> Eligibility {
    let kind = Kind::DrainNode;
    let unprotect = || Some("without tidegate:do-not-disrupt in the node's Comment and Extra".to_owned());
    match node.state {
        NodeState::Down => {
            let reason = "it is down: the scheduler gives it no jobs as it is";
            return not_considered(object, kind, reason, None);
        }
        NodeState::Unknown => {
            let reason = "the scheduler does not say whether it is up";
            return not_considered(object, kind, reason, None);
        }
        NodeState::Up => {}
    }
    let said = view.said(kind, object);
    if node.do_not_disrupt {
        return not_considered(object, kind, said.unwrap_or("it is marked do-not-disrupt"), unprotect());
    }
    if let Some(said) = said {
        return considered(object, kind, said);
    }
    let health = &node.health;
    match (health.bad_ppm, health.slowdown_ppm) {
        (None, None) => not_considered(
            object,
            kind,
            "nothing tells its health: no signal has named it",
            Some(
                "an agent on it (guide/agents.md), and the signals on the log (guide/signals.md)".to_owned(),
            ),
        ),
        (bad, slow) => {
            let share = |ppm: Option<u32>| f64::from(ppm.unwrap_or(0)) / 1e6;
            let reason = format!(
                "no sign of a fault: bad with probability {:.3}, slower by {:.3}",
                share(bad),
                share(slow)
            );
            considered(object, kind, reason)
        }
    }
}

fn back(view: &View<'_>, object: &Object, name: &str, node: &Node) -> Eligibility {
    let kind = Kind::ReturnNode;
    let said = view.said(kind, object);
    match node.drain.as_ref().map(|drain| (&drain.by, &drain.reason)) {
        Some((DrainedBy::Other, reason)) => {
            let why = format!("drained by someone else: {reason}");
            let change = format!("a person returns it: scontrol update NodeName={name} State=RESUME");
            not_considered(object, kind, said.map_or(why, str::to_owned), Some(change))
        }
        _ => considered(
            object,
            kind,
            said.unwrap_or("the autopilot drained it; nothing calls for it back yet"),
        ),
    }
}

fn lend(view: &View<'_>, object: &Object, name: &str, node: &Node) -> Eligibility {
    let kind = Kind::Lend;
    if let Some((_, loan)) = view.state.loans.iter().find(|(_, loan)| loan.nodes.contains(name)) {
        return considered(object, kind, format!("{} lends it to {}", loan.from, loan.to));
    }
    let mut sharers = view.state.owners.iter().filter_map(|(owner, entry)| {
        entry.shares.get(&node.pool).filter(|share| share.quota_gpus > 0).map(|share| (owner, share))
    });
    let (first, second) = (sharers.next(), sharers.next());
    let is_lent_whole = second.is_none();
    let Some((owner, share)) = first else {
        let reason = format!("no owner has a share of pool {}", node.pool);
        let change = format!("[slurm.owners.OWNER.shares.{}] in the deployment file", node.pool);
        return not_considered(object, kind, reason, Some(change));
    };
    if !is_lent_whole {
        return not_considered(
            object,
            kind,
            "its pool is shared: GPUs of it are lent by number, not nodes",
            None,
        );
    }
    if !share.lendable {
        let reason = format!("{owner} does not lend its share of pool {}", node.pool);
        let change = format!("lendable = true in [slurm.owners.{owner}.shares.{}]", node.pool);
        return not_considered(object, kind, reason, Some(change));
    }
    if node.do_not_disrupt {
        let change = "without tidegate:do-not-disrupt in the node's Comment and Extra".to_owned();
        return not_considered(object, kind, "it is marked do-not-disrupt", Some(change));
    }
    if !node.takes_jobs() {
        return not_considered(object, kind, "it takes no jobs", None);
    }
    match view.jobs_on.get(&name.to_owned()) {
        Some(jobs) => considered(object, kind, format!("{jobs} jobs run on it; whole free nodes are lent")),
        None => considered(object, kind, format!("it is free; owner {owner} says what it spares")),
    }
}
