//! Which keys were finished and left memory: a set that may say "maybe" wrongly but never "no"
//! wrongly.
//!
//! A new event of a key that is not in memory asks here first. "No" (nearly always) means a new
//! key; "maybe" costs a look through the keys of the whole raw table. So it must be rare: one in a
//! million, for about 5 bytes per key. Sizes double as the set grows.

use parquet::bloom_filter::Sbbf;

const FIRST_CAPACITY: u64 = 1 << 16;
const FALSE_RATE: f64 = 0.000_001;

/// A growing Bloom filter over key hashes.
#[derive(Debug, Default)]
pub struct SeenKeys {
    /// Filters with their capacity and count; only the last one is not full.
    filters: Vec<(Sbbf, u64, u64)>,
}

impl SeenKeys {
    pub fn insert(&mut self, key: i64) {
        if self.contains(key) {
            return;
        }
        if self.filters.last().is_none_or(|(_, capacity, held)| held >= capacity) {
            let capacity = FIRST_CAPACITY << self.filters.len();
            let filter = Sbbf::new_with_ndv_fpp(capacity, FALSE_RATE).expect("0 < rate < 1");
            self.filters.push((filter, capacity, 0));
        }
        if let Some((filter, _, held)) = self.filters.last_mut() {
            filter.insert(&key);
            *held += 1;
        }
    }

    pub fn contains(&self, key: i64) -> bool {
        self.filters.iter().any(|(filter, _, _)| filter.check(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_every_key_and_few_others() {
        let mut seen = SeenKeys::default();
        let scatter = |i: i64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64);
        (0..300_000).for_each(|i| seen.insert(scatter(i)));
        assert!((0..300_000).all(|i| seen.contains(scatter(i))));
        let wrong = (300_000..400_000).filter(|i| seen.contains(scatter(*i))).count();
        assert!(wrong <= 2, "{wrong} of 100,000 strangers taken for known");
    }
}
