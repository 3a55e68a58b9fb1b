//! Shadows, canaries and rollbacks.

mod canary_plans;
mod rollbacks;
mod shadow_plans;

use std::collections::{BTreeMap, BTreeSet};

use super::rollback::{CanaryRecord, reason};
use super::shadow::{MissedDecision, Shadow, ShadowDecision, ShadowEvent, ShadowInput, ShadowPlan};
use super::summary::{KindComparison, summary};
use super::*;
use crate::action::{Change, Kind};
use crate::executor::{JournalEntry, JournalEvent, PlanRecord};
use crate::fixture::{FixedForecast, NOW, S, cluster, elastic, gang, lend, loan, node, pending};
use crate::guard::{KillSwitch, PastAction, Rule};
use crate::intent::{IntentEvent, IntentLedger, Transition};
use crate::planner::{Decision, Predicted, plan, plan_with_canary};
use crate::policy::{Budget, Footprint, Mode, RollbackRules};
use crate::scorecard::Score;
use crate::state::{Owner, Pool, Share};

fn candidate(text: &str) -> Policy {
    let auto = "name = \"candidate\"\n[modes]\nresize_job = \"act\"\nlend = \"act\"\nreclaim = \"act\"\n\
                drain_node = \"act\"\nreturn_node = \"act\"\npreempt = \"act\"\nadjust_reservation = \"act\"\n";
    Policy::parse(&format!("{auto}{text}")).unwrap()
}

fn canary(policy: Policy, owners: &[&str]) -> Canary {
    let owners = owners.iter().map(|owner| (*owner).to_owned()).collect();
    Canary { policy, owners, rollback: RollbackRules::default() }
}

fn waits(state: &mut ClusterState, owner: &str, jobs: u32) {
    for at in 0..jobs {
        let job = crate::state::Job { owner: owner.into(), ..pending(16, 1_000) };
        state.jobs.insert(format!("{owner}-{at}"), job);
    }
}

/// A score with 10 GPU-hours predicted and `realised` realised.
fn scored(at: i64, by: Option<&str>, realised: i64) -> Score {
    const HOUR: i64 = 3_600_000;
    Score {
        action: format!("lend-{at}-{by:?}"),
        kind: Kind::Lend,
        decided_us: NOW + at * S,
        verified: true,
        predicted_gpu_ms: 10 * HOUR,
        realised_gpu_ms: Some(realised * HOUR),
        benefit_ratio_ppm: None,
        predicted_benefit: None,
        realised_benefit_gpu_ms: None,
        within: None,
        interval: None,
        without: None,
        canary: by.map(str::to_owned),
    }
}

#[test]
fn unknown_owners_are_named_with_the_known_ones() {
    let mut state = cluster();
    state.jobs.insert("1".into(), crate::state::Job { owner: "guest".into(), ..gang(&["t0"]) });
    assert_eq!(canary(candidate(""), &["research", "guest"]).check_owners(&state), Ok(()));
    let error = canary(candidate(""), &["team-a", "research"]).check_owners(&state).unwrap_err().to_string();
    assert_eq!(error, "canary.owners: the cluster has no team-a; it knows guest, research, serving");
}

#[test]
fn candidates_are_removed_from_the_base_policy() {
    let text = "name = \"site\"\n[shadow]\npolicy = \"auto\"\n[canary]\npolicy = \"own.toml\"\nowners = [\"team-a\"]\n\
                [canary.rollback]\nfailures = 5\n";
    let read = |named: &str| match named {
        "own.toml" => Ok(candidate("")),
        named => Policy::named(named).ok_or_else(|| "no such file".to_owned()),
    };
    let mut policy = Policy::parse(text).unwrap();
    let tried = Rollout::from_policy(&mut policy, read).unwrap();
    assert_eq!(tried.shadow, Some(Policy::auto()));
    let canary = tried.canary.unwrap();
    assert_eq!((&*canary.policy.name, canary.rollback.failures), ("candidate", 5));
    assert_eq!(policy, Policy { name: "site".into(), ..Policy::shipped() }, "its own plans keep their hash");
    assert!(canary.id() != Canary { rollback: RollbackRules::default(), ..canary.clone() }.id());
    // A policy without candidates serializes as it did before candidates existed.
    assert!(!serde_json::to_string(&policy).unwrap().contains("canary"));
    let refused = |text: &str| {
        let mut policy = Policy::parse(text).unwrap();
        Rollout::from_policy(&mut policy, read).unwrap_err().to_string()
    };
    assert_eq!(refused("[shadow]\npolicy = \"none.toml\""), "shadow.policy = \"none.toml\": no such file");
    assert!(refused("[shadow]\npolicy = \"default\"").contains("a `name` of its own"));
    let nested =
        |_: &str| Policy::parse("name = \"c\"\n[shadow]\npolicy = \"auto\"").map_err(|e| e.to_string());
    let mut policy = Policy::parse("[canary]\npolicy = \"c\"\nowners = [\"a\"]").unwrap();
    assert!(
        Rollout::from_policy(&mut policy, nested)
            .unwrap_err()
            .to_string()
            .contains("of its own; only the policy")
    );
    assert_eq!(Policy::shipped().canary.rollback, RollbackRules::default(), "one set of numbers");
}

#[test]
fn a_policy_says_whom_it_tries_in_full() {
    let refused = |text: &str| Policy::parse(text).unwrap_err().to_string();
    assert!(refused("[canary]\npolicy = \"c.toml\"").starts_with("canary.owners = []: name the owners"));
    assert!(refused("[canary]\nowners = [\"a\"]").contains("canary.policy"));
    assert!(refused("[canary]\npolicy = \"c\"\nowners = [\"a\", \"a\"]").contains("each owner once"));
    assert!(refused("[canary.rollback]\nfailures = 0").starts_with("canary.rollback.failures = 0: write 1"));
    assert!(refused("[canary.rollback]\nworse = -1.0").starts_with("canary.rollback.worse"));
    assert!(refused("[shadow]\npolicy = \" \"").starts_with("shadow.policy"));
    assert!(refused("[shadow]\nowners = [\"a\"]").contains("shadow.owners is not a key"));
    assert!(refused("[canary]\npolicy = \"c\"\nowners = [1]").contains("invalid type"));
}
