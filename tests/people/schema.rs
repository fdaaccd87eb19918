//! The JSON Schemas that are shipped say the same as the code that reads the files.

use autofit::plan::{OptimizerKind, Outcome, Precision};
use autofit::study::best::Best;
use autofit::study::search_space::SearchSpace;
use serde_json::{Value, json};

use super::support::BEST;

fn schema(name: &str) -> Value {
    let path = format!("{}/search-spaces/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).expect("a schema")).expect("JSON")
}

/// Checks the keywords that our schemas use; any other is an error, so that none is silently skipped.
fn check(value: &Value, schema: &Value) -> Result<(), String> {
    let rules = schema.as_object().ok_or("a schema is an object")?;
    for (rule, wanted) in rules {
        let holds = match rule.as_str() {
            "$schema" | "title" | "description" | "format" => true,
            "type" => match wanted.as_str().unwrap_or("") {
                "integer" => value.is_i64() || value.is_u64(),
                "number" => value.is_number(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => return Err(format!("type {other}")),
            },
            "enum" => wanted.as_array().is_some_and(|words| words.contains(value)),
            "minimum" => value.as_f64() >= wanted.as_f64(),
            "maximum" => value.as_f64() <= wanted.as_f64(),
            "minItems" => value.as_array().map_or(0, Vec::len) as u64 >= wanted.as_u64().unwrap_or(0),
            "uniqueItems" => {
                let items = value.as_array().cloned().unwrap_or_default();
                items.iter().enumerate().all(|(at, item)| !items[..at].contains(item))
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    check(item, wanted)?;
                }
                true
            }
            "required" => {
                let missing = |key: &&Value| value.get(key.as_str().unwrap_or("")).is_none();
                !wanted.as_array().is_some_and(|keys| keys.iter().any(|key| missing(&key)))
            }
            "properties" => {
                for (key, inner) in wanted.as_object().into_iter().flatten() {
                    if let Some(own) = value.get(key) {
                        check(own, inner).map_err(|error| format!("{key}: {error}"))?;
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = rules["properties"].as_object().ok_or("no properties")?;
                value.as_object().is_some_and(|own| own.keys().all(|key| known.contains_key(key)))
            }
            "anyOf" | "oneOf" => {
                let ways = wanted.as_array().into_iter().flatten().filter(|way| check(value, way).is_ok()).count();
                ways == 1 || (rule == "anyOf" && ways > 1)
            }
            other => return Err(format!("the checker does not know '{other}'")),
        };
        if !holds {
            return Err(format!("{rule} {wanted} does not hold for {value}"));
        }
    }
    Ok(())
}

/// [`BEST`] with every optional key.
fn whole() -> Value {
    let text = BEST
        .replace("optimizer = \"adamw\"", "optimizer = \"adamw\"\nfrozen_layers = 2\nlora_rank = 8")
        .replace("certified = true", "certified = true\nevaluation_peak_bytes = 5\nin_use_peak_bytes = 4\ncontext_bytes = 3\ncap_hold = \"ballast\"")
        .replace("outcome = \"oom\"", "outcome = \"oom\"\nsamples_per_second = 1.0")
        .replace("num_labels = 2", "num_labels = 2\nrepository = \"a/b\"\nrevision = \"0\"");
    let mut best: Best = toml::from_str(&text).expect("an answer");
    let data = json!({"file": "a.csv", "columns": ["text", "label"], "longest": 12, "rows": 34});
    best.data = Some(serde_json::from_value(data).expect("data"));
    serde_json::to_value(&best).expect("JSON")
}

fn reads(value: &Value) -> bool {
    serde_json::from_value::<Best>(value.clone()).is_ok()
}

#[test]
fn best_has_exactly_the_keys_of_its_schema() {
    let (whole, schema) = (whole(), schema("best"));
    check(&whole, &schema).expect("what is written is valid");
    assert!(reads(&whole));
    let tables = schema["properties"].as_object().expect("tables");
    let written = whole.as_object().expect("tables");
    assert_eq!(tables.keys().collect::<Vec<_>>(), written.keys().collect::<Vec<_>>());
    for (name, table) in tables {
        let mut keys: Vec<&String> = table["properties"].as_object().expect("keys").keys().collect();
        let mut own: Vec<&String> = written[name].as_object().expect("keys").keys().collect();
        keys.retain(|key| !["preset", "program"].contains(&key.as_str())); // The other ways to name a model.
        own.sort();
        keys.sort();
        assert_eq!(keys, own, "[{name}]");
    }
}

#[test]
fn the_schema_requires_what_reading_requires() {
    let (whole, schema) = (whole(), schema("best"));
    let required = |schema: &Value, key: &str| {
        schema["required"].as_array().expect("a list").iter().any(|required| required == key)
    };
    for (name, table) in whole.as_object().expect("tables") {
        let mut without = whole.clone();
        without.as_object_mut().expect("tables").remove(name);
        assert_eq!(reads(&without), !required(&schema, name), "[{name}]");
        assert_eq!(check(&without, &schema).is_ok(), reads(&without), "[{name}]");
        for key in table.as_object().expect("keys").keys() {
            let mut without = whole.clone();
            without[name].as_object_mut().expect("keys").remove(key);
            assert_eq!(check(&without, &schema).is_ok(), reads(&without), "[{name}] {key}");
            let mut wrong = whole.clone();
            wrong[name][key] = json!({"not": ["this"]});
            assert!(check(&wrong, &schema).is_err() && !reads(&wrong), "[{name}] {key}");
        }
    }
    for source in ["preset", "program"] {
        let mut other = whole.clone();
        other["model"] = json!({source: "a name", "num_labels": 1});
        assert!(check(&other, &schema).is_ok() && reads(&other), "{source}");
    }
}

#[test]
fn the_words_of_both_schemas_are_those_of_the_code() {
    let words = |value: &Value| -> Vec<String> {
        value["enum"].as_array().expect("words").iter().map(|w| w.as_str().expect("a word").to_string()).collect()
    };
    let (best, space) = (schema("best"), schema("space"));
    let precisions: Vec<&str> = Precision::ALL.into_iter().map(Precision::name).collect();
    let optimizers: Vec<&str> = OptimizerKind::ALL.into_iter().map(OptimizerKind::name).collect();
    assert_eq!(words(&best["properties"]["config"]["properties"]["precision"]), precisions);
    assert_eq!(words(&space["properties"]["precision"]["items"]), precisions);
    assert_eq!(words(&best["properties"]["config"]["properties"]["optimizer"]), optimizers);
    assert_eq!(words(&space["properties"]["optimizer"]["items"]), optimizers);
    for table in ["neighbour", "density_neighbour"] {
        let mut outcomes: Vec<&str> = Outcome::ALL.into_iter().map(Outcome::name).collect();
        outcomes.extend(["none", "unknown"]);
        assert_eq!(words(&best["properties"][table]["properties"]["outcome"]), outcomes);
    }
}

#[test]
fn spaces_are_valid_exactly_when_they_read() {
    let schema = schema("space");
    let judged = |text: &str| {
        let table: toml::Table = text.parse().expect("TOML");
        let value = serde_json::to_value(table).expect("JSON");
        (check(&value, &schema).is_ok(), SearchSpace::parse("test", text).is_ok())
    };
    for name in SearchSpace::names() {
        assert_eq!(judged(&SearchSpace::load(name).expect("a space").to_toml()), (true, true), "{name}");
        let file = format!("{}/search-spaces/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(judged(&std::fs::read_to_string(file).expect("a file")), (true, true), "{name}");
    }
    for good in [
        "",
        "micro_batch = [1, 2]",
        "checkpoint_layers = \"full\"",
        "checkpoint_layers = [0.0, 0.5]",
        "checkpoint_layers = [0, 7]",
        "checkpoint_layers = \"half\"",
        "frozen_layers = [\"none\", 0]",
        "lora_rank = [8, 65536]",
        "micro_batch = [1048576]",
        "frozen_layers = [\"half\", \"all\", 0.25, 7]",
    ] {
        assert_eq!(judged(good), (true, true), "{good}");
    }
    for bad in [
        "precison = [\"fp32\"]",
        "precision = [\"fp23\"]",
        "precision = []",
        "precision = [\"fp32\", \"fp32\"]",
        "precision = \"fp32\"",
        "micro_batch = [0]",
        "micro_batch = [1048577]",
        "checkpoint_layers = [4097]",
        "frozen_layers = [4097]",
        "lora_rank = [65537]",
        "micro_batch = \"big\"",
        "checkpoint_layers = [1.5]",
        "checkpoint_layers = \"some\"",
        "checkpoint_layers = []",
        "optimizer = [\"adam\"]",
        "lora_rank = [0]",
        "frozen_layers = [\"full\"]",
        "frozen_layers = [1.5]",
        "lora_rank = [\"half\"]",
        "frozen_layers = [-1]",
    ] {
        assert_eq!(judged(bad), (false, false), "{bad}");
    }
}
