//! Sends a message.

use std::time::Duration;

use serde_json::json;
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

use super::address::Address;

/// Time limit of one delivery.
const PATIENCE: Duration = Duration::from_secs(10);

/// A way to one webhook.
pub(super) struct Delivery {
    address: Address,
    agent: Agent,
}

impl Delivery {
    pub fn to(address: Address) -> Self {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        // A redirect would take the message to an address that nobody checked.
        let config = Agent::config_builder().timeout_global(Some(PATIENCE)).max_redirects(0).tls_config(tls);
        Self { address, agent: Agent::new_with_config(config.build()) }
    }

    /// Sends `{"text": …}`.
    ///
    /// # Errors
    /// It was not taken. The message does not name the address.
    pub fn send(&self, text: &str) -> Result<(), String> {
        let body = json!({"text": text}).to_string();
        let sent =
            self.agent.post(self.address.as_str()).header("Content-Type", "application/json").send(body);
        match sent {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => Err(format!("it says {}", answer.status().as_u16())),
            Err(ureq::Error::StatusCode(code)) => Err(format!("it says {code}")),
            Err(ureq::Error::Timeout(_)) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
            Err(ureq::Error::Io(error)) => Err(error.kind().to_string()),
            Err(_) => Err("it cannot be reached".to_owned()),
        }
    }
}
