//! One search in the driver: a first look at the model, then the study, then `best.toml`.
//!
//! Nothing is known of a user's model but its knobs, so its smallest configuration is measured first, outside the cap.
//! What it weighs shapes what the study expects, never what it decides; and where nothing fits, it says what would be
//! needed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::no_answer::NoAnswer;
use super::role::{self, MARK_VAR};
use super::tune::{Trials, Tune, Voice};
use super::workload::Workload;
use crate::device::{describe, meter, select};
use crate::plan::bounds::{BATCH, BYTES, SEED, within};
use crate::plan::{ByteSize, Knobs, Outcome, files};
use crate::probe::devices::Available;
use crate::probe::interrupt::Caught;
use crate::probe::protocol::{Attempt, Effort, Job, Measurement, ModelSource, PROTOCOL, ProbeSpec, Shapes, Task};
use crate::probe::{Executor, LocalProcess};
use crate::report::{console, terminal};
use crate::study::answer::{Answer, Verdict};
use crate::study::best::{Best, Model, Setting};
use crate::study::driver::{self, Limits, Observer};
use crate::study::identity::Identity;
use crate::study::journal::{BEST, Journal};
use crate::study::problem::{Grid, Problem, SizeHint};
use crate::study::row::Derived;
use crate::study::shortfall::Shortfall;
use crate::study::trial::{Request, Trial};

/// The first look's file name inside the folder of a study.
const SURVEY: &str = "survey.toml";

/// The line that a program lacks whose memory isn't counted.
const METER_LINE: &str = "#[global_allocator] static METER: autofit::Meter = autofit::Meter::new();";

/// A model's own rows have no length that autofit knows.
const SHAPES: Shapes = Shapes { longest: 1, typical: Vec::new(), distinct: None, rows: Vec::new() };

/// Micro-batches tried at first sight where the smallest give NaN, as a normalisation over one sample does.
const FIRST_LOOKS: usize = 3;

/// Searches to the end.
pub(super) fn run<W: Workload>(tune: Tune<W>) -> Result<Answer> {
    let caught = match tune.interrupt {
        Some(_) => None,
        None => Some(Caught::new().context("can't catch Ctrl-C: give a flag of your own by `interrupt`")?),
    };
    static NEVER: AtomicBool = AtomicBool::new(false);
    let flag = tune.interrupt.or(caught.as_ref().map(Caught::flag)).unwrap_or(&NEVER);
    Search::prepare(tune, flag)?.run()
}

/// A search about to run.
struct Search {
    name: String,
    layers: usize,
    problem: Problem,
    device: String,
    /// Bytes of its memory that nobody used at the start.
    free: Option<u64>,
    seed: u64,
    started: Instant,
    budget: Option<Duration>,
    interrupted: &'static AtomicBool,
    journal: Journal,
    prober: Prober,
    voice: Voice,
}

impl Search {
    fn prepare<W: Workload>(tune: Tune<W>, interrupted: &'static AtomicBool) -> Result<Self> {
        let started = Instant::now();
        let (name, axes) = (tune.workload.name(), tune.workload.axes());
        ensure!(!name.trim().is_empty(), "a workload needs a name: Workload::name gave none");
        within(tune.effective_batch, 1..=BATCH)
            .map_err(|error| anyhow!("{name}: effective_batch({}): {error}", tune.effective_batch))?;
        // What TOML can't hold could not be written down at the end.
        within(tune.seed, 0..=SEED).map_err(|error| anyhow!("{name}: seed({}): {error}", tune.seed))?;
        let cap = tune.cap.with_context(|| format!("{name}: say how much memory training may use: .vram(\"6G\")?"))?;
        within(cap, 1..=BYTES).map_err(|error| anyhow!("{name}: vram_bytes({cap}): {error}"))?;
        let named = select::named(&tune.device)?.map(|selected| selected.name);
        let program = std::env::current_exe().context("the system does not say where this program lies")?;
        let mut executor = LocalProcess::new(program, tune.arguments.clone())
            .env(MARK_VAR, role::mark(&tune.workload))
            .interrupt(interrupted)
            .until(tune.budget.and_then(|budget| started.checked_add(budget)))
            .workers(tune.workers);
        let available = Available { kinds: select::built_in(), cpu: describe::cpu() };
        let device = available.choose(named.as_deref(), &mut executor).with_context(|| name.clone())?.description;
        ensure!(
            device.name != select::CPU || meter::installed(),
            "{name}: on the CPU, memory is what this program's allocator counts, and it has none that counts. Add this \
             line to the program, outside of any function:\n\n    {METER_LINE}\n"
        );
        let mut space = axes.space(&name)?;
        space.keep_precisions(&device.precisions)?;
        // A model without checkpointing is one layer that is always kept.
        let layers = axes.layers().max(1);
        let blank = SizeHint::measured(layers, &Knobs::new(space.precision[0], 1, 0), &Measurement::default());
        let problem = Problem {
            effective_batch: tune.effective_batch,
            max_length: SHAPES.longest,
            cap_bytes: Some(cap),
            size: blank,
            smaller: Vec::new(),
            space,
        };
        let folder = tune.folder.clone().unwrap_or_else(|| default_folder(&name, cap));
        let identity = identity(&tune, &device.name, &problem);
        let journal = Journal::open(&folder, &identity, tune.trials == Trials::Forget).context(
            "opening the study (in a program, `.results(folder)` stands for --out, and `.fresh()` for --fresh)",
        )?;
        if tune.trials == Trials::Forget {
            forget(&folder.join(SURVEY))?;
        }
        let prober = Prober {
            executor,
            model: ModelSource::Program(name.clone()),
            device: device.name.clone(),
            effective_batch: tune.effective_batch,
            seed: tune.seed,
            cap,
            deadline: tune.deadline,
            words: String::new(),
        };
        let (free, device) = (device.free_bytes, device.name);
        let (seed, budget, voice) = (tune.seed, tune.budget, tune.voice);
        let layers = axes.layers();
        Ok(Search { name, layers, problem, device, free, seed, started, budget, interrupted, journal, prober, voice })
    }

    fn run(mut self) -> Result<Answer> {
        let started = self.started;
        let clock = move || started.elapsed();
        let (knobs, survey) = self.survey()?;
        self.problem.size = SizeHint::measured(self.problem.size.layers, &knobs, &survey);
        let limits = Limits { budget: self.budget, interrupted: self.interrupted, elapsed: &clock };
        let mut narrator = Narrator { effective_batch: self.problem.effective_batch, layers: self.layers };
        let observer: &mut dyn Observer = match &mut self.voice {
            Voice::Silent => &mut (),
            Voice::Stderr => &mut narrator,
            Voice::Listener(observer) => observer.as_mut(),
        };
        let verdict = driver::run(self.problem.clone(), &mut self.journal, &mut self.prober, observer, &limits)?;
        if let Some(answer) = verdict.answer() {
            self.write(answer)?;
        }
        self.conclude(verdict, &survey)
    }

    /// The first look at the model, read back if an earlier run had one.
    fn survey(&mut self) -> Result<(Knobs, Measurement)> {
        let path = self.journal.folder().join(SURVEY);
        if path.exists() {
            let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let read = toml::from_str::<Survey>(&text);
            let survey = read.with_context(|| format!("{} is damaged: begin anew (.fresh())", path.display()))?;
            return Ok((survey.knobs, survey.measured));
        }
        if let Voice::Stderr = self.voice {
            console::talk(&format!(
                "  0  a first look at {}: its smallest configuration, outside the cap\n",
                self.name
            ));
        }
        let (knobs, measured) = self.look()?;
        let survey = Survey { knobs, measured };
        let head = "# The smallest configuration, measured outside the cap. Written by autofit.\n";
        files::write_whole(&path, &format!("{head}{}", toml::to_string(&survey).context("writing the first look")?))?;
        Ok((knobs, survey.measured))
    }

    fn look(&mut self) -> Result<(Knobs, Measurement)> {
        let grid = Grid::new(&self.problem)?;
        // More than the cap, so that it can be told what would be needed; less than would bring the machine to its knees.
        let cap = self.free.map(|free| self.prober.cap.max(free / 10 * 9));
        let mut reason = String::from("there is no configuration to look at");
        for &branch in &grid.branches {
            for &micro in grid.micros.iter().take(FIRST_LOOKS) {
                let knobs = Knobs { micro_batch: micro, ..grid.smallest(branch) };
                let effort = Effort { warmup: 0, min_timed: 1, max_timed: 1, seconds: 0.0, evaluate: false };
                let attempt = self.prober.ask(knobs, effort, cap);
                reason = format!("the first look failed at {knobs} ({}): {}", attempt.outcome, attempt.reason);
                match (attempt.outcome, attempt.measurement) {
                    (Outcome::Fit, Some(measured)) => return Ok((knobs, measured)),
                    (Outcome::Interrupted, _) if self.interrupted.load(SeqCst) => {
                        bail!(NoAnswer::Interrupted { best: None })
                    }
                    (Outcome::Interrupted, _) => bail!(NoAnswer::OutOfTime),
                    (Outcome::Nan, _) => {}
                    (Outcome::Unsupported, _) => break,
                    (Outcome::Garbage, _) => {
                        reason += " (a worker is this program, started again with the arguments of \
                                   `worker_arguments`: does it come to `run`?)";
                        bail!(NoAnswer::Failed { reason })
                    }
                    _ => bail!(NoAnswer::Failed { reason }),
                }
            }
        }
        bail!(NoAnswer::Failed { reason })
    }

    fn write(&self, answer: &Answer) -> Result<()> {
        let setting = Setting {
            model: Model {
                source: ModelSource::Program(self.name.clone()),
                repository: None,
                revision: None,
                num_labels: 1,
            },
            data: None,
            device: self.device.clone(),
            seed: self.seed,
            autofit: env!("CARGO_PKG_VERSION").into(),
            framework: format!("burn {}", crate::model::BURN_VERSION),
            unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        };
        Best::new(&self.problem, self.journal.trials(), answer, setting).write(&self.journal.folder().join(BEST))
    }

    fn conclude(&self, verdict: Verdict, survey: &Measurement) -> Result<Answer> {
        let (effective_batch, layers) = (self.problem.effective_batch, self.layers);
        Err(match verdict {
            Verdict::Found(answer) | Verdict::OutOfTime { best: Some(answer) } => return Ok(answer),
            Verdict::OutOfTime { best: None } => NoAnswer::OutOfTime.into(),
            Verdict::Interrupted { best } => NoAnswer::Interrupted { best: best.map(Box::new) }.into(),
            Verdict::Failed { reason } => NoAnswer::Failed { reason }.into(),
            Verdict::NothingFits(shortfall) => {
                let shortfall = Box::new(as_measured(shortfall, survey));
                NoAnswer::NothingFits { shortfall, effective_batch, layers }.into()
            }
        })
    }
}

/// The shortfall in the bytes of the first look, which are better than any guess, and without the cures of encoders.
fn as_measured(shortfall: Shortfall, survey: &Measurement) -> Shortfall {
    let fixed = survey.weight_bytes + survey.gradient_bytes + survey.optimizer_bytes;
    let needed_bytes = survey.peak_bytes.max(shortfall.needed_bytes.min(shortfall.cap_bytes.unwrap_or(0) + 1));
    Shortfall {
        needed_bytes,
        weight_bytes: survey.weight_bytes,
        gradient_bytes: survey.gradient_bytes,
        optimizer_bytes: survey.optimizer_bytes,
        activation_bytes: needed_bytes.saturating_sub(fixed),
        cures: Vec::new(),
        ..shortfall
    }
}

/// `survey.toml`.
#[derive(serde::Serialize, serde::Deserialize)]
struct Survey {
    knobs: Knobs,
    measured: Measurement,
}

fn forget(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// `results/mixer-64.0MiB`: the name as far as it makes a file name.
fn default_folder(name: &str, cap: u64) -> PathBuf {
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = name.trim_start_matches('.').chars().map(plain).collect();
    PathBuf::from("results").join(format!("{name}-{}", ByteSize(cap).to_string().replace(' ', "")))
}

fn identity<W: Workload>(tune: &Tune<W>, device: &str, problem: &Problem) -> Identity {
    let model = format!("{} {}", tune.workload.name(), tune.workload.identity());
    Identity {
        model: model.trim_end().to_string(),
        config_digest: None,
        weights_digest: None,
        rows_digest: None,
        num_labels: 1,
        longest: SHAPES.longest,
        lengths_digest: Identity::lengths(&SHAPES),
        max_length: problem.max_length,
        effective_batch: tune.effective_batch,
        device: device.to_string(),
        cap_bytes: problem.cap_bytes,
        space_digest: Identity::space(&problem.space),
        seed: tune.seed,
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

/// Probes by workers that are this program.
struct Prober {
    executor: LocalProcess,
    model: ModelSource,
    device: String,
    effective_batch: usize,
    seed: u64,
    cap: u64,
    deadline: Duration,
    /// The end of the standard error of the last probe's worker.
    words: String,
}

impl Prober {
    fn ask(&mut self, knobs: Knobs, effort: Effort, cap_bytes: Option<u64>) -> Attempt {
        let spec = ProbeSpec {
            model: self.model.clone(),
            num_labels: 1,
            knobs,
            effective_batch: self.effective_batch,
            shapes: SHAPES,
            effort,
            seed: self.seed,
        };
        let job = Job { protocol: PROTOCOL, device: self.device.clone(), cap_bytes, task: Task::Probe(spec) };
        let finished = self.executor.run(&job, self.deadline, &mut |_| {});
        self.words = finished.stderr;
        finished.attempt
    }
}

impl driver::Prober for Prober {
    fn probe(&mut self, request: &Request) -> Result<Attempt> {
        Ok(self.ask(request.knobs, request.effort, Some(self.cap)))
    }

    fn last_words(&self) -> &str {
        &self.words
    }
}

/// Tells on standard error.
struct Narrator {
    effective_batch: usize,
    layers: usize,
}

impl Observer for Narrator {
    fn asked(&mut self, number: usize, request: &Request, expected_seconds: Option<f64>) {
        console::talk(&(terminal::asked(number, request, expected_seconds, self.effective_batch, self.layers) + "\n"));
    }

    fn told(&mut self, trial: &Trial, derived: &Derived) {
        console::talk(&(terminal::told(trial, derived) + "\n"));
    }
}
