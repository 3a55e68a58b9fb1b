//! Nodes: drained and returned, each by one message to slurmctld, so that nothing is half done.

use tidegate_autopilot::action::UnmetPrecondition;
use tidegate_autopilot::state::DrainedBy;
use tidegate_autopilot::target::TargetError;

use super::{Act, Before};
use crate::slurm::ask::unknown;
use crate::slurm::inventory::{self, SlurmNode};
use crate::slurm::marker;
use crate::slurm::observe;
use crate::slurm::snapshot::Snapshot;

impl Act<'_> {
    fn node<'l>(&self, snapshot: &'l Snapshot, name: &str) -> Result<&'l SlurmNode, TargetError> {
        snapshot.nodes.get(name).ok_or_else(|| self.refuse(format!("there is no node {name}")))
    }

    fn broken(expected: String, found: String) -> TargetError {
        TargetError::Precondition(UnmetPrecondition { expected, found })
    }

    pub(super) fn check_drain(&self, snapshot: &Snapshot, name: &String) -> Result<Before, TargetError> {
        self.words([name])?;
        match observe::drain(name, self.node(snapshot, name)?, &snapshot.notes) {
            Some(drain) => Err(Self::broken(format!("node {name} is not drained"), drain.reason)),
            None => Ok(Before::default()),
        }
    }

    pub(super) fn drain(&self, snapshot: &Snapshot, name: &str, reason: &str) -> Result<String, TargetError> {
        let wanted = marker::drain_reason(&self.action.id, self.action.generation, reason);
        let node = self.node(snapshot, name)?;
        match observe::drain(name, node, &snapshot.notes) {
            Some(drain) if marker::is_drain_reason(&drain.reason, &self.action.id, reason) => {
                return Ok(format!("node {name} is drained by it already"));
            }
            Some(drain) => return Err(Self::broken(format!("node {name} is not drained"), drain.reason)),
            None => {}
        }
        let update = [
            format!("NodeName={name}"),
            "State=DRAIN".to_owned(),
            format!("Reason={wanted}"),
            format!("Extra={}", marker::with_marker(&node.extra, &self.marker())),
        ];
        self.update(&update)?;
        let after = inventory::nodes(self.slurm)?;
        match after.get(name).and_then(|node| observe::drain(name, node, &snapshot.notes)) {
            Some(drain) if drain.reason == wanted => {
                Ok(format!("scontrol update NodeName={name} State=DRAIN"))
            }
            found => Err(unknown(format!("node {name} was drained, but Slurm shows {found:?}"))),
        }
    }

    pub(super) fn check_return(
        &self,
        snapshot: &Snapshot,
        name: &String,
        drained_by: &str,
    ) -> Result<Before, TargetError> {
        self.words([name])?;
        let expected = || format!("node {name} is drained by {drained_by}");
        match observe::drain(name, self.node(snapshot, name)?, &snapshot.notes) {
            Some(drain) if matches!(&drain.by, DrainedBy::Autopilot { action, .. } if action == drained_by) => {
                Ok(Before::default())
            }
            Some(drain) => Err(Self::broken(expected(), format!("what is written is: {}", drain.reason))),
            None => Err(Self::broken(expected(), "it is not drained".to_owned())),
        }
    }

    pub(super) fn give_back(
        &self,
        snapshot: &Snapshot,
        name: &String,
        drained_by: &str,
    ) -> Result<String, TargetError> {
        let node = self.node(snapshot, name)?;
        if observe::drain(name, node, &snapshot.notes).is_none() {
            return Ok(format!("node {name} is not drained"));
        }
        self.check_return(snapshot, name, drained_by)?;
        let update = [
            format!("NodeName={name}"),
            // Not RESUME, which would also bring back a node that a person set down.
            "State=UNDRAIN".to_owned(),
            format!("Extra={}", marker::with_marker(&node.extra, &self.marker())),
        ];
        self.update(&update)?;
        let after = inventory::nodes(self.slurm)?;
        match after.get(name).map(|node| observe::drain(name, node, &snapshot.notes)) {
            Some(None) => Ok(format!("scontrol update NodeName={name} State=UNDRAIN")),
            found => Err(unknown(format!("node {name} was returned, but Slurm shows {found:?}"))),
        }
    }

    /// Runs `scontrol update` with these values.
    pub(super) fn update(&self, values: &[String]) -> Result<String, TargetError> {
        let args: Vec<&str> = ["update"].into_iter().chain(values.iter().map(String::as_str)).collect();
        self.slurm.run("scontrol", &args).map_err(|failed| failed.as_error(&self.action.id))
    }
}
