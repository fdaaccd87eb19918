//! The answer in the words of other training tools: their documented names for the same settings, and what does not
//! carry over.
//!
//! Settings go to one text that the tool (or a program that calls it) reads; notes are kept apart, since some of the
//! formats have no comments.

use std::fmt::Write;
use std::str::FromStr;

use crate::plan::text::{one_line, yaml_string};
use crate::plan::{ByteSize, LORA_ALPHA, OptimizerKind, Precision};
use crate::study::best::{Best, Config};
use crate::study::suggest;

/// A tool that settings are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `TrainingArguments` of Hugging Face Transformers, Python.
    Hf,
    /// `Accelerator` of Hugging Face Accelerate, Python.
    Accelerate,
    /// `ds_config.json` of DeepSpeed.
    DeepSpeed,
    /// `Trainer` of PyTorch Lightning, Python.
    Lightning,
    /// A configuration of Axolotl, YAML.
    Axolotl,
    /// Environment variables, one `NAME=value` a line.
    Env,
}

impl Target {
    /// Every target.
    pub const ALL: [Target; 6] =
        [Target::Hf, Target::Accelerate, Target::DeepSpeed, Target::Lightning, Target::Axolotl, Target::Env];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Target::Hf => "hf",
            Target::Accelerate => "accelerate",
            Target::DeepSpeed => "deepspeed",
            Target::Lightning => "lightning",
            Target::Axolotl => "axolotl",
            Target::Env => "env",
        }
    }

    /// What a comment begins with, where the format has comments. The environment's has none: shells that are typed into
    /// may take `#` for a command, and expand what stands after it.
    fn comment(self) -> Option<&'static str> {
        (!matches!(self, Target::DeepSpeed | Target::Env)).then_some("# ")
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = || Target::ALL.into_iter().map(Target::name);
        Target::ALL.into_iter().find(|target| target.name() == text).ok_or_else(|| {
            let list = names().collect::<Vec<_>>().join(", ");
            format!("unknown tool '{text}'{}: use one of {list}", suggest::hint(text, names()))
        })
    }
}

/// Learning rate where a format wants one: the default of `autofit run`.
const LEARNING_RATE: &str = "5e-5";
/// Largest norm of the gradient: the default of `autofit run`.
const CLIP_NORM: &str = "1.0";

/// Settings for a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// What the tool reads, with the notes as comments where its format has comments.
    pub text: String,
    /// What does not carry over, one sentence each.
    pub notes: Vec<String>,
    /// Whether `text` holds the notes.
    pub notes_inside: bool,
}

/// The answer in the words of a tool.
pub fn export(best: &Best, target: Target) -> Export {
    let config = &best.config;
    let settings = match target {
        Target::Hf => hf(config),
        Target::Accelerate => accelerate(config),
        Target::DeepSpeed => deepspeed(config),
        Target::Lightning => lightning(config),
        Target::Axolotl => axolotl(best),
        Target::Env => env(best),
    };
    // A note ends with its line, whatever was put into it.
    let notes: Vec<String> = notes(best, target).iter().map(|note| one_line(note).into_owned()).collect();
    let mut text = String::new();
    if let Some(mark) = target.comment() {
        notes.iter().for_each(|note| text += &format!("{mark}{note}\n"));
    }
    Export { text: text + &settings, notes, notes_inside: target.comment().is_some() }
}

/// What a person should know before relying on the settings elsewhere.
fn notes(best: &Best, target: Target) -> Vec<String> {
    let config = &best.config;
    let mut notes = vec![format!(
        "Measured by autofit on {}: {} at the peak, {:.2} samples/s. Memory and speed differ in other tools: leave a margin.",
        best.study.device,
        ByteSize(best.measured.peak_bytes),
        best.measured.samples_per_second
    )];
    if target == Target::Env {
        return notes;
    }
    let product = config.micro_batch * config.accumulation;
    if product != config.effective_batch {
        notes.push(format!(
            "autofit cuts {} samples into {} nearly equal parts; here every part has {}, so a step has {product} samples.",
            config.effective_batch, config.accumulation, config.micro_batch
        ));
    }
    notes.push(format!("For one device: on N devices a step has N times {product} samples."));
    if config.checkpoint_layers > 0 {
        notes.push(match target {
            Target::Hf | Target::Axolotl => format!(
                "autofit recomputes {} layers; gradient_checkpointing there recomputes all of them: less memory, more time.",
                config.checkpoint_layers
            ),
            _ => format!(
                "autofit recomputes {} layers; switch that on in the model: model.gradient_checkpointing_enable() recomputes all.",
                config.checkpoint_layers
            ),
        });
    }
    if target != Target::Axolotl {
        notes.push(format!(
            "Truncate rows to {} tokens in the tokenizer (truncation=True, max_length={0}).",
            config.max_length
        ));
    }
    if let Some(frozen) = config.frozen_layers {
        notes.push(format!("Freeze the embeddings and the lowest {frozen} layers yourself (requires_grad_(False))."));
    }
    if let (Some(rank), true) = (config.lora_rank, target != Target::Axolotl) {
        notes.push(format!(
            "Wrap the model with peft's LoraConfig(r={rank}, lora_alpha={LORA_ALPHA}, task_type=\"SEQ_CLS\"), which adapts \
             the query and value projections; autofit trains the whole head (modules_to_save)."
        ));
    }
    notes.extend(optimizer_note(config.optimizer, target).map(String::from));
    if target == Target::Axolotl {
        notes.push(
            "Axolotl is made for generative models: for an encoder take these numbers as a starting point.".into(),
        );
    }
    notes
}

fn optimizer_note(optimizer: OptimizerKind, target: Target) -> Option<&'static str> {
    match (optimizer, target) {
        (OptimizerKind::Lion, Target::Hf | Target::Axolotl) => Some("lion_32bit needs the bitsandbytes package."),
        (OptimizerKind::Sgd, Target::Hf | Target::Axolotl) => {
            Some("autofit's SGD has momentum 0.9; this one has none: pass your own optimizer to keep it.")
        }
        (OptimizerKind::Adafactor, Target::DeepSpeed) => {
            Some("DeepSpeed has no Adafactor of its own: pass the optimizer to deepspeed.initialize.")
        }
        (OptimizerKind::AdamW, Target::Accelerate | Target::Lightning) => Some("Optimizer: torch.optim.AdamW."),
        (OptimizerKind::Sgd, Target::Accelerate | Target::Lightning) => {
            Some("Optimizer: torch.optim.SGD with momentum=0.9.")
        }
        (OptimizerKind::Adafactor, Target::Accelerate | Target::Lightning) => {
            Some("Optimizer: transformers.Adafactor with scale_parameter=False and relative_step=False.")
        }
        (OptimizerKind::Lion, Target::Accelerate | Target::Lightning) => {
            Some("Optimizer: Lion, from a package of your choice.")
        }
        _ => None,
    }
}

fn python(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The name of an optimizer in Transformers and Axolotl (`OptimizerNames`).
fn hf_optimizer(optimizer: OptimizerKind) -> &'static str {
    match optimizer {
        OptimizerKind::AdamW => "adamw_torch",
        OptimizerKind::Adafactor => "adafactor",
        OptimizerKind::Lion => "lion_32bit",
        OptimizerKind::Sgd => "sgd",
    }
}

fn hf(config: &Config) -> String {
    format!(
        "from transformers import TrainingArguments\n\n\
         training_args = TrainingArguments(\n\
         \x20   output_dir=\"out\",\n\
         \x20   per_device_train_batch_size={},\n\
         \x20   gradient_accumulation_steps={},\n\
         \x20   bf16={},\n\
         \x20   fp16={},\n\
         \x20   gradient_checkpointing={},\n\
         \x20   optim=\"{}\",\n\
         \x20   learning_rate={LEARNING_RATE},\n\
         \x20   max_grad_norm={CLIP_NORM},\n\
         )\n",
        config.micro_batch,
        config.accumulation,
        python(config.precision == Precision::Bf16),
        python(config.precision == Precision::Fp16),
        python(config.checkpoint_layers > 0),
        hf_optimizer(config.optimizer)
    )
}

fn accelerate(config: &Config) -> String {
    let precision = match config.precision {
        Precision::Fp32 => "no",
        Precision::Bf16 => "bf16",
        Precision::Fp16 => "fp16",
    };
    format!(
        "from accelerate import Accelerator\nfrom torch.utils.data import DataLoader\n\n\
         accelerator = Accelerator(mixed_precision=\"{precision}\", gradient_accumulation_steps={})\n\
         loader = DataLoader(dataset, batch_size={}, shuffle=True)\n\
         # In the loop: with accelerator.accumulate(model): ... accelerator.clip_grad_norm_(model.parameters(), {CLIP_NORM})\n",
        config.accumulation, config.micro_batch
    )
}

fn deepspeed(config: &Config) -> String {
    let mut json = serde_json::json!({
        "train_micro_batch_size_per_gpu": config.micro_batch,
        "gradient_accumulation_steps": config.accumulation,
        "train_batch_size": config.micro_batch * config.accumulation,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": config.precision == Precision::Bf16},
        // A scale of 0 is DeepSpeed's word for a dynamic one; it begins at 2^16, as here.
        "fp16": {"enabled": config.precision == Precision::Fp16, "loss_scale": 0, "initial_scale_power": 16},
    });
    let optimizer = match config.optimizer {
        OptimizerKind::AdamW => {
            Some(serde_json::json!({"type": "AdamW", "params": {"lr": 5e-5, "weight_decay": 0.01}}))
        }
        OptimizerKind::Lion => Some(serde_json::json!({"type": "Lion", "params": {"lr": 5e-5, "weight_decay": 0.01}})),
        OptimizerKind::Sgd => Some(serde_json::json!({"type": "SGD", "params": {"lr": 5e-5, "momentum": 0.9}})),
        OptimizerKind::Adafactor => None,
    };
    if let Some(optimizer) = optimizer {
        json["optimizer"] = optimizer;
    }
    format!("{json:#}\n")
}

fn lightning(config: &Config) -> String {
    let precision = match config.precision {
        Precision::Fp32 => "32-true",
        Precision::Bf16 => "bf16-mixed",
        Precision::Fp16 => "16-mixed",
    };
    format!(
        "from lightning.pytorch import Trainer\nfrom torch.utils.data import DataLoader\n\n\
         trainer = Trainer(\n\
         \x20   accelerator=\"auto\",\n\
         \x20   devices=1,\n\
         \x20   precision=\"{precision}\",\n\
         \x20   accumulate_grad_batches={},\n\
         \x20   gradient_clip_val={CLIP_NORM},\n\
         )\n\
         loader = DataLoader(dataset, batch_size={}, shuffle=True)\n",
        config.accumulation, config.micro_batch
    )
}

fn axolotl(best: &Best) -> String {
    let config = &best.config;
    let mut out = format!(
        "base_model: {}\nmicro_batch_size: {}\ngradient_accumulation_steps: {}\nsequence_len: {}\nbf16: {}\nfp16: {}\n\
         gradient_checkpointing: {}\noptimizer: {}\nlearning_rate: {LEARNING_RATE}\nmax_grad_norm: {CLIP_NORM}\n",
        yaml_string(&best.study.model),
        config.micro_batch,
        config.accumulation,
        config.max_length,
        config.precision == Precision::Bf16,
        config.precision == Precision::Fp16,
        config.checkpoint_layers > 0,
        hf_optimizer(config.optimizer)
    );
    if let Some(rank) = config.lora_rank {
        let _ = write!(out, "adapter: lora\nlora_r: {rank}\nlora_alpha: {LORA_ALPHA}\n");
    }
    out
}

fn env(best: &Best) -> String {
    let config = &best.config;
    let mut out = format!(
        "AUTOFIT_MICRO_BATCH={}\nAUTOFIT_ACCUMULATION={}\nAUTOFIT_EFFECTIVE_BATCH={}\nAUTOFIT_PRECISION={}\n\
         AUTOFIT_CHECKPOINT_LAYERS={}\nAUTOFIT_MAX_LENGTH={}\nAUTOFIT_OPTIMIZER={}\nAUTOFIT_PEAK_BYTES={}\n",
        config.micro_batch,
        config.accumulation,
        config.effective_batch,
        config.precision,
        config.checkpoint_layers,
        config.max_length,
        config.optimizer,
        best.measured.peak_bytes
    );
    if let Some(frozen) = config.frozen_layers {
        let _ = writeln!(out, "AUTOFIT_FROZEN_LAYERS={frozen}");
    }
    if let Some(rank) = config.lora_rank {
        let _ = writeln!(out, "AUTOFIT_LORA_RANK={rank}");
    }
    out
}
