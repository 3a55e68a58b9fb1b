use std::process::Command;

use tidegate_testing::needs;

use super::*;

/// Made with OpenSSH 9.2: `ssh-keygen -Y sign -n tidegate-policy` by an ed25519 and an ECDSA P-256
/// key, whose private halves are gone.
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/authority");
const ANNA: &str = "SHA256:xqwyVLcevY4AEKPkDnFJYZMIPXIdFzN90R5lT6/rT/U";

fn now() -> DateTime<Utc> {
    "2026-11-23T00:00:00Z".parse().unwrap()
}

fn fixture(name: &str) -> String {
    fs::read_to_string(Path::new(FIXTURE).join(name)).unwrap()
}

/// A folder with the fixture's files of these names; the policy is always there.
fn folder(names: &[&str]) -> (tempfile::TempDir, PathBuf, Signers) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["policy.toml", "allowed_signers"].iter().chain(names) {
        fs::write(folder.path().join(name), fixture(name)).unwrap();
    }
    let signers = Signers::read(&folder.path().join("allowed_signers")).unwrap();
    let policy = folder.path().join("policy.toml");
    (folder, policy, signers)
}

fn admit(signers: &Signers, file: &Path, before: &str) -> Result<Signed, String> {
    let text = fs::read_to_string(file).unwrap();
    let policy = Policy::parse(&text).unwrap();
    signers.admit(file, text.as_bytes(), &policy, &Policy::parse(before).unwrap(), now())
}

#[test]
fn signatures_of_openssh_are_known_by_principal_and_fingerprint() {
    let (_folder, _, signers) = folder(&[]);
    let (text, signature) = (fixture("policy.toml"), fixture("policy.toml.anna.sig"));
    let anna = signers.verify(POLICY, text.as_bytes(), &signature, now()).unwrap();
    assert_eq!(anna.to_string(), format!("anna@example.com {ANNA}"));
    let ben = signers.verify(POLICY, text.as_bytes(), &fixture("policy.toml.ben.sig"), now()).unwrap();
    assert_eq!(ben.principals, ["ben@example.com"]);

    let changed = text.replace("13", "99");
    let error = signers.verify(POLICY, changed.as_bytes(), &signature, now()).unwrap_err();
    assert!(error.contains("not of this text"), "{error}");
    // A signature for one purpose is none for another.
    let error = signers.verify(APPROVE, text.as_bytes(), &signature, now()).unwrap_err();
    assert!(error.contains("namespace tidegate-approve"), "{error}");
    let stranger = Signers { allowed: signers.allowed[1..].to_vec(), ..signers };
    let error = stranger.verify(POLICY, text.as_bytes(), &signature, now()).unwrap_err();
    assert!(error.contains(ANNA) && error.contains("is not in"), "{error}");
}

#[test]
fn what_widens_takes_two_people_and_what_tightens_one() {
    // The fixture's policy lends thirteen times an hour; shipped are twelve.
    let (_folder, file, signers) = folder(&["policy.toml.anna.sig"]);
    let error = admit(&signers, &file, "").unwrap_err();
    assert!(error.contains("two people") && error.contains("budgets.lend.per_hour from 12 to 13"), "{error}");
    assert!(
        error.contains("anna@example.com") && error.contains("ssh-keygen -Y sign -n tidegate-policy"),
        "{error}"
    );
    let wider = "[budgets.lend]\nper_hour = 14";
    assert_eq!(admit(&signers, &file, wider).unwrap().by.len(), 1, "one is enough to tighten");

    let (_folder, file, signers) = folder(&["policy.toml.anna.sig", "policy.toml.ben.sig"]);
    let signed = admit(&signers, &file, "").unwrap();
    assert_eq!(signed.by.len(), 2);
    assert!(signed.changes.iter().any(|changed| changed.key == "budgets.lend.per_hour" && changed.widens));

    let (_folder, file, signers) = folder(&[]);
    let error = admit(&signers, &file, wider).unwrap_err();
    assert!(error.contains("one person") && error.contains("nobody"), "{error}");
}

#[test]
fn the_same_person_twice_is_one() {
    let (folder, file, signers) = folder(&["policy.toml.anna.sig"]);
    // The same signature again, and in one file with itself.
    let twice = fixture("policy.toml.anna.sig").repeat(2);
    fs::write(folder.path().join("policy.toml.sig"), twice).unwrap();
    assert!(admit(&signers, &file, "").unwrap_err().contains("two people"));
    // Two keys of one person.
    let both = fixture("allowed_signers").replace("ben@", "anna@");
    fs::write(folder.path().join("allowed_signers"), both).unwrap();
    fs::write(folder.path().join("policy.toml.ben.sig"), fixture("policy.toml.ben.sig")).unwrap();
    let one = Signers::read(&folder.path().join("allowed_signers")).unwrap();
    assert!(admit(&one, &file, "").unwrap_err().contains("two people"));
    assert_eq!(admit(&signers, &file, "").unwrap().by.len(), 2);
}

#[test]
fn a_signature_that_does_not_count_stops_it_whoever_else_signed() {
    let (folder, file, signers) = folder(&["policy.toml.anna.sig"]);
    fs::write(folder.path().join("policy.toml.carl.sig"), "-----BEGIN SSH SIGNATURE-----\nAAAA\n").unwrap();
    let error = admit(&signers, &file, "[budgets.lend]\nper_hour = 14").unwrap_err();
    assert!(error.contains("policy.toml.carl.sig"), "{error}");
    let error = Signers::read(&folder.path().join("nonesuch")).unwrap_err();
    assert!(error.contains("nonesuch"), "{error}");
    fs::write(folder.path().join("empty"), "# nobody\n").unwrap();
    assert!(Signers::read(&folder.path().join("empty")).unwrap_err().contains("nobody may sign"));
}

/// With OpenSSH itself, where it is there: keys, signatures and their verification in both
/// directions.
#[test]
fn ssh_keygen_and_this_program_take_each_others_signatures() {
    if Command::new("ssh-keygen").arg("-?").output().is_err() {
        return needs::skip("ssh-keygen is not there: install openssh-client");
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let keygen = |arguments: &[&str]| {
        let output = Command::new("ssh-keygen").args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    keygen(&["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", "key"]);
    let public = fs::read_to_string(at("key.pub")).unwrap();
    fs::write(at("signers"), format!("dora@example.com namespaces=\"tidegate-*\" {public}")).unwrap();
    let signers = Signers::read(&at("signers")).unwrap();

    let text = approval_text("prod", "lend-1", "0123456789abcdef");
    fs::write(at("text"), &text).unwrap();
    keygen(&["-q", "-Y", "sign", "-n", APPROVE, "-f", "key", "text"]);
    let theirs = fs::read_to_string(at("text.sig")).unwrap();
    assert_eq!(
        signers.verify(APPROVE, text.as_bytes(), &theirs, now()).unwrap().principals,
        ["dora@example.com"]
    );
    let other = approval_text("prod", "lend-1", "fedcba9876543210");
    assert!(signers.verify(APPROVE, other.as_bytes(), &theirs, now()).is_err(), "another plan");

    let ours = sign(&at("key"), APPROVE, &text).unwrap();
    fs::write(at("ours.sig"), &ours).unwrap();
    let mut verify = Command::new("ssh-keygen");
    verify.args(["-Y", "verify", "-f", "signers", "-I", "dora@example.com", "-n", APPROVE, "-s", "ours.sig"]);
    let status =
        verify.current_dir(folder.path()).stdin(fs::File::open(at("text")).unwrap()).status().unwrap();
    assert!(status.success());
    // A key that only ssh-keygen can use gives a signature too: here by the agent's way, with what
    // stands in the file.
    assert!(signers.verify(APPROVE, text.as_bytes(), &by_keygen(&at("key"), &text), now()).is_ok());
}

fn by_keygen(key: &Path, text: &str) -> String {
    sign::by_ssh_keygen(key, APPROVE, text).unwrap()
}
