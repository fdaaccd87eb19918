//! The files of the best models of a run, until its end.
//!
//! A snapshot names the best model so far by its step. A run that goes on from a snapshot needs the best model of *then*,
//! so each stays for as long as a snapshot that is kept may ask for it. Its file carries step and checksum in its name, as
//! a snapshot's does: weights of another step, or damaged ones, are never given out under the best one's scores.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::snapshot::{self, Found};
use crate::model::{Classifier, ModelConfig, weights};
use crate::plan::files::{Draft, draft_name};

/// What files of best models begin with; the step follows.
const KIND: &str = "best";

/// What they are called until they are whole.
const WRITING: &str = "best.safetensors";

/// The best models in a folder, which is that of the snapshots.
#[derive(Clone, Debug)]
pub struct BestModels {
    folder: PathBuf,
}

impl BestModels {
    /// Those in `folder`.
    pub fn new(folder: PathBuf) -> Self {
        BestModels { folder }
    }

    /// Writes the model of a step, in the place of any other of that step.
    ///
    /// # Errors
    /// If it can't be written whole.
    pub fn write(&self, model: &Classifier, config: &ModelConfig, step: usize) -> Result<()> {
        self.write_with(step, |path| weights::save(model, config, path))
            .with_context(|| format!("can't write the best model into {}", self.folder.display()))
    }

    fn write_with(&self, step: usize, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        fs::create_dir_all(&self.folder)?;
        let draft = Draft::beside(&self.folder.join(WRITING))?;
        write(draft.path())?;
        let path = self.folder.join(snapshot::file_name(KIND, step, snapshot::checksum(draft.path())?));
        draft.place(&path)?;
        for other in self.list().into_iter().filter(|other| other.step == step && other.path != path) {
            let _ = fs::remove_file(other.path);
        }
        Ok(())
    }

    /// The file of the model of a step.
    ///
    /// # Errors
    /// If it is not there, or not what was written.
    pub fn find(&self, step: usize) -> Result<PathBuf> {
        let Some(found) = self.list().into_iter().find(|found| found.step == step) else {
            bail!("the best model, of step {step}, is no longer in {}", self.folder.display())
        };
        let name = found.path.display();
        let actual = snapshot::checksum(&found.path).with_context(|| format!("can't read the best model {name}"))?;
        ensure!(actual == found.checksum, "the best model {name} is damaged: its checksum is {actual:08x}");
        Ok(found.path)
    }

    /// Removes what nobody will ask for: neither the run, whose best model is that of step `best`, nor any of the
    /// snapshots at these steps, each of which asks for the last one that was written before it.
    pub fn prune(&self, best: Option<usize>, snapshots: &[usize]) {
        let all = self.list();
        let asked = |of: usize| all.iter().map(|found| found.step).filter(|step| *step <= of).max();
        let wanted: Vec<usize> = snapshots.iter().filter_map(|&of| asked(of)).chain(best).collect();
        for found in all.iter().filter(|found| !wanted.contains(&found.step)) {
            let _ = fs::remove_file(&found.path);
        }
    }

    /// Removes them all, and the folder if nothing else is in it.
    pub fn clear(&self) {
        self.prune(None, &[]);
        let _ = fs::remove_file(draft_name(&self.folder.join(WRITING)));
        let _ = fs::remove_dir(&self.folder);
    }

    fn list(&self) -> Vec<Found> {
        snapshot::list(&self.folder, KIND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(models: &BestModels, step: usize) {
        models.write_with(step, |path| Ok(fs::write(path, format!("weights of {step}"))?)).expect("written");
    }

    fn steps(models: &BestModels) -> Vec<usize> {
        models.list().iter().map(|found| found.step).collect()
    }

    #[test]
    fn each_is_kept_for_as_long_as_a_snapshot_may_ask_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let models = BestModels::new(folder.path().join("snapshots"));
        [4, 10, 12, 20].into_iter().for_each(|step| write(&models, step));
        // 10 was the best at 11, 12 at 15 and 20 is now; nobody is left who would ask for 4.
        models.prune(Some(20), &[15, 11]);
        assert_eq!(steps(&models), [20, 12, 10]);
        models.prune(Some(20), &[21, 20]);
        assert_eq!(steps(&models), [20]);
        models.prune(Some(20), &[]);
        assert_eq!(steps(&models), [20]);
        models.clear();
        assert!(!folder.path().join("snapshots").exists());
    }

    #[test]
    fn only_what_was_written_is_found() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let models = BestModels::new(folder.path().to_path_buf());
        [8, 9].into_iter().for_each(|step| write(&models, step));
        assert_eq!(fs::read_to_string(models.find(8)?)?, "weights of 8");
        models.write_with(8, |path| Ok(fs::write(path, "other weights of 8")?))?;
        assert_eq!((fs::read_to_string(models.find(8)?)?.as_str(), steps(&models)), ("other weights of 8", vec![9, 8]));
        fs::write(models.find(9)?, "weights of 7")?;
        let error = models.find(9).expect_err("damaged").to_string();
        assert!(error.contains("best-00000009-") && error.contains("is damaged"), "{error}");
        let error = models.find(7).expect_err("never written").to_string();
        assert!(error.contains("of step 7, is no longer in"), "{error}");
        Ok(())
    }
}
