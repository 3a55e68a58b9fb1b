//! When to act on a slow job: rent or buy. The cheapest remedy is due once the loss so far has
//! reached its cost. That costs at most twice what perfect foresight would (ski rental, as in
//! Greyhound).

use serde::Serialize;

/// A remedy that ends a loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Remedy {
    /// Name, e.g. `restart_without_node`.
    pub name: &'static str,
    /// Cost in GPU-hours: repeated work and idle devices.
    pub cost_gpu_hours: f64,
}

/// The remedy due for a loss of `lost_gpu_hours`: the most expensive one whose cost is reached,
/// because cheaper ones were due before and did not help. `None` while none is due.
pub fn due(remedies: &[Remedy], lost_gpu_hours: f64) -> Option<&Remedy> {
    remedies
        .iter()
        .filter(|remedy| remedy.cost_gpu_hours >= 0.0 && remedy.cost_gpu_hours <= lost_gpu_hours)
        .max_by(|a, b| a.cost_gpu_hours.total_cmp(&b.cost_gpu_hours))
}

/// Hours until a remedy is due, at a loss of `loss_per_hour` GPU-hours per hour after
/// `lost_gpu_hours`. `None` if never.
pub fn hours_until_due(remedy: &Remedy, lost_gpu_hours: f64, loss_per_hour: f64) -> Option<f64> {
    let missing = remedy.cost_gpu_hours - lost_gpu_hours;
    if missing <= 0.0 {
        return Some(0.0);
    }
    let hours = missing / loss_per_hour;
    (loss_per_hour > 0.0 && hours.is_finite()).then_some(hours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dearest_remedy_that_is_paid_for() {
        let adjust = Remedy { name: "adjust", cost_gpu_hours: 1.0 };
        let restart = Remedy { name: "restart", cost_gpu_hours: 8.0 };
        let odd = Remedy { name: "odd", cost_gpu_hours: f64::NAN };
        let all = [restart, adjust, odd];
        assert_eq!(due(&all, 0.5), None);
        assert_eq!(due(&all, 3.0), Some(&adjust));
        assert_eq!(due(&all, 8.0), Some(&restart));
        assert_eq!(hours_until_due(&restart, 2.0, 1.5), Some(4.0));
        assert_eq!(hours_until_due(&restart, 2.0, 0.0), None);
        assert_eq!(hours_until_due(&adjust, 2.0, 0.0), Some(0.0));
    }
}
