//! How a person names a study, in every command: its folder or its `best.toml`, as an argument or by `--config`.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;

use crate::study::best::Best;
use crate::study::journal::BEST;

/// Which study.
#[derive(Args, Clone, Debug)]
#[group(id = "which study", required = true, multiple = false)]
pub struct StudyOption {
    /// A study: its folder, or best.toml in it
    #[arg(value_name = "STUDY")]
    argument: Option<PathBuf>,
    /// The same as an option; --study is another name of it
    #[arg(long = "config", visible_alias = "study", value_name = "STUDY")]
    option: Option<PathBuf>,
}

impl StudyOption {
    /// The study in a folder, or whose `best.toml` that is.
    pub fn at(path: PathBuf) -> Self {
        StudyOption { argument: Some(path), option: None }
    }

    fn path(&self) -> &Path {
        self.argument.as_deref().or(self.option.as_deref()).unwrap_or(Path::new("."))
    }

    /// The study's folder.
    pub fn folder(&self) -> PathBuf {
        match self.path() {
            path if path.is_file() => match path.parent() {
                Some(folder) if folder != Path::new("") => folder.to_path_buf(),
                _ => PathBuf::from("."),
            },
            path => path.to_path_buf(),
        }
    }

    /// The answer's file.
    ///
    /// # Errors
    /// If a folder was named that has none.
    pub fn best(&self) -> Result<PathBuf> {
        let path = self.path();
        if !path.is_dir() {
            return Ok(path.to_path_buf());
        }
        let best = path.join(BEST);
        ensure!(
            best.exists(),
            "{0} has no {BEST}: give the folder of a study that has an answer, or go on with this one by the command that \
             began it",
            path.display()
        );
        Ok(best)
    }

    /// The answer.
    ///
    /// # Errors
    /// If there is none, or it can't be read.
    pub fn answer(&self) -> Result<Best> {
        Best::read(&self.best()?)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        study: StudyOption,
    }

    fn study(arguments: &[&str]) -> StudyOption {
        Command::try_parse_from(std::iter::once(&"x").chain(arguments)).map(|command| command.study).unwrap()
    }

    #[test]
    fn every_way_to_name_it_is_the_same_study() {
        let folder = tempfile::tempdir().unwrap();
        let (at, best) = (folder.path().to_str().unwrap(), folder.path().join(BEST));
        let none = study(&[at]).best().unwrap_err().to_string();
        assert!(none.contains("has no best.toml") && none.contains(at), "{none}");
        std::fs::write(&best, "").unwrap();
        let file = best.to_str().unwrap();
        for arguments in [&[at][..], &[file], &["--config", at], &["--config", file], &["--study", at]] {
            let study = study(arguments);
            assert_eq!(
                (study.folder(), study.best().unwrap()),
                (folder.path().to_path_buf(), best.clone()),
                "{arguments:?}"
            );
        }
        assert!(Command::try_parse_from(["x"]).is_err() && Command::try_parse_from(["x", at, "--config", at]).is_err());
    }
}
