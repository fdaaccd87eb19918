//! `trials.csv`: every trial on disk, synced, before the next one starts. It replays into the same study, it tolerates
//! a last line torn by a crash, and only one driver at a time may write it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use csv::{ReaderBuilder, StringRecord, WriterBuilder};

use super::identity::Identity;
use super::row::{self, COLUMNS, Derived, LEADING};
use super::trial::Trial;
use crate::plan::files;

/// The journal's file name inside the folder of a study.
pub const TRIALS: &str = "trials.csv";
/// The identity's file name.
pub const STUDY: &str = "study.toml";
/// The answer's file name.
pub const BEST: &str = "best.toml";
/// The folder, inside that of a study, of what the workers of failed trials wrote to standard error.
const WORDS: &str = "stderr";
/// The lock's file name. The file stays; the lock on it ends with its holder.
const LOCK: &str = ".lock";

/// An open journal. Locked until it is dropped.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    file: File,
    trials: Vec<Trial>,
    _lock: File,
}

impl Journal {
    /// Opens, or begins, the journal of a study in `folder`. `fresh` throws away what is there.
    ///
    /// # Errors
    /// If another driver holds the folder, if it belongs to another study, if a row is damaged (with file and line), or
    /// if the folder can't be written.
    pub fn open(folder: &Path, identity: &Identity, fresh: bool) -> Result<Journal> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let lock = lock(folder)?;
        let (path, study) = (folder.join(TRIALS), folder.join(STUDY));
        if fresh {
            for name in [TRIALS, BEST, STUDY] {
                remove(&folder.join(name))?;
            }
            // By their names: what else a person put there is not ours to remove.
            let kept = fs::read_dir(folder.join(WORDS)).into_iter().flatten().flatten().map(|entry| entry.path());
            for path in kept.filter(|path| number_of(path).is_some()) {
                remove(&path)?;
            }
        }
        if study.exists() {
            identity.check(&study)?;
        } else {
            ensure!(
                !path.exists(),
                "{} has trials but no {STUDY}, which says whose they are. Use another folder (--out), or begin anew (--fresh)",
                folder.display()
            );
            identity.write(&study)?;
        }
        let Recovered { whole, columns, trials } = recover(&path)?;
        ensure!(
            columns.is_empty() || columns.iter().eq(COLUMNS),
            "{} was written by another version of autofit, with other columns: use another folder (--out), or begin anew \
             (--fresh)",
            path.display()
        );
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let mut file = file.with_context(|| format!("opening {}", path.display()))?;
        let repair = |file: &mut File| -> std::io::Result<()> {
            if file.metadata()?.len() != whole {
                file.set_len(whole)?;
            }
            if whole == 0 {
                file.write_all(line(&COLUMNS.map(String::from)).as_bytes())?;
            }
            file.sync_all()
        };
        repair(&mut file).with_context(|| format!("writing {}", path.display()))?;
        files::sync_folder(&path)?;
        Ok(Journal { folder: folder.to_path_buf(), file, trials, _lock: lock })
    }

    /// Reads the trials of a study that may be running: takes no lock, changes nothing.
    ///
    /// # Errors
    /// If there is no journal, or a row is damaged.
    pub fn read(folder: &Path) -> Result<Vec<Trial>> {
        let path = folder.join(TRIALS);
        ensure!(path.exists(), "{} does not exist: no study has run in {}", path.display(), folder.display());
        Ok(recover(&path)?.trials)
    }

    /// Keeps what the worker of the last trial wrote to standard error, if it wrote anything.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn keep_words(&self, words: &str) -> Result<()> {
        if words.trim().is_empty() {
            return Ok(());
        }
        let folder = self.folder.join(WORDS);
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        files::write_whole(&words_file(&self.folder, self.trials.len()), words)
    }

    /// The end of what the worker of a failed trial wrote to standard error, and where that is kept; `None` if nothing
    /// was.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn words(folder: &Path, number: usize) -> Result<Option<(PathBuf, String)>> {
        let path = words_file(folder, number);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some((path, String::from_utf8_lossy(&bytes).into_owned()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Every trial so far.
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Appends a trial and syncs it to the disk.
    ///
    /// # Errors
    /// If it can't be written: then it isn't part of [`Journal::trials`] either.
    pub fn append(&mut self, trial: Trial, derived: &Derived) -> Result<()> {
        let line = line(&row::write(&trial, derived));
        let write = |file: &mut File| file.write_all(line.as_bytes()).and_then(|()| file.sync_data());
        write(&mut self.file).with_context(|| format!("writing {}", self.folder.join(TRIALS).display()))?;
        self.trials.push(trial);
        Ok(())
    }
}

/// `stderr/7.txt`.
fn words_file(folder: &Path, number: usize) -> PathBuf {
    folder.join(WORDS).join(format!("{number}.txt"))
}

/// The trial whose last words a file holds.
fn number_of(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    name.strip_suffix(".txt")?.parse().ok()
}

/// Takes the folder for one driver.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("opening {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "another autofit is at work in {}: wait for it, stop it, or use another folder (--out)",
            folder.display()
        ),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("locking {}", path.display())),
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// One line of CSV.
fn line(cells: &[String]) -> String {
    let mut writer = WriterBuilder::new().from_writer(Vec::new());
    // Writing to memory can't fail, and every cell is UTF-8.
    let _ = writer.write_record(cells);
    writer.into_inner().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// What a journal holds.
#[derive(Default)]
struct Recovered {
    /// Bytes up to the end of its last whole line.
    whole: u64,
    /// The names of its columns; none where the file is empty.
    columns: StringRecord,
    trials: Vec<Trial>,
}

/// Reads the journal up to its last whole line. Rows hold no line breaks, so
/// whatever follows the last line break is the torn rest of a write.
fn recover(path: &Path) -> Result<Recovered> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Recovered::default()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let mut lines = bytes[..whole].split_inclusive(|&byte| byte == b'\n');
    let at = |number: usize| format!("{}:{number}", path.display());
    let damaged = "is damaged: repair the line, or begin anew (--fresh)";
    let Some(first) = lines.next() else { return Ok(Recovered::default()) };
    let header = record(first).with_context(|| format!("{} {damaged}", at(1)))?;
    ensure!(
        header.iter().take(LEADING).eq(COLUMNS[..LEADING].iter().copied()),
        "{} is not the head of a journal of autofit: use another folder (--out), or begin anew (--fresh)",
        at(1)
    );
    let mut trials = Vec::new();
    for (index, bytes) in lines.enumerate() {
        let read = || -> Result<Trial> {
            let record = record(bytes)?;
            ensure!(record.len() == header.len(), "{} cells where {} belong", record.len(), header.len());
            let trial = row::read(&header, &record)?;
            ensure!(trial.number == index + 1, "trial {} where {} belongs", trial.number, index + 1);
            Ok(trial)
        };
        trials.push(read().with_context(|| format!("{} {damaged}", at(index + 2)))?);
    }
    Ok(Recovered { whole: whole as u64, columns: header, trials })
}

/// Reads one line of CSV.
fn record(line: &[u8]) -> Result<StringRecord> {
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(line);
    let mut record = StringRecord::new();
    ensure!(reader.read_record(&mut record)?, "the line is empty");
    Ok(record)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::{Knobs, OptimizerKind, Outcome, Precision};
    use crate::probe::protocol::{Attempt, CapHold, Measurement, OomRecord};
    use crate::study::trial::Purpose;

    fn identity() -> Identity {
        Identity {
            model: "preset distilbert".into(),
            config_digest: None,
            weights_digest: None,
            rows_digest: None,
            num_labels: 2,
            longest: 128,
            lengths_digest: "00".into(),
            max_length: 128,
            effective_batch: 32,
            device: "cpu".into(),
            cap_bytes: Some(6 << 30),
            space_digest: "11".into(),
            seed: 1,
            version: "0.1.0".into(),
        }
    }

    fn trial(number: usize) -> Trial {
        let measurement = Measurement {
            peak_bytes: 1 << 31,
            micro_seconds: vec![0.1, 1.0 / 3.0, 2e-9],
            optimizer_seconds: vec![],
            loss: 0.693,
            parameter_sum: -1e300,
            evaluation_peak_bytes: None,
            layers: 6,
            ..Measurement::default()
        };
        let fit = number % 2 == 1;
        let oom = OomRecord { requested: Some(7), live: None, cap: Some(9), text: "can't, \"really\"".into() };
        Trial {
            number,
            knobs: Knobs { lora_rank: Some(8), ..Knobs::new(Precision::Bf16, number, 3) },
            purpose: Purpose::Explore,
            attempt: Attempt {
                outcome: if fit { Outcome::Fit } else { Outcome::Oom },
                reason: "a, \"quoted\" reason — with ünicode".into(),
                measurement: fit.then_some(measurement),
                oom: (!fit).then_some(oom),
                wall_seconds: 1.25,
            },
            unix_seconds: 1_700_000_000,
        }
    }

    fn fill(folder: &Path, count: usize) -> Vec<Trial> {
        let mut journal = Journal::open(folder, &identity(), false).unwrap();
        for number in 1..=count {
            journal.append(trial(number), &Derived { accumulation: 4, ..Derived::default() }).unwrap();
        }
        journal.trials().to_vec()
    }

    #[test]
    fn begins_with_the_promised_columns() {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), 2);
        let text = fs::read_to_string(folder.path().join(TRIALS)).unwrap();
        let promised = "trial,precision,micro_batch,accumulation,checkpoint_layers,outcome,peak_bytes,step_seconds,\
                        samples_per_second,wall_seconds,reason,";
        assert!(text.starts_with(promised), "{text}");
        assert!(text.lines().nth(2).unwrap().starts_with("2,bf16,2,4,3,oom,,,,1.25,"), "{text}");
    }

    #[test]
    fn torn_at_any_byte_it_keeps_every_whole_row() {
        let folder = tempfile::tempdir().unwrap();
        let trials = fill(folder.path(), 3);
        let path = folder.path().join(TRIALS);
        let bytes = fs::read(&path).unwrap();
        for cut in 0..=bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            let rows = bytes[..cut].iter().filter(|&&b| b == b'\n').count().saturating_sub(1);
            assert_eq!(Journal::read(folder.path()).unwrap(), trials[..rows], "cut at {cut}");
            let mut journal = Journal::open(folder.path(), &identity(), false).unwrap();
            assert_eq!(journal.trials(), &trials[..rows], "cut at {cut}");
            journal.append(trial(rows + 1), &Derived::default()).unwrap();
            assert_eq!(Journal::read(folder.path()).unwrap(), journal.trials(), "cut at {cut}");
        }
    }

    #[test]
    fn damage_in_the_middle_names_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), 3);
        let path = folder.path().join(TRIALS);
        let text = fs::read_to_string(&path).unwrap();
        for (from, to, what) in [
            ("2,bf16,2,", "2,bf17,2,", "bf17"),
            ("2,bf16,2,", "5,bf16,2,", "trial 5 where 2 belongs"),
            ("2,bf16,2,", "2,bf16,", "cells"),
            ("2,bf16,2,", "2,bf16,,", "blank"),
            ("2,bf16,2,", "\n2,bf16,2,", "trials.csv:3"),
        ] {
            fs::write(&path, text.replacen(&format!("\n{from}"), &format!("\n{to}"), 1)).unwrap();
            let error = format!("{:#}", Journal::open(folder.path(), &identity(), false).unwrap_err());
            assert!(error.contains("trials.csv:3") && error.contains(what) && error.contains("--fresh"), "{error}");
        }
        fs::write(&path, "a,b\n1,2\n").unwrap();
        assert!(Journal::read(folder.path()).unwrap_err().to_string().contains("not the head"));
    }

    #[test]
    fn a_second_driver_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let first = Journal::open(folder.path(), &identity(), false).unwrap();
        let error = Journal::open(folder.path(), &identity(), true).unwrap_err().to_string();
        assert!(error.contains("another autofit") && error.contains("--out"), "{error}");
        drop(first);
        Journal::open(folder.path(), &identity(), false).unwrap();
    }

    #[test]
    fn last_words_are_kept_until_the_study_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path(), &identity(), false).unwrap();
        for (number, words) in [(1, "out of luck\n"), (2, " \n")] {
            journal.append(trial(number), &Derived::default()).unwrap();
            journal.keep_words(words).unwrap();
        }
        let (path, words) = Journal::words(folder.path(), 1).unwrap().unwrap();
        assert_eq!((path, words.as_str()), (folder.path().join("stderr/1.txt"), "out of luck\n"));
        assert_eq!(Journal::words(folder.path(), 2).unwrap(), None, "nothing but blanks is nothing");
        drop(journal);
        fs::write(folder.path().join("stderr/mine.txt"), "").unwrap();
        Journal::open(folder.path(), &identity(), true).unwrap();
        assert_eq!(Journal::words(folder.path(), 1).unwrap(), None);
        assert!(folder.path().join("stderr/mine.txt").exists());
    }

    #[test]
    fn another_study_is_refused_by_key_and_both_values() {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), 1);
        let other = Identity { effective_batch: 64, cap_bytes: None, ..identity() };
        let error = Journal::open(folder.path(), &other, false).unwrap_err().to_string();
        assert!(error.contains("effective_batch was 32 there and is 64 now"), "{error}");
        assert!(error.contains("cap_bytes was 6442450944 there and is none now"), "{error}");
        assert!(error.contains("--out") && error.contains("--fresh") && !error.contains("model was"), "{error}");
        assert!(Journal::open(folder.path(), &other, true).unwrap().trials().is_empty());
        fs::remove_file(folder.path().join(STUDY)).unwrap();
        assert!(Journal::open(folder.path(), &other, false).unwrap_err().to_string().contains(STUDY));
        assert!(Journal::read(&folder.path().join("none")).is_err());
    }

    proptest! {
        #[test]
        fn every_row_reads_back_to_the_same_bits(
            knobs in (0usize..3, 1usize..600, 0usize..25, 0usize..4, prop::option::of(0usize..9), prop::option::of(1usize..64)),
            outcome in 0usize..10, reason in "\\PC{0,40}", bytes in any::<[u64; 4]>(), evaluation in any::<Option<u64>>(),
            micro in prop::collection::vec(prop::num::f64::POSITIVE, 0..5), floats in any::<[f64; 3]>(),
            oom in any::<(Option<u64>, Option<u64>, Option<u64>)>(), wall in prop::num::f64::POSITIVE, purpose in 0usize..6,
        ) {
            let outcome = Outcome::ALL[outcome];
            let measurement = Measurement {
                peak_bytes: bytes[0], weight_bytes: bytes[1], gradient_bytes: bytes[2], optimizer_bytes: bytes[3],
                optimizer_seconds: micro.iter().rev().copied().collect(), micro_seconds: micro,
                loss: floats[0], parameter_sum: floats[1], evaluation_peak_bytes: evaluation, layers: 6,
                setup_seconds: floats[2], in_use_peak_bytes: evaluation.map(|bytes| bytes / 2),
                context_bytes: oom.0, cap_hold: oom.1.map(|n| [CapHold::Allocator, CapHold::Ballast, CapHold::Reserve][(n % 3) as usize]),
            };
            let record = OomRecord { requested: oom.0, live: oom.1, cap: oom.2, text: reason.clone() };
            let trial = Trial {
                number: 1,
                knobs: Knobs {
                    precision: Precision::ALL[knobs.0], micro_batch: knobs.1, checkpoint_layers: knobs.2,
                    optimizer: OptimizerKind::ALL[knobs.3], frozen_layers: knobs.4, lora_rank: knobs.5,
                },
                purpose: Purpose::ALL[purpose],
                attempt: Attempt {
                    outcome, reason, wall_seconds: wall,
                    measurement: (outcome == Outcome::Fit).then_some(measurement),
                    oom: (outcome == Outcome::Oom && record != OomRecord::default()).then_some(record),
                },
                unix_seconds: bytes[0],
            };
            let header = StringRecord::from(COLUMNS.to_vec());
            let line = line(&row::write(&trial, &Derived::default()));
            prop_assert_eq!(line.matches('\n').count(), 1);
            let read = row::read(&header, &record_of(&line)).unwrap();
            prop_assert_eq!(format!("{read:?}"), format!("{trial:?}"));
        }
    }

    fn record_of(line: &str) -> StringRecord {
        record(line.as_bytes()).unwrap()
    }
}
