//! Checks of the deployment file: policy, switch, who signs, who is paged.

use std::path::Path;

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::policy::{Mode, Policy};
use tidegate_autopilot::rollout::Rollout;

use super::{Check, listed};
use crate::control_folder::ControlFolder;
use crate::service::config::ServiceConfig;

/// Checks the policy, and returns it and its candidates if they can be read.
pub(super) fn policy(config: &ServiceConfig, checks: &mut Vec<Check>) -> Option<(Policy, Rollout)> {
    let read = config.policy().and_then(|mut policy| {
        let rollout = config.rollout(&mut policy)?;
        Ok((policy, rollout))
    });
    let (policy, rollout) = match read {
        Ok(read) => read,
        Err(error) => {
            let fix = "`tidegate policy check FILE` says what is wrong; `tidegate policy show` has every key";
            checks.push(Check::missing("policy", error.to_string(), fix));
            return None;
        }
    };
    checks.push(modes(&policy));
    let mode = |kind| policy.modes.get(&kind).copied().unwrap_or(Mode::Observe);
    if mode(Kind::Lend) >= Mode::Approve && mode(Kind::Reclaim) < mode(Kind::Lend) {
        let found = format!(
            "lend is {} and reclaim only {}: what is lent comes back at the end of a loan, not when it is needed",
            mode(Kind::Lend).name(),
            mode(Kind::Reclaim).name()
        );
        checks.push(Check::warning("policy", found, "reclaim = \"act\" in [modes] of the policy"));
    }
    Some((policy, rollout))
}

/// Which kinds the policy does what with.
fn modes(policy: &Policy) -> Check {
    let mode = |kind: &Kind| policy.modes.get(kind).copied().unwrap_or(Mode::Observe);
    let of = |wanted: Mode| {
        let kinds = listed(Kind::ALL.into_iter().filter(|kind| mode(kind) == wanted));
        (!kinds.is_empty()).then(|| format!("{}: {kinds}", wanted.name()))
    };
    let all = [Mode::Act, Mode::Approve, Mode::Suggest, Mode::Observe, Mode::Stop];
    let found = format!("{}; {}", policy.name, all.into_iter().filter_map(of).collect::<Vec<_>>().join("; "));
    let acts = |scoped: Mode| matches!(scoped, Mode::Approve | Mode::Act);
    let is_still =
        !Kind::ALL.iter().any(|kind| acts(mode(kind))) && !policy.scopes.iter().any(|scope| acts(scope.mode));
    match is_still {
        true => Check::warning(
            "policy",
            format!("{found}: nothing is ever done"),
            "when its decisions are good, set a kind to \"approve\" or \"act\" in [modes] (guide/autopilot.md)",
        ),
        false => Check::ok("policy", found),
    }
}

/// Checks who switches, approves and is told.
pub(super) fn steering(
    config: &ServiceConfig,
    policy: Option<&Policy>,
    data: &Path,
    checks: &mut Vec<Check>,
) {
    checks.push(switch(config, data));
    let approves = policy.is_some_and(|policy| {
        policy
            .modes
            .values()
            .chain(policy.scopes.iter().map(|scope| &scope.mode))
            .any(|mode| *mode == Mode::Approve)
    });
    checks.push(match config.signers() {
        Err(error) => {
            Check::missing("approvals", error.to_string(), "signers of [authority]: rights.md has the form")
        }
        Ok(Some(signers)) => Check::ok("approvals", format!("signed: {}", signers.describe())),
        Ok(None) if approves => Check::warning(
            "approvals",
            "some kinds wait for a person, and an approval counts under the login that gives it",
            "[authority] signers = \"allowed_signers\", if others can write the data folder",
        ),
        Ok(None) => {
            Check::ok("approvals", "no kind waits for a person; policies and the switch count unsigned")
        }
    });
    if config.authority.is_some() {
        checks.push(match config.journal_keys() {
            Err(error) => Check::missing(
                "journal",
                error.to_string(),
                "key of [authority]: an SSH key without passphrase",
            ),
            Ok(Some(_)) => Check::ok("journal", "entries are proven"),
            Ok(None) => Check::warning(
                "journal",
                "entries are not proven: whoever can write the topic autopilot is believed",
                "key = \"autopilot_key\" in [authority]",
            ),
        });
    }
    checks.push(match &config.pager {
        Some(_) => Check::ok("pager", "alerts go to the address of [pager]"),
        None => {
            Check::warning("pager", "nobody is told when the autopilot fails or is silent", "[pager] url = …")
        }
    });
}

fn switch(config: &ServiceConfig, data: &Path) -> Check {
    let control = ControlFolder::in_data(data);
    let says =
        control.describe().unwrap_or_else(|error| format!("it cannot be read: {error}")).replace('\n', " ");
    let is_signed = control.signed_switch().is_some();
    match control.switch() {
        KillSwitch::On if config.authority.is_some() && !is_signed => Check::warning(
            "switch",
            format!("{says}, without the signature that [authority] requires: it is off"),
            "tidegate autopilot resume --key FILE --cluster NAME",
        ),
        KillSwitch::On => Check::ok("switch", says),
        _ => Check::warning("switch", format!("off: {says}"), "tidegate autopilot resume, when it may act"),
    }
}
