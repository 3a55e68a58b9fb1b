//! Serving demand: request rates by client, and the GPUs that serve them.

use super::ForecastError;

/// Request rates of one model's clients by step. A few clients make most of the traffic, each with
/// its own rhythm, which the sum hides.
#[derive(Debug, Clone)]
pub struct Clients {
    day: usize,
    /// By client, by step.
    rates: Vec<Vec<f64>>,
    steps: usize,
}

/// Clients forecast one by one; the others are summed into one.
const FOLLOWED: usize = 24;

impl Clients {
    /// No steps yet; `day` steps a day, at least 1.
    pub fn new(day: usize) -> Self {
        Self { day: day.max(1), rates: Vec::new(), steps: 0 }
    }

    /// Takes the rates of the next step, by client. Clients keep their place, new ones come last.
    /// An invalid rate counts as none.
    pub fn observe(&mut self, rates: &[f64]) {
        if self.rates.len() < rates.len() {
            self.rates.resize(rates.len(), vec![0.0; self.steps]);
        }
        for (i, own) in self.rates.iter_mut().enumerate() {
            let rate = rates.get(i).copied().filter(|r| r.is_finite() && *r >= 0.0);
            own.push(rate.unwrap_or(0.0));
        }
        self.steps += 1;
    }

    /// Expected total rate at each of `horizons` (steps from 1); `None` before two days were seen.
    ///
    /// A client's forecast is its daily profile over the last week (days weighed by 0.85 a day;
    /// half of it the same day a week before, once seen). It is shifted by the client's deviation
    /// from its profile in the last hours, which fades within a sixth of a day.
    pub fn outlook(&self, horizons: &[usize]) -> Option<Vec<f64>> {
        if self.steps < 2 * self.day {
            return None;
        }
        let mut order: Vec<usize> = (0..self.rates.len()).collect();
        let recent = |i: usize| self.rates[i][self.steps - 2 * self.day..].iter().sum::<f64>();
        let weights: Vec<f64> = order.iter().map(|i| recent(*i)).collect();
        order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
        let mut out = vec![0.0; horizons.len()];
        for &client in order.iter().take(FOLLOWED) {
            self.add(&self.rates[client], horizons, &mut out);
        }
        let mut others = vec![0.0; self.steps];
        for &client in order.iter().skip(FOLLOWED) {
            others.iter_mut().zip(&self.rates[client]).for_each(|(sum, rate)| *sum += rate);
        }
        self.add(&others, horizons, &mut out);
        Some(out)
    }

    fn add(&self, rates: &[f64], horizons: &[usize], out: &mut [f64]) {
        let profile = |target: usize| {
            let (mut sum, mut total, mut weight) = (0.0, 0.0, 1.0);
            let mut back = (target + 1).saturating_sub(self.steps).div_ceil(self.day).max(1) * self.day;
            for _ in 0..7 {
                let Some(at) = target.checked_sub(back) else { break };
                sum += weight * rates[at];
                total += weight;
                weight *= 0.85;
                back += self.day;
            }
            let days = if total > 0.0 { sum / total } else { 0.0 };
            // The same hour of the same day a week before.
            match target.checked_sub(7 * self.day) {
                None => days,
                Some(_) => days + 0.5 * (rates[target - 7 * self.day] - days),
            }
        };
        let last = self.steps - 1;
        let off = 0.7 * (rates[last] - profile(last)) + 0.3 * (rates[last - 1] - profile(last - 1));
        for (value, h) in out.iter_mut().zip(horizons) {
            let fade = (-(*h as f64) * 6.0 / self.day as f64).exp();
            *value += (profile(last + h) + off * fade).max(0.0);
        }
    }
}

/// GPUs for `rate` requests a second, at a measured capacity per GPU (requests a second at the
/// promised latency) and a utilisation of at most `utilisation` (0 to 1).
///
/// # Errors
/// [`ForecastError::Load`] for a rate that is negative or not a number, a capacity that is not
/// positive, a utilisation outside (0, 1].
pub fn gpus_by_capacity(rate: f64, per_gpu: f64, utilisation: f64) -> Result<f64, ForecastError> {
    let fits = rate.is_finite() && rate >= 0.0 && per_gpu.is_finite() && per_gpu > 0.0;
    if !(fits && utilisation > 0.0 && utilisation <= 1.0) {
        return Err(ForecastError::Load);
    }
    Ok(rate / (per_gpu * utilisation))
}

/// Probability that a request waits with `servers` servers at `load` erlangs (Erlang C), through
/// the Erlang B recursion `1/B_n = 1 + (n / load) / B_{n−1}`, which does not overflow. 1 where the
/// load is at or over the servers.
pub fn erlang_c(servers: u32, load: f64) -> f64 {
    let n = f64::from(servers);
    if load.is_nan() || load <= 0.0 {
        return 0.0;
    }
    if load >= n {
        return 1.0;
    }
    let mut inverse = 1.0;
    for k in 1..=servers {
        inverse = 1.0 + inverse * f64::from(k) / load;
        if inverse.is_infinite() {
            return 0.0;
        }
    }
    let blocked = 1.0 / inverse;
    n * blocked / (n - load * (1.0 - blocked))
}

/// Fewest servers at which at most `share` of the requests wait longer than `wait_s`, at `rate`
/// requests a second of `service_s` seconds each: `C(n, a) e^{−(n − a) wait / service} ≤ share`
/// (M/M/n). A server handles one request at a time: a GPU times its batch slots.
///
/// # Errors
/// [`ForecastError::Load`] for rates or times that are negative or not numbers, a share outside (0,
/// 1), more than ten million servers.
pub fn servers_for(rate: f64, service_s: f64, wait_s: f64, share: f64) -> Result<u32, ForecastError> {
    let load = rate * service_s;
    let fits = [rate, service_s, wait_s, load].iter().all(|v| v.is_finite() && *v >= 0.0);
    if !(fits && share > 0.0 && share < 1.0 && load <= 1e7) {
        return Err(ForecastError::Load);
    }
    if load == 0.0 {
        return Ok(0);
    }
    let late = |n: u32| erlang_c(n, load) * (-(f64::from(n) - load) * wait_s / service_s).exp();
    // The waiting share falls with the number of servers: double until it is met, then bisect.
    let mut few = load as u32;
    let mut step = (load.sqrt() as u32).max(1);
    while late(few.saturating_add(step)) > share {
        few = few.saturating_add(step);
        step = step.saturating_mul(2);
    }
    let mut many = few.saturating_add(step);
    while many - few > 1 {
        let middle = few + (many - few) / 2;
        if late(middle) > share { few = middle } else { many = middle }
    }
    Ok(many)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erlang_c_is_that_of_the_tables() {
        // 2 servers at 1 erlang: 1/3 wait; 1 server: its load.
        assert!((erlang_c(2, 1.0) - 1.0 / 3.0).abs() < 1e-12);
        assert!((erlang_c(1, 0.7) - 0.7).abs() < 1e-12);
        assert_eq!(erlang_c(3, 3.0), 1.0);
        assert_eq!(erlang_c(5, 0.0), 0.0);
    }

    #[test]
    fn servers_are_the_fewest_that_keep_the_promise() {
        let n = servers_for(10.0, 1.0, 0.5, 0.05).unwrap();
        let late = |n: u32| erlang_c(n, 10.0) * (-(f64::from(n) - 10.0) * 0.5).exp();
        assert!(late(n) <= 0.05 && late(n - 1) > 0.05, "{n}");
        assert_eq!(servers_for(0.0, 1.0, 0.5, 0.05), Ok(0));
        for bad in [f64::NAN, -1.0, f64::INFINITY] {
            assert_eq!(servers_for(bad, 1.0, 0.5, 0.05), Err(ForecastError::Load));
            assert_eq!(gpus_by_capacity(bad, 2.0, 0.8), Err(ForecastError::Load));
        }
        assert_eq!(gpus_by_capacity(8.0, 2.0, 0.8), Ok(5.0));
    }

    #[test]
    fn clients_with_opposite_days_sum_to_what_they_sum_to() {
        let mut clients = Clients::new(24);
        for t in 0..96 {
            let night = if t % 24 < 12 { 3.0 } else { 1.0 };
            clients.observe(&[night, 4.0 - night, f64::NAN]);
        }
        for value in clients.outlook(&[1, 7, 13, 24]).unwrap() {
            assert!((value - 4.0).abs() < 1e-9);
        }
        assert_eq!(Clients::new(24).outlook(&[1]), None);
    }
}
