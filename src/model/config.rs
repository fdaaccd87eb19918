//! `config.json` as Hugging Face writes it, for the three families that share one encoder layer.
//!
//! BERT and RoBERTa use the same keys; DistilBERT has its own names for most of them. The family is read from
//! `model_type` alone: guessing it from other keys (RoBERTa from `max_position_embeddings = 514`, say) goes wrong
//! on the first unusual checkpoint.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::plan::bounds;

/// Which architecture a checkpoint belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Token types, pooler with tanh, classifier.
    Bert,
    /// No token types, pre-classifier with ReLU, classifier.
    DistilBert,
    /// One token type, positions that start behind the padding index, head of its own with tanh.
    Roberta,
}

impl Family {
    /// `model_type` in `config.json`, and the prefix of the encoder's tensors in a model with a head.
    pub fn model_type(self) -> &'static str {
        match self {
            Family::Bert => "bert",
            Family::DistilBert => "distilbert",
            Family::Roberta => "roberta",
        }
    }

    /// The class of `transformers` that a saved folder is loaded with.
    pub fn architecture(self) -> &'static str {
        match self {
            Family::Bert => "BertForSequenceClassification",
            Family::DistilBert => "DistilBertForSequenceClassification",
            Family::Roberta => "RobertaForSequenceClassification",
        }
    }
}

/// Nonlinearity of the feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · Φ(x)` with the exact error function.
    Gelu,
    /// GELU's tanh approximation (`gelu_new`, `gelu_pytorch_tanh`).
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

/// Everything that decides the shape and the arithmetic of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Architecture.
    pub family: Family,
    /// Rows of the word embedding.
    pub vocab_size: usize,
    /// Width of the residual stream, d.
    pub hidden_size: usize,
    /// Encoder layers, L.
    pub layers: usize,
    /// Attention heads; divides `hidden_size`.
    pub heads: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Rows of the position embedding.
    pub max_positions: usize,
    /// Rows of the token-type embedding; 0 where there is none.
    pub token_types: usize,
    /// Token id that pads.
    pub pad_token_id: u32,
    /// Epsilon of every LayerNorm.
    pub layer_norm_eps: f64,
    /// Nonlinearity of the feed-forward block.
    pub activation: Activation,
    /// Dropout probability on embeddings and on the outputs of both blocks.
    pub hidden_dropout: f64,
    /// Dropout probability on attention weights.
    pub attention_dropout: f64,
    /// Dropout probability before the classifier.
    pub head_dropout: f64,
    /// Standard deviation of randomly initialised matrices.
    pub initializer_range: f64,
    /// Class names by index; their number is the width of the classifier.
    pub labels: Vec<String>,
}

impl ModelConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// If the file can't be read, is not JSON, names another family, lacks a key or holds an impossible value.
    pub fn from_file(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("can't read {}: a model folder holds config.json as Hugging Face writes it", path.display())
        })?;
        let json: Value =
            serde_json::from_str(&text).with_context(|| format!("{} is not valid JSON", path.display()))?;
        Self::from_json(&json).with_context(|| format!("in {}", path.display()))
    }

    /// Reads the keys of the family that `model_type` names.
    ///
    /// # Errors
    /// As [`ModelConfig::from_file`], without the file.
    pub fn from_json(json: &Value) -> Result<Self> {
        let family = match json.get("model_type").and_then(Value::as_str) {
            Some("bert") => Family::Bert,
            Some("distilbert") => Family::DistilBert,
            Some("roberta" | "xlm-roberta" | "camembert") => Family::Roberta,
            Some(other) => {
                bail!("model_type \"{other}\" is not supported: autofit fine-tunes bert, distilbert and roberta")
            }
            None => bail!("there is no model_type: autofit needs it to tell bert, distilbert and roberta apart"),
        };
        if json.get("position_embedding_type").and_then(Value::as_str).is_some_and(|kind| kind != "absolute") {
            bail!("position_embedding_type is not \"absolute\", the only kind that autofit implements");
        }
        let keys = Keys { json, distil: family == Family::DistilBert };
        let roberta = usize::from(family == Family::Roberta);
        let hidden_dropout = keys.number("hidden_dropout_prob", "dropout", 0.1)?;
        let head_default = if family == Family::DistilBert { 0.2 } else { hidden_dropout };
        let config = ModelConfig {
            family,
            vocab_size: keys.count("vocab_size", "vocab_size", None)?,
            hidden_size: keys.count("hidden_size", "dim", None)?,
            layers: keys.count("num_hidden_layers", "n_layers", None)?,
            heads: keys.count("num_attention_heads", "n_heads", None)?,
            intermediate_size: keys.count("intermediate_size", "hidden_dim", None)?,
            max_positions: keys.count("max_position_embeddings", "max_position_embeddings", Some(512))?,
            token_types: match family {
                Family::DistilBert => 0,
                Family::Bert => keys.count("type_vocab_size", "", Some(2))?,
                Family::Roberta => keys.count("type_vocab_size", "", Some(1))?,
            },
            pad_token_id: u32::try_from(keys.count("pad_token_id", "pad_token_id", Some(roberta))?)
                .context("pad_token_id is too large")?,
            layer_norm_eps: keys.number("layer_norm_eps", "", if family == Family::Roberta { 1e-5 } else { 1e-12 })?,
            activation: keys.activation()?,
            hidden_dropout,
            attention_dropout: keys.number("attention_probs_dropout_prob", "attention_dropout", 0.1)?,
            head_dropout: keys.number("classifier_dropout", "seq_classif_dropout", head_default)?,
            initializer_range: keys.number("initializer_range", "initializer_range", 0.02)?,
            labels: keys.labels()?,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        for (name, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden size", self.hidden_size),
            ("number of layers", self.layers),
            ("number of heads", self.heads),
            ("intermediate size", self.intermediate_size),
            ("max_position_embeddings", self.max_positions),
        ] {
            let most = if name == "number of layers" { bounds::LAYERS } else { 1 << 24 };
            if value == 0 || value > most {
                bail!("{name} is {value}: it must lie between 1 and {most}");
            }
        }
        if self.token_types > 1 << 24 {
            bail!("type_vocab_size is {}: it must lie between 0 and {}", self.token_types, 1 << 24);
        }
        // All its sizes at their bounds are no model: 4 bytes a parameter must still be a number of bytes.
        if self.approximate_parameters() > (bounds::BYTES >> 3) as f64 {
            bail!("the sizes multiply to {:e} parameters, more than any memory holds", self.approximate_parameters());
        }
        if !self.hidden_size.is_multiple_of(self.heads) {
            bail!("the hidden size {} is not a multiple of the {} heads", self.hidden_size, self.heads);
        }
        if self.max_length() == 0 {
            bail!("max_position_embeddings {} leaves no room for a token", self.max_positions);
        }
        if self.pad_token_id as usize >= self.vocab_size {
            bail!("pad_token_id {} lies outside the vocabulary of {}", self.pad_token_id, self.vocab_size);
        }
        for (name, p) in [
            ("hidden dropout", self.hidden_dropout),
            ("attention dropout", self.attention_dropout),
            ("head dropout", self.head_dropout),
        ] {
            if !(0.0..1.0).contains(&p) {
                bail!("{name} is {p}: a probability from 0 up to (not including) 1 is needed");
            }
        }
        if !(self.layer_norm_eps.is_finite() && self.layer_norm_eps >= 0.0) {
            bail!("layer_norm_eps is {}: a small positive number is needed", self.layer_norm_eps);
        }
        Ok(())
    }

    /// The longest row, in tokens, that has a position embedding for each of its tokens.
    pub fn max_length(&self) -> usize {
        self.max_positions.saturating_sub(self.position_offset())
    }

    /// Index of the first token's position: RoBERTa's positions start behind the padding index.
    pub fn position_offset(&self) -> usize {
        match self.family {
            Family::Roberta => self.pad_token_id as usize + 1,
            Family::Bert | Family::DistilBert => 0,
        }
    }

    /// Classes of the head.
    pub fn num_labels(&self) -> usize {
        self.labels.len()
    }

    /// Parameters of the whole model with a head of `num_labels` outputs.
    pub fn parameters(&self, num_labels: usize) -> u64 {
        let (d, wide) = (self.hidden_size as u64, self.intermediate_size as u64);
        let tables = (self.vocab_size + self.max_positions + self.token_types) as u64 * d + 2 * d;
        let layer = 4 * (d * d + d) + (d * wide + wide) + (wide * d + d) + 4 * d;
        let head = d * d + d + (d + 1) * num_labels as u64;
        tables + self.layers as u64 * layer + head
    }

    /// The parameters of tables and layers, where they may be more than can be counted.
    fn approximate_parameters(&self) -> f64 {
        let [d, wide, layers] = [self.hidden_size, self.intermediate_size, self.layers].map(|size| size as f64);
        let tables = [self.vocab_size, self.max_positions, self.token_types].map(|rows| rows as f64);
        tables.iter().sum::<f64>() * d + layers * d * (4.0 * d + 2.0 * wide)
    }

    /// The same model with a head for other classes.
    pub fn with_labels(mut self, labels: Vec<String>) -> Self {
        self.labels = labels;
        self
    }

    /// Every key that `transformers` needs to rebuild this model, over what `base` (the original file) said.
    pub fn to_json(&self, base: Option<&Value>) -> Value {
        let mut out = base.and_then(Value::as_object).cloned().unwrap_or_default();
        let mut set = |key: &str, value: Value| {
            out.insert(key.to_string(), value);
        };
        let distil = self.family == Family::DistilBert;
        let name = |bert: &'static str, distil_name: &'static str| if distil { distil_name } else { bert };
        set("model_type", out_model_type(base, self.family));
        set("architectures", Value::from(vec![self.family.architecture()]));
        set("vocab_size", self.vocab_size.into());
        set(name("hidden_size", "dim"), self.hidden_size.into());
        set(name("num_hidden_layers", "n_layers"), self.layers.into());
        set(name("num_attention_heads", "n_heads"), self.heads.into());
        set(name("intermediate_size", "hidden_dim"), self.intermediate_size.into());
        set("max_position_embeddings", self.max_positions.into());
        set("pad_token_id", self.pad_token_id.into());
        set(name("hidden_act", "activation"), activation_name(self.activation).into());
        set(name("hidden_dropout_prob", "dropout"), self.hidden_dropout.into());
        set(name("attention_probs_dropout_prob", "attention_dropout"), self.attention_dropout.into());
        set(name("classifier_dropout", "seq_classif_dropout"), self.head_dropout.into());
        set("initializer_range", self.initializer_range.into());
        if !distil {
            set("type_vocab_size", self.token_types.into());
            set("layer_norm_eps", self.layer_norm_eps.into());
        }
        let ids = |i: usize| i.to_string();
        set("id2label", self.labels.iter().enumerate().map(|(i, l)| (ids(i), Value::from(l.clone()))).collect());
        set("label2id", self.labels.iter().enumerate().map(|(i, l)| (l.clone(), Value::from(i))).collect());
        // transformers derives num_labels from id2label; a stale number from the original file would contradict it.
        out.remove("num_labels");
        out.remove("torch_dtype");
        out.insert("dtype".into(), "float32".into());
        Value::Object(out)
    }
}

/// Descendants of RoBERTa keep their own name, since their tokenizers differ.
fn out_model_type(base: Option<&Value>, family: Family) -> Value {
    base.and_then(|b| b.get("model_type")).cloned().unwrap_or_else(|| family.model_type().into())
}

fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_new",
        Activation::Relu => "relu",
    }
}

/// Reads a key under the name that the family gives it.
struct Keys<'a> {
    json: &'a Value,
    distil: bool,
}

impl Keys<'_> {
    fn get(&self, bert: &'static str, distil: &'static str) -> (&'static str, Option<&Value>) {
        let name = if self.distil { distil } else { bert };
        (name, self.json.get(name).filter(|value| !value.is_null()))
    }

    fn count(&self, bert: &'static str, distil: &'static str, default: Option<usize>) -> Result<usize> {
        match (self.get(bert, distil), default) {
            ((name, Some(value)), _) => {
                let count = value.as_u64().with_context(|| format!("{name} is {value}: a whole number is needed"))?;
                usize::try_from(count).with_context(|| format!("{name} is too large"))
            }
            ((_, None), Some(default)) => Ok(default),
            ((name, None), None) => bail!("the key {name} is missing"),
        }
    }

    fn number(&self, bert: &'static str, distil: &'static str, default: f64) -> Result<f64> {
        match self.get(bert, distil) {
            (name, Some(value)) => value.as_f64().with_context(|| format!("{name} is {value}: a number is needed")),
            (_, None) => Ok(default),
        }
    }

    fn activation(&self) -> Result<Activation> {
        match self.get("hidden_act", "activation") {
            (_, None) => Ok(Activation::Gelu),
            (name, Some(value)) => match value.as_str() {
                Some("gelu" | "gelu_python") => Ok(Activation::Gelu),
                Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Ok(Activation::GeluTanh),
                Some("relu") => Ok(Activation::Relu),
                _ => bail!("{name} is {value}: autofit implements gelu, gelu_new and relu"),
            },
        }
    }

    /// Names from `id2label`, else `LABEL_0` and `LABEL_1` as Hugging Face's default of two classes has it.
    fn labels(&self) -> Result<Vec<String>> {
        let Some(map) = self.json.get("id2label").and_then(Value::as_object) else {
            let count = self.json.get("num_labels").and_then(Value::as_u64).unwrap_or(2).clamp(1, 1 << 20);
            return Ok((0..count).map(|i| format!("LABEL_{i}")).collect());
        };
        (0..map.len())
            .map(|i| {
                let name = map.get(&i.to_string()).and_then(Value::as_str);
                name.map(str::to_string).with_context(|| format!("id2label has {} entries but none for {i}", map.len()))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn distilbert_has_names_of_its_own() -> Result<()> {
        let config = ModelConfig::from_json(
            &json!({"model_type": "distilbert", "vocab_size": 100, "dim": 16, "n_layers": 2,
            "n_heads": 4, "hidden_dim": 32, "max_position_embeddings": 40, "dropout": 0.3, "seq_classif_dropout": 0.25}),
        )?;
        assert_eq!((config.hidden_size, config.layers, config.intermediate_size, config.token_types), (16, 2, 32, 0));
        assert_eq!((config.hidden_dropout, config.head_dropout, config.max_length()), (0.3, 0.25, 40));
        assert_eq!(ModelConfig::from_json(&config.to_json(None))?, config);
        Ok(())
    }

    #[test]
    fn roberta_positions_start_behind_the_padding_index() -> Result<()> {
        let config = ModelConfig::from_json(&json!({"model_type": "roberta", "vocab_size": 100, "hidden_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32, "max_position_embeddings": 514}))?;
        assert_eq!((config.position_offset(), config.max_length(), config.token_types), (2, 512, 1));
        assert_eq!(ModelConfig::from_json(&config.to_json(None))?, config);
        Ok(())
    }

    #[test]
    fn counts_parameters_as_published() {
        // transformers: sum(p.numel()) of DistilBertForSequenceClassification and BertForSequenceClassification.
        let count = |name: &str| crate::model::presets::config(name).map(|config| config.parameters(2));
        assert_eq!(count("distilbert"), Some(66_955_010));
        assert_eq!(count("bert-base"), Some(109_483_778));
    }

    #[test]
    fn says_what_is_wrong() {
        let base = json!({"model_type": "bert", "vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2,
            "num_attention_heads": 4, "intermediate_size": 32});
        let error = |key: &str, value: Value| {
            let mut changed = base.clone();
            changed[key] = value;
            format!("{:#}", ModelConfig::from_json(&changed).expect_err(key))
        };
        assert!(error("model_type", json!("gpt2")).contains("\"gpt2\" is not supported"));
        assert!(error("hidden_size", json!(null)).contains("hidden_size is missing"));
        assert!(error("hidden_size", json!(-3)).contains("whole number"));
        assert!(error("num_attention_heads", json!(3)).contains("not a multiple"));
        assert!(error("num_hidden_layers", json!(0)).contains("between 1 and"));
        assert!(error("hidden_act", json!("swish")).contains("swish"));
        assert!(error("hidden_dropout_prob", json!(1.5)).contains("probability"));
        assert!(error("position_embedding_type", json!("relative_key")).contains("absolute"));
        assert!(error("id2label", json!({"1": "a", "2": "b"})).contains("none for 0"));
    }
}
