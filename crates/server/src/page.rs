//! The web page, and what browsers may do with responses.

use axum::http::HeaderValue;
use axum::http::header::{
    CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::response::{Html, IntoResponse, Response};
use uuid::Uuid;

const PAGE: &str = include_str!("page.html");
/// Stands in the page where the nonce of a response comes.
const NONCE: &str = "NONCE";

/// The page. Its own script and style run, and nothing that gets into it: they carry a number that
/// is new in each response. It loads nothing from elsewhere and talks to this server only.
pub(crate) fn response() -> Response {
    let nonce = Uuid::new_v4().simple().to_string();
    let may = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    ([(CONTENT_SECURITY_POLICY, may)], Html(PAGE.replace(NONCE, &nonce))).into_response()
}

/// What every response says to a browser: its type is what it says, other pages do not frame it,
/// and addresses stay here. Responses that are no page may do nothing.
pub(crate) async fn guard(mut response: Response) -> Response {
    let always: [(HeaderName, &str); 3] =
        [(X_CONTENT_TYPE_OPTIONS, "nosniff"), (X_FRAME_OPTIONS, "DENY"), (REFERRER_POLICY, "no-referrer")];
    let headers = response.headers_mut();
    for (name, value) in always {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let nothing = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(nothing);
    response
}
