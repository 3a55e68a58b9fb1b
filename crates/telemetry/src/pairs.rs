//! Lists `name=value,name=value` of environment variables: resource attributes and headers. Values
//! are percent-encoded, as the specification has it.

/// The pairs of a list, in order.
///
/// # Errors
/// The number of the pair that is malformed, from 1 on. Its text may be a secret, and is left out.
pub(crate) fn pairs(list: &str) -> Result<Vec<(String, String)>, usize> {
    let all = list.split(',').enumerate().filter(|(_, pair)| !pair.trim().is_empty());
    let parsed = all.map(|(at, pair)| {
        let (name, value) = pair.split_once('=').ok_or(at + 1)?;
        let name = name.trim();
        let value = decoded(value.trim()).filter(|_| !name.is_empty()).ok_or(at + 1)?;
        Ok((name.to_owned(), value))
    });
    parsed.collect()
}

/// Text without its percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = more;
            continue;
        }
        let digits = std::str::from_utf8(more.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?);
        rest = &more[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::pairs;

    #[test]
    fn values_are_percent_decoded() {
        let owned = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let found = pairs(" a=1, authorization=Basic%20eDp5=%3d ,,c=%C3%A4,d= ").unwrap();
        let wanted =
            [owned("a", "1"), owned("authorization", "Basic eDp5=="), owned("c", "ä"), owned("d", "")];
        assert_eq!(found, wanted);
        assert_eq!(pairs(""), Ok(Vec::new()));
    }

    #[test]
    fn a_malformed_pair_is_named_by_its_number() {
        for (list, at) in
            [("a", 1), ("a=1,=2", 2), ("a=1,b=2,c=%zz", 3), ("a=%4", 1), ("a=%ff", 1), ("a=%+1", 1)]
        {
            assert_eq!(pairs(list), Err(at), "{list}");
        }
    }
}
