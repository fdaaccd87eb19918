//! Which rows are held out for evaluation.

use anyhow::{Result, bail};

use super::random::Random;

/// Tells this use of a seed from the others.
const PURPOSE: u64 = 2;

/// Divides rows `0..rows` into those to train on and those to evaluate on, both ascending.
///
/// The evaluation side gets `fraction` of the rows, rounded, and at least one. With `stratify` (the class of each
/// row) every class is divided in the same proportion, to within one row, and keeps at least one row to train on.
///
/// # Errors
/// If `fraction` does not lie strictly between 0 and 1, if there are fewer than two rows, or if `stratify` leaves
/// every row on the training side because no class has two.
///
/// # Panics
/// If `stratify` has another length than `rows`.
pub fn split(rows: usize, fraction: f64, seed: u64, stratify: Option<&[usize]>) -> Result<(Vec<usize>, Vec<usize>)> {
    if !(fraction > 0.0 && fraction < 1.0) {
        bail!("a fraction of {fraction} can't be held out for evaluation: it must lie between 0 and 1");
    }
    if rows < 2 {
        bail!("{rows} rows can't be divided into training and evaluation: at least 2 are needed");
    }
    let wanted = ((rows as f64 * fraction).round() as usize).clamp(1, rows - 1);
    let mut random = Random::new(seed, &[PURPOSE]);
    let mut groups = groups(rows, stratify);
    for group in &mut groups {
        random.shuffle(group);
    }
    let quotas = quotas(&groups, wanted, rows, stratify.is_some(), &mut random);
    let mut sides = (Vec::with_capacity(rows), Vec::with_capacity(wanted));
    for (group, quota) in groups.iter().zip(quotas) {
        sides.1.extend_from_slice(&group[..quota]);
        sides.0.extend_from_slice(&group[quota..]);
    }
    if sides.1.is_empty() {
        bail!(
            "no row can be held out for evaluation: every label occurs only once, and must be trained on; \
             give a separate evaluation file"
        );
    }
    sides.0.sort_unstable();
    sides.1.sort_unstable();
    Ok(sides)
}

/// Rows by class, classes ascending; one group of all rows without classes.
fn groups(rows: usize, stratify: Option<&[usize]>) -> Vec<Vec<usize>> {
    let Some(classes) = stratify else {
        return vec![(0..rows).collect()];
    };
    assert_eq!(classes.len(), rows, "one class for each row");
    let mut by_class = std::collections::BTreeMap::<usize, Vec<usize>>::new();
    for (row, &class) in classes.iter().enumerate() {
        by_class.entry(class).or_default().push(row);
    }
    by_class.into_values().collect()
}

/// Rows of each group to hold out, by largest remainders: the whole part of each group's share, then one more for
/// those with the largest fraction, ties at random lest small classes with low indices get them all.
fn quotas(groups: &[Vec<usize>], wanted: usize, rows: usize, keep_one: bool, random: &mut Random) -> Vec<usize> {
    let most = |group: &Vec<usize>| group.len() - usize::from(keep_one);
    // In whole numbers (shares are multiples of 1/rows), so that rounding errors decide nothing.
    let share = |group: &Vec<usize>| group.len() as u128 * wanted as u128;
    let mut quotas: Vec<usize> =
        groups.iter().map(|group| ((share(group) / rows as u128) as usize).min(most(group))).collect();
    let mut order: Vec<usize> = (0..groups.len()).collect();
    random.shuffle(&mut order);
    order.sort_by_key(|&g| std::cmp::Reverse(share(&groups[g]) % rows as u128));
    let mut missing = wanted - quotas.iter().sum::<usize>();
    for g in order {
        if missing > 0 && quotas[g] < most(&groups[g]) && share(&groups[g]) % rows as u128 > 0 {
            quotas[g] += 1;
            missing -= 1;
        }
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_the_impossible() {
        for fraction in [0.0, 1.0, -0.5, f64::NAN] {
            assert!(split(10, fraction, 0, None).is_err());
        }
        assert!(split(1, 0.5, 0, None).is_err());
        let error = split(3, 0.5, 0, Some(&[0, 1, 2])).expect_err("singletons").to_string();
        assert!(error.contains("every label occurs only once"));
    }

    #[test]
    fn at_least_one_row_on_each_side() {
        for fraction in [1e-9, 0.5, 1.0 - 1e-9] {
            let (train, eval) = split(2, fraction, 3, None).expect("two rows");
            assert_eq!((train.len(), eval.len()), (1, 1));
        }
        assert_eq!(split(10, 1e-9, 3, Some(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 2])).expect("possible").1.len(), 1);
    }

    #[test]
    fn many_small_classes_all_have_a_chance() {
        let classes: Vec<usize> = (0..3000).map(|row| row / 3).collect();
        let (_, eval) = split(3000, 0.1, 5, Some(&classes)).expect("possible");
        assert_eq!(eval.len(), 300);
        let upper_half = eval.iter().filter(|&&row| row >= 1500).count();
        assert!((100..200).contains(&upper_half), "{upper_half}");
    }

    proptest! {
        #[test]
        fn divides(rows in 2usize..200, fraction in 0.001f64..0.999, seed: u64) {
            let (train, eval) = split(rows, fraction, seed, None).expect("possible");
            prop_assert_eq!((&train, &eval), (&split(rows, fraction, seed, None).expect("possible").0, &eval));
            prop_assert!(!train.is_empty() && !eval.is_empty());
            prop_assert!((eval.len() as f64 - rows as f64 * fraction).abs() <= 1.0);
            let mut all = [train, eval].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..rows).collect::<Vec<_>>());
        }

        #[test]
        fn divides_every_class_alike(
            classes in proptest::collection::vec(0usize..5, 2..200),
            fraction in 0.01f64..0.99,
            seed: u64,
        ) {
            let rows = classes.len();
            let Ok((train, eval)) = split(rows, fraction, seed, Some(&classes)) else {
                let mut distinct = classes.clone();
                distinct.sort_unstable();
                distinct.dedup();
                // Refused only when no class has a row to spare.
                prop_assert_eq!(distinct.len(), rows);
                return Ok(());
            };
            let mut all = [train.clone(), eval.clone()].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..rows).collect::<Vec<_>>());
            for class in 0..5 {
                let count = |side: &[usize]| side.iter().filter(|&&row| classes[row] == class).count();
                let size = count(&train) + count(&eval);
                if size > 0 {
                    prop_assert!(count(&train) >= 1);
                    let share = size as f64 * (rows as f64 * fraction).round().clamp(1.0, rows as f64 - 1.0) / rows as f64;
                    prop_assert!(count(&eval) as f64 >= share.floor().min(size as f64 - 1.0) - 1e-9);
                    prop_assert!(count(&eval) as f64 <= share.ceil() + 1e-9);
                }
            }
        }
    }
}
