use std::process::Command;

use chrono::TimeDelta;
use tidegate_autopilot::executor::AdoptedStatement;
use tidegate_autopilot::policy::Policy;
use tidegate_testing::needs;

use super::fixture::Person;
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

/// A policy that lends thirteen times an hour; shipped are twelve.
const NIGHT: &str = "name = \"night\"\n[budgets.lend]\nper_hour = 13\n";
/// One that lends more often, after which NIGHT tightens.
const WIDER: &str = "[budgets.lend]\nper_hour = 14";

/// A folder with a policy, in which people sign.
struct Desk {
    folder: tempfile::TempDir,
    anna: Person,
    ben: Person,
    signers: Signers,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (anna, ben, _, signers) = fixture::site(folder.path());
        fs::write(folder.path().join("policy.toml"), NIGHT).unwrap();
        Self { folder, anna, ben, signers }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the statement and lets these people sign it.
    fn issue(&self, statement: &PolicyStatement, people: &[&Person]) {
        let text = statement.text();
        fs::write(self.at("policy.toml.statement"), &text).unwrap();
        for person in people {
            let file = self.at(&format!("policy.toml.statement.{}.sig", person.name));
            fs::write(file, person.sign(POLICY, &text).signature).unwrap();
        }
    }

    fn admit_as(
        &self,
        acts_as: ActsAs,
        (cluster, before): (&str, &str),
        adopted: Option<&AdoptedStatement>,
        at: DateTime<Utc>,
    ) -> Result<Signed, String> {
        let text = fs::read_to_string(self.at("policy.toml")).unwrap();
        let (policy, before) = (Policy::parse(&text).unwrap(), Policy::parse(before).unwrap());
        let candidate = PolicyFile { file: &self.at("policy.toml"), text: &text, policy: &policy };
        self.signers.admit(&candidate, acts_as, &Standing { cluster, policy: &before, adopted }, at)
    }

    fn admit(&self, before: &str) -> Result<Signed, String> {
        self.admit_as(ActsAs::Policy, ("prod", before), None, now())
    }
}

/// The first statement about NIGHT.
fn first() -> PolicyStatement {
    PolicyStatement {
        cluster: "prod".to_owned(),
        acts_as: ActsAs::Policy,
        sequence: 1,
        after: None,
        expires: now() + TimeDelta::days(7),
        policy: hash(NIGHT.as_bytes()),
    }
}

fn adopted(statement: &PolicyStatement) -> AdoptedStatement {
    AdoptedStatement { sequence: statement.sequence, id: hash(statement.text().as_bytes()) }
}

#[test]
fn what_widens_takes_two_people_and_what_tightens_one() {
    let desk = Desk::new();
    let error = desk.admit("").unwrap_err();
    assert!(
        error.contains("there is no") && error.contains("cluster prod\nacts-as policy\nsequence 1"),
        "{error}"
    );
    desk.issue(&first(), &[]);
    let error = desk.admit(WIDER).unwrap_err();
    assert!(error.contains("one person") && error.contains("nobody"), "{error}");
    desk.issue(&first(), &[&desk.anna]);
    let error = desk.admit("").unwrap_err();
    assert!(error.contains("two people") && error.contains("budgets.lend.per_hour from 12 to 13"), "{error}");
    assert!(
        error.contains("anna@example.com") && error.contains("ssh-keygen -Y sign -n tidegate-policy"),
        "{error}"
    );
    assert_eq!(desk.admit(WIDER).unwrap().by.len(), 1, "one is enough to tighten");
    desk.issue(&first(), &[&desk.ben]);
    let signed = desk.admit("").unwrap();
    assert_eq!((signed.by.len(), signed.signatures.len(), signed.sequence), (2, 2, 1));
    assert!(signed.changes.iter().any(|changed| changed.key == "budgets.lend.per_hour" && changed.widens));
}

/// Each of these was taken when people signed the bytes of the file alone.
#[test]
fn a_statement_is_good_for_one_policy_one_cluster_one_place_and_until_its_end() {
    let desk = Desk::new();
    let both = [&desk.anna, &desk.ben];
    let refused = |statement: &PolicyStatement, adopted: Option<&AdoptedStatement>, said: &str| {
        desk.issue(statement, &both);
        let error = desk.admit_as(ActsAs::Policy, ("prod", ""), adopted, now()).unwrap_err();
        assert!(error.contains(said) && error.contains("The next statement is"), "{error}");
    };
    refused(&PolicyStatement { cluster: "test".into(), ..first() }, None, "about cluster test");
    refused(&PolicyStatement { acts_as: ActsAs::Canary, ..first() }, None, "Canary");
    refused(&PolicyStatement { policy: hash(b"other"), ..first() }, None, "it was changed afterwards");
    refused(&PolicyStatement { expires: now(), ..first() }, None, "it expired");
    refused(&PolicyStatement { sequence: 2, ..first() }, None, "the next is number 1 after none");
    // An old one is not adopted again once another acts, and the acting one is after a restart.
    let second = PolicyStatement { sequence: 2, after: Some(adopted(&first()).id), ..first() };
    refused(&first(), Some(&adopted(&second)), "number 1 after none, and the next is number 3");
    let forked = PolicyStatement { after: Some(hash(b"another first")), ..second.clone() };
    refused(&forked, Some(&adopted(&first())), "the next is number 2");
    desk.issue(&second, &both);
    let late = now() + TimeDelta::days(365);
    let admit =
        |standing: &AdoptedStatement, at| desk.admit_as(ActsAs::Policy, ("prod", ""), Some(standing), at);
    assert_eq!(admit(&adopted(&first()), now()).unwrap().sequence, 2);
    assert!(admit(&adopted(&first()), late).unwrap_err().contains("it expired"));
    assert_eq!(admit(&adopted(&second), late).unwrap().sequence, 2, "it acts already");
    // A canary is issued as one, beside the acting policy.
    let canary = PolicyStatement { acts_as: ActsAs::Canary, ..second };
    desk.issue(&canary, &both);
    let canary = |adopted: &AdoptedStatement| {
        desk.admit_as(ActsAs::Canary, ("prod", ""), Some(adopted), now()).map(|signed| signed.by.len())
    };
    assert_eq!(canary(&adopted(&first())), Ok(2));
    assert!(canary(&AdoptedStatement { sequence: 1, id: hash(b"another") }).is_err());
    // The signature of the file's bytes, as older versions took it, is none.
    fs::remove_file(desk.at("policy.toml.statement")).unwrap();
    fs::write(desk.at("policy.toml.sig"), desk.anna.sign(POLICY, NIGHT).signature).unwrap();
    assert!(desk.admit(WIDER).unwrap_err().contains("there is no"));
}

#[test]
fn the_same_person_twice_is_one() {
    let desk = Desk::new();
    desk.issue(&first(), &[&desk.anna]);
    // The same signature again, and in one file with itself.
    let twice = desk.anna.sign(POLICY, &first().text()).signature.repeat(2);
    fs::write(desk.at("policy.toml.statement.sig"), twice).unwrap();
    assert!(desk.admit("").unwrap_err().contains("two people"));
    // Two keys of one person.
    desk.issue(&first(), &[&desk.ben]);
    assert_eq!(desk.admit("").unwrap().by.len(), 2);
    let both = fs::read_to_string(desk.at("allowed_signers")).unwrap().replace("ben@", "anna@");
    fs::write(desk.at("allowed_signers"), both).unwrap();
    let one = Desk { signers: Signers::read(&desk.at("allowed_signers")).unwrap(), ..desk };
    assert!(one.admit("").unwrap_err().contains("two people"));
}

#[test]
fn a_signature_that_does_not_count_stops_it_whoever_else_signed() {
    let desk = Desk::new();
    desk.issue(&first(), &[&desk.anna]);
    let carl = desk.at("policy.toml.statement.carl.sig");
    fs::write(&carl, "-----BEGIN SSH SIGNATURE-----\nAAAA\n").unwrap();
    let error = desk.admit(WIDER).unwrap_err();
    assert!(error.contains("policy.toml.statement.carl.sig"), "{error}");
    fs::write(&carl, "x".repeat(2 << 20)).unwrap();
    assert!(desk.admit(WIDER).unwrap_err().contains("longer than"));
    let error = Signers::read(&desk.at("nonesuch")).unwrap_err();
    assert!(error.contains("nonesuch"), "{error}");
    fs::write(desk.at("empty"), "# nobody\n").unwrap();
    assert!(Signers::read(&desk.at("empty")).unwrap_err().contains("nobody may sign"));
}

#[test]
fn approvals_and_switches_are_for_one_cluster_and_one_time() {
    let desk = Desk::new();
    let statement = ApprovalStatement::given("prod", "lend-1", "0123", now());
    let signed = desk.ben.sign(APPROVE, &statement.text());
    let counts = |about: (&str, &str, &str), at| desk.signers.approval(&signed, about, at);
    let (signer, counted) = counts(("prod", "lend-1", "0123"), now()).unwrap();
    assert_eq!((signer.to_string(), counted), (desk.ben.signer(), statement.clone()));
    for about in [("test", "lend-1", "0123"), ("prod", "lend-2", "0123"), ("prod", "lend-1", "4567")] {
        assert!(counts(about, now()).unwrap_err().contains("it is for"));
    }
    let late = counts(("prod", "lend-1", "0123"), now() + TimeDelta::days(2)).unwrap_err();
    assert!(late.contains("expired"), "{late}");
    let longer = ApprovalStatement { expires_us: i64::MAX, ..statement };
    let changed = SignedText { text: longer.text(), ..signed };
    assert!(desk.signers.approval(&changed, ("prod", "lend-1", "0123"), now()).is_err());
    let on = SwitchStatement { cluster: "prod".to_owned(), given_us: 7 };
    let on = desk.ben.sign(SWITCH, &on.text());
    assert!(desk.signers.switch(&on, "prod", now()).is_ok());
    assert!(desk.signers.switch(&on, "test", now()).unwrap_err().contains("cluster prod"));
    let as_approval = desk.ben.sign(APPROVE, &on.text);
    assert!(desk.signers.switch(&as_approval, "prod", now()).is_err());
}

#[test]
fn a_person_does_not_write_the_journal() {
    let desk = Desk::new();
    let signature = desk.anna.sign(JOURNAL, "text").signature;
    let error = desk.signers.verify(JOURNAL, b"text", &signature, now()).unwrap_err();
    assert!(error.contains("is not listed with namespaces=\"tidegate-journal\""), "{error}");
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

    let approval = |plan: &str| ApprovalStatement::given("prod", "lend-1", plan, now()).text();
    let text = approval("0123456789abcdef");
    fs::write(at("text"), &text).unwrap();
    keygen(&["-q", "-Y", "sign", "-n", APPROVE, "-f", "key", "text"]);
    let theirs = fs::read_to_string(at("text.sig")).unwrap();
    assert_eq!(
        signers.verify(APPROVE, text.as_bytes(), &theirs, now()).unwrap().principals,
        ["dora@example.com"]
    );
    let other = approval("fedcba9876543210");
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
