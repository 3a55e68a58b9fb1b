use super::*;
use crate::policy::{AdviceRules, SHIPPED};

fn policy(text: &str) -> Policy {
    Policy::parse(text).unwrap()
}

/// Keys that differ from `before` to `after`, and whether each widens.
fn diff(before: &str, after: &str) -> Vec<(String, bool)> {
    let of = changes(&policy(before), &policy(after)).into_iter();
    of.map(|changed| (changed.key, changed.widens)).collect()
}

/// All paths of the shipped file; `*` in tables whose keys are given by users.
fn schema() -> BTreeSet<Vec<String>> {
    fn walk(table: &toml::Table, path: &mut Vec<String>, into: &mut BTreeSet<Vec<String>>) {
        for (key, value) in table {
            path.push(key.clone());
            match value {
                toml::Value::Table(empty) if empty.is_empty() => {
                    path.push("*".to_owned());
                    into.insert(path.clone());
                    path.pop();
                }
                toml::Value::Table(inner) => walk(inner, path, into),
                _ => drop(into.insert(path.clone())),
            }
            path.pop();
        }
    }
    let mut paths = BTreeSet::new();
    walk(&SHIPPED.parse().unwrap(), &mut Vec::new(), &mut paths);
    paths
}

#[test]
fn every_key_of_a_policy_has_a_direction() {
    let schema = schema();
    assert!(schema.len() > 100, "{} keys", schema.len());
    for path in &schema {
        assert!(direction(path).is_some(), "{} has no line in KEYS: say which way it widens", path.join("."));
    }
    // A serialized policy has the same keys and no others.
    let mut written = BTreeSet::new();
    leaves(&json(&Policy::shipped()), &mut Vec::new(), &mut written);
    for path in &written {
        assert!(direction(path).is_some(), "{} has no line in KEYS", path.join("."));
    }
    for (pattern, _) in KEYS.iter().filter(|(pattern, _)| *pattern != "at_most.*") {
        let parts: Vec<&str> = pattern.split('.').collect();
        let fits = |path: &Vec<String>| {
            path.len() == parts.len()
                && path.iter().zip(&parts).all(|(key, part)| *part == "*" || key == part)
        };
        assert!(schema.iter().any(fits), "{pattern} is no key of a policy any more");
    }
}

#[test]
fn widening_changes_take_two_signatures() {
    for wider in [
        "[budgets.lend]\nper_hour = 13",
        "[budgets.reclaim]\nconcurrent = 9",
        "[blast]\nfleet_share = 0.25",
        "[floors]\nin_service_share = 0.7",
        "[modes]\nlend = \"approve\"\nreclaim = \"approve\"",
        "require_opt_in = false",
        "[stability]\ndwell_s = 600",
        "[freshness]\nsources = { slurm = 121 }",
        "[lend]\nfor_growth = true",
        "[worth]\nmissing_micros_per_gpu_hour = 41000000",
        "scopes = [{ owner = \"a\", mode = \"observe\" }]",
    ] {
        assert_eq!(signers_needed(&Policy::shipped(), &policy(wider)), 2, "{wider}");
    }
    for narrower in [
        "",
        "name = \"other\"",
        "[budgets.lend]\nper_hour = 11",
        "[floors]\nin_service_share = 0.9\npools = { h100 = 64 }",
        "[modes]\nlend = \"stop\"",
        "[stability]\ndwell_s = 1800",
        "[freshness]\nsources = { slurm = 119 }\nrequired = [\"slurm\"]",
        "[advice]\nmost = 20",
        "scopes = [{ owner = \"a\", mode = \"stop\" }]",
        "calendar = [{ name = \"x\", from = \"09:00\", to = \"10:00\" }]",
    ] {
        assert_eq!(signers_needed(&Policy::shipped(), &policy(narrower)), 1, "{narrower}");
        // The way back needs two signatures, except for keys that never count.
        let back = signers_needed(&policy(narrower), &Policy::shipped());
        let never = ["", "name = \"other\"", "[advice]\nmost = 20"].contains(&narrower);
        assert_eq!(back, if never { 1 } else { 2 }, "back from {narrower}");
    }
}

#[test]
fn changes_name_the_key_and_both_values() {
    let before = policy("[floors]\nowners = { \"team.a\" = 8 }");
    let after = policy("[floors]\nowners = { \"team.a\" = 4 }\n[budgets.lend]\nper_hour = 6");
    let of = |key: &str, before: &str, after: &str, widens| PolicyChange {
        key: key.to_owned(),
        before: Some(before.to_owned()),
        after: Some(after.to_owned()),
        widens,
    };
    let expected =
        [of("budgets.lend.per_hour", "12", "6", false), of("floors.owners.team.a", "8", "4", true)];
    assert_eq!(changes(&before, &after), expected);
    assert!(changes(&before, &before).is_empty());
    // A demotion by scorecard is not a policy change.
    let mut earned = before.clone();
    earned.at_most.insert(crate::action::Kind::Lend, Mode::Observe);
    assert_eq!(signers_needed(&earned, &before), 1);
    // What an old record lacks was off, so writing it as shipped changes nothing.
    let old = Policy { advice: AdviceRules::default(), ..Policy::shipped() };
    assert_eq!(signers_needed(&old, &Policy::shipped()), 1);
}

#[test]
fn scopes_keep_their_order_and_freezes_their_entries() {
    let base = "scopes = [{ owner = \"a\", mode = \"act\" }, { pool = \"p\", mode = \"suggest\" }]";
    for (after, widens) in [
        ("scopes = [{ owner = \"a\", mode = \"approve\" }, { pool = \"p\", mode = \"suggest\" }]", false),
        (
            "scopes = [{ owner = \"a\", mode = \"act\" }, { node = \"n\", mode = \"stop\" }, { pool = \"p\", mode = \"stop\" }]",
            false,
        ),
        ("scopes = [{ pool = \"p\", mode = \"suggest\" }, { owner = \"a\", mode = \"act\" }]", true),
        ("scopes = [{ owner = \"a\", mode = \"act\" }]", true),
        ("scopes = [{ owner = \"b\", mode = \"act\" }, { pool = \"p\", mode = \"suggest\" }]", true),
        ("", true),
    ] {
        assert_eq!(diff(base, after), [("scopes".to_owned(), widens)], "{after}");
    }
    let freezes = |names: &[&str]| {
        let entry = |name: &&str| format!("{{ name = \"{name}\", from = \"09:00\", to = \"10:00\" }}");
        format!("calendar = [{}]", names.iter().map(entry).collect::<Vec<_>>().join(", "))
    };
    assert_eq!(diff(&freezes(&["a"]), &freezes(&["b", "a"])), [("calendar".to_owned(), false)]);
    assert_eq!(diff(&freezes(&["a", "b"]), &freezes(&["b"])), [("calendar".to_owned(), true)]);
}

#[test]
fn a_policy_has_no_place_for_a_secret() {
    // Strings in a policy are names and spellings. Addresses and passwords belong in the deployment
    // file, by reference, because policies are recorded whole.
    let shipped = json(&Policy::shipped());
    let text = |path: &&Vec<String>| at(&shipped, path).is_some_and(Value::is_string);
    let written = schema();
    let texts: Vec<String> = written.iter().filter(text).map(|path| path.join(".")).collect();
    let modes = texts.iter().filter(|key| key.starts_with("modes.")).count();
    assert_eq!((modes, texts.len()), (crate::action::Kind::ALL.len(), modes + 2), "{texts:?}");
    assert!(["name", "forecast.source"].iter().all(|key| texts.contains(&(*key).to_owned())), "{texts:?}");
}
