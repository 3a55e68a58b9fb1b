//! Which partition a key belongs to.

use murmur2::{KAFKA_SEED, murmur2};

/// Which partition of `partitions` a record belongs to: the one that holds all records of its key.
///
/// This is what Kafka's Java clients do by default, and librdkafka with
/// `partitioner=murmur2_random`: what they write and what we write under one key is in one
/// partition, and in order. (They spread records without a key over all.)
pub fn partition_for(key: &[u8], partitions: u32) -> u32 {
    /// Java makes its signed hash positive so.
    const POSITIVE: u32 = i32::MAX.cast_unsigned();
    (murmur2(key, KAFKA_SEED) & POSITIVE) % partitions.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of Kafka's own `UtilsTest`.
    #[test]
    fn the_hash_is_that_of_kafka() {
        let cases = [
            ("21", -973932308),
            ("foobar", -790332482),
            ("a-little-bit-long-string", -985981536),
            ("a-little-bit-longer-string", -1486304829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
            ("abc", 479470107),
        ];
        for (key, hash) in cases {
            assert_eq!(murmur2(key.as_bytes(), KAFKA_SEED).cast_signed(), hash, "{key}");
        }
    }

    #[test]
    fn a_key_has_a_partition_however_many_there_are() {
        assert_eq!(partition_for(b"foobar", 7), (-790332482 & i32::MAX) as u32 % 7);
        assert_eq!(partition_for(b"abc", 1), 0);
        assert_eq!(partition_for(b"abc", 0), 0);
        assert!(partition_for(b"", 3) < 3);
    }
}
