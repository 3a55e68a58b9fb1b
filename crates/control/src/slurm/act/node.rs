//! Nodes: out of service and back. One message to slurmctld each, so that nothing is half done.

use tidegate_autopilot::action::UnmetPrecondition;
use tidegate_autopilot::state::DrainedBy;
use tidegate_autopilot::target::TargetError;

use super::{Act, Before};
use crate::slurm::ask::unknown;
use crate::slurm::inventory::{self, SlurmNode};
use crate::slurm::marker;
use crate::slurm::observe::{self, Look};

impl Act<'_> {
    fn node<'l>(&self, look: &'l Look, name: &str) -> Result<&'l SlurmNode, TargetError> {
        look.nodes.get(name).ok_or_else(|| self.refuse(format!("there is no node {name}")))
    }

    fn broken(expected: String, found: String) -> TargetError {
        TargetError::Precondition(UnmetPrecondition { expected, found })
    }

    pub(super) fn check_drain(&self, look: &Look, name: &String) -> Result<Before, TargetError> {
        self.words([name])?;
        match observe::drain(name, self.node(look, name)?, &look.notes) {
            Some(drain) => Err(Self::broken(format!("node {name} is not drained"), drain.reason)),
            None => Ok(Before::default()),
        }
    }

    pub(super) fn drain(&self, look: &Look, name: &str, reason: &str) -> Result<String, TargetError> {
        let wanted = marker::drain_reason(&self.action.id, self.action.generation, reason);
        let node = self.node(look, name)?;
        match observe::drain(name, node, &look.notes) {
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
            format!("Extra={}", marker::beside(&node.extra, &self.marker())),
        ];
        self.update(&update)?;
        let after = inventory::nodes(self.slurm)?;
        match after.get(name).and_then(|node| observe::drain(name, node, &look.notes)) {
            Some(drain) if drain.reason == wanted => {
                Ok(format!("scontrol update NodeName={name} State=DRAIN"))
            }
            found => Err(unknown(format!("node {name} was drained, and what stands there is {found:?}"))),
        }
    }

    pub(super) fn check_return(
        &self,
        look: &Look,
        name: &String,
        drained_by: &str,
    ) -> Result<Before, TargetError> {
        self.words([name])?;
        let expected = || format!("node {name} is drained by {drained_by}");
        match observe::drain(name, self.node(look, name)?, &look.notes) {
            Some(drain) if matches!(&drain.by, DrainedBy::Autopilot { action, .. } if action == drained_by) => {
                Ok(Before::default())
            }
            Some(drain) => Err(Self::broken(expected(), format!("what is written is: {}", drain.reason))),
            None => Err(Self::broken(expected(), "it is not drained".to_owned())),
        }
    }

    pub(super) fn give_back(
        &self,
        look: &Look,
        name: &String,
        drained_by: &str,
    ) -> Result<String, TargetError> {
        let node = self.node(look, name)?;
        if observe::drain(name, node, &look.notes).is_none() {
            return Ok(format!("node {name} is not drained"));
        }
        self.check_return(look, name, drained_by)?;
        let update = [
            format!("NodeName={name}"),
            // Not RESUME, which would bring a node back that somebody set down.
            "State=UNDRAIN".to_owned(),
            format!("Extra={}", marker::beside(&node.extra, &self.marker())),
        ];
        self.update(&update)?;
        let after = inventory::nodes(self.slurm)?;
        match after.get(name).map(|node| observe::drain(name, node, &look.notes)) {
            Some(None) => Ok(format!("scontrol update NodeName={name} State=UNDRAIN")),
            found => Err(unknown(format!("node {name} was returned, and what stands there is {found:?}"))),
        }
    }

    /// `scontrol update` with these.
    pub(super) fn update(&self, values: &[String]) -> Result<String, TargetError> {
        let args: Vec<&str> = ["update"].into_iter().chain(values.iter().map(String::as_str)).collect();
        self.slurm.tell("scontrol", &args).map_err(|failed| failed.as_error(&self.action.id))
    }
}
