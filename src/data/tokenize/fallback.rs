//! Tokenizers built from vocabulary files, for model folders that have no `tokenizer.json`.
//!
//! They are put together as `transformers` converts its slow BERT and RoBERTa tokenizers.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};
use tokenizers::models::bpe::BPE;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{AddedToken, Tokenizer};

/// What `tokenizer_config.json` and `special_tokens_map.json` say; either may be missing.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    config: Map<String, Value>,
    special: Map<String, Value>,
}

impl Settings {
    /// Reads both files of a model folder.
    ///
    /// # Errors
    /// If one is there but is no JSON object.
    pub fn read(folder: &Path) -> Result<Self> {
        Ok(Settings {
            config: read_json(&folder.join("tokenizer_config.json"))?,
            special: read_json(&folder.join("special_tokens_map.json"))?,
        })
    }

    /// A switch of `tokenizer_config.json`; `None` if it is absent or null.
    fn switch(&self, key: &str) -> Option<bool> {
        self.config.get(key).and_then(Value::as_bool)
    }

    /// A special token, written as a string or as an object with its `content`.
    fn token(&self, key: &str, default: &str) -> String {
        let text = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_string);
        [&self.config, &self.special]
            .iter()
            .find_map(|file| file.get(key).and_then(text))
            .unwrap_or_else(|| default.to_string())
    }
}

/// A JSON object; an empty one if there is no such file.
///
/// # Errors
/// If it can't be read or is no JSON object.
pub(super) fn read_json(path: &Path) -> Result<Map<String, Value>> {
    if !path.is_file() {
        return Ok(Map::new());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a JSON object", path.display()))
}

/// BERT's word pieces from `vocab.txt`, one token a line, ids from 0.
pub(super) fn word_pieces(folder: &Path, settings: &Settings) -> Result<Tokenizer> {
    let path = folder.join("vocab.txt");
    let failed = |error: tokenizers::Error| anyhow!("can't build a tokenizer from {}: {error}", path.display());
    let bytes = std::fs::read(&path).with_context(|| format!("can't read {}", path.display()))?;
    let unknown = settings.token("unk_token", "[UNK]");
    let vocab = WordPiece::read_bytes(&bytes).map_err(failed)?;
    let model = WordPiece::builder().vocab(vocab).unk_token(unknown.clone()).build().map_err(failed)?;
    let mut tokenizer = Tokenizer::new(model);
    let normalizer = BertNormalizer::new(
        true,
        settings.switch("tokenize_chinese_chars").unwrap_or(true),
        settings.switch("strip_accents"),
        settings.switch("do_lower_case").unwrap_or(true),
    );
    tokenizer.with_normalizer(Some(normalizer)).map_err(failed)?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    let sep = known(&tokenizer, &path, settings.token("sep_token", "[SEP]"))?;
    let cls = known(&tokenizer, &path, settings.token("cls_token", "[CLS]"))?;
    let special = [unknown, sep.0.clone(), settings.token("pad_token", "[PAD]"), cls.0.clone()];
    let special = special.into_iter().chain([settings.token("mask_token", "[MASK]")]);
    add_special(&mut tokenizer, special, None).map_err(failed)?;
    tokenizer.with_post_processor(Some(BertProcessing::new(sep, cls)));
    Ok(tokenizer)
}

/// RoBERTa's byte pairs from `vocab.json` (token → id) and `merges.txt` (pairs, the most frequent first).
pub(super) fn byte_pairs(folder: &Path, settings: &Settings) -> Result<Tokenizer> {
    let (vocab, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    let failed = |error: tokenizers::Error| {
        anyhow!("can't build a tokenizer from {} and {}: {error}", vocab.display(), merges.display())
    };
    let text = |path: &Path| path.to_str().map(str::to_string).with_context(|| format!("{path:?} is not Unicode"));
    let model = BPE::from_file(&text(&vocab)?, &text(&merges)?).build().map_err(failed)?;
    let mut tokenizer = Tokenizer::new(model);
    let prefix_space = settings.switch("add_prefix_space").unwrap_or(false);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(prefix_space, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let sep = known(&tokenizer, &vocab, settings.token("sep_token", "</s>"))?;
    let cls = known(&tokenizer, &vocab, settings.token("cls_token", "<s>"))?;
    let special = [cls.0.clone(), settings.token("pad_token", "<pad>"), sep.0.clone()];
    let special = special.into_iter().chain([settings.token("unk_token", "<unk>")]);
    add_special(&mut tokenizer, special, Some(settings.token("mask_token", "<mask>"))).map_err(failed)?;
    let processor = RobertaProcessing::new(sep, cls).trim_offsets(true).add_prefix_space(prefix_space);
    tokenizer.with_post_processor(Some(processor));
    Ok(tokenizer)
}

/// A special token with its id.
fn known(tokenizer: &Tokenizer, path: &Path, token: String) -> Result<(String, u32)> {
    match tokenizer.token_to_id(&token) {
        Some(id) => Ok((token, id)),
        None => bail!(
            "{} lacks the special token {token}, which every row needs: is it the vocabulary of a BERT-like model?",
            path.display()
        ),
    }
}

/// Marks tokens as special, so that they are not taken apart where a text spells them. Tokens that the vocabulary
/// lacks stay unknown: giving them new ids would reach behind the model's embedding.
fn add_special(
    tokenizer: &mut Tokenizer,
    tokens: impl Iterator<Item = String>,
    mask: Option<String>,
) -> tokenizers::Result<()> {
    let plain = tokens.map(|token| AddedToken::from(token, true));
    // RoBERTa's mask swallows the blank before it.
    let mask = mask.map(|token| AddedToken::from(token, true).lstrip(true));
    let present: Vec<AddedToken> =
        plain.chain(mask).filter(|token| tokenizer.token_to_id(&token.content).is_some()).collect();
    tokenizer.add_special_tokens(present)?;
    Ok(())
}
