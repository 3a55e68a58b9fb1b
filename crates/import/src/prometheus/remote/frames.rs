//! Frames of a streamed answer: a length, a checksum, and a message.

use std::io::{self, Read};

/// Longest frame, bytes. Prometheus writes frames of 1 MiB unless it is told otherwise.
const FRAME_BYTES: u64 = 16 << 20;

/// The next frame; `None` at the end of the stream.
///
/// # Errors
/// The stream is cut, or a frame is damaged or too long.
pub(super) fn next(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let Some(length) = length(stream)? else { return Ok(None) };
    if length > FRAME_BYTES {
        let what = format!("a frame of {length} bytes; at most {FRAME_BYTES} are read");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let mut checksum = [0; 4];
    stream.read_exact(&mut checksum)?;
    let mut frame = vec![0; length as usize];
    stream.read_exact(&mut frame)?;
    match crc32c(&frame) == u32::from_be_bytes(checksum) {
        true => Ok(Some(frame)),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "a frame does not have its checksum")),
    }
}

/// A number in base 128, lowest digits first.
fn length(stream: &mut impl Read) -> io::Result<Option<u64>> {
    let mut length = 0;
    for shift in (0..35).step_by(7) {
        let mut byte = [0];
        match stream.read_exact(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && shift == 0 => return Ok(None),
            read => read?,
        }
        length |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(Some(length));
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the length of a frame has no end"))
}

/// CRC-32 with Castagnoli's polynomial (RFC 3720, B.4).
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |crc, byte| TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ crc >> 8)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let (mut crc, mut bit) = (at as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_standard() {
        // RFC 3720, B.4: 32 bytes of zeroes, of ones, and counted up.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let up: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&up), 0x46dd_794e);
    }

    #[test]
    fn frames_are_whole_or_refused() {
        let frame = [&[9][..], &0xe306_9283_u32.to_be_bytes(), b"123456789"].concat();
        let stream = [&frame[..], &frame[..]].concat();
        let mut left = &stream[..];
        assert_eq!(next(&mut left).unwrap().as_deref(), Some(&b"123456789"[..]));
        assert_eq!(next(&mut left).unwrap().as_deref(), Some(&b"123456789"[..]));
        assert_eq!(next(&mut left).unwrap(), None);
        for (cut, what) in [(1, "fill"), (8, "fill")] {
            let error = next(&mut &frame[..cut]).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
        let mut damaged = frame.clone();
        damaged[7] ^= 1;
        assert!(next(&mut &damaged[..]).unwrap_err().to_string().contains("checksum"));
        let long = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0];
        assert!(next(&mut &long[..]).unwrap_err().to_string().contains("at most"));
        assert!(next(&mut &[0x80; 9][..]).unwrap_err().to_string().contains("no end"));
    }
}
