//! From evidence to class: naive Bayes in log odds. Each rule adds the logarithm of its likelihood
//! ratio to the classes it supports. The published posterior is that of the best of the seven
//! classes.

use serde::{Deserialize, Serialize};

use super::signal::{Class, Evidence};

/// Classes in the order of the score table.
const CLASSES: [Class; 7] = [
    Class::ComputeThermal,
    Class::ComputeSilent,
    Class::Link,
    Class::Host,
    Class::Data,
    Class::Communication,
    Class::Structural,
];

/// Share of each class among fail-slows (Greyhound table 1, and the mix of field/analytics A.5); 5
/// % for structural causes.
const PRIORS: [f64; 7] = [0.24, 0.19, 0.05, 0.19, 0.09, 0.19, 0.05];

/// Log odds so far, with their evidence.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ClassScores {
    scores: [f64; 7],
    evidence: Vec<Evidence>,
}

impl ClassScores {
    pub fn new() -> Self {
        Self { scores: PRIORS.map(f64::ln), evidence: Vec::new() }
    }

    /// Rule `rule` saw `value`, and supports each of `classes` with weight `weight`.
    pub fn add(&mut self, rule: &'static str, value: f64, weight: f64, classes: &[Class]) {
        for (score, class) in self.scores.iter_mut().zip(CLASSES) {
            if classes.contains(&class) {
                *score += weight;
            }
        }
        self.evidence.push(Evidence { rule: rule.into(), value, weight });
    }

    /// The best class, its posterior and the evidence.
    pub fn close(self) -> (Class, f64, Vec<Evidence>) {
        let most = self.scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = self.scores.iter().map(|score| (score - most).exp()).sum();
        let best = self.scores.iter().position(|score| *score == most).unwrap_or(0);
        (CLASSES[best], 1.0 / total, self.evidence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_move_the_posterior_as_by_hand() {
        let mut scores = ClassScores::new();
        scores.add("clock_below_peers", 0.9, 3.0, &[Class::ComputeThermal]);
        let (class, posterior, evidence) = scores.close();
        assert_eq!(class, Class::ComputeThermal);
        let thermal = 0.24 * 3.0_f64.exp();
        assert!((posterior - thermal / (thermal + 0.76)).abs() < 1e-12);
        assert_eq!(evidence.len(), 1);
    }
}
