//! What the environment says about the hub, by the names that `huggingface_hub` uses.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ureq::http::Uri;

/// Where the hub is, where its files are kept, and who asks.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `HF_ENDPOINT`.
    pub endpoint: Endpoint,
    /// `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or `~/.cache/huggingface/hub`.
    pub cache: PathBuf,
    /// `HF_TOKEN`, or the content of `HF_TOKEN_PATH`, or of `token` in `HF_HOME`.
    pub token: Option<Token>,
    /// `HF_HUB_OFFLINE`.
    pub access: Access,
}

/// Whether the hub may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may.
    Online,
    /// Nothing is asked: what is in the cache must do.
    Offline,
}

/// A secret: it goes into one header of requests to the endpoint, and is never shown.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// The value of the header `Authorization`.
    pub(super) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

/// The address of a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Without a slash at its end.
    url: String,
    origin: Origin,
}

/// Scheme, host and port: to whom a token may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    /// Of an absolute `http` or `https` address.
    pub(super) fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let default = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
        Some(Origin { scheme, host, port: uri.port_u16().unwrap_or(default) })
    }
}

impl Endpoint {
    fn parse(text: &str) -> Result<Self> {
        let url = text.trim().trim_end_matches('/');
        let uri: Option<Uri> = url.parse().ok();
        // The value is not repeated where it may hold a password.
        let secret = uri.as_ref().and_then(Uri::authority).is_some_and(|authority| authority.as_str().contains('@'));
        ensure!(
            !secret,
            "HF_ENDPOINT holds a user name or password: give the address alone, and the token in HF_TOKEN"
        );
        match uri.as_ref().and_then(Origin::of) {
            Some(origin) if uri.is_some_and(|uri| uri.query().is_none()) => {
                Ok(Endpoint { url: url.to_string(), origin })
            }
            _ => bail!("HF_ENDPOINT is not the address of a hub: it should look like https://huggingface.co"),
        }
    }

    /// As it was given.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }
}

impl Settings {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// If a variable holds what can't be used, or no folder for the cache can be found.
    pub fn from_env() -> Result<Self> {
        Self::of(|name| std::env::var_os(name))
    }

    /// Reads variables by name, wherever they come from.
    ///
    /// # Errors
    /// As [`Settings::from_env`].
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let user = variable("HOME").map(PathBuf::from);
        let folder = |name: &str| variable(name).map(|value| expand(PathBuf::from(value), user.as_deref()));
        let home = folder("HF_HOME")
            .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| user.as_ref().map(|user| user.join(".cache").join("huggingface")));
        let cache = folder("HF_HUB_CACHE").or_else(|| home.as_ref().map(|home| home.join("hub")));
        let cache = cache.context("there is no home folder to keep models in: set HF_HOME to a folder for them")?;
        let cache = std::path::absolute(&cache).with_context(|| format!("finding {}", cache.display()))?;
        let file = folder("HF_TOKEN_PATH").or_else(|| home.map(|home| home.join("token")));
        let endpoint = match variable("HF_ENDPOINT") {
            Some(text) => Endpoint::parse(&text.to_string_lossy())?,
            None => Endpoint::parse("https://huggingface.co")?,
        };
        let offline = variable("HF_HUB_OFFLINE").map(|text| text.to_string_lossy().to_ascii_uppercase());
        Ok(Settings {
            endpoint,
            cache,
            token: token(variable("HF_TOKEN"), file.as_deref())?,
            access: match offline.as_deref() {
                Some("1" | "ON" | "YES" | "TRUE") => Access::Offline,
                _ => Access::Online,
            },
        })
    }
}

fn token(value: Option<OsString>, file: Option<&Path>) -> Result<Option<Token>> {
    let (text, place) = match (value, file.map(std::fs::read_to_string), file) {
        (Some(text), ..) => (text.to_string_lossy().into_owned(), "HF_TOKEN".to_string()),
        (None, Some(Ok(text)), Some(file)) => (text, file.display().to_string()),
        _ => return Ok(None),
    };
    let text = text.trim();
    // Also what keeps a second header from being smuggled in. The text itself is never part of an error.
    ensure!(text.bytes().all(|b| b.is_ascii_graphic()), "{place} holds a character that no token has: copy it again");
    Ok((!text.is_empty()).then(|| Token(text.to_string())))
}

/// `~/models` as a shell would have it.
fn expand(path: PathBuf, user: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), user) {
        (Ok(rest), Some(user)) => user.join(rest),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings> {
        let variables = variables.to_vec();
        Settings::of(move |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_cache_is_where_other_tools_look() {
        let cache = |variables: &[(&str, &str)]| settings(variables).expect("settings").cache;
        assert_eq!(cache(&[("HOME", "/u")]), Path::new("/u/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/h")]), Path::new("/h/hub"));
        assert_eq!(cache(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
        assert_eq!(cache(&[("HOME", "/u"), ("HF_HOME", "~/h")]), Path::new("/u/h/hub"));
        assert!(settings(&[]).is_err());
    }

    #[test]
    fn a_token_is_found_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        assert!(settings(&[("HF_HOME", home)]).unwrap().token.is_none());
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let found = settings(&[("HF_HOME", home)]).unwrap();
        assert_eq!(found.token.as_ref().map(Token::header).as_deref(), Some("Bearer hf_file"));
        let found = settings(&[("HF_HOME", home), ("HF_TOKEN", " hf_secret ")]).unwrap();
        assert_eq!(found.token.as_ref().map(Token::header).as_deref(), Some("Bearer hf_secret"));
        assert!(!format!("{found:?}").contains("secret"));
        let error = settings(&[("HF_HOME", home), ("HF_TOKEN", "hf_secret\nX-Other: 1")]).unwrap_err();
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }

    #[test]
    fn endpoints() {
        let endpoint = |text: &str| settings(&[("HOME", "/u"), ("HF_ENDPOINT", text)]).map(|s| s.endpoint);
        assert_eq!(endpoint("http://127.0.0.1:8080/hub/").unwrap().url(), "http://127.0.0.1:8080/hub");
        assert_eq!(endpoint("").unwrap().url(), "https://huggingface.co");
        let origin = |text: &str| Origin::of(&text.parse().unwrap());
        assert_eq!(origin("https://A.b"), origin("https://a.b:443/x?y"));
        for other in ["http://a.b", "https://a.b:8443", "https://c.b", "https://a.b.c"] {
            assert_ne!(origin("https://a.b"), origin(other), "{other}");
        }
        for wrong in ["huggingface.co", "ftp://a", "https://", "https://a?b=c", "nonsense here"] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
        let error = endpoint("https://me:secret@a.b").unwrap_err();
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }

    #[test]
    fn offline() {
        for (text, access) in [("1", Access::Offline), ("true", Access::Offline), ("0", Access::Online)] {
            assert_eq!(settings(&[("HOME", "/u"), ("HF_HUB_OFFLINE", text)]).unwrap().access, access);
        }
    }
}
