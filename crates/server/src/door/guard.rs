//! What every request passes first: names, origin, token or certificate, and what its principal may
//! do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::client::ClientCertificate;
use super::names::HostNames;
use crate::access::{Access, Action, Forbidden, Principal, Unauthorized};
use crate::audit::{self, Auditor};
use crate::http_error::HttpError;
use crate::lasting::Admission;
use crate::metrics::Metrics;

/// Refusals are logged this often at most; the metric counts each.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The rules of one server.
#[derive(Debug)]
pub(crate) struct Guard {
    pub names: HostNames,
    pub access: Access,
    pub metrics: Arc<Metrics>,
    /// Records what changed in the token file.
    audit: Option<Auditor>,
    /// Whether the autopilot here acts on a simulated cluster.
    simulated: bool,
    logged: Mutex<Option<Instant>>,
}

impl Guard {
    pub fn new(
        names: HostNames,
        access: Access,
        metrics: Arc<Metrics>,
        audit: Option<Auditor>,
        simulated: bool,
    ) -> Self {
        Self { names, access, metrics, audit, simulated, logged: Mutex::default() }
    }

    /// Finds out who asks, and whether they may. What depends on the body is checked where that is
    /// read, with the [`Principal`] in the request's extensions.
    fn admit(self: &Arc<Self>, request: &mut Request) -> Result<(), HttpError> {
        self.names.check(request)?;
        let path = request.uri().path();
        if matches!(path, "/" | "/healthz" | "/readyz") || path.starts_with("/page/") {
            return Ok(());
        }
        let certificate = request.extensions().get::<Arc<ClientCertificate>>().cloned();
        let principal = self.principal(request.headers(), certificate.as_deref());
        if let Some(audit) = &self.audit {
            let changes = self.access.take_changes();
            changes.iter().for_each(|change| audit.note(audit::principal_changed(change)));
        }
        let principal = principal
            .map_err(|error| HttpError::new(StatusCode::UNAUTHORIZED, "unauthorized", error.to_string()))?;
        check_at(path, &principal, self.simulated)?;
        let admission = {
            let (guard, path) = (Arc::clone(self), path.to_owned());
            let (headers, before) = (request.headers().clone(), principal.clone());
            Admission::new(move || {
                let now = guard.principal(&headers, certificate.as_deref());
                now.is_ok_and(|now| now == before && check_at(&path, &now, guard.simulated).is_ok())
            })
        };
        request.extensions_mut().insert(admission);
        request.extensions_mut().insert::<Principal>(principal);
        Ok(())
    }

    /// Who asks, by the request's token and the connection's certificate.
    fn principal(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Principal, Unauthorized> {
        let name = certificate.map(ClientCertificate::name).transpose()?;
        self.access.principal(headers, name)
    }

    /// Counts a refusal, and logs it unless one was logged just before.
    fn note(&self, path: &str, status: StatusCode) {
        self.metrics.count_refused(status.as_u16());
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            let path: String = path.chars().filter(|letter| !letter.is_control()).take(80).collect();
            tracing::warn!(%status, path, "refused a request; tidegate_http_refused counts others like it");
        }
    }
}

/// Refuses what the principal may not do at this path, whatever its request holds. Paths that are
/// nobody's door are answered with 404 later.
fn check_at(path: &str, principal: &Principal, simulated: bool) -> Result<(), Forbidden> {
    let here = |action: &Action| action.door().split(", ").any(|door| door == path);
    let check = |action: Action| match action.is_steering() {
        true => principal.check_steering(action, simulated),
        false => principal.check(action),
    };
    let mut checks = Action::ALL.into_iter().filter(here).map(check);
    match checks.next() {
        Some(Err(refused)) if !checks.any(|check| check.is_ok()) => Err(refused),
        _ => Ok(()),
    }
}

/// The middleware around all routes.
pub(crate) async fn guard(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let response = match guard.admit(&mut request) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    let status = response.status();
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST) {
        guard.note(&path, status);
    }
    response
}
