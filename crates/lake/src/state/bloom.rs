//! Bloom filter over sealed keys: those that finished and left memory.
//!
//! Every new event of a key that is not in memory asks it. "No" means that the key is new, and is
//! certain. "Maybe" costs a scan of the raw table's keys, so it must be rare: one key in a million,
//! for about 5 bytes per key. The filter grows by adding another one of twice the size.

use parquet::bloom_filter::Sbbf;
use parquet::errors::ParquetError;

const FIRST_CAPACITY: u64 = 1 << 16;
const FALSE_POSITIVE_RATE: f64 = 0.000_001;
/// More filters than any site needs: half a billion keys.
const MAX_FILTERS: usize = 13;
/// Bytes of a block of a filter.
const BLOCK: usize = 32;

/// A growing Bloom filter over key hashes.
#[derive(Debug, Default, Clone)]
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

    /// Number of keys in each filter.
    pub fn counts(&self) -> Vec<u64> {
        self.filters.iter().map(|(_, _, held)| *held).collect()
    }

    /// Writes the bits of all filters; [`Self::from_bits`] reads them.
    pub fn write_bits(&self, bytes: &mut Vec<u8>) -> Result<(), ParquetError> {
        self.filters.iter().try_for_each(|(filter, _, _)| filter.write_bitset(&mut *bytes))
    }

    /// The filters with these numbers of keys and these bits. The error says what is wrong with
    /// them.
    pub fn from_bits(counts: &[u64], mut bits: &[u8]) -> Result<Self, String> {
        if counts.len() > MAX_FILTERS {
            return Err(format!("it has {} filters, more than {MAX_FILTERS}", counts.len()));
        }
        let mut filters = Vec::new();
        for (place, held) in counts.iter().enumerate() {
            let capacity = FIRST_CAPACITY << place;
            let is_last = place + 1 == counts.len();
            if *held > capacity || !is_last && *held < capacity {
                return Err(format!("a filter for {capacity} keys has {held}"));
            }
            let empty = Sbbf::new_with_ndv_fpp(capacity, FALSE_POSITIVE_RATE).expect("0 < rate < 1");
            let Some((own, rest)) = bits.split_at_checked(empty.num_blocks() * BLOCK) else {
                return Err(format!("a filter for {capacity} keys has {} bytes", bits.len()));
            };
            filters.push((Sbbf::new(own), capacity, *held));
            bits = rest;
        }
        match bits.is_empty() {
            true => Ok(Self { filters }),
            false => Err(format!("{} bytes follow its last filter", bits.len())),
        }
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

        let mut bits = Vec::new();
        sealed.write_bits(&mut bits).unwrap();
        let counts = sealed.counts();
        let read = SealedKeys::from_bits(&counts, &bits).unwrap();
        let same = |i: i64| read.contains(scatter(i)) == sealed.contains(scatter(i));
        assert!((0..400_000).all(same) && read.counts() == counts);
        for (counts, bits) in [
            (&counts[..], &bits[1..]),
            (&counts[1..], &bits[..]),
            (&counts[..counts.len() - 1], &bits[..]),
            (&[u64::MAX; 3], &bits[..]),
            (&[1 << 16; 64], &bits[..]),
        ] {
            assert!(SealedKeys::from_bits(counts, bits).is_err(), "{counts:?}, {} bytes", bits.len());
        }
    }
}
