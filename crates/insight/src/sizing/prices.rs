//! Prices of a commitment and of its alternative.

use serde::{Deserialize, Serialize};

use super::{SizingError, error::parameter};

/// Prices per GPU-hour in one currency. [`Prices::new`] keeps them in range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    reserved: f64,
    elastic: f64,
    lend: f64,
}

impl Prices {
    /// `reserved` is paid always for what is committed. `elastic` is paid for demand above it: the
    /// on-demand price, or the value of a GPU-hour that has to wait. `lend` is earned by committed
    /// idle GPUs; 0 if they cannot be lent.
    ///
    /// # Errors
    /// A price that is negative or not a number; `reserved` of 0 (everything would be reserved);
    /// `lend` not below both others (every idle GPU would earn, so no commitment is the largest).
    pub fn new(reserved: f64, elastic: f64, lend: f64) -> Result<Self, SizingError> {
        parameter("the reserved price", reserved, "more than 0 per GPU-hour", |price| price > 0.0)?;
        parameter("the elastic price", elastic, "0 or more per GPU-hour", |price| price >= 0.0)?;
        let range = "0 or more, and below the reserved and the elastic price";
        parameter("the lending price", lend, range, |price| {
            price >= 0.0 && price < reserved && (price < elastic || price == 0.0)
        })?;
        Ok(Self { reserved, elastic, lend })
    }

    /// Prices whose break-even utilisation is `rho`, the reserved price over the elastic one, with
    /// an elastic price of 1.
    ///
    /// # Errors
    /// `rho` outside (0, 1].
    pub fn from_ratio(rho: f64) -> Result<Self, SizingError> {
        parameter("rho", rho, "above 0 and at most 1", |rho| rho > 0.0 && rho <= 1.0)?;
        Self::new(rho, 1.0, 0.0)
    }

    /// Share of the hours that a GPU must be busy to pay for its commitment: `(p_r - l) / (p_o -
    /// l)`, at most 1. At 1 nothing is worth reserving.
    pub fn break_even(&self) -> f64 {
        if self.elastic <= self.reserved {
            1.0
        } else {
            (self.reserved - self.lend) / (self.elastic - self.lend)
        }
    }

    /// Critical ratio: the quantile level of demand at which a commitment is cheapest, `1 -
    /// break_even`.
    pub fn critical_ratio(&self) -> f64 {
        1.0 - self.break_even()
    }

    /// Price of a reserved GPU-hour.
    pub fn reserved(&self) -> f64 {
        self.reserved
    }

    /// Price of a GPU-hour above the commitment.
    pub fn elastic(&self) -> f64 {
        self.elastic
    }

    /// Cost of an hour with commitment `reserved_gpus` and demand `demand`, both in GPUs: `p_r R +
    /// p_o (y - R)+ - l (R - y)+`.
    pub fn hour(&self, reserved_gpus: f64, demand: f64) -> f64 {
        let over = (demand - reserved_gpus).max(0.0);
        let idle = (reserved_gpus - demand).max(0.0);
        self.reserved * reserved_gpus + self.elastic * over - self.lend * idle
    }

    /// Cost of commitment `reserved_gpus` over the hours of `demand`.
    pub fn total(&self, reserved_gpus: f64, demand: &[f64]) -> f64 {
        demand.iter().map(|&demand| self.hour(reserved_gpus, demand)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn break_even_is_the_price_ratio() {
        let prices = Prices::new(1.2, 2.0, 0.0).unwrap();
        assert!((prices.break_even() - 0.6).abs() < 1e-12);
        let lent = Prices::new(1.2, 2.0, 0.7).unwrap();
        assert!((lent.break_even() - 0.5 / 1.3).abs() < 1e-12);
        assert_eq!(Prices::new(2.0, 1.0, 0.0).unwrap().break_even(), 1.0);
    }

    #[test]
    fn bad_prices_are_named() {
        for (reserved, elastic, lend) in [
            (f64::NAN, 1.0, 0.0),
            (0.0, 1.0, 0.0),
            (-1.0, 1.0, 0.0),
            (1.0, -1.0, 0.0),
            (1.0, 2.0, 1.0),
            (1.0, f64::INFINITY, 0.0),
        ] {
            let error = Prices::new(reserved, elastic, lend).unwrap_err();
            assert!(error.to_string().contains("must be"), "{error}");
        }
        for rho in [0.0, -0.1, 1.1, f64::NAN] {
            assert!(Prices::from_ratio(rho).is_err());
        }
    }
}
