//! `owner/name@revision`: how a repository is called.

use std::fmt::{self, Display};

use anyhow::{Result, bail, ensure};

/// The branch that is meant where no revision is given.
const DEFAULT_REVISION: &str = "main";

/// A repository of models, with the revision that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    id: String,
    revision: Option<String>,
}

impl Name {
    /// Reads `owner/name`, with an optional `@revision` behind it or a revision of its own. `None` if the text has not
    /// the form of a repository's name, as a path or a word has not.
    ///
    /// # Errors
    /// If the revision is given twice, or could not be one.
    pub fn parse(text: &str, revision: Option<&str>) -> Result<Option<Self>> {
        let (id, own) = match text.split_once('@') {
            Some((id, own)) => (id, Some(own)),
            None => (text, None),
        };
        if !is_repository(id) {
            return Ok(None);
        }
        let revision = match (own, revision) {
            (Some(own), Some(flag)) if own != flag => {
                bail!("--model {text} and --revision {flag} name two revisions: give one of them")
            }
            (own, flag) => own.or(flag),
        };
        if let Some(revision) = revision {
            ensure!(
                is_revision(revision),
                "'{revision}' can't be the revision of a repository: give a branch, a tag or a commit"
            );
        }
        Ok(Some(Name { id: id.to_string(), revision: revision.map(str::to_string) }))
    }

    /// `owner/name`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Branch, tag or commit.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    /// `name` or `name-revision`, as part of a file name.
    pub fn stem(&self) -> String {
        let name = self.id.rsplit('/').next().unwrap_or_default();
        match &self.revision {
            None => name.to_string(),
            Some(commit) if is_commit(commit) => format!("{name}-{}", &commit[..8]),
            Some(revision) => format!("{name}-{}", revision.replace('/', "-")),
        }
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.revision {
            None => write!(f, "{}", self.id),
            Some(revision) => write!(f, "{}@{revision}", self.id),
        }
    }
}

/// Whether a text is a full commit hash: 40 hexadecimal digits.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The rules of `huggingface_hub.utils.validate_repo_id`, with an owner. They leave no way out of a folder.
fn is_repository(id: &str) -> bool {
    let part = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
            && !text.starts_with(['-', '.'])
            && !text.ends_with(['-', '.'])
    };
    let parts = id.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name));
    parts && id.len() <= 96 && !id.contains("--") && !id.contains("..") && !id.ends_with(".git")
}

/// What `git check-ref-format` lets through, as far as it matters: the text becomes part of a path and of a URL.
fn is_revision(text: &str) -> bool {
    let forbidden = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\@".contains(c);
    text.len() <= 200
        && !text.contains(forbidden)
        && !text.contains("..")
        && text.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Name> {
        Name::parse(text, None).expect("a fine revision")
    }

    #[test]
    fn names_are_told_from_paths_and_words() {
        for name in ["sentence-transformers/all-MiniLM-L6-v2", "a/b", "BAAI/bge-small-en-v1.5", "x_y/z.w"] {
            assert_eq!(parse(name).expect("a name").to_string(), name);
        }
        for other in [
            "distilbert",
            "./a/b",
            "../a",
            "a/../b",
            "/a/b",
            "a/b/",
            "~/a",
            "a/b/c",
            "a//b",
            "",
            "/",
            "a/.b",
            "a/b.git",
            "a/b--c",
            "a b/c",
            "a/b:c",
            "C:\\a/b",
            "a/ü",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn revisions() {
        let name = Name::parse("a/b@refs/pr/5", None).unwrap().unwrap();
        assert_eq!((name.id(), name.revision(), name.stem().as_str()), ("a/b", "refs/pr/5", "b-refs-pr-5"));
        let name = Name::parse("a/b-v1.5", Some("v2")).unwrap().unwrap();
        assert_eq!((name.revision(), name.stem().as_str()), ("v2", "b-v1.5-v2"));
        assert_eq!(parse("a/b").map(|name| name.revision().to_string()).as_deref(), Some("main"));
        let commit = Name::parse("a/b", Some(&"0123456789".repeat(4))).unwrap().unwrap();
        assert_eq!(commit.stem(), "b-01234567");
        assert!(Name::parse("a/b@v1", Some("v1")).is_ok() && Name::parse("a/b@v1", Some("v2")).is_err());
        for wrong in ["", "../../x", "a..b", "/a", "a/", "a//b", ".a", "a/.b", "a b", "a\\b", "a\nb", "a@b"] {
            assert!(Name::parse("a/b", Some(wrong)).is_err(), "{wrong}");
        }
    }
}
