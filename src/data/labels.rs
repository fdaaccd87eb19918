//! Names of classes ↔ their indices in the model's head.
//!
//! Indices follow the sorted names, as scikit-learn's `LabelEncoder` and Hugging Face's examples give them: names
//! that are all integers by value, any others by their characters.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context, Result, bail};

use super::source::{Example, Table, at, number};
use super::suggest;

/// The classes of a model, in the order of its outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    names: Vec<String>,
    indices: HashMap<String, usize>,
}

impl Labels {
    /// The classes that occur in `table`, sorted.
    ///
    /// # Errors
    /// If the table has no labels, or fewer than two distinct ones.
    pub fn from_table(table: &Table) -> Result<Self> {
        let distinct: BTreeSet<&str> = table.rows.iter().filter_map(|row| row.label.as_deref()).collect();
        match distinct.len() {
            0 => bail!("{} was read without labels: name their column with --label-column", table.path.display()),
            1 => bail!(
                "every record of {} has the label {}: a classifier needs at least two different labels",
                table.path.display(),
                suggest::list(&Vec::from_iter(&distinct), 1)
            ),
            _ => {}
        }
        let mut names: Vec<String> = distinct.into_iter().map(str::to_string).collect();
        let integers: Option<Vec<i128>> = names.iter().map(|name| name.parse().ok()).collect();
        if integers.is_some() {
            // Stable: names of the same integer ("1", "01") stay sorted by their characters.
            names.sort_by_cached_key(|name| name.parse::<i128>().unwrap_or_default());
        }
        Self::with_names(names)
    }

    /// The classes of `table`, in the order of `model` if these are the same names: a model that knows them already
    /// keeps its outputs where they are.
    ///
    /// # Errors
    /// As [`Labels::from_table`].
    pub fn for_model(table: &Table, model: &[String]) -> Result<Self> {
        let found = Self::from_table(table)?;
        let same = model.len() == found.len() && model.iter().all(|name| found.index(name).is_some());
        if same && let Ok(kept) = Self::with_names(model.to_vec()) {
            return Ok(kept);
        }
        Ok(found)
    }

    /// Classes that are known already, in the order of their indices: those of training, to read evaluation data.
    ///
    /// # Errors
    /// If a name is there twice.
    pub fn with_names(names: Vec<String>) -> Result<Self> {
        let mut indices = HashMap::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            if let Some(first) = indices.insert(name.clone(), index) {
                bail!("classes {first} and {index} are both called {}", suggest::quote(name));
            }
        }
        Ok(Labels { names, indices })
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is no class at all.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Names by index.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The index of a name.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.indices.get(name).copied()
    }

    /// The index of every record's label, in the order of the table.
    ///
    /// # Errors
    /// If a record has no label, or one that is not among these classes; names file, line, label and the known ones.
    pub fn indices(&self, table: &Table) -> Result<Vec<usize>> {
        each(table, |name| {
            self.index(name).ok_or_else(|| {
                let hint = match suggest::nearest(name, self.names.iter().map(String::as_str)) {
                    Some(near) => format!(" (did you mean {}?)", suggest::quote(near)),
                    None => String::new(),
                };
                let (name, known) = (suggest::quote(name), suggest::list(&self.names, 10));
                format!("the label {name} is not among those trained on{hint}: {known}")
            })
        })
    }

    /// Records of each class, by index, of what [`Labels::indices`] gave.
    pub fn counts(&self, indices: &[usize]) -> Vec<usize> {
        let mut counts = vec![0; self.len()];
        for &index in indices {
            counts[index] += 1;
        }
        counts
    }
}

/// The target of every record for regression, in the order of the table.
///
/// # Errors
/// If a label is missing or no finite number; names file and line.
pub fn numbers(table: &Table) -> Result<Vec<f32>> {
    each(table, |label| {
        number(label).ok_or_else(|| format!("the label {} is not a finite number", suggest::quote(label)))
    })
}

fn each<T>(table: &Table, target: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>> {
    let one = |row: &Example| {
        let label = row.label.as_deref().context("there is no label: name its column with --label-column");
        label.map_err(|e| e.to_string()).and_then(&target).map_err(|what| at(&table.path, row.line, what))
    };
    table.rows.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::source::TargetKind;
    use proptest::prelude::*;

    fn table(labels: &[&str]) -> Table {
        let row = |(i, label): (usize, &&str)| Example {
            text: "t".into(),
            pair: None,
            label: Some(label.to_string()),
            line: i as u64 + 2,
        };
        let rows = labels.iter().enumerate().map(row).collect();
        Table { path: "a.csv".into(), rows, kind: TargetKind::Classes, warnings: vec![] }
    }

    fn names(labels: &[&str]) -> Vec<String> {
        Labels::from_table(&table(labels)).expect("labels").names().to_vec()
    }

    #[test]
    fn sorts_as_people_expect() {
        assert_eq!(names(&["10", "9", "-1", "9"]), ["-1", "9", "10"]);
        assert_eq!(names(&["10", "9", "x"]), ["10", "9", "x"]);
        assert_eq!(names(&["true", "false"]), ["false", "true"]);
        assert_eq!(names(&["pos", "neg", "Pos"]), ["Pos", "neg", "pos"]);
        assert_eq!(names(&["1", "01", "0"]), ["0", "01", "1"]);
        let many: Vec<String> = (0..12_000).map(|i| i.to_string()).collect();
        assert_eq!(names(&many.iter().map(String::as_str).collect::<Vec<_>>()), many);
    }

    #[test]
    fn one_label_is_not_enough() {
        let error = Labels::from_table(&table(&["pos", "pos"])).expect_err("one label").to_string();
        assert!(error.starts_with("every record of a.csv has the label \"pos\""), "{error}");
        let mut bare = table(&["x"]);
        bare.rows[0].label = None;
        assert!(Labels::from_table(&bare).expect_err("none").to_string().contains("--label-column"));
    }

    #[test]
    fn a_model_keeps_its_order_only_for_the_same_names() {
        let order = |model: &[&str]| {
            let model: Vec<String> = model.iter().map(|name| name.to_string()).collect();
            Labels::for_model(&table(&["b", "a", "c"]), &model).expect("labels").names().join(" ")
        };
        assert_eq!(order(&["c", "a", "b"]), "c a b");
        assert_eq!(order(&["c", "a"]), "a b c");
        assert_eq!(order(&["c", "a", "a"]), "a b c");
        assert_eq!(order(&["LABEL_0", "LABEL_1", "LABEL_2"]), "a b c");
    }

    #[test]
    fn an_unseen_label_is_named_with_its_line() {
        let labels = Labels::with_names(vec!["neg".into(), "pos".into()]).expect("distinct");
        let error = labels.indices(&table(&["pos", "Neg"])).expect_err("unseen").to_string();
        let expected = "a.csv, line 3: the label \"Neg\" is not among those trained on (did you mean \"neg\"?): \
                        \"neg\", \"pos\"";
        assert_eq!(error, expected);
        assert!(Labels::with_names(vec!["a".into(), "a".into()]).is_err());
    }

    #[test]
    fn regression_targets() {
        assert_eq!(numbers(&table(&["1", "-2.5e-1"])).expect("numbers"), [1.0, -0.25]);
        let error = numbers(&table(&["1", "inf"])).expect_err("infinite").to_string();
        assert_eq!(error, "a.csv, line 3: the label \"inf\" is not a finite number");
    }

    proptest! {
        #[test]
        fn indices_lead_back_to_names(found in proptest::collection::vec("[a-c0-2]{1,2}", 2..40)) {
            let table = table(&found.iter().map(String::as_str).collect::<Vec<_>>());
            prop_assume!(found.iter().any(|label| label != &found[0]));
            let labels = Labels::from_table(&table).expect("two labels");
            let indices = labels.indices(&table).expect("known");
            prop_assert_eq!(indices.len(), found.len());
            for (index, name) in indices.iter().zip(&found) {
                prop_assert_eq!(&labels.names()[*index], name);
            }
            prop_assert_eq!(labels.counts(&indices).iter().sum::<usize>(), found.len());
        }
    }
}
