//! Servers on loopback that answer as the Hugging Face hub and the storage behind it do.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use autofit::model::hub::{self, Name, Need, Settings, Snapshot, Watch};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// The commit at which the repository of the tests is.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A token that must be seen nowhere but in one header.
pub const TOKEN: &str = "hf_averysecrettoken";

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Request {
    /// First byte that is asked for.
    pub fn start(&self) -> Option<usize> {
        self.headers.get("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }

    pub fn is_for(&self, file: &str) -> bool {
        self.method == "GET" && self.path.ends_with(&format!("/{file}"))
    }
}

#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Bytes of the body after which the connection breaks.
    pub cut: Option<usize>,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Reply { status, ..Reply::default() }
    }

    pub fn with(mut self, header: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((header, value.into()));
        self
    }

    /// Content, or the part of it that is asked for.
    pub fn content(request: &Request, body: &[u8]) -> Self {
        match request.start() {
            Some(start) if start < body.len() => {
                Reply { status: 206, body: body[start..].to_vec(), ..Reply::default() }
                    .with("Content-Range", format!("bytes {start}-{}/{}", body.len() - 1, body.len()))
            }
            Some(_) => Reply::status(416).with("Content-Range", format!("bytes */{}", body.len())),
            None => Reply { status: 200, body: body.to_vec(), ..Reply::default() },
        }
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// One server; it ends with the test.
pub struct Site {
    pub url: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Site {
    pub fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (log, handler): (Arc<Mutex<Vec<Request>>>, Arc<Handler>) = (Arc::default(), Arc::new(handler));
        let kept = log.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, handler) = (kept.clone(), handler.clone());
                // A client that breaks off is no concern of the server.
                thread::spawn(move || drop(serve(stream, &log, &*handler)));
            }
        });
        Site { url, log }
    }

    /// What was asked so far, in order.
    pub fn asked(&self) -> Vec<Request> {
        self.log.lock().expect("a log").clone()
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Request>>, handler: &Handler) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut words = first.split_whitespace().map(str::to_string);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    let request = Request { method, path, headers };
    log.lock().expect("a log").push(request.clone());
    let reply = handler(&request);
    let mut head = format!("HTTP/1.1 {} Status\r\nConnection: close\r\n", reply.status);
    if !reply.headers.iter().any(|(name, _)| *name == "Content-Length") {
        let _ = write!(head, "Content-Length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method != "HEAD" {
        let end = reply.cut.unwrap_or(reply.body.len()).min(reply.body.len());
        stream.write_all(&reply.body[..end])?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // Whatever the client still sends is read, or closing would reset what it has not read yet.
    reader.read_to_end(&mut Vec::new()).map(drop)
}

/// A repository `owner/tiny`.
#[derive(Clone, Debug, Default)]
pub struct Repository {
    files: BTreeMap<String, Vec<u8>>,
}

impl Repository {
    /// The files of the tiny BERT among the fixtures, and one that nobody needs.
    pub fn tiny() -> Self {
        let mut repository = Repository::default();
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
            repository = repository.with(name, &fixture(name));
        }
        repository.with("README.md", b"# tiny").with("onnx/model.onnx", b"large")
    }

    pub fn with(mut self, name: &str, content: &[u8]) -> Self {
        self.files.insert(name.to_string(), content.to_vec());
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.files.remove(name).expect("a file of that name");
        self
    }

    /// Name of the blob: SHA-256 of large files; for small ones anything of 40 digits, as Git's hash.
    pub fn etag(&self, name: &str) -> String {
        let hash = sha256(&self.files[name]);
        if is_large(name) { hash } else { hash[..40].to_string() }
    }

    /// As the hub answers, with large files in a storage.
    pub fn answer(&self, request: &Request, storage: &str) -> Reply {
        if request.path.strip_prefix("/api/models/owner/tiny/revision/").is_some_and(|r| r == "main" || r == COMMIT) {
            let siblings: Vec<_> = self.files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
            let listing =
                serde_json::json!({"id": "owner/tiny", "sha": COMMIT, "private": false, "siblings": siblings});
            return Reply { status: 200, body: listing.to_string().into_bytes(), ..Reply::default() };
        }
        if let Some(path) = request.path.strip_prefix("/api/resolve-cache/") {
            return Reply::content(request, &self.files[path]).with("ETag", format!("\"{}\"", self.etag(path)));
        }
        let Some(name) = request.path.strip_prefix(&format!("/owner/tiny/resolve/{COMMIT}/")) else {
            return Reply::status(404).with("X-Error-Code", "RepoNotFound");
        };
        let Some(content) = self.files.get(name) else {
            return Reply::status(404).with("X-Error-Code", "EntryNotFound");
        };
        let etag = self.etag(name);
        let reply = match name {
            name if is_large(name) => Reply::status(302)
                .with("Location", format!("{storage}/blobs/{etag}?signed=yes"))
                .with("ETag", "\"other\""),
            // Small files take a turn on the hub itself, by a relative redirect.
            _ => Reply::status(307).with("Location", format!("/api/resolve-cache/{name}")),
        };
        reply
            .with("X-Repo-Commit", COMMIT)
            .with("X-Linked-Etag", format!("\"{etag}\""))
            .with("X-Linked-Size", content.len().to_string())
    }

    /// As the storage answers; its own ETag is another one.
    pub fn stored(&self, request: &Request) -> Reply {
        let wanted = request.path.trim_start_matches("/blobs/").trim_end_matches("?signed=yes");
        match self.files.keys().find(|name| is_large(name) && self.etag(name) == wanted) {
            Some(name) => Reply::content(request, &self.files[name]).with("ETag", "\"9-8-7\""),
            None => Reply::status(403),
        }
    }
}

pub fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-bert").join(name)).expect(name)
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors")
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A hub, its storage, and an empty home.
pub struct World {
    pub hub: Site,
    pub storage: Site,
    pub home: TempDir,
}

impl World {
    pub fn of(repository: Repository) -> Self {
        Self::with(repository, |_, reply| reply, |_, reply| reply)
    }

    /// A world in which answers may be changed before they are sent.
    pub fn with(
        repository: Repository,
        hub: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static,
        storage: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let stored = repository.clone();
        let storage = Site::start(move |request| storage(request, stored.stored(request)));
        let url = storage.url.clone();
        let hub = Site::start(move |request| hub(request, repository.answer(request, &url)));
        World { hub, storage, home: tempfile::tempdir().expect("a folder") }
    }

    /// Environment variables that lead here.
    pub fn variables(&self) -> Vec<(String, OsString)> {
        let home = self.home.path().join("hf");
        vec![("HF_ENDPOINT".into(), self.hub.url.clone().into()), ("HF_HOME".into(), home.into())]
    }

    pub fn settings(&self, more: &[(&str, &str)]) -> Settings {
        let mut variables: BTreeMap<String, OsString> = self.variables().into_iter().collect();
        variables.extend(more.iter().map(|(name, value)| (name.to_string(), OsString::from(value))));
        Settings::of(|name| variables.get(name).cloned()).expect("settings")
    }

    pub fn fetch(&self, more: &[(&str, &str)]) -> anyhow::Result<Snapshot> {
        self.fetch_named("owner/tiny", more)
    }

    pub fn fetch_named(&self, name: &str, more: &[(&str, &str)]) -> anyhow::Result<Snapshot> {
        let name = Name::parse(name, None).expect("a revision").expect("a name");
        hub::fetch(&name, Need::Weights, &self.settings(more), &mut Lines::default())
    }

    /// What went wrong, in words.
    pub fn refusal(&self, more: &[(&str, &str)]) -> String {
        let error = format!("{:#}", self.fetch(more).expect_err("a refusal"));
        assert!(!error.contains(TOKEN), "{error}");
        error
    }

    /// The part of the cache that belongs to the repository.
    pub fn cache(&self) -> std::path::PathBuf {
        self.home.path().join("hf/hub/models--owner--tiny")
    }

    pub fn blob(&self, etag: &str) -> std::path::PathBuf {
        self.cache().join("blobs").join(etag)
    }
}

/// Remembers what it is told.
#[derive(Default)]
pub struct Lines(pub Vec<String>);

impl Watch for Lines {
    fn line(&mut self, text: &str) {
        self.0.push(text.to_string());
    }

    fn now(&mut self, _: &str) {}
}
