use std::fs;

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;
use tokenizers::PaddingParams;

use super::*;

/// A small BERT-like vocabulary: ids are line numbers.
const VOCAB: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n##a\n##b\n##c\n!\n,\nA\n";

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, content) in files {
        fs::write(folder.path().join(name), content).expect("a temporary file");
    }
    folder
}

fn bert(max_length: usize) -> Tokenizer {
    Tokenizer::from_folder(folder(&[("vocab.txt", VOCAB)]).path(), max_length).expect("a vocabulary")
}

/// A RoBERTa-like folder over the bytes `a`, `b` and blank.
fn roberta_folder() -> TempDir {
    let vocab = json!({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "\u{120}": 6, "ab": 7,
        "\u{120}ab": 8, "<mask>": 9});
    folder(&[("vocab.json", &vocab.to_string()), ("merges.txt", "#version: 0.2\na b\n\u{120} ab\n")])
}

#[test]
fn bert_rows_and_pairs() {
    let tokenizer = bert(16);
    let row = tokenizer.encode("Ab c!", None).expect("encodes");
    assert_eq!(row.ids, [2, 5, 9, 7, 11, 3]);
    assert_eq!((row.type_ids, row.truncated), (vec![0; 6], false));
    let pair = tokenizer.encode("a", Some("b z")).expect("encodes");
    assert_eq!(pair.ids, [2, 5, 3, 6, 1, 3]);
    assert_eq!(pair.type_ids, [0, 0, 0, 1, 1, 1]);
    assert_eq!(tokenizer.encode("", None).expect("encodes").ids, [2, 3]);
    assert_eq!(tokenizer.encode("", Some("")).expect("encodes").ids, [2, 3, 3]);
    assert_eq!((tokenizer.special_tokens_per_row(false), tokenizer.special_tokens_per_row(true)), (2, 3));
    // Special tokens in a text stay whole, as in Hugging Face.
    assert_eq!(tokenizer.encode("a [SEP] b", None).expect("encodes").ids, [2, 5, 3, 6, 3]);
}

#[test]
fn lower_case_follows_the_settings() {
    let files = [("vocab.txt", VOCAB), ("tokenizer_config.json", r#"{"do_lower_case": false}"#)];
    let cased = Tokenizer::from_folder(folder(&files).path(), 8).expect("a vocabulary");
    assert_eq!(cased.encode("A a", None).expect("encodes").ids, [2, 13, 5, 3]);
    assert_eq!(bert(8).encode("A a", None).expect("encodes").ids, [2, 5, 5, 3]);
}

#[test]
fn special_tokens_may_have_other_names() {
    let vocab = VOCAB.replace("[CLS]", "<cls>");
    let map = r#"{"cls_token": {"content": "<cls>", "lstrip": false}}"#;
    let folder = folder(&[("vocab.txt", &vocab), ("special_tokens_map.json", map)]);
    assert_eq!(Tokenizer::from_folder(folder.path(), 8).expect("valid").encode("a", None).expect("ok").ids, [2, 5, 3]);
    fs::remove_file(folder.path().join("special_tokens_map.json")).expect("was there");
    let error = Tokenizer::from_folder(folder.path(), 8).expect_err("no [CLS]").to_string();
    assert!(error.contains("vocab.txt lacks the special token [CLS]"), "{error}");
}

#[test]
fn roberta_rows_and_pairs() {
    let tokenizer = Tokenizer::from_folder(roberta_folder().path(), 16).expect("a vocabulary");
    assert_eq!(tokenizer.encode("ab abb", None).expect("encodes").ids, [0, 7, 8, 5, 2]);
    let pair = tokenizer.encode("ab", Some("a")).expect("encodes");
    assert_eq!((pair.ids, pair.type_ids), (vec![0, 7, 2, 2, 4, 2], vec![0; 6]));
    assert_eq!((tokenizer.special_tokens_per_row(true), tokenizer.vocab_size()), (4, 10));
    assert_eq!(tokenizer.encode("a <mask>", None).expect("encodes").ids, [0, 4, 9, 2]);
    assert!(Tokenizer::from_folder(roberta_folder().path(), 4).expect("room").encode("a", Some("b")).is_err());
}

#[test]
fn saved_padding_and_truncation_are_switched_off() {
    let folder = folder(&[("vocab.txt", VOCAB)]);
    let Tokenizer { mut inner, processor, .. } = bert(8);
    inner.with_post_processor(processor);
    inner.with_padding(Some(PaddingParams {
        strategy: tokenizers::PaddingStrategy::Fixed(12),
        ..PaddingParams::default()
    }));
    let params = TruncationParams { max_length: 4, direction: TruncationDirection::Left, ..Default::default() };
    inner.with_truncation(Some(params)).expect("valid");
    let path = folder.path().join("tokenizer.json");
    inner.save(&path, false).expect("a temporary file");
    let tokenizer = Tokenizer::from_file(&path, 6).expect("just saved");
    assert_eq!(tokenizer.encode("a", None).expect("encodes").ids, [2, 5, 3]);
    // The side of a saved truncation is kept, as transformers does, unless the settings name another.
    let cut = |tokenizer: &Tokenizer| tokenizer.encode("a b c ! , a", None).expect("encodes");
    assert_eq!((cut(&tokenizer).ids, cut(&tokenizer).truncated), (vec![2, 7, 11, 12, 5, 3], true));
    fs::write(folder.path().join("tokenizer_config.json"), r#"{"truncation_side": "right"}"#).expect("a file");
    let tokenizer = Tokenizer::from_file(&path, 6).expect("just saved");
    assert_eq!(cut(&tokenizer).ids, [2, 5, 6, 7, 11, 3]);
}

#[test]
fn complains_about_files() {
    let empty = folder(&[]);
    let error = format!("{:#}", Tokenizer::from_folder(empty.path(), 8).expect_err("nothing there"));
    assert!(error.contains("there is no") && error.contains("vocab.txt") && error.contains("save_pretrained"));
    let error = format!("{:#}", Tokenizer::from_file(&empty.path().join("tokenizer.json"), 8).expect_err("no file"));
    assert!(error.contains("tokenizer.json") && error.contains("vocab.txt"), "{error}");
    let broken = folder(&[("tokenizer.json", "{}")]);
    let error = format!("{:#}", Tokenizer::from_folder(broken.path(), 8).expect_err("broken"));
    assert!(error.contains("is not a tokenizer"), "{error}");
    let error =
        format!("{:#}", Tokenizer::from_folder(folder(&[("vocab.txt", VOCAB)]).path(), 2).expect_err("no room"));
    assert!(error.contains("--max-length 2 leaves no room for text"), "{error}");
    let error = bert(3).encode("a", Some("b")).expect_err("no room").to_string();
    assert!(error.contains("3 special tokens to each pair"), "{error}");
}

/// A tokenizer that is saved with this post-processor, as other programs may save one.
fn processed(post_processor: &serde_json::Value) -> Tokenizer {
    let Tokenizer { inner, .. } = bert(8);
    let mut saved: Value = serde_json::from_str(&inner.to_string(false).expect("JSON")).expect("JSON");
    saved["post_processor"] = post_processor.clone();
    let folder = folder(&[("tokenizer.json", &saved.to_string())]);
    Tokenizer::from_folder(folder.path(), 8).expect("a tokenizer")
}

#[test]
fn checks_the_vocabulary() {
    let tokenizer = bert(8);
    assert_eq!(tokenizer.vocab_size(), 14);
    assert!(tokenizer.check_model(14, 2, true).is_ok());
    let error = tokenizer.check_model(12, 2, false).expect_err("too small").to_string();
    assert!(error.contains("ids up to 13, but the model embeds only 12"), "{error}");
    assert!(error.contains("outside are \",\", \"A\":"), "{error}");
}

#[test]
fn checks_the_ids_that_the_post_processor_adds() {
    let bert = json!({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 14]});
    let special = json!({"[CLS]": {"id": "[CLS]", "ids": [2, 14], "tokens": ["[CLS]", "<more>"]}});
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let cls = json!({"SpecialToken": {"id": "[CLS]", "type_id": 0}});
    let template = json!({"type": "TemplateProcessing", "single": [cls, sequence("A")],
        "pair": [sequence("A"), cls, sequence("B")], "special_tokens": special});
    for (processor, token) in [(bert, "[CLS]"), (template, "<more>")] {
        let tokenizer = processed(&processor);
        assert_eq!(tokenizer.vocab_size(), 14);
        for pair in [false, true] {
            let error = tokenizer.check_model(14, 2, pair).expect_err("an id of 14").to_string();
            let words = format!(
                "ids up to 14, but the model embeds only 14 (vocab_size in config.json); outside are \"{token}\""
            );
            assert!(error.contains(&words), "{error}");
            assert!(tokenizer.check_model(15, 2, pair).is_ok());
        }
    }
}

#[test]
fn checks_the_types_of_tokens() {
    // A tokenizer without post-processor joins pairs as types 0 and 1, too.
    for tokenizer in [bert(8), processed(&Value::Null)] {
        assert!(tokenizer.check_model(14, 1, false).is_ok());
        assert!(tokenizer.check_model(14, 2, true).is_ok());
        // DistilBERT does not look at them.
        assert!(tokenizer.check_model(14, 0, true).is_ok());
        let error = tokenizer.check_model(14, 1, true).expect_err("no second type").to_string();
        assert!(error.contains("tokens of a pair the type 1, but the model embeds only 1 (type_vocab_size"), "{error}");
    }
    let roberta = Tokenizer::from_folder(roberta_folder().path(), 16).expect("a vocabulary");
    assert!(roberta.check_model(10, 1, true).is_ok());
    let typed = json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 2}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {}});
    let error = processed(&typed).check_model(14, 2, false).expect_err("a third type").to_string();
    assert!(error.contains("tokens of a text the type 2"), "{error}");
    assert!(processed(&typed).check_model(14, 2, true).is_ok());
}

#[test]
fn two_long_texts_take_little_memory() {
    // One word each, so that reading stops late; the library would join 10⁴ × 10⁴ rests here.
    let long = "ab".repeat(50_000);
    let tokenizer = Tokenizer::from_folder(roberta_folder().path(), 13).expect("a vocabulary");
    let row = tokenizer.encode(&long, Some(&long)).expect("encodes");
    assert_eq!((row.ids.len(), row.truncated), (13, true));
}

#[test]
fn a_failing_row_is_named_by_its_line() {
    let rows: Vec<Example> = (0..100)
        .map(|i| Example { text: "a".into(), pair: (i == 70).then(|| "b".into()), line: i + 2, ..Example::default() })
        .collect();
    let error = format!("{:#}", bert(3).encode_all(&rows).expect_err("a pair does not fit"));
    assert!(error.starts_with("the record on line 72: --max-length 3"), "{error}");
}

proptest! {
    #[test]
    fn truncates_as_the_library_does(
        first in "[abc!, z]{0,40}",
        second in proptest::option::of("[abc!, z]{0,40}"),
        max_length in 4usize..24,
        left: bool,
    ) {
        let mut ours = bert(max_length);
        let direction = if left { TruncationDirection::Left } else { TruncationDirection::Right };
        let params = TruncationParams { max_length, direction, ..Default::default() };
        ours.inner.with_truncation(Some(params)).expect("valid");
        let mut theirs = ours.inner.clone();
        theirs.with_post_processor(ours.processor.clone());
        let expected = match &second {
            Some(second) => theirs.encode((first.as_str(), second.as_str()), true),
            None => theirs.encode(first.as_str(), true),
        }
        .expect("encodes");
        let row = ours.encode(&first, second.as_deref()).expect("encodes");
        prop_assert_eq!(&row.ids, expected.get_ids());
        let type_ids: Vec<u32> = row.type_ids.iter().map(|&id| u32::from(id)).collect();
        prop_assert_eq!(type_ids.as_slice(), expected.get_type_ids());
        prop_assert_eq!(row.truncated, !expected.get_overflowing().is_empty());
    }

    #[test]
    fn threads_change_nothing(texts in proptest::collection::vec("[abc ]{0,9}", 0..150), threads in 1usize..5) {
        let rows: Vec<Example> = texts.into_iter().map(|text| Example { text, ..Example::default() }).collect();
        let tokenizer = bert(6);
        let expected: Vec<Encoded> = rows.iter().map(|row| tokenizer.encode(&row.text, None).expect("ok")).collect();
        prop_assert_eq!(&tokenizer.encode_all_on(&rows, threads).expect("encodes"), &expected);
        prop_assert_eq!(&tokenizer.encode_all(&rows).expect("encodes"), &expected);
    }
}
