//! Which names this server answers to, and which web pages may call it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{Method, Request, StatusCode};

use crate::http_error::HttpError;

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Names that requests may ask for as `Host`.
///
/// A web page can let its own name point to an address in its visitor's network (DNS rebinding);
/// its requests then carry that name. Requests for `localhost` and for an address in digits are
/// always accepted, because nobody can point those elsewhere.
#[derive(Debug, Clone, Default)]
pub struct HostNames(BTreeSet<String>);

impl HostNames {
    /// `localhost`, addresses in digits, and these names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| name.trim_end_matches('.').to_ascii_lowercase()).collect())
    }

    /// Refuses requests for other names, and those that other web pages sent.
    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<(), HttpError> {
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
        let asked = header(HOST.as_str());
        for host in asked.into_iter().chain(request.uri().authority().map(|authority| authority.as_str())) {
            if !self.has(host) {
                let message = "this server does not answer to that name; ask for it by address or as localhost, or start it \
                               with --host NAME";
                return Err(HttpError::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", message));
            }
        }
        let by_this_page = header(ORIGIN.as_str()).is_none_or(|origin| self.is_own_origin(origin, asked));
        // A link to the page from elsewhere is harmless, and how people come here.
        let follows_link = request.method() == Method::GET && request.uri().path() == "/";
        let by_this_site = header(SEC_FETCH_SITE).is_none_or(|site| matches!(site, "same-origin" | "none"));
        match by_this_page && (by_this_site || follows_link) {
            true => Ok(()),
            false => {
                let message =
                    "a web page of another origin sent this request; only this server's own page may";
                Err(HttpError::new(StatusCode::FORBIDDEN, "cross_origin", message))
            }
        }
    }

    fn has(&self, host: &str) -> bool {
        let name = name_of(host).trim_end_matches('.').to_ascii_lowercase();
        name == "localhost" || name.parse::<IpAddr>().is_ok() || self.0.contains(&name)
    }

    /// Whether a page of this origin is this server's own: of the same name and port, or, behind a
    /// proxy that changes `Host`, of a name given for it.
    fn is_own_origin(&self, origin: &str, host: Option<&str>) -> bool {
        let Some((_, authority)) = origin.split_once("://") else { return false };
        host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
            || self.0.contains(&name_of(authority).to_ascii_lowercase())
    }
}

/// The host of `HOST[:PORT]`; of an IPv6 address, what is in brackets.
fn name_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.split(':').next().unwrap_or(authority),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], path: &str, headers: &[(&str, &str)]) -> Result<(), &'static str> {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let names = HostNames::new(names.iter().map(|name| (*name).to_owned()));
        names.check(&request.body(()).unwrap()).map_err(|error| error.code)
    }

    #[test]
    fn names_that_may_point_elsewhere_are_given_or_refused() {
        for host in
            ["localhost:8433", "127.0.0.1", "[::1]:8433", "10.0.0.7:8433", "LocalHost", "tide.example:1"]
        {
            assert_eq!(check(&["tide.example"], "/v1/sql", &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8433", ""] {
            assert_eq!(check(&["tide.example"], "/v1/sql", &[("host", host)]), Err("wrong_host"), "{host}");
        }
        assert_eq!(check(&[], "/v1/sql", &[]), Ok(()), "no browser leaves it out");
        assert_eq!(check(&[], "http://evil.example/v1/sql", &[("host", "localhost")]), Err("wrong_host"));
    }

    #[test]
    fn other_pages_send_nothing() {
        let from = |origin, site| {
            check(&[], "/v1/sql", &[("host", "localhost:1"), ("origin", origin), ("sec-fetch-site", site)])
        };
        assert_eq!(from("http://localhost:1", "same-origin"), Ok(()));
        assert_eq!(from("http://localhost:2", "same-site"), Err("cross_origin"));
        assert_eq!(from("http://evil.example", "cross-site"), Err("cross_origin"));
        assert_eq!(from("null", "none"), Err("cross_origin"));
        let image = [("host", "localhost:1"), ("sec-fetch-site", "cross-site")];
        assert_eq!(check(&[], "/v1/sql?q=select+1", &image), Err("cross_origin"));
        assert_eq!(check(&[], "/", &image), Ok(()), "a link");
        let proxied = [("host", "10.0.0.7:8433"), ("origin", "https://tide.example")];
        assert_eq!(check(&["tide.example"], "/v1/sql", &proxied), Ok(()));
    }
}
