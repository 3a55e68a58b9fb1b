//! Histogram of a measured quantity, as the ledger keeps it.

use serde::Serialize;

use super::{AdviceError, error::parameter};

/// Counts between rising edges. Bin k holds values from `edges[k]` to below `edges[k + 1]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Histogram {
    edges: Vec<f64>,
    counts: Vec<u64>,
}

impl Histogram {
    /// A histogram of `counts` between `edges`; there is one edge more than counts.
    ///
    /// # Errors
    /// Edges that do not rise or are not finite, another number of counts, nothing counted.
    pub fn new(edges: Vec<f64>, counts: Vec<u64>) -> Result<Self, AdviceError> {
        if edges.len() != counts.len() + 1 {
            return Err(AdviceError::Length {
                what: "the edges",
                got: edges.len(),
                expected: counts.len() + 1,
            });
        }
        for edge in &edges {
            parameter("an edge", *edge, "finite", |_| true)?;
        }
        if let Some(pair) = edges.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(AdviceError::Parameter {
                what: "an edge",
                value: pair[1],
                range: "above the edge before it",
            });
        }
        if counts.iter().all(|&count| count == 0) {
            return Err(AdviceError::Empty { what: "the histogram" });
        }
        Ok(Self { edges, counts })
    }

    /// Upper edge of the bin with the quantile at `level`: never below the true one, and too large
    /// by at most a bin.
    ///
    /// # Errors
    /// A level outside 0..=1.
    pub fn quantile_above(&self, level: f64) -> Result<f64, AdviceError> {
        parameter("the level", level, "between 0 and 1", |level| (0.0..=1.0).contains(&level))?;
        let total: u128 = self.counts.iter().map(|&count| u128::from(count)).sum();
        let rank = (level * total as f64).ceil().max(1.0) as u128;
        let mut seen = 0u128;
        let bin = self.counts.iter().position(|&count| {
            seen += u128::from(count);
            seen >= rank
        });
        // Rounding of huge counts can put the rank past the last bin; then the last non-empty bin
        // holds it.
        let bin = bin.or_else(|| self.counts.iter().rposition(|&count| count > 0)).unwrap_or(0);
        Ok(self.edges[bin + 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_edges() {
        let histogram = Histogram::new(vec![0.0, 1.0, 2.0, 4.0], vec![5, 4, 1]).unwrap();
        assert_eq!(histogram.quantile_above(0.5), Ok(1.0));
        assert_eq!(histogram.quantile_above(0.9), Ok(2.0));
        assert_eq!(histogram.quantile_above(0.95), Ok(4.0));
        assert!(histogram.quantile_above(f64::NAN).is_err());
        let last = Histogram::new(vec![0.0, 1.0, 2.0], vec![u64::MAX, 0]).unwrap();
        assert_eq!(last.quantile_above(1.0), Ok(1.0));
    }

    #[test]
    fn crooked_histograms_are_refused() {
        assert!(Histogram::new(vec![0.0, 1.0], vec![1, 2]).is_err());
        assert!(Histogram::new(vec![0.0, 0.0], vec![1]).is_err());
        assert!(Histogram::new(vec![0.0, f64::NAN], vec![1]).is_err());
        assert!(Histogram::new(vec![0.0, 1.0], vec![0]).is_err());
        assert!(Histogram::new(vec![0.0], vec![]).is_err());
    }
}
