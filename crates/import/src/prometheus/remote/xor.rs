//! Prometheus' chunks of floats: the encoding of Gorilla (Pelkonen et al., VLDB 2015), with times
//! in milliseconds and other lengths of differences.

/// Most samples of a chunk: their number has two bytes.
const HEAD_BYTES: usize = 2;
/// Bits of a difference of differences, by the number of ones before them.
const DIFFERENCE_BITS: [u32; 5] = [0, 14, 17, 20, 64];

/// The samples of a chunk, in order: ms since the epoch, and the value.
///
/// # Errors
/// It is cut short.
pub(super) fn samples(chunk: &[u8], use_sample: &mut dyn FnMut(i64, f64)) -> Result<(), Cut> {
    let (head, rest) = chunk.split_at_checked(HEAD_BYTES).ok_or(Cut)?;
    let count = u16::from_be_bytes([head[0], head[1]]);
    let mut bits = Bits { bytes: rest, at: 0 };
    let (mut time, mut delta, mut value) = (0_i64, 0_i64, 0_u64);
    let (mut leading, mut significant) = (0_u32, 64_u32);
    for number in 0..count {
        match number {
            0 => {
                time = bits.signed_varint()?;
                value = bits.take(64)?;
            }
            _ => {
                delta = match number {
                    1 => bits.varint()?.cast_signed(),
                    _ => delta.wrapping_add(bits.difference()?),
                };
                time = time.wrapping_add(delta);
                if bits.take(1)? == 1 {
                    if bits.take(1)? == 1 {
                        leading = bits.take(5)? as u32;
                        significant = match bits.take(6)? as u32 {
                            0 => 64,
                            bits => bits,
                        };
                    }
                    let trailing = 64_u32.checked_sub(leading + significant).ok_or(Cut)?;
                    value ^= bits.take(significant)? << trailing;
                }
            }
        }
        use_sample(time, f64::from_bits(value));
    }
    Ok(())
}

/// A chunk is cut short, or makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut;

struct Bits<'a> {
    bytes: &'a [u8],
    /// Bits taken.
    at: usize,
}

impl Bits<'_> {
    /// The next bits, 64 at most, the first one the highest.
    fn take(&mut self, count: u32) -> Result<u64, Cut> {
        let mut taken = 0;
        let mut left = count as usize;
        while left > 0 {
            let byte = *self.bytes.get(self.at / 8).ok_or(Cut)?;
            let free = 8 - self.at % 8;
            let now = free.min(left);
            let part = (byte >> (free - now)) & (0xff >> (8 - now));
            taken = taken << now | u64::from(part);
            (self.at, left) = (self.at + now, left - now);
        }
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Cut> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(8)?;
            number |= (byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Cut)
    }

    /// Zigzag, as Go writes it.
    fn signed_varint(&mut self) -> Result<i64, Cut> {
        let number = self.varint()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// By how much the distance of times has changed.
    fn difference(&mut self) -> Result<i64, Cut> {
        let mut ones = 0;
        while ones < 4 && self.take(1)? == 1 {
            ones += 1;
        }
        let bits = DIFFERENCE_BITS[ones];
        if bits == 0 {
            return Ok(0);
        }
        let number = self.take(bits)?;
        // Above its half it is negative; the half itself is not.
        match bits < 64 && number > 1 << (bits - 1) {
            true => Ok(number.cast_signed() - (1 << bits)),
            false => Ok(number.cast_signed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(chunk: &[u8]) -> Result<Vec<(i64, f64)>, Cut> {
        let mut found = Vec::new();
        samples(chunk, &mut |at_ms, value| found.push((at_ms, value)))?;
        Ok(found)
    }

    /// Bits as a text of 0 and 1.
    fn bits(text: &str) -> Vec<u8> {
        let digits: Vec<u8> =
            text.bytes().filter(|digit| matches!(digit, b'0' | b'1')).map(|d| d - b'0').collect();
        digits
            .chunks(8)
            .map(|byte| byte.iter().enumerate().fold(0, |sum, (at, bit)| sum | bit << (7 - at)))
            .collect()
    }

    #[test]
    fn a_chunk_written_by_hand_is_read() {
        // 1 at 64 ms and at 1064; 2 at 2065 and, a ms back, at 2064.
        let chunk = bits(
            "00000000 00000100
             10000000 00000001 0011111111110000000000000000000000000000000000000000000000000000
             11101000 00000111 0
             10 00000000000001 1 1 00001 001011 11111111111
             10 11110000010110 0",
        );
        let expected = [(64, 1.0), (1_064, 1.0), (2_065, 2.0), (2_064, 2.0)];
        assert_eq!(decoded(&chunk), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_cut_is_refused() {
        assert_eq!(decoded(&[0]), Err(Cut));
        assert_eq!(decoded(&[0, 1, 2]), Err(Cut));
        assert_eq!(decoded(&[0, 0]), Ok(Vec::new()));
        // More significant bits than there are.
        let chunk = bits(&format!(
            "00000000 00000010 00000010 {} 00000001 1 1 11111 111111 {}",
            "0".repeat(64),
            "0".repeat(64)
        ));
        assert_eq!(decoded(&chunk), Err(Cut));
    }
}
