use std::path::Path;

use tidegate_autopilot::policy::Policy;

use super::*;

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
    let carried = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/authority"));
    let folder = tempfile::tempdir().unwrap();
    let copy = |name: &str| std::fs::copy(carried.join(name), folder.path().join(name)).unwrap();
    for name in ["policy.toml", "allowed_signers", "policy.toml.anna.sig"] {
        copy(name);
    }
    let file = folder.path().join("autopilot.toml");
    let config = |policy: &str| {
        let text = format!(
            "cluster = \"c\"\npolicy = \"{policy}\"\n[authority]\nsigners = \"allowed_signers\"\n[slurm]\n"
        );
        std::fs::write(&file, text).unwrap();
        ServiceConfig::read(&file).unwrap()
    };
    let signers = config("policy.toml").signers().unwrap().unwrap();
    let taken = |policy: &str| config(policy).signed_policy(&signers, &Policy::shipped());
    // It lends more often than the shipped policy.
    assert!(taken("policy.toml").unwrap_err().to_string().contains("two people"));
    copy("policy.toml.ben.sig");
    let (policy, taken_by) = taken("policy.toml").unwrap();
    assert_eq!((policy.name.as_str(), taken_by.signed_by.len()), ("night", 2));
    assert!(taken("auto").unwrap_err().to_string().contains("is not signed"));
    // So does a canary, against the acting policy.
    let canary = |name: &str, canary: &Policy| {
        config("site.toml").check_canary_signed(&signers, name, canary, &Policy::shipped())
    };
    canary("policy.toml", &policy).unwrap();
    assert!(canary("auto", &Policy::auto()).unwrap_err().to_string().contains("is not signed"));
    std::fs::write(folder.path().join("next.toml"), "name = \"next\"\n").unwrap();
    let next = Policy::parse("name = \"next\"\n").unwrap();
    assert!(canary("next.toml", &next).unwrap_err().to_string().contains("ssh-keygen -Y sign"));
    let another = canary("next.toml", &policy).unwrap_err().to_string();
    assert!(another.contains("start again"), "{another}");
    std::fs::remove_file(folder.path().join("allowed_signers")).unwrap();
    assert!(config("policy.toml").signers().unwrap_err().to_string().contains("allowed_signers"));
}
