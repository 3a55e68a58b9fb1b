//! What people tell an autopilot over HTTP: who may, what a request must be, and what is answered.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tidegate_server::QueryLimits;
use tidegate_server::access::Access;
use tidegate_server::steering::{Instruction, SignedStatement, Standing, Steering, SteeringError, ToSign};

use crate::access::Site;
use crate::support::{Response, Server};

/// An autopilot that keeps what it is told; the name of an action says what is wrong with it.
#[derive(Debug, Default)]
struct Recorder {
    simulated: bool,
    taken: Mutex<Vec<(Instruction, String)>>,
}

impl Recorder {
    fn on(simulated: bool) -> Arc<Self> {
        Arc::new(Self { simulated, ..Self::default() })
    }

    fn taken(&self) -> Vec<(Instruction, String)> {
        std::mem::take(&mut *self.taken.lock().unwrap())
    }
}

impl Steering for Recorder {
    fn cluster(&self) -> &str {
        "prod"
    }

    fn is_simulated(&self) -> bool {
        self.simulated
    }

    fn standing(&self) -> Result<Standing, SteeringError> {
        Ok(Standing { cluster: "prod".into(), simulated: self.simulated, ..Standing::default() })
    }

    fn statement(&self, of: &ToSign) -> Result<String, SteeringError> {
        Ok(format!("{of:?}\n"))
    }

    fn take(&self, instruction: &Instruction, by: &str) -> Result<String, SteeringError> {
        if let Instruction::Approve { action, .. } = instruction {
            match action.as_str() {
                "unknown" => return Err(SteeringError::UnknownAction(action.clone())),
                "over" => return Err(SteeringError::NotWaiting("it is over".into())),
                "standby" => return Err(SteeringError::Standby { leader: Some("head/2".into()) }),
                "early" => return Err(SteeringError::NotReady),
                "unsigned" => {
                    let statement = "approve=unsigned".into();
                    return Err(SteeringError::Unsigned { statement, namespace: "tidegate-approve" });
                }
                "forged" => return Err(SteeringError::Signature("it is of another key".into())),
                _ => {}
            }
        }
        self.taken.lock().unwrap().push((instruction.clone(), by.to_owned()));
        Ok("taken".to_owned())
    }
}

fn serve(steering: &Arc<Recorder>) -> Server {
    let steering = Arc::clone(steering);
    Server::start_with(QueryLimits::default(), move |door| door.steering = Some(steering))
}

fn post(server: &Server, deed: &str, body: &Value) -> Response {
    let line = format!("POST /v1/autopilot/{deed}");
    server.request(&line, &["Content-Type: application/json"], body.to_string().as_bytes())
}

#[test]
fn each_word_reaches_the_autopilot_with_who_said_it() {
    let recorder = Recorder::on(true);
    let server = serve(&recorder);
    let signed = Some(SignedStatement { statement: "text\n".into(), signature: "-----BEGIN".into() });
    let (action, why) = ("lend-1b491e8c244329c8", Some("at noon".to_owned()));
    let cases = [
        (
            "approve",
            json!({"action": action}),
            202,
            Instruction::Approve { action: action.into(), signed: None },
        ),
        (
            "approve",
            json!({"action": action, "why": "y", "statement": "text\n", "signature": "-----BEGIN"}),
            202,
            Instruction::Approve { action: action.into(), signed: signed.clone() },
        ),
        (
            "reject",
            json!({"action": action, "why": "at noon"}),
            202,
            Instruction::Reject { action: action.into(), why: why.clone() },
        ),
        ("pause", json!({"why": "at noon"}), 200, Instruction::Pause { why }),
        ("pause", json!({}), 200, Instruction::Pause { why: None }),
        (
            "resume",
            json!({"statement": "text\n", "signature": "-----BEGIN"}),
            200,
            Instruction::Resume { signed },
        ),
    ];
    for (deed, body, status, word) in cases {
        let answer = post(&server, deed, &body);
        assert_eq!(answer.status, status, "{deed} {body}: {}", answer.text());
        assert_eq!(answer.json()["by"], "local over HTTP");
        assert_eq!(answer.json()["message"], "taken");
        assert_eq!(recorder.taken(), [(word, "local over HTTP".to_owned())]);
    }
    let standing = server.request("GET /v1/autopilot", &[], b"");
    let answer = standing.json();
    assert_eq!((&answer["cluster"], &answer["simulated"]), (&json!("prod"), &json!(true)));
    assert_eq!(answer["may"], json!({"approve": true, "reject": true, "pause": true, "resume": true}));
    assert!(standing.head.contains("nosniff"), "{}", standing.head);
    let text = |query: &str| server.request(&format!("GET /v1/autopilot/statement?{query}"), &[], b"");
    assert_eq!(text("approve=lend-1").text(), "Approval(\"lend-1\")\n");
    assert_eq!(text("switch=on").text(), "Switch\n");
    for wrong in ["", "switch=off", "approve=a&switch=on", "approve=..%2Fswitch", "approve=a&plan=b"] {
        assert_eq!(text(wrong).refusal().0, 400, "{wrong}: {}", text(wrong).text());
    }
}

#[test]
fn a_request_that_is_not_whole_tells_the_autopilot_nothing() {
    let recorder = Recorder::on(true);
    let server = serve(&recorder);
    let send = |deed: &str, content_type: &str, body: &[u8]| {
        let header = format!("Content-Type: {content_type}");
        server.request(&format!("POST /v1/autopilot/{deed}"), &[&header], body).refusal()
    };
    let whole = json!({"action": "lend-1"}).to_string();
    // What a page of another site can send without asking first.
    for simple in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let (status, code, _) = send("approve", simple, whole.as_bytes());
        assert_eq!((status, code.as_str()), (415, "media_type"));
    }
    let long = |bytes: usize| json!({"action": "lend-1", "why": "w".repeat(bytes)});
    let (status, code, _) = send("reject", "application/json", long(20_000).to_string().as_bytes());
    assert_eq!((status, code.as_str()), (413, "body_too_large"));
    for (deed, body, word) in [
        ("approve", json!({}), "action"),
        ("approve", json!({"action": "lend-1", "mode": "act"}), "mode"),
        ("approve", json!({"action": "../switch"}), "id of an action"),
        ("approve", json!({"action": ""}), "id of an action"),
        ("approve", json!({"action": "x".repeat(101)}), "id of an action"),
        ("approve", json!({"action": "lend-1", "statement": "text"}), "together"),
        ("approve", json!({"action": "lend-1", "signature": "text"}), "together"),
        ("reject", json!({"action": "lend-1", "statement": "text"}), "statement"),
        ("reject", long(1_025), "longer than 1024"),
        ("pause", json!({"action": "lend-1"}), "action"),
        ("resume", json!({"signature": "text"}), "together"),
        ("resume", json!("on"), "does not fit"),
    ] {
        let (status, code, said) = send(deed, "application/json", body.to_string().as_bytes());
        assert_eq!((status, code.as_str()), (400, "bad_request"), "{deed} {body}: {said}");
        assert!(said.contains(word), "{deed} {body}: {said}");
    }
    for (line, status) in [("GET /v1/autopilot/approve", 405), ("POST /v1/autopilot", 405)] {
        let refused = server.request(line, &["Content-Type: application/json"], b"{}").refusal();
        assert_eq!((refused.0, refused.1.as_str()), (status, "method"), "{line}");
    }
    assert_eq!(recorder.taken(), []);
}

#[test]
fn what_the_autopilot_does_not_take_is_answered_with_why_and_what_to_do() {
    let server = serve(&Recorder::on(true));
    for (action, status, code, word) in [
        ("unknown", 404, "unknown_action", "GET /v1/autopilot"),
        ("over", 409, "not_waiting", "it is over"),
        ("standby", 409, "standby", "head/2"),
        ("early", 503, "not_ready", "in a moment"),
        ("unsigned", 422, "signature_required", "ssh-keygen -Y sign -n tidegate-approve"),
        ("forged", 422, "signature", "another key"),
    ] {
        let refused = post(&server, "approve", &json!({"action": action})).refusal();
        assert_eq!((refused.0, refused.1.as_str()), (status, code), "{}", refused.2);
        assert!(refused.2.contains(word), "{}", refused.2);
    }
}

#[test]
fn who_shows_no_token_steers_no_real_cluster_and_operators_do() {
    let recorder = Recorder::on(false);
    let open = serve(&recorder);
    for (deed, body) in
        [("approve", json!({"action": "a"})), ("reject", json!({"action": "a"})), ("pause", json!({}))]
    {
        let (status, code, said) = post(&open, deed, &body).refusal();
        assert_eq!((status, code.as_str()), (403, "forbidden"), "{deed}");
        assert!(said.contains("tidegate token new"), "{said}");
    }
    assert_eq!(recorder.taken(), []);
    // Looking is free.
    let may = open.request("GET /v1/autopilot", &[], b"").json()["may"].clone();
    assert_eq!(may, json!({"approve": false, "reject": false, "pause": false, "resume": false}));

    let mut site = Site::new();
    site.token("anna", &["--role", "operator"]);
    site.token("vera", &["--role", "viewer"]);
    site.token("tim", &["--role", "viewer", "--team", "vision"]);
    let (steering, file) = (Arc::clone(&recorder), site.file());
    let closed = Server::start_with(QueryLimits::default(), move |door| {
        door.steering = Some(steering);
        door.access = Access::from_file(&file).unwrap();
    });
    let send = |line: &str, id: &str| {
        let token = format!("Authorization: Bearer {}", site.token_of(id));
        closed.request(line, &["Content-Type: application/json", &token], b"{\"action\": \"lend-1\"}")
    };
    assert_eq!(send("POST /v1/autopilot/reject", "anna").status, 202);
    let told = Instruction::Reject { action: "lend-1".into(), why: None };
    assert_eq!(recorder.taken(), [(told, "anna over HTTP".to_owned())]);
    for id in ["vera", "tim"] {
        assert_eq!(send("POST /v1/autopilot/reject", id).refusal().0, 403);
    }
    assert_eq!(send("GET /v1/autopilot", "vera").status, 200);
    assert_eq!(send("GET /v1/autopilot", "tim").status, 403, "what waits is of all teams");
    assert_eq!(post(&closed, "pause", &json!({})).status, 401);
    assert_eq!(recorder.taken(), []);
}

#[test]
fn where_no_autopilot_runs_that_is_said() {
    let mut site = Site::new();
    site.token("anna", &["--role", "operator"]);
    let file = site.file();
    let server = Server::start_with(QueryLimits::default(), move |door| {
        door.access = Access::from_file(&file).unwrap();
    });
    let token = format!("Authorization: Bearer {}", site.token_of("anna"));
    let lines = ["GET /v1/autopilot", "GET /v1/autopilot/statement?switch=on", "POST /v1/autopilot/approve"];
    for line in lines.iter().chain(&["POST /v1/autopilot/pause"]) {
        let (status, code, said) = server.request(line, &[&token], b"").refusal();
        assert_eq!((status, code.as_str()), (404, "no_autopilot"), "{line}");
        assert!(said.contains("--autopilot"), "{said}");
    }
}
