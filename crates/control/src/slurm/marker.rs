//! Markers: the text in Slurm's objects that names the action and generation that changed them.

/// Longest reason of a node, characters.
const MOST_CHARS: usize = 200;

/// `tidegate:ID gGENERATION`.
pub(super) fn marker(id: &str, generation: u64) -> String {
    format!("tidegate:{id} g{generation}")
}

/// Parses id and generation from a text that begins with a marker.
pub(super) fn read(text: &str) -> Option<(String, u64)> {
    let (id, rest) = text.strip_prefix("tidegate:")?.split_once(' ')?;
    let generation = rest.split(' ').next()?.strip_prefix('g')?.parse().ok()?;
    Some((id.to_owned(), generation))
}

/// The reason of a drain: marker and text.
pub(super) fn drain_reason(id: &str, generation: u64, reason: &str) -> String {
    let text: String = reason.chars().map(|c| if c.is_control() || c == '[' { ' ' } else { c }).collect();
    let text = format!("{} {}", marker(id, generation), text.trim());
    text.chars().take(MOST_CHARS).collect::<String>().trim_end().to_owned()
}

/// Whether a text is the reason of this drain, written under any generation: the process that wrote
/// it may have died, or lost the lease, before noting it.
pub(super) fn is_drain_reason(text: &str, id: &str, reason: &str) -> bool {
    read(text).is_some_and(|(_, generation)| text == drain_reason(id, generation, reason))
}

/// A text with our marker at its end, replacing a former marker. The text of others stays.
pub(super) fn with_marker(text: &str, marker: &str) -> String {
    let is_generation =
        |word: &&str| word.strip_prefix('g').is_some_and(|number| number.parse::<u64>().is_ok());
    let mut kept: Vec<&str> = Vec::new();
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let is_marker = word.starts_with("tidegate:") && words.peek().is_some_and(is_generation);
        if is_marker {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.push(marker);
    kept.join(" ")
}

/// Name of a loan's reservation, which contains the loan's id.
pub(super) fn loan_name(id: &str, generation: u64) -> String {
    format!("tidegate-loan.{id}.g{generation}")
}

/// Loan and generation from a reservation's name; `None`: it is not a loan of ours.
pub(super) fn loan_of(name: &str) -> Option<(&str, u64)> {
    let (id, generation) = name.strip_prefix("tidegate-loan.")?.rsplit_once(".g")?;
    Some((id, generation.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_read_as_they_are_written_and_leave_others_text() {
        assert_eq!(read(&marker("drain_node-0a", 7)), Some(("drain_node-0a".into(), 7)));
        assert_eq!(read("tidegate:x gone"), None);
        assert_eq!(read("broken fan"), None);
        assert_eq!(with_marker("", "tidegate:a g1"), "tidegate:a g1");
        let first = with_marker("rack 7 tidegate:do-not-disrupt", "tidegate:a g1");
        assert_eq!(with_marker(&first, "tidegate:b g2"), "rack 7 tidegate:do-not-disrupt tidegate:b g2");
        let declared = "tidegate:elastic,min=8,max=16 of g7 tidegate:a g1";
        assert_eq!(
            with_marker(declared, "tidegate:b g2"),
            "tidegate:elastic,min=8,max=16 of g7 tidegate:b g2"
        );
        assert!(is_drain_reason(&drain_reason("drain_node-0a", 7, "[fan]"), "drain_node-0a", "[fan]"));
        for other in [
            drain_reason("drain_node-0b", 7, "fan"),
            "fan".into(),
            "tidegate:drain_node-0a g7 fan, card ordered".into(),
        ] {
            assert!(!is_drain_reason(&other, "drain_node-0a", "fan"), "{other}");
        }
        assert_eq!(loan_of(&loan_name("lend-0.g1", 12)), Some(("lend-0.g1", 12)));
        assert_eq!(loan_of("serving"), None);
    }
}
