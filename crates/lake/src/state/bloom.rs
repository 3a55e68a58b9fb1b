//! Bloom filter over sealed keys: those that finished and left memory.
//!
//! Every new event of a key that is not in memory asks it. "No" means that the key is new, and is
//! certain. "Maybe" costs a scan of the raw table's keys, so it must be rare: one key in a million,
//! for about 5 bytes per key. The filter grows by adding another one of twice the size.

use parquet::bloom_filter::Sbbf;

const FIRST_CAPACITY: u64 = 1 << 16;
const FALSE_POSITIVE_RATE: f64 = 0.000_001;

/// A growing Bloom filter over key hashes.
#[derive(Debug, Default)]
pub struct SealedKeys {
    /// Filters, each with its capacity and number of keys. All but the last are full.
    filters: Vec<(Sbbf, u64, u64)>,
}

impl SealedKeys {
    /// Adds a key.
    pub fn insert(&mut self, key: i64) {
        if self.contains(key) {
            return;
        }
        if self.filters.last().is_none_or(|(_, capacity, held)| held >= capacity) {
            let capacity = FIRST_CAPACITY << self.filters.len();
            let filter = Sbbf::new_with_ndv_fpp(capacity, FALSE_POSITIVE_RATE).expect("0 < rate < 1");
            self.filters.push((filter, capacity, 0));
        }
        if let Some((filter, _, held)) = self.filters.last_mut() {
            filter.insert(&key);
            *held += 1;
        }
    }

    /// Whether the key may have been added. `false` is certain.
    pub fn contains(&self, key: i64) -> bool {
        self.filters.iter().any(|(filter, _, _)| filter.check(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_every_key_and_few_others() {
        let mut sealed = SealedKeys::default();
        let scatter = |i: i64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64);
        (0..300_000).for_each(|i| sealed.insert(scatter(i)));
        assert!((0..300_000).all(|i| sealed.contains(scatter(i))));
        let wrong = (300_000..400_000).filter(|i| sealed.contains(scatter(*i))).count();
        assert!(wrong <= 2, "{wrong} of 100,000 other keys are false positives");
    }
}
