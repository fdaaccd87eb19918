//! Requests to a hub: redirects without the token, and patience with what passes.

use std::thread::sleep;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::{Agent, Body};

use super::Watch;
use super::failure::Failure;
use super::name::{Name, is_commit};
use super::settings::{Endpoint, Origin, Settings};

/// Redirects that one request may be sent through.
const MAX_REDIRECTS: usize = 10;

/// Longest listing of a repository that is read, in bytes.
const MAX_LISTING: u64 = 64 << 20;

/// For how long nothing may come before a connection counts as broken.
const SILENCE: Duration = Duration::from_secs(60);

/// What a repository holds at a commit.
#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    /// The commit.
    pub(super) sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Listing {
    pub(super) fn has(&self, name: &str) -> bool {
        self.siblings.iter().any(|sibling| sibling.rfilename == name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.siblings.iter().map(|sibling| sibling.rfilename.as_str())
    }
}

/// A file as the hub describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) name: String,
    /// Content hash, and the name of the blob: SHA-256 of a large file (LFS), Git's blob hash of a small one.
    pub(super) etag: String,
    pub(super) size: u64,
}

impl Remote {
    /// The SHA-256 of its content, in hexadecimal, where the hub gives it.
    pub(super) fn sha256(&self) -> Option<&str> {
        Some(self.etag.as_str()).filter(|etag| etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit()))
    }
}

/// A client of one hub.
#[derive(Debug)]
pub(super) struct Web<'a> {
    agent: Agent,
    settings: &'a Settings,
}

impl<'a> Web<'a> {
    pub(super) fn new(settings: &'a Settings) -> Self {
        // Redirects are followed here: ureq decides by the host alone whether the token goes along, and not at all over
        // plain HTTP; a hub on one port and something else on another are two places.
        let config = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_resolve(Some(SILENCE))
            .timeout_connect(Some(SILENCE / 2))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .user_agent(concat!("autofit/", env!("CARGO_PKG_VERSION")))
            .build();
        Web { agent: config.into(), settings }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.settings.endpoint
    }

    /// Asks what a repository holds.
    pub(super) fn listing(&self, name: &Name) -> Result<Listing, Failure> {
        let url =
            format!("{}/api/models/{}/revision/{}", self.endpoint().url(), name.id(), percent_encoded(name.revision()));
        let (mut response, _) = self.send(Method::Get(0), &url)?;
        let body = response.body_mut().with_config().limit(MAX_LISTING);
        let text = body.read_to_vec().map_err(Failure::midway)?;
        let listing: Listing =
            serde_json::from_slice(&text).map_err(|_| Failure::Odd("it is no listing of a repository".into()))?;
        if !is_commit(&listing.sha) {
            return Err(Failure::Odd("its commit is not 40 hexadecimal digits".into()));
        }
        // A branch is whatever the hub says it is; a commit is one alone.
        if is_commit(name.revision()) && !listing.sha.eq_ignore_ascii_case(name.revision()) {
            return Err(other_commit(&listing.sha, name.revision()));
        }
        Ok(listing)
    }

    fn file_url(&self, name: &Name, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.endpoint().url(), name.id(), percent_encoded(file))
    }

    /// Asks for size and hash of a file.
    pub(super) fn describe(&self, name: &Name, commit: &str, file: &str) -> Result<Remote, Failure> {
        let (response, marks) = self.send(Method::Head, &self.file_url(name, commit, file))?;
        if let Some(sent) = marks.commit.as_deref().filter(|sent| !sent.eq_ignore_ascii_case(commit)) {
            return Err(other_commit(sent, commit));
        }
        let length = || response.headers().get("content-length")?.to_str().ok()?.parse().ok();
        let etag = marks.linked_etag.or(marks.etag).ok_or_else(|| Failure::Odd(format!("{file} has no ETag")))?;
        let size = marks.linked_size.or_else(length).ok_or_else(|| Failure::Odd(format!("{file} has no size")))?;
        Ok(Remote { name: file.to_string(), etag, size })
    }

    /// Asks for the content of a file from byte `start` on.
    pub(super) fn content(&self, name: &Name, commit: &str, file: &str, start: u64) -> Result<Response<Body>, Failure> {
        Ok(self.send(Method::Get(start), &self.file_url(name, commit, file))?.0)
    }

    /// Sends a request through redirects. The token goes to the endpoint's own origin and to nobody else.
    fn send(&self, method: Method, url: &str) -> Result<(Response<Body>, Marks), Failure> {
        let mut uri: Uri = url.parse().map_err(|_| Failure::Odd("an address that can't be used".into()))?;
        let mut marks = Marks::default();
        for _ in 0..=MAX_REDIRECTS {
            let origin = Origin::of(&uri);
            let mut request = match method {
                Method::Head => self.agent.head(&uri),
                Method::Get(_) => self.agent.get(&uri),
            };
            // Sizes are those of the content, not of some compressed form of it.
            request = request.header("Accept-Encoding", "identity");
            if let (Some(token), true) = (&self.settings.token, origin.as_ref() == Some(self.endpoint().origin())) {
                request = request.header("Authorization", token.header());
            }
            if let Method::Get(start @ 1..) = method {
                request = request.header("Range", format!("bytes={start}-"));
            }
            let response = request.call()?;
            marks.note(response.headers());
            if !response.status().is_redirection() {
                // A start beyond the end is for the caller to put right.
                let fine = response.status().is_success() || response.status() == 416;
                return if fine {
                    Ok((response, marks))
                } else {
                    Err(Failure::of(response.status(), response.headers()))
                };
            }
            let next = redirected(&uri, response.headers())?;
            let there = Origin::of(&next);
            if origin.as_ref().is_some_and(|o| o.scheme == "https")
                && there.as_ref().is_none_or(|o| o.scheme != "https")
            {
                return Err(Failure::Odd("a redirect from https to something without encryption".into()));
            }
            // Large files lie elsewhere, but the hub itself has said all there is to know.
            if matches!(method, Method::Head)
                && there != origin
                && marks.linked_etag.is_some()
                && marks.linked_size.is_some()
            {
                return Ok((response, marks));
            }
            uri = next;
        }
        Err(Failure::Odd("redirects without end".into()))
    }
}

#[derive(Clone, Copy, Debug)]
enum Method {
    Head,
    /// From this byte on.
    Get(u64),
}

/// What the answers on the way say about a file. The first one counts: the storage behind a hub has other ETags.
#[derive(Debug, Default)]
struct Marks {
    linked_etag: Option<String>,
    linked_size: Option<u64>,
    etag: Option<String>,
    /// Where the file comes from, as far as the hub says so.
    commit: Option<String>,
}

/// An answer about another commit than the one that was asked for.
fn other_commit(sent: &str, asked: &str) -> Failure {
    Failure::Odd(format!("it is about commit {sent}, and {asked} was asked for"))
}

impl Marks {
    fn note(&mut self, headers: &HeaderMap) {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let etag = |name: &str| text(name).and_then(plain_etag);
        self.linked_etag = self.linked_etag.take().or_else(|| etag("x-linked-etag"));
        self.linked_size = self.linked_size.or_else(|| text("x-linked-size")?.parse().ok());
        self.etag = self.etag.take().or_else(|| etag("etag"));
        let commit = || text("x-repo-commit").filter(|commit| is_commit(commit)).map(str::to_string);
        self.commit = self.commit.take().or_else(commit);
    }
}

/// An ETag without `W/` and quotes, if it can be the name of a file.
fn plain_etag(text: &str) -> Option<String> {
    let etag = text.trim().trim_start_matches("W/").trim_matches('"');
    let plain = (1..=128).contains(&etag.len()) && etag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    plain.then(|| etag.to_string())
}

/// Where a redirect leads (RFC 3986, 5.2, without dot segments: hubs send none).
fn redirected(from: &Uri, headers: &HeaderMap) -> Result<Uri, Failure> {
    let odd = || Failure::Odd("a redirect that leads nowhere".into());
    let location = headers.get("location").and_then(|value| value.to_str().ok()).ok_or_else(odd)?;
    let scheme = from.scheme_str().unwrap_or("https");
    let authority = from.authority().map_or("", |authority| authority.as_str());
    let absolute = if location.contains("://") && !location.starts_with('/') {
        location.to_string()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    absolute.parse().map_err(|_| odd())
}

/// Everything but RFC 3986's unreserved characters is encoded, slashes too: a revision is one segment of a path.
fn percent_encoded(text: &str) -> String {
    let encode = |b: u8| match b {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// How often and how long something is tried again.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Failures since something last arrived.
    failures: u32,
    /// Waits that the hub asked for.
    waits: u32,
    /// Whether anything has arrived at all.
    arrived: bool,
}

/// Tries without anything arriving.
const MAX_FAILURES: u32 = 5;

/// Waits that are granted to a rate limit.
const MAX_WAITS: u32 = 3;

/// Longest of them; who asks for more is for the person to decide about.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Patience {
    /// Something has arrived: failures before it don't count any more.
    pub(super) fn reward(&mut self) {
        self.failures = 0;
        self.arrived = true;
    }

    /// Waits as is due after a failure, and says so; gives the failure back where trying again has no point.
    pub(super) fn bear(&mut self, failure: Failure, watch: &mut dyn Watch) -> Result<(), Failure> {
        let wait = match &failure {
            Failure::RateLimited(wait) => {
                self.waits += 1;
                let wait = wait.unwrap_or(Duration::from_secs(10));
                Some(wait.max(Duration::from_secs(1))).filter(|&w| self.waits <= MAX_WAITS && w <= LONGEST_WAIT)
            }
            Failure::Broken(_) | Failure::Server(_) => self.backoff(),
            // Who never answered will not do so in a second; who did may come back.
            Failure::Unreachable(_) if self.arrived => self.backoff(),
            _ => None,
        };
        let Some(wait) = wait else { return Err(failure) };
        watch.line(&format!("{failure}: trying again in {:.1} s", wait.as_secs_f64()));
        sleep(wait);
        Ok(())
    }

    /// 0.5, 1, 2, 4 seconds.
    fn backoff(&mut self) -> Option<Duration> {
        self.failures += 1;
        (self.failures < MAX_FAILURES).then(|| Duration::from_millis(250 << self.failures))
    }
}

/// Asks until there is an answer or no point in asking.
pub(super) fn patiently<T>(watch: &mut dyn Watch, mut ask: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut patience = Patience::default();
    loop {
        match ask() {
            Err(failure) => patience.bear(failure, watch)?,
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_they_say() {
        let to = |location: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("location", ureq::http::HeaderValue::from_static(location));
            redirected(&"https://hub/a/b?c".parse().unwrap(), &headers).map(|uri| uri.to_string())
        };
        assert_eq!(to("http://x:1/y").unwrap(), "http://x:1/y");
        assert_eq!(to("//x/y").unwrap(), "https://x/y");
        assert_eq!(to("/y?to=http://z").unwrap(), "https://hub/y?to=http://z");
        assert_eq!(to("y").unwrap(), "https://hub/a/y");
        assert!(redirected(&"https://hub/a".parse().unwrap(), &HeaderMap::new()).is_err());
    }

    #[test]
    fn etags_can_be_file_names() {
        assert_eq!(plain_etag("W/\"0a1b\"").as_deref(), Some("0a1b"));
        assert_eq!(plain_etag("\"0a1b-2\"").as_deref(), Some("0a1b-2"));
        for wrong in ["", "\"\"", "\"../x\"", "\"a/b\"", "a.b", "\u{e4}"] {
            assert_eq!(plain_etag(wrong), None, "{wrong}");
        }
        assert_eq!(percent_encoded("refs/pr/5 ü"), "refs%2Fpr%2F5%20%C3%BC");
    }

    #[test]
    fn patience_ends() {
        struct Silent;
        impl Watch for Silent {
            fn line(&mut self, _: &str) {}
            fn now(&mut self, _: &str) {}
        }
        let mut patience = Patience::default();
        let refused = Failure::Unreachable("refused".into());
        assert!(patience.bear(refused.clone(), &mut Silent).is_err());
        let long = Failure::RateLimited(Some(Duration::from_secs(3600)));
        assert_eq!(patience.bear(long.clone(), &mut Silent), Err(long));
        for failure in [Failure::Gated, Failure::Denied, Failure::NotFound, Failure::Odd(String::new())] {
            assert_eq!(patience.bear(failure.clone(), &mut Silent), Err(failure));
        }
        patience.failures = MAX_FAILURES - 1;
        assert!(patience.bear(Failure::Server(500), &mut Silent).is_err());
        patience.reward();
        assert!(patience.bear(refused, &mut Silent).is_ok());
    }
}
