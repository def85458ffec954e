//! Medians and ratios over pairs.

use serde_json::Value;

/// The middle of a row of figures, one for each pair, and its ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// The ratios of ours to theirs; both have a figure for each pair.
pub(super) fn ratio(ours: &[f64], theirs: &[f64]) -> Spread {
    spread(ours.iter().zip(theirs).map(|(a, b)| a / b).collect())
}

/// A figure of one side of each pair.
pub(super) fn row(told: &[[Value; 2]], side: usize, field: &str) -> Vec<f64> {
    let figure = |pair: &[Value; 2]| pair[side][field].as_f64().unwrap_or(f64::NAN);
    told.iter().map(figure).collect()
}

/// How many times as fast the first side of each pair is.
pub(super) fn times(told: &[[Value; 2]]) -> Spread {
    ratio(
        &row(told, 0, "ops_per_second"),
        &row(told, 1, "ops_per_second"),
    )
}

/// Of at least one figure.
pub(super) fn spread(values: Vec<f64>) -> Spread {
    Spread {
        min: values.iter().copied().fold(f64::INFINITY, f64::min),
        max: values.iter().copied().fold(0.0, f64::max),
        median: median(values),
    }
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

pub(super) fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn ratios_are_taken_within_pairs() {
        let got = ratio(&[10.0, 30.0, 8.0], &[5.0, 10.0, 8.0]);
        assert_eq!((got.median, got.min, got.max), (2.0, 1.0, 3.0));
        assert!((geometric_mean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
    }
}
