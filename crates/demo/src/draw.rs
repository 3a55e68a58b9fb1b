//! Order-independent random draws: each follows from the seed and the path to the decision.

/// A draw with a seed of its own.
#[derive(Debug, Clone, Copy)]
pub struct Draw(u64);

impl Draw {
    /// The draw of a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The draw of a part: a job, a step, a reading.
    pub fn of(self, part: u64) -> Self {
        Self(mix(self.0 ^ mix(part)))
    }

    /// A number in 0..1.
    pub fn ratio(self) -> f64 {
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number in `low`..`high`.
    pub fn between(self, low: f64, high: f64) -> f64 {
        low + self.ratio() * (high - low)
    }

    /// An integer from `low` to `high`, both included.
    pub fn whole(self, low: i64, high: i64) -> i64 {
        low + (self.0 % (high - low + 1).unsigned_abs()).cast_signed()
    }

    /// True with probability `ppm` per million.
    pub fn is_ppm(self, ppm: u32) -> bool {
        self.0 % 1_000_000 < u64::from(ppm)
    }

    /// A UUID of version 4.
    pub fn uuid(self) -> String {
        let (a, b) = (self.of(7).bits(), self.of(8).bits());
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            a >> 32,
            a >> 16 & 0xffff,
            a & 0xfff,
            b >> 52,
            b & 0xffff_ffff_ffff
        )
    }

    /// The raw bits.
    pub fn bits(self) -> u64 {
        self.0
    }
}

/// The finalizer of SplitMix64: each bit of the result depends on each bit of the number.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
