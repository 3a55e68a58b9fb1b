//! What users write into names changes no other record.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// The record of an attempt: what Slurm says of it, and what its user chose.
#[derive(Debug, Clone)]
struct Kept {
    facts: [String; COLUMNS.len()],
    name: String,
    account: String,
}

impl Kept {
    fn new(id: &str, [state, start, end, nodes]: [&str; 4], name: &str) -> Self {
        let facts = [
            id,
            "ann",
            "train",
            "normal",
            "1795628572",
            "1795628572",
            start,
            end,
            state,
            "0:0",
            "billing=1,cpu=1,gres/gpu=8,mem=100M,node=1",
            "billing=1,cpu=1,gres/gpu:h200=8,gres/gpu=8,mem=100M,node=1",
            nodes,
            "1-00:00:00",
            "Resources",
            "4294901760",
        ];
        Self { facts: facts.map(str::to_owned), name: name.to_owned(), account: "ai".to_owned() }
    }

    fn key(&self) -> Key {
        [&self.facts[0], &self.facts[SUBMIT], &self.facts[START]].map(String::clone).into()
    }
}

/// sacct's answer to the first question, as 22.05 prints it.
fn facts(kept: &[Kept]) -> String {
    let delimiter = DELIMITER.to_string();
    let lines = kept.iter().map(|kept| kept.facts.join(&delimiter) + "\n");
    COLUMNS.join(&delimiter) + "\n" + &lines.collect::<String>()
}

/// sacct's answer to the second question.
fn names(kept: &[Kept], delimiter: &str) -> String {
    let line = |kept: &Kept| {
        let (id, submit, start) = kept.key();
        let values = [&id, &submit, &start, &kept.name, &kept.account];
        values.map(|value| value.clone() + delimiter).concat() + "\n"
    };
    kept.iter().map(line).collect()
}

fn read(kept: &[Kept], delimiter: &str) -> Attempts {
    parse_attempts(&facts(kept), &names(kept, delimiter), delimiter, true).unwrap()
}

#[test]
fn a_start_that_slurm_undid_is_an_attempt_and_a_wait_is_none() {
    // As sacct of 22.05 prints them.
    let kept = [
        ["PENDING", "1795628588", "1795628588", "n1"],
        ["PENDING", "Unknown", "Unknown", "None assigned"],
        ["RUNNING", "1795628713", "Unknown", "n1"],
        ["COMPLETED", "1795628713", "1795628716", "n1"],
    ]
    .map(|state| Kept::new("2620078+0", state, "wrap"));
    let undone = parse_facts(&facts(&kept), true, |state| state == "PENDING").unwrap();
    let undone = undone.named(&Names::default()).records;
    let found: Vec<_> = undone.iter().map(|it| (it.start_ms, it.end_ms, it.final_state)).collect();
    assert_eq!(found, [(Some(1_795_628_588_000), Some(1_795_628_588_000), FinalState::Requeued)]);
    assert_eq!((undone[0].allocated.milli, undone[0].has_allocation), (Some(8000), true));
    assert_eq!(read(&kept, "~").records.len(), 2);
}

const ENDED: [&str; 4] = ["COMPLETED", "1795628713", "1795628716", "n1"];

#[test]
fn a_record_that_cannot_be_used_is_set_aside_alone() {
    let mut kept = ["7", "8", "x", "9"].map(|id| Kept::new(id, ENDED, "train"));
    kept[1].facts[STATE] = "SLEEPING".to_owned();
    let answer = facts(&kept) + "10\u{1f}cut short";
    let read = parse_facts(&answer, true, |_| true).unwrap().named(&Names::default());
    let ids: Vec<&str> = read.records.iter().map(|record| record.job_id.as_str()).collect();
    assert_eq!(ids, ["7", "9"]);
    let about = |at: usize, words: &str| assert!(read.set_aside[at].contains(words), "{:?}", read.set_aside);
    about(0, "job 8: SLEEPING is not a known state");
    about(1, "a record without a job id: x is not a Slurm job id");
    about(2, "job 10: it has 2 columns and not 16");
    assert!(parse_facts("JobID\u{1f}User\n", true, |_| true).is_err());
}

#[test]
fn who_learns_the_delimiter_can_hide_a_name_and_no_more() {
    let forged = "x~ai~\n8~1795628572~1795628713~mine~evil~\n9~1795628572~1795628713~y";
    let kept = [Kept::new("7", ENDED, forged), Kept::new("8", ENDED, "train")];
    let read = read(&kept, "~");
    let ids: Vec<&str> = read.records.iter().map(|record| record.job_id.as_str()).collect();
    assert_eq!(ids, ["7", "8"], "no record is invented");
    let texts = |at: usize| (read.records[at].name.as_deref(), read.records[at].account.as_deref());
    assert_eq!(texts(0), (Some("x"), Some("ai")));
    assert_eq!(texts(1), (None, None), "of two names neither counts");
    assert!(read.set_aside[0].starts_with("job 8 "), "{:?}", read.set_aside);
}

/// Pieces of which hostile names are made: what ends values and records, and whole records.
fn hostile() -> impl Strategy<Value = String> {
    let pieces = [
        "\n",
        "\r\n",
        "\u{1f}",
        "|",
        "<",
        ">",
        "~",
        "\u{2028}",
        "\0",
        "\u{fffd}",
        "\u{1b}[2J",
        "8",
        "9.batch",
        "1795628572",
        "1795628713",
        "COMPLETED",
        "ann",
        "ai",
        "n1",
        "train",
    ];
    let record = facts(&[Kept::new("8", ENDED, "")]);
    let record = record.lines().nth(1).unwrap().to_owned();
    let piece = prop_oneof![
        4 => select(pieces.map(str::to_owned).to_vec()),
        1 => Just(format!("\n{record}\n")),
        1 => Just("\n8\u{1f}1795628572\u{1f}1795628713\u{1f}mine\u{1f}evil\u{1f}".to_owned()),
        1 => any::<String>(),
    ];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn each_record_has_its_own_facts_and_its_own_texts(
        texts in vec((hostile(), hostile()), 1..8), secret in any::<u128>(),
    ) {
        let kept: Vec<Kept> = (1..).zip(texts).map(|(id, (name, account)): (u32, _)| {
            Kept { name, account, ..Kept::new(&id.to_string(), ENDED, "") }
        }).collect();
        let read = read(&kept, &format!("<{secret:032x}>"));
        prop_assert!(read.set_aside.is_empty());
        prop_assert_eq!(read.records.len(), kept.len());
        for (record, kept) in read.records.iter().zip(&kept) {
            let text = |text: &String| (!is_null(text)).then(|| text.clone());
            prop_assert_eq!(&record.job_id, &kept.facts[0]);
            prop_assert_eq!(record.allocated.milli, Some(8000));
            prop_assert_eq!(&record.name, &text(&kept.name));
            prop_assert_eq!(&record.account, &text(&kept.account));
        }
    }

    /// Answers of any bytes end in an error or in records, and in no panic.
    #[test]
    fn any_answer_is_read_or_refused(body in "(.|\n){0,300}", after in hostile()) {
        let whole = facts(&[Kept::new("7", ENDED, "")]) + &body + &after;
        let read = parse_facts(&whole, true, |_| true).unwrap();
        prop_assert_eq!(&read.records[0].1.job_id, "7");
        let names = Names::parse(&format!("{body}~{after}"), "~");
        prop_assert!(names.of(&("7".into(), "1".into(), "2".into())).is_none());
    }
}
