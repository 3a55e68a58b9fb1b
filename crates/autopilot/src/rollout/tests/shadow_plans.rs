//! Plans of a shadow, and their comparison with the acting policy.

use super::*;

/// A lending cluster, the acting plan by `policy`, and the result of a shadow by `other`.
fn shadow_result(policy: &Policy, other: &Policy) -> (PlanRecord, shadow::ShadowResult) {
    let mut state = cluster();
    waits(&mut state, "research", 4);
    (0..4).for_each(|at| drop(state.jobs.insert(format!("g{at}"), gang(&[&format!("t{at}")]))));
    let says = FixedForecast::highest(60.0);
    let (plan, report) = plan(policy, &state, &says, None, NOW, 7);
    let history = History::default();
    let seen =
        ShadowInput { state: &state, forecast: &says, history: &history, plan: &plan, report: &report };
    let shadow_result = Shadow::new(other.clone()).plan(seen, &BTreeMap::new());
    (PlanRecord { plan, report, policy: policy.clone(), canary: None, state, kept: vec![] }, shadow_result)
}

#[test]
fn a_shadows_plan_replays_from_the_acting_plan() {
    let careful = candidate("[lend]\nbuffer_gpus = 40\nleast_quantile = 0.97\n");
    for other in [Policy::auto(), careful, candidate("[budgets.lend]\nper_hour = 0\n")] {
        let (beside, shadow_result) = shadow_result(&Policy::shipped(), &other);
        let (plan, report) = shadow_result.planned.replay(&other, &beside);
        assert!(shadow_result.planned.matches(&plan, &report), "{}", other.name);
        assert_eq!(shadow_result.decisions.len(), plan.decisions.len());
        assert!(shadow_result.decisions.iter().all(|own| own.id.starts_with(shadow::ID_PREFIX)));
        let (other_plan, report) = shadow_result.planned.replay(&Policy::shipped(), &beside);
        assert!(!shadow_result.planned.matches(&other_plan, &report), "by another policy it is another");
    }
    // The same plan: the kill switch was never turned on, which says nothing about a policy.
    let (beside, same) = shadow_result(&Policy::shipped(), &Policy::auto());
    let lend = &same.decisions[0];
    assert_eq!(lend.same_as.as_ref(), Some(&beside.plan.decisions[0].action.id));
    assert_eq!((lend.mode, &lend.refusal), (Mode::Act, &None));
    assert_eq!((same.planned.same, same.planned.only_acting.len()), (1, 0));
    // What its own guard would refuse, with the rule.
    let (_, refused) = shadow_result(&Policy::shipped(), &candidate("[budgets.lend]\nper_hour = 0\n"));
    assert_eq!(refused.decisions[0].refusal.as_ref().map(|refusal| refusal.rule), Some(Rule::Budget));
    // A shadow that lends nothing misses what the acting policy does.
    let (beside, missed) = shadow_result(&Policy::shipped(), &candidate("[lend]\nbuffer_gpus = 100\n"));
    assert_eq!(missed.decisions, []);
    let net_gpu_ms = beside.plan.decisions[0].predicted.net_gpu_ms();
    let action = beside.plan.decisions[0].action.id.clone();
    assert_eq!(missed.planned.only_acting, [MissedDecision { action, kind: Kind::Lend, net_gpu_ms }]);
}

#[test]
fn a_shadow_that_thinks_the_same_costs_few_bytes() {
    let (beside, shadow_result) = shadow_result(&Policy::shipped(), &Policy::auto());
    let mut shadow = Shadow::new(Policy::auto());
    let bytes = |events: Vec<ShadowEvent>| -> Vec<usize> {
        let entry =
            |event| JournalEntry { at_us: NOW, generation: 1, event: JournalEvent::Shadow(Box::new(event)) };
        events.into_iter().map(|event| serde_json::to_vec(&entry(event)).unwrap().len()).collect()
    };
    let first = bytes(shadow.record(shadow_result.clone(), 1, 600 * S));
    assert_eq!(first.len(), 3, "its policy once, its plan, and what it decides");
    let mut again = shadow_result.clone();
    again.planned.made_us += 60 * S;
    assert!(!shadow.has_new_decisions(&again, 600 * S));
    let repeated = bytes(shadow.record(again.clone(), 1, 600 * S));
    let whole = serde_json::to_vec(&JournalEvent::Planned(Box::new(beside))).unwrap().len();
    println!("{first:?}, then {repeated:?}; the plan beside it {whole}");
    assert!(repeated.len() == 1 && repeated[0] < 400, "{repeated:?}");
    assert!(whole > 20 * repeated[0], "{whole}");
    // Readers of another generation may not have seen the first; after ten minutes standing
    // decisions are recorded again.
    assert_eq!(shadow.record(again.clone(), 2, 600 * S).len(), 2);
    again.planned.made_us = shadow_result.planned.made_us + 600 * S;
    assert_eq!(shadow.record(again.clone(), 2, 600 * S).len(), 2);
}

#[test]
fn only_decisions_the_acting_plan_lacks_are_new() {
    let (_, same) = shadow_result(&Policy::shipped(), &Policy::auto());
    let mut shadow = Shadow::new(Policy::auto());
    assert!(!shadow.has_new_decisions(&same, 600 * S), "the acting plan is recorded for itself");
    let (_, mut alone) = shadow_result(&candidate("[lend]\nbuffer_gpus = 100\n"), &Policy::auto());
    assert!(alone.decisions[0].same_as.is_none() && shadow.has_new_decisions(&alone, 600 * S));
    shadow.record(alone.clone(), 1, 600 * S);
    alone.planned.made_us += 599 * S;
    assert!(!shadow.has_new_decisions(&alone, 600 * S));
    alone.planned.made_us += S;
    assert!(shadow.has_new_decisions(&alone, 600 * S));
}

#[test]
fn a_summary_counts_common_decisions_once_and_one_sided_ones() {
    let planned = |same, decisions, only: &[(&str, i64)]| {
        let only_acting = only.iter().map(|(action, net_gpu_ms)| MissedDecision {
            action: (*action).to_owned(),
            kind: Kind::Lend,
            net_gpu_ms: *net_gpu_ms,
        });
        ShadowEvent::Planned(Box::new(ShadowPlan {
            plan: "shadow-1".into(),
            acting_plan: "1".into(),
            made_us: NOW,
            policy: "candidate".into(),
            policy_hash: "h".into(),
            at_most: BTreeMap::new(),
            print: "p".into(),
            answers: vec![],
            decisions,
            same,
            only_acting: only_acting.collect(),
        }))
    };
    let decided = |policy: &str, same_as: Option<&str>, net: i64, rule: Option<Rule>| {
        ShadowEvent::Decided(Box::new(ShadowDecision {
            id: "shadow-lend-1".into(),
            plan: "shadow-1".into(),
            policy: policy.into(),
            kind: Kind::Lend,
            object: crate::state::Object::Owner("serving".into()),
            mode: Mode::Act,
            gpus: 8,
            predicted: Predicted { benefit_gpu_ms: net + 1, cost_gpu_ms: 1, ..Predicted::default() },
            reason: String::new(),
            refusal: rule.map(|rule| crate::guard::Refusal { rule, why: "no".into() }),
            same_as: same_as.map(str::to_owned),
        }))
    };
    let events = [
        planned(1, 1, &[]),
        decided("candidate", Some("lend-a"), 10, None),
        decided("candidate", Some("lend-a"), 10, None),
        planned(0, 1, &[("lend-b", 5), ("lend-c", 7)]),
        decided("candidate", None, 20, Some(Rule::Budget)),
        planned(0, 0, &[("lend-b", 5)]),
        planned(0, 0, &[]),
        decided("another", None, 99, None),
    ];
    let scores = [Score { action: "lend-a".into(), ..scored(0, None, 3) }, scored(1, None, 9)];
    let found = summary("candidate", events.iter(), scores.iter());
    assert_eq!((found.plans, found.alike), (4, 2));
    let expected = KindComparison {
        both: 1,
        both_net_gpu_ms: 10,
        scored: 1,
        realised_gpu_ms: 3 * 3_600_000,
        only_acting: 2,
        only_acting_net_gpu_ms: 12,
        only_shadow: 1,
        only_shadow_net_gpu_ms: 20,
        refused: [(Rule::Budget, 1)].into(),
    };
    assert_eq!(found.kinds, [(Kind::Lend, expected)].into());
}
