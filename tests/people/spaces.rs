//! Every search space that is shipped suits every model that autofit knows, however deep it is.

use std::path::{Path, PathBuf};

use autofit::model::{ModelConfig, presets};
use autofit::study::problem::{Grid, Problem, SizeHint};
use autofit::study::search_space::SearchSpace;

/// Every `config.json` below a folder.
fn configs(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            configs(&path, found);
        } else if path.file_name().is_some_and(|name| name == "config.json") {
            found.push(path);
        }
    }
}

/// Presets, fixtures, and depths that nobody has thought of.
fn models() -> Vec<(String, ModelConfig)> {
    let presets = presets::names().map(|name| (name.to_string(), presets::config(name).expect("a preset")));
    let mut files = Vec::new();
    configs(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"), &mut files);
    assert!(files.len() >= 3, "{files:?}");
    let fixtures = files.iter().map(|file| (file.display().to_string(), ModelConfig::from_file(file).expect("valid")));
    let shallow = [1, 2, 5].map(|layers| {
        let config = ModelConfig { layers, ..presets::config("tinybert").expect("a preset") };
        (format!("{layers} layers"), config)
    });
    presets.chain(fixtures).chain(shallow).collect()
}

#[test]
fn every_named_space_fits_every_model() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("search-spaces");
    let shipped = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let shipped = shipped.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).count();
    assert_eq!(shipped, SearchSpace::names().count(), "every file is a space by name");
    for (name, config) in models() {
        for space in SearchSpace::names() {
            let space = SearchSpace::load(space).expect("a space");
            assert!(space.notes(config.layers).is_empty(), "{name}: {:?} had to be cut", space.name);
            let size = SizeHint {
                parameters: config.parameters(2),
                hidden: config.hidden_size,
                layers: config.layers,
                intermediate: config.intermediate_size,
                heads: config.heads,
                vocab: config.vocab_size,
                positions: config.max_positions,
                length: 8,
            };
            let problem = Problem {
                effective_batch: 32,
                max_length: 8,
                cap_bytes: None,
                space: space.clone(),
                size,
                smaller: Vec::new(),
            };
            let grid = Grid::new(&problem).unwrap_or_else(|error| panic!("{name}, {}: {error:#}", space.name));
            assert!(grid.densities.iter().all(|&count| count <= config.layers), "{name}, {}", space.name);
            let frozen = grid.branches.iter().filter_map(|branch| branch.frozen_layers);
            assert!(frozen.into_iter().all(|count| count <= config.layers), "{name}, {}", space.name);
            let mut distinct = grid.branches.clone();
            distinct.sort();
            distinct.dedup();
            assert_eq!(distinct.len(), grid.branches.len(), "{name}, {}: a branch is there twice", space.name);
        }
    }
}
