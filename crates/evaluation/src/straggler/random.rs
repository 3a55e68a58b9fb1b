//! Random streams: each consumer draws from its own, so that one more draw in one place changes
//! nothing elsewhere.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The stream of one consumer of one job.
pub(crate) fn child(seed: u64, regime: char, purpose: &str) -> ChaCha8Rng {
    // FNV-1a; the seeding of the generator mixes it further.
    let mut key = 0xcbf2_9ce4_8422_2325_u64 ^ seed.rotate_left(17);
    for byte in seed.to_le_bytes().into_iter().chain([regime as u8]).chain(purpose.bytes()) {
        key = (key ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    ChaCha8Rng::seed_from_u64(key)
}

/// Student's t with three degrees of freedom, by Bailey's method. Cut at ±40: beyond that a step
/// would be a pause, which is drawn elsewhere.
pub(crate) fn student3(rng: &mut ChaCha8Rng) -> f64 {
    let u = (1.0 - rng.random::<f64>()).cbrt();
    let v: f64 = rng.random();
    ((3.0 * (1.0 / (u * u) - 1.0)).sqrt() * (std::f64::consts::TAU * v).cos()).clamp(-40.0, 40.0)
}

/// Divisor that gives Student's t with three degrees of freedom the published noise: 1.4826 times
/// the median of |t|, 0.764892.
pub(crate) const STUDENT3_NOISE: f64 = 1.134_029;

/// Standard normal, by Box and Muller.
pub(crate) fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let u = 1.0 - rng.random::<f64>();
    let v: f64 = rng.random();
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Lognormal, by its median and the sigma of its logarithm.
pub(crate) fn lognormal(rng: &mut ChaCha8Rng, median: f64, sigma: f64) -> f64 {
    median * (sigma * normal(rng)).exp()
}

/// Waiting time of a process with this many events a second; infinite for zero.
pub(crate) fn exponential(rng: &mut ChaCha8Rng, per_second: f64) -> f64 {
    if per_second <= 0.0 {
        return f64::INFINITY;
    }
    -(1.0 - rng.random::<f64>()).ln() / per_second
}

/// Poisson count; above 50 by a rounded normal, where the difference no longer shows.
pub(crate) fn poisson(rng: &mut ChaCha8Rng, mean: f64) -> u64 {
    if mean > 50.0 {
        return (mean + mean.sqrt() * normal(rng)).round().max(0.0) as u64;
    }
    let floor = (-mean).exp();
    let mut product: f64 = rng.random();
    let mut count = 0;
    while product > floor {
        product *= rng.random::<f64>();
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::statistics::median;

    #[test]
    fn scales_match_their_definitions() {
        let mut rng = child(7, 'A', "test");
        let mut t: Vec<f64> = (0..40_000).map(|_| student3(&mut rng).abs()).collect();
        assert!((1.4826 * median(&mut t).unwrap() / STUDENT3_NOISE - 1.0).abs() < 0.02);
        let mut z: Vec<f64> = (0..40_000).map(|_| normal(&mut rng).abs()).collect();
        assert!((1.4826 * median(&mut z).unwrap() - 1.0).abs() < 0.02);
        for mean in [0.3, 8.0, 200.0] {
            let sum: u64 = (0..20_000).map(|_| poisson(&mut rng, mean)).sum();
            assert!((sum as f64 / 20_000.0 / mean - 1.0).abs() < 0.03, "{mean}");
        }
    }

    #[test]
    fn streams_differ_by_each_of_their_names() {
        let first = |seed, regime, purpose| child(seed, regime, purpose).random::<u64>();
        let all = [first(1, 'A', "x"), first(2, 'A', "x"), first(1, 'B', "x"), first(1, 'A', "y")];
        assert!((0..4).all(|i| (0..i).all(|j| all[i] != all[j])));
    }
}
