//! Models by their usual names, so that a shape can be probed without any file.

use super::config::{Activation, Family, ModelConfig};

/// Name, family, vocabulary, hidden size, layers, heads, intermediate size, positions.
type Shape = (&'static str, Family, usize, usize, usize, usize, usize, usize);

/// The published shapes; `minilm` is all-MiniLM-L6-v2, `tinybert` is TinyBERT_General_4L_312D.
const SHAPES: [Shape; 7] = [
    ("tinybert", Family::Bert, 30_522, 312, 4, 12, 1_200, 512),
    ("minilm", Family::Bert, 30_522, 384, 6, 12, 1_536, 512),
    ("distilbert", Family::DistilBert, 30_522, 768, 6, 12, 3_072, 512),
    ("bert-base", Family::Bert, 30_522, 768, 12, 12, 3_072, 512),
    ("roberta-base", Family::Roberta, 50_265, 768, 12, 12, 3_072, 514),
    ("bert-large", Family::Bert, 30_522, 1_024, 24, 16, 4_096, 512),
    ("roberta-large", Family::Roberta, 50_265, 1_024, 24, 16, 4_096, 514),
];

/// Preset names, the smallest model first.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|shape| shape.0)
}

/// The configuration of a preset with two classes, or `None` for an unknown name.
pub fn config(name: &str) -> Option<ModelConfig> {
    let &(_, family, vocab_size, hidden_size, layers, heads, intermediate_size, max_positions) =
        SHAPES.iter().find(|shape| shape.0 == name)?;
    let roberta = family == Family::Roberta;
    Some(ModelConfig {
        family,
        vocab_size,
        hidden_size,
        layers,
        heads,
        intermediate_size,
        max_positions,
        token_types: match family {
            Family::Bert => 2,
            Family::DistilBert => 0,
            Family::Roberta => 1,
        },
        pad_token_id: u32::from(roberta),
        layer_norm_eps: if roberta { 1e-5 } else { 1e-12 },
        activation: Activation::Gelu,
        hidden_dropout: 0.1,
        attention_dropout: 0.1,
        head_dropout: if family == Family::DistilBert { 0.2 } else { 0.1 },
        initializer_range: 0.02,
        labels: vec!["LABEL_0".into(), "LABEL_1".into()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_valid_configuration() {
        for name in names() {
            let preset = config(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(ModelConfig::from_json(&preset.to_json(None)).ok(), Some(preset), "{name}");
        }
        assert_eq!(config("gpt2"), None);
    }
}
