//! W3C trace context: which trace a request belongs to, as its headers say, and as ours say.
//! <https://www.w3.org/TR/trace-context/>

/// Longest header of a trace context that is looked at, bytes: what the standard asks for.
pub const MAX_CONTEXT_BYTES: usize = 512;

/// Length of version 00 of the header.
const LENGTH: usize = 55;

/// A span of another process, or of this one, as its children name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Context {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    pub sampled: bool,
}

impl Context {
    /// Reads `traceparent`. What is malformed is no context: the standard asks to begin a new
    /// trace then.
    pub fn parse(header: &str) -> Option<Self> {
        let header = header.trim();
        let bytes = header.as_bytes();
        if bytes.len() < LENGTH || bytes.len() > MAX_CONTEXT_BYTES {
            return None;
        }
        let (version, rest) = (hex::<1>(&bytes[..2])?, &bytes[LENGTH..]);
        let fits = match version {
            [0] => rest.is_empty(),
            [0xff] => false,
            // A later version begins as this one does, and may go on.
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        let dashes = [2, 35, 52].iter().all(|at| bytes[*at] == b'-');
        let (trace, span) = (hex(&bytes[3..35])?, hex(&bytes[36..52])?);
        let [flags] = hex::<1>(&bytes[53..55])?;
        let is_known = fits && dashes && trace != [0; 16] && span != [0; 8];
        is_known.then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }

    /// The header of a request that this span makes.
    pub fn header(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("00-{}-{}-{:02x}", hex(&self.trace), hex(&self.span), u8::from(self.sampled))
    }
}

/// Bytes of lower-case hexadecimal digits.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::Context;

    /// The example of the standard.
    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn the_standards_example_is_read_and_written_back() {
        let context = Context::parse(EXAMPLE).unwrap();
        assert_eq!((context.trace[0], context.trace[15], context.span[0]), (0x0a, 0x9c, 0xb7));
        assert!(context.sampled);
        assert_eq!(context.header(), EXAMPLE);
        let not_sampled = EXAMPLE.replace("-01", "-00");
        assert!(!Context::parse(&not_sampled).unwrap().sampled);
        // A later version may have more behind it.
        let later = format!("cc{}-what-the-future-brings", &EXAMPLE[2..]);
        assert_eq!(Context::parse(&later).map(|c| c.trace), Some(context.trace));
    }

    #[test]
    fn what_is_malformed_begins_a_new_trace() {
        let zero_trace = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let zero_span = "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01";
        let long = format!("cc{}-{}", &EXAMPLE[2..], "x".repeat(512));
        for wrong in [
            "",
            "00",
            zero_trace,
            zero_span,
            &EXAMPLE.to_uppercase(),
            &format!("{EXAMPLE}-more"),
            &format!("ff{}", &EXAMPLE[2..]),
            &format!("cc{}.more", &EXAMPLE[2..]),
            &EXAMPLE.replace('-', "_"),
            &EXAMPLE.replace("b7ad", "b7äd"),
            &long,
        ] {
            assert_eq!(Context::parse(wrong), None, "{wrong}");
        }
    }
}
