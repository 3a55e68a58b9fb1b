//! Tests of `--help`: every command has examples, and each of them parses.

use clap::{Command, CommandFactory};

use super::Cli;

/// Lines of a help text that call the program, with continued lines joined.
fn examples(help: &str) -> Vec<String> {
    let joined = help.replace("\\\n", " ");
    joined.lines().filter(|line| line.starts_with("  tidegate ")).map(str::to_owned).collect()
}

/// The words of a shell line up to the first redirection, pipe or `&&`.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (c, quote) {
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (_, Some(open)) if c == open => quote = None,
            ('|' | '>' | '<' | '&', None) => break,
            (' ', None) => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

fn check(command: &Command, path: &str, faults: &mut Vec<String>) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let examples = examples(&help);
    if !examples.iter().any(|line| format!("{} ", line.trim()).starts_with(&format!("{path} "))) {
        faults.push(format!("{path}: the help has no example of it"));
    }
    for line in examples {
        if let Err(error) = Cli::command().try_get_matches_from(words(&line)) {
            faults.push(format!("{path}: {line:?} does not parse: {error}"));
        }
    }
    for line in help.lines().filter(|line| line.chars().count() > 100 && !line.starts_with("  ")) {
        faults.push(format!("{path}: a line of {} characters: {line}", line.chars().count()));
    }
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        check(sub, &format!("{path} {}", sub.get_name()), faults);
    }
}

#[test]
fn every_command_has_examples_that_parse() {
    let mut faults = Vec::new();
    check(&Cli::command(), "tidegate", &mut faults);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn words_are_those_of_a_shell() {
    assert_eq!(words("  a b 'c d' \"e 'f'\" --g=\"h\" > i"), ["a", "b", "c d", "e 'f'", "--g=h"]);
    assert_eq!(words("a '' | b"), ["a", ""]);
}
