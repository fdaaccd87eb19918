//! Texts → token ids, truncated as Hugging Face truncates and never padded.
//!
//! A saved `tokenizer.json` may fix padding and truncation (MiniLM's fixes both at 128): they are replaced. Truncation
//! is the library's `longest_first` with the length that was asked for, but drops at once what is cut off: the library
//! keeps it, and joins every rest of one text of a pair with every rest of the other, which for two texts with very
//! long words exhausts the machine.

mod fallback;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, Token, TruncationDirection, TruncationParams};

use super::source::Example;
use super::suggest;

/// One row for the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids, special tokens included; at most the tokenizer's `max_length` of them.
    pub ids: Vec<u32>,
    /// Segment of each token: 0, or 1 in the second text of a pair (always 0 in RoBERTa).
    pub type_ids: Vec<u8>,
    /// Whether the text was longer and has been cut.
    pub truncated: bool,
}

/// A tokenizer with a maximum length.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    /// Cuts every text to `max_length` and adds no special tokens.
    inner: tokenizers::Tokenizer,
    /// Joins pairs and adds special tokens.
    processor: Option<PostProcessorWrapper>,
    path: PathBuf,
    max_length: usize,
}

/// Rows that a thread takes at a time when many are encoded.
const BLOCK: usize = 32;

impl Tokenizer {
    /// Loads the tokenizer of a model folder: `tokenizer.json`, else `vocab.txt` (BERT, DistilBERT), else
    /// `vocab.json` with `merges.txt` (RoBERTa).
    ///
    /// # Errors
    /// If the folder has none of them, or as [`Tokenizer::from_file`].
    pub fn from_folder(folder: &Path, max_length: usize) -> Result<Self> {
        let has = |name: &str| folder.join(name).is_file();
        let tokenizer_json = folder.join("tokenizer.json");
        if has("tokenizer.json") {
            return Self::from_file(&tokenizer_json, max_length);
        }
        let settings = fallback::Settings::read(folder)?;
        let (path, inner) = if has("vocab.txt") {
            (folder.join("vocab.txt"), fallback::word_pieces(folder, &settings)?)
        } else if has("vocab.json") && has("merges.txt") {
            (folder.join("vocab.json"), fallback::byte_pairs(folder, &settings)?)
        } else {
            bail!(
                "there is no {}, nor a vocab.txt (BERT, DistilBERT) or vocab.json with merges.txt (RoBERTa) to build \
                 it from: save it there with `AutoTokenizer.from_pretrained(…).save_pretrained(…)`",
                tokenizer_json.display()
            );
        };
        Self::wrap(inner, path, max_length)
    }

    /// Loads a `tokenizer.json`. The side on which texts are cut follows `tokenizer_config.json` beside it, else the
    /// file itself; it is the end unless they say otherwise.
    ///
    /// # Errors
    /// If the file can't be read or understood, or `max_length` leaves no room for text.
    pub fn from_file(path: &Path, max_length: usize) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| {
            format!(
                "can't read {}: a model folder holds tokenizer.json; without it a vocab.txt (BERT, DistilBERT) or \
                 vocab.json with merges.txt (RoBERTa) beside it is used",
                path.display()
            )
        })?;
        let inner = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|error| anyhow!("{} is not a tokenizer as Hugging Face saves it: {error}", path.display()))?;
        Self::wrap(inner, path.to_path_buf(), max_length)
    }

    fn wrap(mut inner: tokenizers::Tokenizer, path: PathBuf, max_length: usize) -> Result<Self> {
        let saved = inner.get_truncation().map(|params| params.direction);
        let direction = match side(&path)? {
            Some(direction) => direction,
            None => saved.unwrap_or_default(),
        };
        inner.with_padding(None);
        let processor = inner.get_post_processor().cloned();
        inner.with_post_processor(None::<PostProcessorWrapper>);
        // As long as a whole row, although special tokens leave less room: with this length the library, too, decides
        // when to stop reading a text, and so which text of a long pair it takes for the longer one.
        let params = TruncationParams { max_length, direction, ..TruncationParams::default() };
        inner.with_truncation(Some(params)).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        let tokenizer = Tokenizer { inner, processor, path, max_length };
        tokenizer.check_room(false)?;
        Ok(tokenizer)
    }

    /// The file that it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The most tokens in a row, special tokens included.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Tokens that every row has besides its text, or its two texts.
    pub fn special_tokens_per_row(&self, pair: bool) -> usize {
        self.processor.as_ref().map_or(0, |processor| processor.added_tokens(pair))
    }

    /// One more than the highest id it can produce.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    /// Refuses a model with fewer embeddings of words, or of token types, than rows of this tokenizer ask for; rows are
    /// pairs of texts if `pair`. A model with 0 token types does not look at them.
    ///
    /// # Errors
    /// If it has; names the tokens that would be out of range.
    pub fn check_model(&self, words: usize, types: usize, pair: bool) -> Result<()> {
        let frame = self.frame(pair)?;
        let row = frame.get_special_tokens_mask().iter().zip(frame.get_ids()).zip(frame.get_tokens());
        // The post-processor's tokens have ids of their own, whatever the vocabulary says.
        let special = row.filter(|((special, _), _)| **special == 1).map(|((_, &id), token)| (id, token.clone()));
        let all = self.inner.get_vocab(true).into_iter().map(|(token, id)| (id, token)).chain(special);
        let outside: BTreeSet<(u32, String)> = all.filter(|&(id, _)| id as usize >= words).collect();
        if let Some(&(last, _)) = outside.last() {
            let tokens: Vec<String> = outside.into_iter().map(|(_, token)| token).collect();
            bail!(
                "{} has ids up to {last}, but the model embeds only {words} (vocab_size in config.json); outside are {}: \
                 take the tokenizer that belongs to the model",
                self.path.display(),
                suggest::list(&tokens, 5)
            )
        }
        let last = frame.get_type_ids().iter().max().map_or(0, |&last| last as usize);
        if types > 0 && last >= types {
            bail!(
                "{} gives tokens of {} the type {last}, but the model embeds only {types} (type_vocab_size in \
                 config.json): {}",
                self.path.display(),
                if pair { "a pair" } else { "a text" },
                match pair {
                    true => "leave --text-pair-column away, or take a model and a tokenizer that know pairs",
                    false => "take the tokenizer that belongs to the model",
                }
            )
        }
        Ok(())
    }

    /// A row of one token for each text: what every row has besides them, and which types its places give.
    fn frame(&self, pair: bool) -> Result<Encoding> {
        let text = || Encoding::from_tokens(vec![Token::new(0, String::new(), (0, 0))], 0);
        self.join(text(), pair.then(text))
    }

    /// Encodes a text, or a pair of texts, with special tokens.
    ///
    /// Too long a text loses its end (or its beginning, where the tokenizer says so). Of too long a pair the longer
    /// text is cut first, and both to the same length if that is not enough: the library's `longest_first`.
    ///
    /// # Errors
    /// If a pair's special tokens leave no room for text, or the tokenizer fails.
    pub fn encode(&self, text: &str, pair: Option<&str>) -> Result<Encoded> {
        self.check_room(pair.is_some())?;
        let room = self.max_length - self.special_tokens_per_row(pair.is_some());
        let mut first = self.part(text)?;
        let mut second = pair.map(|pair| self.part(pair)).transpose()?;
        let lengths = (first.length, second.as_ref().map_or(0, |part| part.length));
        let (keep_first, keep_second) = longest_first(lengths.0, lengths.1, room);
        self.shorten(&mut first.tokens, keep_first);
        if let Some(second) = &mut second {
            self.shorten(&mut second.tokens, keep_second);
        }
        let row = self.join(first.tokens, second.map(|part| part.tokens))?;
        let type_ids = row.get_type_ids().iter().map(|&id| u8::try_from(id)).collect::<Result<_, _>>()?;
        Ok(Encoded { ids: row.get_ids().to_vec(), type_ids, truncated: lengths.0 + lengths.1 > room })
    }

    /// The tokens of a row from those of its texts.
    fn join(&self, first: Encoding, second: Option<Encoding>) -> Result<Encoding> {
        let row = match (&self.processor, second) {
            (Some(processor), second) => processor.process(first, second, true),
            (None, None) => Ok(first),
            (None, Some(mut second)) => {
                second.set_type_ids(vec![1; second.len()]);
                Ok(Encoding::merge([first, second], false))
            }
        };
        row.map_err(|error| self.failed(&error))
    }

    /// The tokens of one text, at most `max_length` of them.
    fn part(&self, text: &str) -> Result<Part> {
        let mut tokens = self.inner.encode_fast(text, false).map_err(|error| self.failed(&error))?;
        let rest: usize = tokens.take_overflowing().iter().map(Encoding::len).sum();
        Ok(Part { length: tokens.len() + rest, tokens })
    }

    fn shorten(&self, tokens: &mut Encoding, keep: usize) {
        let direction =
            self.inner.get_truncation().map_or_else(TruncationDirection::default, |params| params.direction);
        tokens.truncate(keep, 0, direction);
        tokens.take_overflowing();
    }

    fn failed(&self, error: &tokenizers::Error) -> anyhow::Error {
        anyhow!("{} can't encode a text: {error}", self.path.display())
    }

    /// Encodes every example, on all cores; each holds one text's intermediate results at a time.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`], for the first row that fails, with its line.
    pub fn encode_all(&self, rows: &[Example]) -> Result<Vec<Encoded>> {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        self.encode_all_on(rows, threads.min(rows.len().div_ceil(BLOCK)).max(1))
    }

    fn encode_all_on(&self, rows: &[Example], threads: usize) -> Result<Vec<Encoded>> {
        let next = AtomicUsize::new(0);
        // Blocks are taken as threads become free: lengths differ too much for equal shares to take equal time.
        let work = || {
            let mut done = Vec::new();
            loop {
                let block = next.fetch_add(1, Ordering::Relaxed);
                let Some(rows) = rows.chunks(BLOCK).nth(block) else {
                    return done;
                };
                let encoded = rows.iter().map(|row| self.encode_example(row)).collect::<Result<Vec<_>>>();
                done.push((block, encoded));
            }
        };
        let mut blocks = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut blocks = work();
            for other in others {
                match other.join() {
                    Ok(done) => blocks.extend(done),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            blocks
        });
        blocks.sort_unstable_by_key(|&(block, _)| block);
        let mut all = Vec::with_capacity(rows.len());
        for (_, encoded) in blocks {
            all.extend(encoded?);
        }
        Ok(all)
    }

    fn encode_example(&self, row: &Example) -> Result<Encoded> {
        self.encode(&row.text, row.pair.as_deref()).with_context(|| format!("the record on line {}", row.line))
    }

    /// Checks that `max_length` exceeds the special tokens.
    fn check_room(&self, pair: bool) -> Result<()> {
        let special = self.special_tokens_per_row(pair);
        if self.max_length <= special {
            bail!(
                "--max-length {} leaves no room for text: {} adds {special} special tokens to {}",
                self.max_length,
                self.path.display(),
                if pair { "each pair" } else { "each row" }
            );
        }
        Ok(())
    }
}

/// One text of a row.
struct Part {
    tokens: Encoding,
    /// Tokens read, cut off ones included. Reading stops at the word that reaches `max_length`.
    length: usize,
}

/// How many tokens of two texts are kept where there is room for `room`: the longer one is cut first; if it would
/// become the shorter one, both get half of the room, and the longer one the odd token.
fn longest_first(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let shorter = first.min(second).min(room / 2);
    if first > second { (room - shorter, shorter) } else { (shorter, room - shorter) }
}

/// The side that `tokenizer_config.json` beside `path` says texts are cut on.
fn side(path: &Path) -> Result<Option<TruncationDirection>> {
    let config = path.with_file_name("tokenizer_config.json");
    match fallback::read_json(&config)?.get("truncation_side").and_then(Value::as_str) {
        None => Ok(None),
        Some("right") => Ok(Some(TruncationDirection::Right)),
        Some("left") => Ok(Some(TruncationDirection::Left)),
        Some(other) => bail!("truncation_side in {} is \"{other}\": use \"left\" or \"right\"", config.display()),
    }
}

#[cfg(test)]
mod tests;
