//! Searches that end before a worker is started. This test program does not count its memory: it has no `Meter`.

use anyhow::Result;

use super::*;
use crate::worker::training::Training;

/// A workload that is only asked for its name.
pub struct Nothing {
    pub width: usize,
}

impl Workload for Nothing {
    type Training = NoTraining;

    fn name(&self) -> String {
        "nothing at all".into()
    }

    fn identity(&self) -> String {
        self.width.to_string()
    }

    fn build(&self, _setup: &Setup) -> Result<NoTraining> {
        anyhow::bail!("nothing to build")
    }
}

pub struct NoTraining;

impl Training for NoTraining {
    type Batch = ();

    fn worst(&mut self, _samples: usize) -> Result<()> {
        Ok(())
    }

    fn accumulate(&mut self, _batch: &(), _share: f64) -> Result<()> {
        Ok(())
    }

    fn update(&mut self) -> Result<f64> {
        Ok(0.0)
    }

    fn parameter_sum(&self) -> Result<f64> {
        Ok(0.0)
    }
}

fn error(change: impl FnOnce(Tune<Nothing>) -> Result<Tune<Nothing>>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let tuned = change(tune(Nothing { width: 1 }).results(folder.path()).device("cpu"));
    let error = format!("{:#}", tuned.and_then(Tune::run).unwrap_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was begun: {error}");
    error
}

#[test]
fn what_is_missing_is_told_with_the_line_to_add() {
    let missing = error(|tune| tune.vram("1G"));
    assert!(missing.contains("#[global_allocator] static METER: autofit::Meter"), "{missing}");
    for (said, words) in [
        (error(Ok), ".vram(\"6G\")?"),
        (error(|tune| tune.vram("6X")), "6X"),
        (error(|tune| Ok(tune.vram("1G")?.effective_batch(0))), "effective_batch(0)"),
        (error(|tune| Ok(tune.vram("1G")?.device("gpu"))), "gpu"),
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
