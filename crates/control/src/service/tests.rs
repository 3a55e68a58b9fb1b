use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tidegate_autopilot::executor::{AdoptedStatement, Switched};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::policy::Policy;

use super::*;
use crate::authority::fixture::{Person, site};
use crate::authority::{ActsAs, POLICY, SWITCH, Standing, SwitchStatement};

#[test]
fn the_example_is_valid() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/autopilot/slurm.toml");
    let config = ServiceConfig::read(Path::new(file)).unwrap();
    assert_eq!(config.policy().unwrap().name, "default");
}

#[test]
fn a_deployment_that_contradicts_itself_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("autopilot.toml");
    for (text, said) in [
        ("policy = \"auto\"\n[slurm]\n", "cluster"),
        ("cluster = \"c\"\n", "add a [slurm] section"),
        ("cluster = \"c\"\nlook_every_s = 20\n[slurm]\n", "outlast three looks"),
        ("cluster = \"c\"\nleas_s = 20\n[slurm]\n", "leas_s"),
        ("cluster = \"c\"\n[slurm]\ncommand_ms = 0\n", "command_ms is 0"),
        ("cluster = \"c\"\n[pager]\n[slurm]\n", "takes one of url, url_file and url_env"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = ServiceConfig::read(&file).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("autopilot.toml"), "{text}: {error}");
    }
    std::fs::write(&file, "cluster = \"c\"\npolicy = \"own.toml\"\n[slurm]\n").unwrap();
    let config = ServiceConfig::read(&file).unwrap();
    assert!(config.policy().unwrap_err().to_string().contains("own.toml"));
    std::fs::write(folder.path().join("own.toml"), "name = \"own\"\n").unwrap();
    assert_eq!(config.policy().unwrap().name, "own");
    // Candidates are files beside the policy; an error names the key and the file.
    let own =
        "name = \"own\"\n[shadow]\npolicy = \"auto\"\n[canary]\npolicy = \"next.toml\"\nowners = [\"a\"]\n";
    std::fs::write(folder.path().join("own.toml"), own).unwrap();
    let rollout = |config: &ServiceConfig| config.rollout(&mut config.policy().unwrap());
    let error = rollout(&config).unwrap_err().to_string();
    assert!(error.contains("own.toml: canary.policy") && error.contains("next.toml"), "{error}");
    std::fs::write(folder.path().join("next.toml"), "name = \"next\"\n").unwrap();
    let found = rollout(&config).unwrap();
    let names = (found.shadow.map(|policy| policy.name), found.canary.map(|canary| canary.policy.name));
    assert_eq!(names, (Some("auto".to_owned()), Some("next".to_owned())));
    let found = rollout(&config.clone().shadowed_by(Some("default".to_owned()))).unwrap();
    assert_eq!(found.shadow.unwrap().name, "default");
    let mine = folder.path().join("own.toml").display().to_string();
    assert!(rollout(&config.shadowed_by(Some(mine))).unwrap_err().to_string().contains("--shadow"));
}

#[test]
fn where_signers_are_named_a_policy_needs_their_signatures() {
    let folder = tempfile::tempdir().unwrap();
    let (anna, ben, pilot, _) = site(folder.path());
    let night = "name = \"night\"\n[budgets.lend]\nper_hour = 13\n";
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("night.toml"), night).unwrap();
    let file = at("autopilot.toml");
    let config = |policy: &str, more: &str| {
        let text = format!(
            "cluster = \"c\"\npolicy = \"{policy}\"\n[authority]\nsigners = \"allowed_signers\"\n{more}[slurm]\n"
        );
        std::fs::write(&file, text).unwrap();
        ServiceConfig::read(&file).unwrap()
    };
    let issue = |acts_as: ActsAs, after: Option<&AdoptedStatement>, by: &[&Person]| {
        let shipped = Policy::shipped();
        let standing = Standing { cluster: "c", policy: &shipped, adopted: after };
        let text = standing.next_statement(night, acts_as, chrono::Utc::now()).text();
        std::fs::write(at("night.toml.statement"), &text).unwrap();
        for person in by {
            let signature = person.sign(POLICY, &text).signature;
            std::fs::write(at(&format!("night.toml.statement.{}.sig", person.name)), signature).unwrap();
        }
    };
    let signers = config("night.toml", "").signers().unwrap().unwrap();
    let taken = |policy: &str| config(policy, "").signed_policy(&signers, &Policy::shipped(), None);
    assert!(taken("night.toml").unwrap_err().to_string().contains("is not signed"));
    issue(ActsAs::Policy, None, &[&anna]);
    // It lends more often than the shipped policy.
    assert!(taken("night.toml").unwrap_err().to_string().contains("two people"));
    issue(ActsAs::Policy, None, &[&anna, &ben]);
    let (policy, taken_by) = taken("night.toml").unwrap();
    let issued = taken_by.issued.unwrap();
    assert_eq!((policy.name.as_str(), taken_by.signed_by.len()), ("night", 2));
    assert_eq!((issued.text.as_str(), issued.signatures.len(), issued.adopted.sequence), (night, 2, 1));
    assert!(taken("auto").unwrap_err().to_string().contains("is not signed"));
    // So does a canary, beside the acting policy.
    let shipped = Policy::shipped();
    let acting = Standing { cluster: "c", policy: &shipped, adopted: Some(&issued.adopted) };
    let canary = |name: &str, canary: &Policy| {
        config("site.toml", "").check_canary_signed(&signers, name, canary, &acting)
    };
    assert!(canary("night.toml", &policy).is_err(), "it was signed to act for all");
    issue(ActsAs::Canary, Some(&issued.adopted), &[&anna, &ben]);
    canary("night.toml", &policy).unwrap();
    assert!(canary("auto", &Policy::auto()).unwrap_err().to_string().contains("is not signed"));
    std::fs::write(at("next.toml"), "name = \"next\"\n").unwrap();
    let next = Policy::parse("name = \"next\"\n").unwrap();
    assert!(canary("next.toml", &next).unwrap_err().to_string().contains("ssh-keygen -Y sign"));
    let another = canary("next.toml", &policy).unwrap_err().to_string();
    assert!(another.contains("start again"), "{another}");
    // The journal is proven once the deployment names a key that nobody else can read.
    assert!(config("night.toml", "").journal_keys().unwrap().is_none());
    let key = pilot.key_file(folder.path());
    let named = "key = \"pilot.key\"\n";
    assert!(config("night.toml", named).journal_keys().unwrap().unwrap().key.is_some());
    std::fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    assert!(config("night.toml", named).journal_keys().unwrap_err().to_string().contains("chmod 600"));
    std::fs::remove_file(at("allowed_signers")).unwrap();
    assert!(config("night.toml", "").signers().unwrap_err().to_string().contains("allowed_signers"));
}

/// A switch that anybody wrote, or an old one that is put back, does not let the autopilot act.
#[test]
fn a_signed_switch_is_on_until_it_is_found_off() {
    let folder = tempfile::tempdir().unwrap();
    let (_, ben, _, signers) = site(folder.path());
    let control = ControlFolder::in_data(folder.path());
    let now = chrono::Utc::now();
    let find = |last: Option<&Switched>, at| switch::find(&control, &signers, "c", last, at);
    let on = |cluster: &str, given: chrono::DateTime<chrono::Utc>| {
        let given_us = given.timestamp_micros();
        let signed = ben.sign(SWITCH, &SwitchStatement { cluster: cluster.to_owned(), given_us }.text());
        control.set(&ControlFolder::on_signed("ben", "now", &signed)).unwrap();
    };
    assert_eq!(find(None, now).switch, KillSwitch::Unreadable);
    control.set(&ControlFolder::on("mallory", "now")).unwrap();
    let found = find(None, now);
    assert_eq!(found.switch, KillSwitch::Paused);
    assert!(found.why.unwrap().contains("nobody signed it"));
    on("other", now);
    assert_eq!(find(None, now).switch, KillSwitch::Paused);
    on("c", now + chrono::TimeDelta::hours(1));
    assert_eq!(find(None, now).switch, KillSwitch::Paused, "signed later than now");
    on("c", now);
    let found = find(None, now);
    let switched_on = found.news.unwrap();
    assert_eq!((found.switch, switched_on.on, &switched_on.by), (KillSwitch::On, true, &ben.signer()));
    let still = find(Some(&switched_on), now);
    assert_eq!((still.switch, still.news), (KillSwitch::On, None));
    // It is paused, by anybody, and the signature from before is put back.
    let later = now + chrono::TimeDelta::minutes(1);
    control.set(&ControlFolder::paused("somebody", "now", Some("on call"))).unwrap();
    let found = find(Some(&switched_on), later);
    let off = found.news.unwrap();
    assert_eq!((found.switch, off.on), (KillSwitch::Paused, false));
    assert!(off.by.contains("paused by somebody"), "{off:?}");
    on("c", now);
    let found = find(Some(&off), later);
    assert_eq!((found.switch, found.news), (KillSwitch::Paused, None));
    on("c", later + chrono::TimeDelta::seconds(1));
    assert_eq!(find(Some(&off), later).switch, KillSwitch::On);
}

/// Where nobody signs, who switched is recorded all the same: each change once.
#[test]
fn an_unsigned_switch_is_journaled_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlFolder::in_data(folder.path());
    let now = chrono::Utc::now();
    assert_eq!(switch::unsigned_news(&control, None, now), None, "it was never on");
    control.set(&ControlFolder::on("anna", "noon")).unwrap();
    let on = switch::unsigned_news(&control, None, now).unwrap();
    assert_eq!((on.on, on.by.as_str(), &on.signature), (true, "on by anna at noon", &None));
    assert_eq!(switch::unsigned_news(&control, Some(&on), now), None);
    control.set(&ControlFolder::paused("ben", "one", Some("on call"))).unwrap();
    let off = switch::unsigned_news(&control, Some(&on), now).unwrap();
    assert_eq!((off.on, off.by.as_str()), (false, "paused by ben at one: on call"));
    assert_eq!(switch::unsigned_news(&control, Some(&off), now), None);
}
