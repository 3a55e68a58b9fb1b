//! No circles of files: a file may take names from files below it, and from its parents, not from
//! siblings that take names from it.
//!
//! Reads the tokens of a crate's modules, resolves the paths in them to the files that define what
//! they name, re-exports included, and looks for strongly connected components. It expands no
//! macros and resolves no methods, so it can miss an arrow; it invents none. (With `syn` as a
//! dependency of this test alone, cargo would build every derive macro and all above them a second
//! time.)

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::tokens::{Token, tokens};
use super::{read, root};

/// A module's path from the root of its crate: `["planner", "plan"]`; empty for the root.
type ModulePath = Vec<String>;

/// What a name in a module stands for.
#[derive(Debug, Clone)]
enum Name {
    /// Defined in the module.
    Item,
    Module(ModulePath),
    /// Imported or re-exported from the path.
    Use(Vec<String>),
}

#[derive(Debug, Default)]
struct Module {
    /// Path of the file, from the root of the repository.
    file: String,
    names: BTreeMap<String, Name>,
    /// Modules whose names this one takes all.
    globs: Vec<Vec<String>>,
    /// Every path its code names, as written. A `pub use` is none: it hands on and takes nothing.
    paths: Vec<Vec<String>>,
}

/// The modules of a crate outside of `#[cfg(test)]`.
#[derive(Debug, Default)]
struct Modules(BTreeMap<ModulePath, Module>);

/// Words that begin a definition and stand before its name.
const DEFINERS: [&str; 8] = ["const", "enum", "fn", "static", "struct", "trait", "type", "union"];

impl Modules {
    /// Reads the module `at` from `file` and the files of its children.
    fn read(&mut self, file: &Path, at: &ModulePath) {
        self.take(file, at, &tokens(&read(file)));
    }

    fn take(&mut self, file: &Path, at: &ModulePath, tokens: &[Token]) {
        let name = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let mut module = Module { file: name, ..Module::default() };
        let mut rest = tokens;
        while !rest.is_empty() {
            let (item, after) = split_item(rest);
            rest = after;
            if is_for_tests(item) {
                continue;
            }
            let words: Vec<&str> = item.iter().filter_map(Token::word).collect();
            let begin = item.iter().position(|token| token.is("mod"));
            match begin.filter(|_| declares_module(item)) {
                Some(begin) => {
                    let name = item[begin + 1].word().unwrap().to_owned();
                    let path: ModulePath = at.iter().cloned().chain([name.clone()]).collect();
                    module.names.insert(name.clone(), Name::Module(path.clone()));
                    match item.get(begin + 2) {
                        Some(token) if token.is("{") => {
                            self.take(file, &path, &item[begin + 3..item.len() - 1])
                        }
                        _ => self.read(&child_file(file, at, &name), &path),
                    }
                }
                None => module.take_item(item, &words),
            }
        }
        self.0.insert(at.clone(), module);
    }

    /// The module that defines what `path` names, seen from the module `from`; `None`: another
    /// crate's, or nothing that has a name of its own.
    fn definer(&self, from: &ModulePath, path: &[String], depth: usize) -> Option<ModulePath> {
        if depth > 8 {
            return None;
        }
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => (from[..from.len().checked_sub(1)?].to_vec(), &path[1..]),
            _ => (from.clone(), path),
        };
        while rest.first().is_some_and(|segment| segment == "super") {
            at.pop()?;
            rest = &rest[1..];
        }
        let Some(first) = rest.first() else { return Some(at) };
        let module = self.0.get(&at)?;
        match module.names.get(first) {
            Some(Name::Item) => Some(at),
            Some(Name::Module(child)) if rest.len() == 1 => Some(child.clone()),
            Some(Name::Module(child)) => self.definer(child, &rest[1..], depth + 1),
            Some(Name::Use(used)) => {
                // `use tracing;` names itself, and another crate.
                let whole: Vec<String> = used.iter().cloned().chain(rest[1..].iter().cloned()).collect();
                if *used == [first.clone()] { None } else { self.definer(&at, &whole, depth + 1) }
            }
            None => module.globs.iter().find_map(|glob| {
                let whole: Vec<String> = glob.iter().cloned().chain(rest.iter().cloned()).collect();
                self.definer(&at, &whole, depth + 1).filter(|found| *found != at)
            }),
        }
    }

    /// Which module's file takes a name from which other.
    fn arrows(&self) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let mut arrows: BTreeMap<ModulePath, BTreeSet<ModulePath>> = BTreeMap::new();
        for (from, module) in &self.0 {
            let to = arrows.entry(self.holder(from)).or_default();
            for definer in module.paths.iter().filter_map(|path| self.definer(from, path, 0)) {
                to.insert(self.holder(&definer));
            }
        }
        for (from, to) in &mut arrows {
            to.remove(from);
        }
        arrows
    }

    /// The outermost module of the file that holds `at`: modules in one file are one place.
    fn holder(&self, at: &ModulePath) -> ModulePath {
        let file = &self.0[at].file;
        (0..=at.len())
            .map(|n| at[..n].to_vec())
            .find(|path| self.0.get(path).is_some_and(|m| m.file == *file))
            .unwrap()
    }
}

/// The file of a module that is declared without a body, `src/a.rs` or `src/a/mod.rs`.
fn child_file(file: &Path, at: &ModulePath, name: &str) -> PathBuf {
    let folder = file.parent().unwrap();
    let stem = file.file_stem().unwrap().to_str().unwrap();
    let folder = if ["lib", "main", "mod"].contains(&stem) { folder.to_owned() } else { folder.join(stem) };
    let one = folder.join(format!("{name}.rs"));
    let other = folder.join(name).join("mod.rs");
    assert!(one.is_file() || other.is_file(), "no file for the module {name} of {at:?}");
    if one.is_file() { one } else { other }
}

/// The first item of some tokens, attributes included, and what follows it. An item ends with `;`,
/// or with the block that is not followed by anything that belongs to it.
fn split_item(tokens: &[Token]) -> (&[Token], &[Token]) {
    let (mut depth, mut began) = (0_usize, false);
    let ends_with_semicolon = |item: &[Token]| {
        let first =
            item.iter().find(|token| ["use", "const", "static", "type"].iter().any(|word| token.is(word)));
        first.is_some() && !item.iter().any(|token| token.is("fn") || token.is("impl"))
    };
    for (number, token) in tokens.iter().enumerate() {
        match token.0.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            ";" if depth == 0 => return tokens.split_at(number + 1),
            _ => {}
        }
        began |= token.is("{");
        if began && depth == 0 && token.is("}") && !ends_with_semicolon(&tokens[..number]) {
            return tokens.split_at(number + 1);
        }
    }
    (tokens, &[])
}

/// Whether an attribute of the item is `#[cfg(test)]`.
fn is_for_tests(item: &[Token]) -> bool {
    let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
    let end = item.iter().position(|token| token.is("{")).unwrap_or(item.len());
    item[..end]
        .windows(attribute.len())
        .any(|tokens| tokens.iter().zip(attribute).all(|(token, text)| token.is(text)))
}

/// Whether the item is `mod name;` or `mod name { … }`, whatever stands before it.
fn declares_module(item: &[Token]) -> bool {
    let Some(at) = item.iter().position(|token| token.is("mod")) else { return false };
    let before = &item[..at];
    let others = ["fn", "impl", "{", "macro_rules"];
    !before.iter().any(|token| others.iter().any(|other| token.is(other)))
        && item.get(at + 2).is_some_and(|token| token.is(";") || token.is("{"))
}

impl Module {
    fn take_item(&mut self, item: &[Token], words: &[&str]) {
        if let Some(at) = item.iter().position(|token| token.is("use"))
            && item[..at].iter().all(|token| !token.is("{"))
        {
            let hands_on = item[..at].iter().any(|token| token.is("pub"));
            self.take_use(&item[at + 1..], hands_on);
            return;
        }
        let names = words.windows(2).find(|pair| DEFINERS.contains(&pair[0]) || pair[0] == "macro_rules");
        if let Some(pair) = names.filter(|pair| pair[1] != "fn") {
            self.names.insert(pair[1].to_owned(), Name::Item);
        } else if let Some(pair) = words.windows(3).find(|three| three[0] == "const" && three[1] == "fn") {
            self.names.insert(pair[2].to_owned(), Name::Item);
        }
        self.take_paths(item);
    }

    /// Notes the paths in an item's code, and what `use` brings in inside of it.
    fn take_paths(&mut self, item: &[Token]) {
        let mut at = 0;
        while at < item.len() {
            if item[at].is("use") {
                let end = at + item[at..].iter().position(|token| token.is(";")).unwrap_or(item.len() - at);
                let mut inside = Self::default();
                inside.take_use(&item[at + 1..end], false);
                self.paths.extend(inside.paths);
                at = end + 1;
                continue;
            }
            let Some(first) = item[at].word() else {
                at += 1;
                continue;
            };
            let mut path = vec![first.to_owned()];
            at += 1;
            while item.get(at).is_some_and(|token| token.is("::"))
                && let Some(word) = item.get(at + 1).and_then(Token::word)
            {
                path.push(word.to_owned());
                at += 2;
            }
            self.paths.push(path);
        }
    }

    /// Takes the tree of a `use`: `a::{b, c::d as e, f::*};`.
    fn take_use(&mut self, tree: &[Token], hands_on: bool) {
        let (mut prefix, mut open): (Vec<String>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < tree.len() {
            let token = &tree[at];
            at += 1;
            match token.0.as_str() {
                "{" => open.push(prefix.len()),
                "}" => drop(open.pop()),
                "," => prefix.truncate(open.last().copied().unwrap_or(0)),
                "*" => self.globs.push(prefix.clone()),
                _ => {
                    let Some(word) = token.word() else { continue };
                    prefix.push(word.to_owned());
                    if tree.get(at).is_some_and(|token| token.is("::")) {
                        continue;
                    }
                    let alias = match tree.get(at) {
                        Some(token) if token.is("as") => {
                            at += 2;
                            tree.get(at - 1).and_then(Token::word)
                        }
                        _ => None,
                    };
                    self.import(prefix.clone(), alias, hands_on);
                    prefix.truncate(open.last().copied().unwrap_or(0));
                }
            }
        }
    }

    fn import(&mut self, mut path: Vec<String>, alias: Option<&str>, hands_on: bool) {
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let Some(last) = path.last() else { return };
        self.names.insert(alias.unwrap_or(last).to_owned(), Name::Use(path.clone()));
        if !hands_on {
            self.paths.push(path);
        }
    }
}

/// Sets of modules each of which reaches all others, of two modules and more.
fn components(arrows: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<Vec<&ModulePath>> {
    let reach = |from: &ModulePath| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(at) = left.pop() {
            for to in arrows.get(&at).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    left.push(to.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&ModulePath, BTreeSet<ModulePath>> = arrows.keys().map(|m| (m, reach(m))).collect();
    let mut found: Vec<Vec<&ModulePath>> = Vec::new();
    for module in arrows.keys() {
        if reached[module].contains(module) && !found.iter().any(|circle| circle.contains(&module)) {
            let both_ways =
                |other: &&ModulePath| reached[module].contains(*other) && reached[*other].contains(module);
            found.push(arrows.keys().filter(both_ways).collect());
        }
    }
    found
}

/// Whether one of them is the parent of all others: its own children may use its private types.
fn is_family(circle: &[&ModulePath]) -> bool {
    circle.iter().any(|parent| circle.iter().all(|module| module.starts_with(parent)))
}

/// Circles of files of one crate: siblings, or modules and what is not theirs. `(files, arrows)`.
fn circles(modules: &Modules) -> Vec<String> {
    let all = modules.arrows();
    // The root is everybody's parent, so it excuses nothing.
    let without_root: BTreeMap<ModulePath, BTreeSet<ModulePath>> = all
        .iter()
        .filter(|(from, _)| !from.is_empty())
        .map(|(from, to)| (from.clone(), to.iter().filter(|to| !to.is_empty()).cloned().collect()))
        .collect();
    let related = |a: &ModulePath, b: &ModulePath| a.starts_with(b) || b.starts_with(a);
    let without_family: BTreeMap<ModulePath, BTreeSet<ModulePath>> = without_root
        .iter()
        .map(|(from, to)| (from.clone(), to.iter().filter(|to| !related(from, to)).cloned().collect()))
        .collect();
    let foreign = components(&without_root).into_iter().filter(|circle| !is_family(circle));
    let of_siblings = components(&without_family).into_iter();
    let show = |circle: Vec<&ModulePath>| {
        let arrow = |from: &ModulePath| {
            let to = without_root[from].iter().filter(|to| circle.contains(to)).map(|to| to.join("::"));
            format!("    {} takes from {}", modules.0[from].file, to.collect::<Vec<_>>().join(", "))
        };
        circle.iter().map(|from| arrow(from)).collect::<Vec<_>>().join("\n")
    };
    let mut found: Vec<String> = foreign.chain(of_siblings).map(show).collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn files_take_names_from_files_below_them() {
    let mut found = Vec::new();
    let mut crates: Vec<PathBuf> =
        root().join("crates").read_dir().unwrap().map(|entry| entry.unwrap().path().join("src")).collect();
    crates.sort();
    for folder in crates {
        let mains = ["lib.rs", "main.rs"].map(|main| folder.join(main));
        for main in mains.iter().filter(|main| main.is_file()) {
            let mut modules = Modules::default();
            modules.read(main, &Vec::new());
            found.extend(circles(&modules));
        }
    }
    assert!(found.is_empty(), "{} circles of files:\n{}", found.len(), found.join("\n\n"));
}

#[test]
fn a_circle_of_files_is_found() {
    let module = |file: &str, paths: &[&str]| Module {
        file: file.into(),
        names: [("Thing".to_owned(), Name::Item)].into(),
        globs: Vec::new(),
        paths: paths.iter().map(|path| path.split("::").map(str::to_owned).collect()).collect(),
    };
    let modules = |list: &[(&str, &[&str])]| {
        let of = |path: &str| {
            path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect::<ModulePath>()
        };
        let mut modules = Modules(list.iter().map(|(path, uses)| (of(path), module(path, uses))).collect());
        let children: Vec<ModulePath> = modules.0.keys().filter(|path| !path.is_empty()).cloned().collect();
        for child in children {
            let (name, parent) = child.split_last().unwrap();
            let parent = modules.0.get_mut(parent).unwrap();
            parent.names.insert(name.clone(), Name::Module(child.clone()));
        }
        circles(&modules).len()
    };
    assert_eq!(modules(&[("", &[]), ("a", &["crate::b::Thing"]), ("b", &[])]), 0);
    assert_eq!(modules(&[("", &[]), ("a", &["crate::b::Thing"]), ("b", &["super::a::Thing"])]), 1);
    let family: &[(&str, &[&str])] = &[("", &[]), ("a", &["b::Thing"]), ("a::b", &["super::Thing"])];
    assert_eq!(modules(family), 0);
    let siblings: &[(&str, &[&str])] =
        &[("", &[]), ("a", &["b::Thing"]), ("a::b", &["super::c::Thing"]), ("a::c", &["super::b::Thing"])];
    assert_eq!(modules(siblings), 1);
    let through_a_parent: &[(&str, &[&str])] =
        &[("", &[]), ("a", &["b::Thing"]), ("a::b", &["crate::c::Thing"]), ("c", &["crate::a::Thing"])];
    assert_eq!(modules(through_a_parent), 1);
}
