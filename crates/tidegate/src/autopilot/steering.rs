//! The autopilot of this process as people steer it over HTTP: files of its control folder, written
//! once the last step shows that they make sense.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, SecondsFormat, Utc};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_control::ControlFolder;
use tidegate_control::authority::{self, ApprovalStatement, SignedText, Signers, SwitchStatement};
use tidegate_control::service::{Service, ServiceStatus, WaitingAction, check_switch};
use tidegate_server::steering::{
    GivenApproval, GivenRejection, Instruction, SignedStatement, Standing, Steering, SteeringError,
    SwitchStanding, ToSign, Waiting,
};

/// Status after the last step of a service; `None` before the first and once it has ended.
#[derive(Debug, Default)]
pub struct LastStep(Mutex<Option<ServiceStatus>>);

impl LastStep {
    /// Keeps a newer status.
    pub fn set(&self, status: Option<ServiceStatus>) {
        *self.lock() = status;
    }

    fn lock(&self) -> MutexGuard<'_, Option<ServiceStatus>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An autopilot as people steer it.
#[derive(Debug)]
pub struct LiveSteering {
    cluster: String,
    is_simulated: bool,
    control: ControlFolder,
    signers: Option<Signers>,
    last_step: Arc<LastStep>,
    /// One instruction is written at a time.
    writing: Mutex<()>,
}

impl LiveSteering {
    /// Steers a service that reads the control folder of `data`.
    pub fn new(service: &Service, data: &Path) -> Self {
        Self {
            signers: service.signers().cloned(),
            is_simulated: false,
            ..Self::simulated(service.cluster(), data)
        }
    }

    /// Steers the autopilot of a simulated cluster that reads the control folder of `data`. Nobody
    /// signs there.
    pub fn simulated(cluster: &str, data: &Path) -> Self {
        Self {
            cluster: cluster.to_owned(),
            is_simulated: true,
            control: ControlFolder::in_data(data),
            signers: None,
            last_step: Arc::default(),
            writing: Mutex::default(),
        }
    }

    /// Where the service keeps its status.
    pub fn last_step(&self) -> Arc<LastStep> {
        Arc::clone(&self.last_step)
    }

    /// An action that has not begun, if this process acts.
    fn waiting(&self, action: &str) -> Result<WaitingAction, SteeringError> {
        let last = self.last_step.lock();
        let status = last.as_ref().ok_or(SteeringError::NotReady)?;
        if !status.leads {
            return Err(SteeringError::Standby { leader: status.leader.clone() });
        }
        let found = status.waiting.iter().find(|waiting| waiting.action == action);
        found.cloned().ok_or_else(|| SteeringError::UnknownAction(action.to_owned()))
    }

    /// An action that waits for an approval.
    fn asking(&self, action: &str) -> Result<WaitingAction, SteeringError> {
        let waiting = self.waiting(action)?;
        if waiting.needs_approval {
            return Ok(waiting);
        }
        let WaitingAction { mode, stage, .. } = waiting;
        let why = format!("{action} waits for nobody: its mode is {mode}, and it is {stage}");
        Err(SteeringError::NotWaiting(why))
    }

    fn approve(
        &self,
        action: &str,
        signed: Option<&SignedStatement>,
        by: &str,
    ) -> Result<String, SteeringError> {
        let waiting = self.asking(action)?;
        let signed = match &self.signers {
            None => None,
            Some(signers) => {
                let signed = required(signed, || format!("approve={action}"), authority::APPROVE)?;
                let about = (self.cluster.as_str(), action, waiting.plan.as_str());
                signers.approval(&signed, about, Utc::now()).map_err(SteeringError::Signature)?;
                Some(signed)
            }
        };
        self.control.approve(action, by, signed.as_ref())?;
        let object = waiting.object;
        Ok(format!("{action} of {object} is approved: the next look begins it, if the guard lets it"))
    }

    fn reject(&self, action: &str, why: Option<&str>, by: &str) -> Result<String, SteeringError> {
        let WaitingAction { object, .. } = self.waiting(action)?;
        self.control.reject(action, by, why)?;
        Ok(format!(
            "{action} of {object} is rejected: the next look ends it, and the like is refused for 24 hours"
        ))
    }

    fn resume(&self, signed: Option<&SignedStatement>, by: &str) -> Result<String, SteeringError> {
        let at = time(Utc::now());
        let text = match &self.signers {
            None => ControlFolder::on(by, &at),
            Some(signers) => {
                let signed = required(signed, || "switch=on".to_owned(), authority::SWITCH)?;
                self.check_switch(signers, &signed).map_err(SteeringError::Signature)?;
                ControlFolder::on_signed(by, &at, &signed)
            }
        };
        self.control.set(&text)?;
        Ok("the autopilot may act again, as its policy says".to_owned())
    }

    fn check_switch(&self, signers: &Signers, signed: &SignedText) -> Result<(), String> {
        let last = self.last_step.lock().as_ref().and_then(|status| status.switched.clone());
        check_switch(signers, signed, &self.cluster, last.as_ref(), Utc::now()).map(|_| ())
    }

    /// Why a switch that says `on` does not count.
    fn switch_refused(&self) -> Option<String> {
        let signers = self.signers.as_ref()?;
        match self.control.signed_switch() {
            None => Some("nobody signed it".to_owned()),
            Some(signed) => self.check_switch(signers, &signed).err(),
        }
    }
}

impl Steering for LiveSteering {
    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn is_simulated(&self) -> bool {
        self.is_simulated
    }

    fn standing(&self) -> Result<Standing, SteeringError> {
        let who = self.control.who_switched()?;
        let says_on = self.control.switch() == KillSwitch::On;
        let refused = if says_on { self.switch_refused() } else { None };
        let switch = SwitchStanding {
            on: says_on && refused.is_none(),
            by: who.by,
            at: who.at.map(time),
            why: who.why,
            refused,
        };
        let approval = |given: tidegate_control::Approval| GivenApproval {
            action: given.action,
            by: given.by,
            signed: given.signed.is_some(),
        };
        let rejection = |given: tidegate_control::Rejection| GivenRejection {
            action: given.action,
            by: given.by,
            why: given.why,
        };
        let last = self.last_step.lock().clone();
        Ok(Standing {
            cluster: self.cluster.clone(),
            simulated: self.is_simulated(),
            leads: last.as_ref().map(|status| status.leads),
            leader: last.as_ref().and_then(|status| status.leader.clone()),
            stepped_s: last.as_ref().map(|status| status.stepped_s),
            switch,
            signatures_required: self.signers.is_some(),
            waiting: last.map(|status| status.waiting.into_iter().map(shown).collect()).unwrap_or_default(),
            approvals: self.control.approved().into_iter().map(approval).collect(),
            rejections: self.control.rejected().into_iter().map(rejection).collect(),
        })
    }

    fn statement(&self, of: &ToSign) -> Result<String, SteeringError> {
        let now = Utc::now();
        match of {
            ToSign::Switch => Ok(SwitchStatement::given(&self.cluster, now).text()),
            ToSign::Approval(action) => {
                let plan = self.asking(action)?.plan;
                Ok(ApprovalStatement::given(&self.cluster, action, &plan, now).text())
            }
        }
    }

    fn take(&self, instruction: &Instruction, by: &str) -> Result<String, SteeringError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        match instruction {
            Instruction::Approve { action, signed } => self.approve(action, signed.as_ref(), by),
            Instruction::Reject { action, why } => self.reject(action, why.as_deref(), by),
            Instruction::Pause { why } => {
                self.control.set(&ControlFolder::paused(by, &time(Utc::now()), why.as_deref()))?;
                Ok("the autopilot is paused: it begins nothing until somebody resumes it".to_owned())
            }
            Instruction::Resume { signed } => self.resume(signed.as_ref(), by),
        }
    }
}

/// The signature that the site requires.
fn required(
    signed: Option<&SignedStatement>,
    statement: impl Fn() -> String,
    namespace: &'static str,
) -> Result<SignedText, SteeringError> {
    let signed = signed.ok_or_else(|| SteeringError::Unsigned { statement: statement(), namespace })?;
    Ok(SignedText { text: signed.statement.clone(), signature: signed.signature.trim().to_owned() })
}

fn shown(waiting: WaitingAction) -> Waiting {
    let expires = DateTime::from_timestamp_micros(waiting.expires_us).unwrap_or(DateTime::<Utc>::MAX_UTC);
    Waiting {
        action: waiting.action,
        plan: waiting.plan,
        kind: waiting.kind.to_owned(),
        object: waiting.object,
        mode: waiting.mode.to_owned(),
        stage: waiting.stage.to_owned(),
        needs_approval: waiting.needs_approval,
        approved_by: waiting.approved_by,
        expires: time(expires),
        why: waiting.why,
    }
}

fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use tidegate_autopilot::executor::Switched;
    use tidegate_testing::needs;

    use super::*;

    fn steering(data: &Path, signers: Option<Signers>) -> LiveSteering {
        LiveSteering { signers, is_simulated: false, ..LiveSteering::simulated("prod", data) }
    }

    fn waiting(action: &str, needs_approval: bool) -> WaitingAction {
        WaitingAction {
            action: action.to_owned(),
            plan: "p1".to_owned(),
            kind: "drain_node",
            object: "node n3".to_owned(),
            mode: if needs_approval { "approve" } else { "act" },
            stage: if needs_approval { "proposed" } else { "leased" },
            needs_approval,
            approved_by: None,
            expires_us: 1_800_000_000_000_000,
            why: "it is bad".to_owned(),
        }
    }

    fn status(leads: bool) -> ServiceStatus {
        ServiceStatus {
            cluster: "prod".to_owned(),
            stepped_s: 1_700_000_000,
            leads,
            leader: (!leads).then(|| "head/2".to_owned()),
            objectives: Vec::new(),
            switched: None,
            waiting: vec![waiting("asks-1", true), waiting("acts-1", false)],
        }
    }

    fn approve(action: &str, signed: Option<SignedStatement>) -> Instruction {
        Instruction::Approve { action: action.to_owned(), signed }
    }

    fn reject(action: &str) -> Instruction {
        Instruction::Reject { action: action.to_owned(), why: Some("at noon".to_owned()) }
    }

    #[test]
    fn words_are_taken_about_what_waits_by_the_process_that_acts() {
        let folder = tempfile::tempdir().unwrap();
        let steering = steering(folder.path(), None);
        let code = |instruction: &Instruction| {
            steering.take(instruction, "anna over HTTP").map_err(|refused| refused.code())
        };
        // Before the first step nothing is known; pausing needs no knowledge.
        assert_eq!(code(&approve("asks-1", None)), Err("not_ready"));
        assert!(code(&Instruction::Pause { why: Some("rack 7".to_owned()) }).is_ok());
        let standing = steering.standing().unwrap();
        assert_eq!((standing.leads, standing.switch.on), (None, false));
        assert_eq!(standing.switch.by.as_deref(), Some("anna over HTTP"));
        assert_eq!(standing.switch.why.as_deref(), Some("rack 7"));
        steering.last_step().set(Some(status(false)));
        assert_eq!(code(&approve("asks-1", None)), Err("standby"));
        assert_eq!(code(&reject("asks-1")), Err("standby"));
        assert_eq!(steering.standing().unwrap().leader.as_deref(), Some("head/2"));

        steering.last_step().set(Some(status(true)));
        for (instruction, refused) in [
            (approve("nonesuch", None), "unknown_action"),
            (approve("acts-1", None), "not_waiting"),
            (reject("nonesuch"), "unknown_action"),
        ] {
            assert_eq!(code(&instruction), Err(refused), "{instruction:?}");
        }
        assert_eq!(steering.standing().unwrap().approvals, []);
        assert!(code(&approve("asks-1", None)).unwrap().contains("node n3"));
        assert!(code(&reject("acts-1")).is_ok());
        assert!(code(&Instruction::Resume { signed: None }).is_ok());
        let standing = steering.standing().unwrap();
        assert!(standing.switch.on && !standing.signatures_required);
        assert_eq!((standing.waiting.len(), standing.stepped_s), (2, Some(1_700_000_000)));
        let (approval, rejection) = (&standing.approvals[0], &standing.rejections[0]);
        assert_eq!((approval.action.as_str(), approval.signed), ("asks-1", false));
        assert_eq!((approval.by.as_str(), rejection.by.as_str()), ("anna over HTTP", "anna over HTTP"));
        assert_eq!((rejection.action.as_str(), rejection.why.as_deref()), ("acts-1", Some("at noon")));
    }

    /// Signs as a person does at a terminal.
    fn sign(folder: &Path, namespace: &str, statement: String) -> Option<SignedStatement> {
        let (key, text) = (folder.join("key"), folder.join("text"));
        std::fs::write(&text, &statement).unwrap();
        std::fs::remove_file(folder.join("text.sig")).ok();
        let mut command = Command::new("ssh-keygen");
        command.args(["-Y", "sign", "-n", namespace, "-f"]).arg(key).arg(&text).stderr(Stdio::null());
        assert!(command.status().unwrap().success());
        let signature = std::fs::read_to_string(folder.join("text.sig")).unwrap();
        Some(SignedStatement { statement, signature })
    }

    #[test]
    fn where_the_site_has_signers_the_door_takes_their_signatures_alone() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key);
        if !command.status().is_ok_and(|ended| ended.success()) {
            needs::skip("there is no ssh-keygen (package openssh-client)");
            return;
        }
        let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
        let file = folder.path().join("allowed_signers");
        std::fs::write(&file, format!("anna@example.com namespaces=\"tidegate-*\" {public}")).unwrap();
        let steering = steering(folder.path(), Some(Signers::read(&file).unwrap()));
        steering.last_step().set(Some(status(true)));
        let code = |instruction: &Instruction| {
            steering.take(instruction, "anna over HTTP").map_err(|refused| refused.code())
        };
        assert_eq!(code(&approve("asks-1", None)), Err("signature_required"));
        assert_eq!(code(&Instruction::Resume { signed: None }), Err("signature_required"));
        // Stopping needs no authority.
        assert!(code(&reject("asks-1")).is_ok() && code(&Instruction::Pause { why: None }).is_ok());
        let sign = |namespace: &str, statement: String| sign(folder.path(), namespace, statement);

        let text = || steering.statement(&ToSign::Approval("asks-1".to_owned())).unwrap();
        let wrong = [
            sign(authority::SWITCH, text()),
            sign(authority::APPROVE, text().replace("plan p1", "plan p2")),
            sign(authority::APPROVE, text().replace("cluster prod", "cluster lab")),
            sign(authority::APPROVE, text()).map(|it| SignedStatement { signature: "x".to_owned(), ..it }),
        ];
        for signed in wrong {
            assert_eq!(code(&approve("asks-1", signed.clone())), Err("signature"), "{signed:?}");
        }
        assert!(code(&approve("asks-1", sign(authority::APPROVE, text()))).is_ok());
        let standing = steering.standing().unwrap();
        assert!(standing.signatures_required && standing.approvals[0].signed);

        // A switch that somebody wrote says on, and is off.
        steering.control.set(&ControlFolder::on("mallory", "now")).unwrap();
        let switch = steering.standing().unwrap().switch;
        assert!(!switch.on && switch.refused.unwrap().contains("nobody signed"));
        let text = || steering.statement(&ToSign::Switch).unwrap();
        let early = sign(authority::SWITCH, text());
        assert!(code(&Instruction::Resume { signed: early.clone() }).is_ok());
        assert!(steering.standing().unwrap().switch.on);
        // The journal knows of a later pause: that signature is over.
        let sequence = Utc::now().timestamp_micros();
        let off = Switched { on: false, by: "ben".to_owned(), sequence, signature: None };
        steering.last_step().set(Some(ServiceStatus { switched: Some(off), ..status(true) }));
        assert!(!steering.standing().unwrap().switch.on);
        assert_eq!(code(&Instruction::Resume { signed: early }), Err("signature"));
        assert!(code(&Instruction::Resume { signed: sign(authority::SWITCH, text()) }).is_ok());
    }
}
