//! The web page, and what browsers may do with responses.

mod files;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use uuid::Uuid;

use files::{File, VERSION};

const PAGE: &str = include_str!("../../page/index.html");
/// Stands in the page where the nonce of a response comes.
const NONCE: &str = "NONCE";
/// Stands in the page where the version of its files comes.
const FILES_VERSION: &str = "VERSION";

/// The page. Only scripts and styles with this response's nonce run, and the modules they import,
/// so injected markup runs nothing. Trusted Types keep text from becoming markup. The page loads
/// nothing from other servers and talks to this one only.
pub(crate) fn response() -> Response {
    let nonce = Uuid::new_v4().simple().to_string();
    let may = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'"
    );
    let page = PAGE.replace(NONCE, &nonce).replace(FILES_VERSION, &VERSION);
    ([(CONTENT_SECURITY_POLICY, may)], Html(page)).into_response()
}

/// The page of this program has no such file.
#[derive(Debug, thiserror::Error)]
#[error("the page has no such file; load the page again, the program may be another one now")]
pub(crate) struct NoSuchFile;

/// A file of the page. Its address changes with the files, so that it may be kept for ever; an
/// address of another version of the program is not answered, lest two versions mix.
///
/// # Errors
/// There is no such file, or it is of another version.
pub(crate) fn file(version: &str, name: &str, headers: &HeaderMap) -> Result<Response, NoSuchFile> {
    let found = File::of(name).filter(|_| version == *VERSION);
    let (file, media_type) = found.and_then(|file| Some((file, file.media_type()?))).ok_or(NoSuchFile)?;
    let tag = format!("\"{version}\"");
    let kept = [(CACHE_CONTROL, "public, max-age=31536000, immutable"), (ETAG, tag.as_str())];
    let has_it = headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    Ok(match has_it {
        true => (StatusCode::NOT_MODIFIED, kept).into_response(),
        false => (kept, [(CONTENT_TYPE, media_type)], file.bytes).into_response(),
    })
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
