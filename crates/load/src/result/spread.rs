//! A figure and the spread of its repetitions.
//!
//! The field that holds it defines the unit.

use serde::{Deserialize, Serialize};

/// Smallest, middle and largest of the repetitions of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// Median: the figure to quote.
    pub median: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Spread { min, median, max })
    }

    /// Half the range as a part of the median; 0 if the median is 0.
    pub fn noise(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / 2.0 / self.median } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_median_with_its_ends() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(Spread::of(vec![1.0, 2.0]), Some(Spread { min: 1.0, median: 1.5, max: 2.0 }));
    }

    #[test]
    fn noise_is_half_the_range() {
        assert_eq!(Spread { min: 90.0, median: 100.0, max: 120.0 }.noise(), 0.15);
        assert_eq!(Spread { min: 0.0, median: 0.0, max: 0.0 }.noise(), 0.0);
    }
}
