use super::*;

fn refused(text: &str) -> String {
    Policy::parse(text).unwrap_err().to_string()
}

#[test]
fn the_shipped_policy_is_complete_and_acts_nowhere() {
    let policy = Policy::shipped();
    for kind in Kind::ALL {
        assert!(policy.modes[&kind] <= Mode::Suggest, "{kind}");
        assert!(policy.budgets[&kind].concurrent > 0, "{kind}");
    }
    assert!(policy.require_opt_in);
}

#[test]
fn policies_have_the_names_they_are_found_by() {
    for (name, _) in NAMED {
        assert_eq!(Policy::named(name).unwrap().name, name);
    }
    assert_eq!(Policy::named("auto").unwrap().modes[&Kind::Lend], Mode::Act);
    assert!(Policy::named("none").is_none());
}

#[test]
fn a_short_file_changes_only_its_keys() {
    let policy = Policy::parse("name = \"night\"\n[lend]\nbuffer_gpus = 16\nleast_coverage = 1").unwrap();
    let mut expected = Policy::shipped();
    expected.name = "night".into();
    expected.lend.buffer_gpus = 16;
    expected.lend.least_coverage = 1.0;
    assert_eq!(policy, expected);
}

#[test]
fn an_old_recorded_policy_is_written_back_unchanged() {
    let mut old = serde_json::to_value(Policy::shipped()).unwrap();
    for section in ["advice", "slo"] {
        old.as_object_mut().unwrap().remove(section).unwrap();
    }
    let section = |old: &mut serde_json::Value, name: &str, key: &str| {
        old[name].as_object_mut().unwrap().remove(key);
    };
    section(&mut old, "reservation", "ahead_s");
    let read: Policy = serde_json::from_value(old.clone()).unwrap();
    assert!(read.services.is_empty() && !read.lend.for_growth && read.reservation.ahead.is_empty());
    assert_eq!(read.advice.most, 0);
    assert_eq!(serde_json::to_value(&read).unwrap(), old);
    for key in ["services", "ahead", "for_growth"] {
        assert!(!old.to_string().contains(&format!("\"{key}\"")), "{key} is written only where it is set");
    }
}

#[test]
fn errors_name_key_value_and_remedy() {
    let unknown = refused("[lend]\nbufer_gpus = 3");
    assert!(
        unknown.starts_with("lend.bufer_gpus is not a key") && unknown.contains("buffer_gpus"),
        "{unknown}"
    );
    let typed = refused("[lend]\nbuffer_gpus = \"3\"");
    assert_eq!(typed, "lend.buffer_gpus = \"3\": write a whole number, e.g. 8");
    let range = refused("[lend]\nleast_quantile = 1.5");
    assert_eq!(range, "lend.least_quantile = 1.5: write a number above 0.0 and below 1.0");
    let promise = refused("[lend]\npromise_quantile = 1.01");
    assert_eq!(promise, "lend.promise_quantile = 1.01: write a number above 0.0 and at most 1.0");
    for (level, mend) in [
        ("1.01", "write a number above 0.0 and at most 1.0"),
        ("0.8", "write at least lend.least_quantile (0.9): a promise is surer than a gain"),
        ("\"all\"", "write a number above 0.0 and at most 1.0"),
    ] {
        let single = refused(&format!("[lend]\nowner_promise_quantile = {{ batch = {level} }}"));
        assert_eq!(single, format!("lend.owner_promise_quantile.batch = {level}: {mend}"));
    }
    assert!(refused("[modes]\nlend = \"go\"").starts_with("modes.lend = \"go\": unknown variant"));
    assert!(refused("scopes = [{ mode = \"act\", team = \"a\" }]").starts_with("scopes[0] = "));
    assert!(
        refused("calendar = [{ name = \"x\", from = \"9\", to = \"10:00\" }]").contains("calendar[0].from")
    );
    assert!(refused("name = ").starts_with("the policy is not TOML"));
    assert!(refused("[blast]\nobjects = -1").contains("the policy"));
    assert!(refused("[worth]\ncaution = nan").contains("worth.caution"));
    assert!(refused("[freshness]\nsources = { slurm = 0 }").contains("freshness.sources.slurm"));
    assert!(refused("[floors]\npools = { a = \"x\" }").contains("floors.pools.a"));
    assert!(refused("format = 2").contains("format 1"));
    let source = refused("[forecast]\nsource = \"lg\"");
    assert!(source.starts_with("forecast.source = \"lg\"") && source.contains("`trailing`"), "{source}");
    let service = |rate: f64, late: f64| {
        refused(&format!(
            "services = [{{ owner = \"a\", pool = \"p\", requests_per_gpu = {rate:?}, service_s = 2.0, slots_per_gpu = 8, \
             wait_s = 0.5, late_share = {late:?} }}]"
        ))
    };
    assert_eq!(
        service(4.5, 0.01),
        "services[0].requests_per_gpu = 4.5: write at most 4: slots_per_gpu over service_s"
    );
    assert!(service(4.0, 1.0).starts_with("services[0].late_share = 1:"));
    assert!(refused("services = [{ owner = \"a\" }]").starts_with("services[0] = "));
}

#[test]
fn kinds_that_undo_need_the_mode_of_what_they_undo() {
    assert!(refused("[modes]\nlend = \"act\"").starts_with("modes.reclaim = \"suggest\""));
    assert!(refused("[modes]\ndrain_node = \"approve\"").starts_with("modes.return_node"));
    Policy::parse("[modes]\nlend = \"act\"\nreclaim = \"act\"").unwrap();
    assert!(refused("[lend]\nreclaim_buffer_gpus = 9").contains("chase each other"));
    assert!(refused("[lend]\nterm_s = 2699").contains("write at most a third of lend.term_s (2699)"));
    assert!(Policy::parse("[lend]\nterm_s = 2700").is_ok());
}

#[test]
fn the_last_matching_scope_decides_and_a_stop_always() {
    let text = r#"
        scopes = [
            { kind = "lend", owner = "serving", mode = "act" },
            { owner = "serving", pool = "h100", mode = "approve" },
            { node = "n7", mode = "stop" },
            { mode = "observe", kind = "preempt" },
        ]
    "#;
    let policy = Policy::parse(text).unwrap();
    let mut footprint = Footprint { owners: vec!["serving".into()], ..Footprint::default() };
    assert_eq!(policy.mode(Kind::Lend, &footprint), Mode::Act);
    footprint.pools.push("h100".into());
    assert_eq!(policy.mode(Kind::Lend, &footprint), Mode::Approve);
    footprint.nodes.push("n7".into());
    assert_eq!(policy.mode(Kind::Lend, &footprint), Mode::Stop);
    assert_eq!(policy.mode(Kind::Lend, &Footprint::default()), Mode::Suggest);
    assert_eq!(
        policy.mode(Kind::DrainNode, &Footprint { nodes: vec!["n8".into()], ..Footprint::default() }),
        Mode::Suggest
    );
}

#[test]
fn a_freeze_holds_for_what_it_names() {
    let text = r#"calendar = [{ name = "launch", from = "00:00", to = "12:00", kinds = ["lend"], owners = ["serving"] }]"#;
    let policy = Policy::parse(text).unwrap();
    let footprint = Footprint { owners: vec!["serving".into()], ..Footprint::default() };
    let hour = 3_600_000_000;
    assert_eq!(
        policy.frozen(Kind::Lend, &footprint, 3 * hour).map(|freeze| freeze.name.as_str()),
        Some("launch")
    );
    assert!(policy.frozen(Kind::Lend, &footprint, 13 * hour).is_none());
    assert!(policy.frozen(Kind::Reclaim, &footprint, 3 * hour).is_none());
    assert!(policy.frozen(Kind::Lend, &Footprint::default(), 3 * hour).is_none());
}

#[test]
fn modes_go_up_and_down_one_at_a_time() {
    assert_eq!(
        [Mode::Stop, Mode::Observe, Mode::Suggest, Mode::Approve, Mode::Act].map(Mode::up),
        [Mode::Stop, Mode::Suggest, Mode::Approve, Mode::Act, Mode::Act]
    );
    assert_eq!(
        [Mode::Act, Mode::Approve, Mode::Suggest, Mode::Observe].map(Mode::down),
        [Mode::Approve, Mode::Suggest, Mode::Observe, Mode::Observe]
    );
}
