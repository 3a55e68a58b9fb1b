//! What people read: names that say what they name, lines that fit, pages that are short, links
//! that lead somewhere, and a drawing of the crates that shows what the compiler sees.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::{arrows, read, root, sources, texts};

/// Names that say nothing about what they name. The field has a word for each: docs/glossary.md.
const NAMELESS: &[&str] = &[
    "Happening",
    "Informed",
    "Judged",
    "Known",
    "Look",
    "Mistake",
    "Said",
    "Seen",
    "Stands",
    "Thought",
    "Told",
    "Turn",
    "Wanted",
    "What",
    "Work",
];

const MAX_COLUMNS: usize = 100;

/// Pages that are read whole, and their largest size in bytes.
const SHORT: &[(&str, usize)] = &[("README.md", 10_000), ("ARCHITECTURE.md", 15_000)];

/// Pages that a command writes, from texts that are checked where they stand.
const GENERATED: &[&str] = &["docs/reference/"];

const DRAWN_FROM: &str = "<!-- crates: generated -->";
const DRAWN_TO: &str = "<!-- /crates -->";

fn pages() -> Vec<(String, String)> {
    let pages: Vec<_> = texts().into_iter().filter(|(file, _)| file.ends_with(".md")).collect();
    assert!(pages.len() > 20, "only {} pages found", pages.len());
    pages
}

fn is_generated(file: &str) -> bool {
    GENERATED.iter().any(|one| file.starts_with(one))
}

#[test]
fn types_are_named_for_what_they_are() {
    let definers = ["struct", "enum", "trait", "type", "union"];
    let mut found = Vec::new();
    for (file, text) in texts().iter().filter(|(file, _)| file.ends_with(".rs")) {
        for (number, line) in text.lines().enumerate() {
            let mut words =
                line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
            let defines = words.any(|word| definers.contains(&word));
            let name = words.next().unwrap_or_default();
            if defines && NAMELESS.contains(&name) && !line.trim_start().starts_with("//") {
                found.push(format!("{file}:{}: {name}", number + 1));
            }
        }
    }
    assert!(found.is_empty(), "names that name nothing; see docs/glossary.md\n{}", found.join("\n"));
}

#[test]
fn comments_fit_a_page() {
    let mut found = Vec::new();
    for (file, text) in texts().iter().filter(|(file, _)| file.ends_with(".rs")) {
        for (number, line) in text.lines().enumerate() {
            // An address cannot be wrapped, nor a row of a table.
            let words = line.trim_start().trim_start_matches(['/', '!', ' ']);
            let can_wrap = words.contains(' ') && !words.starts_with('|');
            if line.trim_start().starts_with("//") && line.chars().count() > MAX_COLUMNS && can_wrap {
                found.push(format!("{file}:{}", number + 1));
            }
        }
    }
    assert!(found.is_empty(), "comments of more than {MAX_COLUMNS} columns\n{}", found.join("\n"));
}

#[test]
fn pages_are_short_and_their_lines_fit() {
    for (file, most) in SHORT {
        let size = read(&root().join(file)).len();
        assert!(size <= *most, "{file} has {size} bytes, more than {most}: move details to docs/");
    }
    let mut found = Vec::new();
    for (file, text) in pages().iter().filter(|(file, _)| !is_generated(file)) {
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            // Rows of tables and commands cannot be wrapped, and links need not be.
            let is_prose =
                !is_code && !line.starts_with('|') && !line.starts_with("    ") && !line.contains("](");
            if is_prose && line.chars().count() > MAX_COLUMNS {
                found.push(format!("{file}:{}", number + 1));
            }
        }
    }
    assert!(found.is_empty(), "lines of more than {MAX_COLUMNS} columns\n{}", found.join("\n"));
}

/// The anchors that GitHub and mdBook make of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if is_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        found.insert(kept.collect::<String>().to_lowercase().replace(' ', "-"));
    }
    found
}

/// Targets of a page's links, `[text](target)`, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next().map(str::to_owned));
        found.extend(targets.filter(|_| !is_code));
    }
    found
}

/// `a/b/../c` as `a/c`.
fn straight(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut whole, part| {
        match part {
            Component::ParentDir => _ = whole.pop(),
            other => whole.push(other),
        }
        whole
    })
}

#[test]
fn links_lead_somewhere() {
    let pages: BTreeMap<String, String> = pages().into_iter().collect();
    let mut broken = Vec::new();
    let mut followed = 0;
    for (file, text) in &pages {
        for target in
            links(text).iter().filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        {
            followed += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let folder = Path::new(file).parent().unwrap();
            let to = if path.is_empty() { PathBuf::from(file) } else { straight(&folder.join(path)) };
            let is_there = root().join(&to).exists();
            let page = pages.get(to.to_str().unwrap());
            let has_anchor = anchor.is_empty() || page.is_some_and(|text| anchors(text).contains(anchor));
            if !is_there || !has_anchor {
                broken.push(format!("{file} links to {target}"));
            }
        }
    }
    assert!(followed > 50, "only {followed} links found");
    assert!(broken.is_empty(), "links that lead nowhere\n{}", broken.join("\n"));
}

/// The crates and their arrows as Mermaid draws them, without those that follow from others.
fn drawing() -> String {
    let arrows = arrows(false);
    let short = |name: &str| name.strip_prefix("tidegate-").unwrap_or(name).to_owned();
    let mut lines = vec!["```mermaid".to_owned(), "graph TD".to_owned()];
    for (from, to) in &arrows {
        let reaches = |other: &String| {
            let (mut left, mut seen) = (vec![other.clone()], BTreeSet::new());
            while let Some(at) = left.pop() {
                left.extend(arrows[&at].iter().filter(|next| seen.insert((*next).clone())).cloned());
            }
            seen
        };
        let follows = |one: &String| to.iter().any(|other| other != one && reaches(other).contains(one));
        lines.extend(
            to.iter()
                .filter(|one| !follows(one))
                .map(|one| format!("    {} --> {}", short(from), short(one))),
        );
    }
    lines.push("```".to_owned());
    lines.join("\n")
}

#[test]
fn the_crates_are_drawn_as_they_depend() {
    let file = root().join("ARCHITECTURE.md");
    let page = read(&file);
    let (head, rest) =
        page.split_once(DRAWN_FROM).unwrap_or_else(|| panic!("ARCHITECTURE.md has no {DRAWN_FROM}"));
    let (_, tail) = rest.split_once(DRAWN_TO).unwrap_or_else(|| panic!("ARCHITECTURE.md has no {DRAWN_TO}"));
    let drawn = format!("{head}{DRAWN_FROM}\n{}\n{DRAWN_TO}{tail}", drawing());
    if std::env::var_os("TIDEGATE_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&file, &drawn).unwrap();
        return;
    }
    assert!(
        page == drawn,
        "ARCHITECTURE.md draws other arrows; run this test with TIDEGATE_BLESS=1 and commit the file"
    );
}

#[test]
fn library_crates_describe_what_they_export() {
    let roots: Vec<_> = sources().into_iter().filter(|(file, _)| file.ends_with("/src/lib.rs")).collect();
    assert!(roots.len() > 10);
    for (file, text) in roots {
        assert!(text.contains("#![warn(missing_docs)]"), "{file} lacks #![warn(missing_docs)]");
    }
}
