//! Medians and quartiles of repeats, and ratios that are paired inside a round. Pure.

use serde::Serialize;

/// A median with its quartiles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        Self { median: quantile(&values, 2), lower: quantile(&values, 1), upper: quantile(&values, 3) }
    }

    /// Of one series divided by another, round by round.
    pub(crate) fn of_ratios(over: &[f64], under: &[f64]) -> Self {
        let ratios: Vec<f64> = over.iter().zip(under).filter(|(_, under)| **under != 0.0).map(|(a, b)| a / b).collect();
        Self::of(&ratios)
    }

    pub(crate) fn show(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$}-{:.digits$})", self.median, self.lower, self.upper)
    }
}

/// The value at so many quarters of a sorted series, between two values where it falls between them.
fn quantile(sorted: &[f64], quarters: usize) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let (at, rest) = (last * quarters / 4, last * quarters % 4);
    let value = |index: usize| sorted.get(index).copied().unwrap_or_default();
    let share = [0.0, 0.25, 0.5, 0.75].get(rest).copied().unwrap_or_default();
    value(at) + (value((at + 1).min(last)) - value(at)) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_median_between_its_quartiles() {
        let spread = Spread::of(&[5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!(spread, Spread { median: 3.0, lower: 2.0, upper: 4.0 });
        assert_eq!(Spread::of(&[1.0, 2.0]).median, 1.5);
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn ratios_are_paired_inside_a_round() {
        // The machine was twice as slow in the second round; the ratio does not see it.
        assert_eq!(Spread::of_ratios(&[8.0, 4.0], &[10.0, 5.0]).median, 0.8);
    }
}
