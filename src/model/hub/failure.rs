//! What can go wrong with a hub, and what a person can do about it.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;
use std::time::Duration;

use anyhow::anyhow;
use ureq::http::{HeaderMap, StatusCode};

use super::name::Name;
use super::settings::Settings;
use super::{Store, wanted_words};

/// Why a request was not answered as hoped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The repository's conditions have to be accepted first.
    Gated,
    /// 401 or 403.
    Denied,
    /// 404: no such repository, or no such revision of it.
    NotFound,
    /// 404 for one file.
    NoFile,
    /// 429, with the time to wait where it was given.
    RateLimited(Option<Duration>),
    /// No connection came about: name not found, refused.
    Unreachable(String),
    /// The connection broke, or nothing came for a long time.
    Broken(String),
    /// 5xx.
    Server(u16),
    /// An answer that no hub gives.
    Odd(String),
}

impl Failure {
    /// Of an answer that is no success. The hub tells its refusals apart by the header `X-Error-Code`.
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let code = headers.get("x-error-code").and_then(|code| code.to_str().ok());
        match (status.as_u16(), code) {
            (401 | 403, Some("GatedRepo")) => Failure::Gated,
            (401 | 403, _) => Failure::Denied,
            (404, Some("EntryNotFound")) => Failure::NoFile,
            (404, _) => Failure::NotFound,
            (429, _) => Failure::RateLimited(retry_after(headers)),
            (status @ (408 | 500..=599), _) => Failure::Server(status),
            (status, _) => Failure::Odd(format!("status {status}")),
        }
    }

    /// As a message for a person: what happened, and what to do next.
    pub(super) fn explain(self, name: &Name, settings: &Settings) -> anyhow::Error {
        let (id, endpoint) = (name.id(), settings.endpoint.url());
        let token = settings.token.is_some();
        let next = match (&self, token) {
            (Failure::Gated, false) => format!(
                "accept its conditions at {endpoint}/{id}, then set HF_TOKEN to a token of that account (or run hf auth \
                 login)"
            ),
            (Failure::Gated, true) => format!(
                "the account of the token that is set has no access yet: accept its conditions at {endpoint}/{id}"
            ),
            (Failure::Denied, false) => format!(
                "it is private, or does not exist: check its spelling at {endpoint}/{id}; if it is private, set HF_TOKEN \
                 to a token that may read it (or run hf auth login)"
            ),
            (Failure::Denied, true) => {
                "the token that is set (HF_TOKEN, or the token file in HF_HOME) is not valid or \
                                        may not read it: make one that may, or check the spelling of the name"
                    .to_string()
            }
            (Failure::NotFound, _) => format!(
                "check the spelling of the name, and of the revision {} if you gave one, at {endpoint}/{id}; there is no \
                 folder and no preset of that name either",
                name.revision()
            ),
            (Failure::NoFile, _) => "the repository changed in this moment: try again".to_string(),
            (Failure::RateLimited(wait), false) => {
                format!("{}; with a token in HF_TOKEN the limit is higher", try_again(*wait))
            }
            (Failure::RateLimited(wait), true) => try_again(*wait),
            (Failure::Unreachable(_), _) => format!(
                "check the network, HF_ENDPOINT and the proxy settings (HTTPS_PROXY). Without a network: {}",
                by_hand(name, settings)
            ),
            (Failure::Broken(_), _) => {
                "the same command goes on where it stopped; what has arrived is kept".to_string()
            }
            (Failure::Server(_), _) => "the fault is over there: try again later".to_string(),
            (Failure::Odd(_), _) => {
                format!("is {endpoint} (HF_ENDPOINT) a Hugging Face hub, and is nothing in between, as a login page?")
            }
        };
        anyhow!("can't get {name} from {endpoint}: {self}: {next}")
    }
}

/// What to do without a network.
pub(super) fn by_hand(name: &Name, settings: &Settings) -> String {
    format!(
        "get {} from {}/{}/tree/{} by other means, put them into a folder, and give that folder as --model; or copy {} \
         from a machine that has it",
        wanted_words(),
        settings.endpoint.url(),
        name.id(),
        name.revision(),
        Store::new(&settings.cache, name.id()).folder().display()
    )
}

fn try_again(wait: Option<Duration>) -> String {
    match wait {
        Some(wait) => format!("try again in {} s", wait.as_secs()),
        None => "try again in some minutes".to_string(),
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Gated => f.write_str("the repository is gated"),
            Failure::Denied => f.write_str("access was refused (401 or 403)"),
            Failure::NotFound => f.write_str("there is no such repository or revision (404)"),
            Failure::NoFile => f.write_str("a file that was listed is not there (404)"),
            Failure::RateLimited(_) => f.write_str("too many requests (429)"),
            Failure::Unreachable(what) => write!(f, "no connection: {what}"),
            Failure::Broken(what) => write!(f, "the connection broke: {what}"),
            Failure::Server(status) => write!(f, "the server failed (status {status})"),
            Failure::Odd(what) => write!(f, "unexpected answer: {what}"),
        }
    }
}

impl Error for Failure {}

impl Failure {
    /// Of an error after the answer has begun: the server was there.
    pub(super) fn midway(error: ureq::Error) -> Self {
        match Failure::from(error) {
            Failure::Unreachable(what) => Failure::Broken(what),
            other => other,
        }
    }
}

impl From<ureq::Error> for Failure {
    fn from(error: ureq::Error) -> Self {
        use ureq::Error as E;
        match error {
            E::HostNotFound => Failure::Unreachable("the name of the server is not known (DNS)".into()),
            E::ConnectionFailed | E::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                Failure::Unreachable("the server does not answer".into())
            }
            E::Io(error) => match error.kind() {
                io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
                | io::ErrorKind::TimedOut => Failure::Broken(error.to_string()),
                io::ErrorKind::ConnectionRefused => Failure::Unreachable("connection refused".into()),
                // Among them a name that is not known, which the system reports as text only.
                _ => Failure::Unreachable(error.to_string()),
            },
            E::Timeout(_) => Failure::Broken("nothing came for a long time".into()),
            E::Protocol(error) => Failure::Broken(error.to_string()),
            // Certificates and proxies: nothing that a second try would mend.
            other => Failure::Unreachable(other.to_string()),
        }
    }
}

/// Seconds to wait by `Retry-After` (RFC 9110, 10.2.3), or by `t=` of the hub's own header `RateLimit`
/// (draft-ietf-httpapi-ratelimit-headers), as in `"api";r=0;t=55`.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let seconds = text("retry-after").and_then(|text| text.trim().parse().ok()).or_else(|| {
        text("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t=").and_then(|t| t.parse().ok()))
    });
    seconds.map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart() {
        let failure = |status: u16, headers: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (key, value) in headers {
                map.insert(*key, ureq::http::HeaderValue::from_static(value));
            }
            Failure::of(StatusCode::from_u16(status).unwrap(), &map)
        };
        assert_eq!(failure(403, &[("x-error-code", "GatedRepo")]), Failure::Gated);
        assert_eq!(failure(401, &[("x-error-code", "RepoNotFound")]), Failure::Denied);
        assert_eq!(failure(404, &[("x-error-code", "RevisionNotFound")]), Failure::NotFound);
        assert_eq!(failure(404, &[("x-error-code", "EntryNotFound")]), Failure::NoFile);
        assert_eq!(failure(429, &[("retry-after", "7")]), Failure::RateLimited(Some(Duration::from_secs(7))));
        let limit = failure(429, &[("ratelimit", "\"api\";r=0;t=55")]);
        assert_eq!(limit, Failure::RateLimited(Some(Duration::from_secs(55))));
        assert_eq!(failure(429, &[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")]), Failure::RateLimited(None));
        assert_eq!(failure(502, &[]), Failure::Server(502));
        assert!(matches!(failure(418, &[]), Failure::Odd(_)));
    }
}
