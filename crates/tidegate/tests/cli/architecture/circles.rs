//! No circles of files: a file may take names from files below it, and from its parents, not from
//! siblings that take names from it.
//!
//! Reads the modules of a crate with `syn`, resolves the paths in them to the files that define what
//! they name, re-exports included, and looks for strongly connected components. It reads no macro
//! arguments and resolves no methods, so it can miss an arrow; it invents none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit_mut::VisitMut;

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

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg") && list.tokens.to_string() == "test"
    })
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

impl Modules {
    /// Reads the module `at` from `file` and the files of its children.
    fn read(&mut self, file: &Path, at: &ModulePath) {
        let mut parsed = syn::parse_file(&read(file)).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.take(file, at, &mut parsed.items);
    }

    fn take(&mut self, file: &Path, at: &ModulePath, items: &mut [syn::Item]) {
        let name = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let mut module = Module { file: name, ..Module::default() };
        for item in items {
            match item {
                syn::Item::Mod(child) if !is_for_tests(&child.attrs) => {
                    let name = child.ident.to_string();
                    let path: ModulePath = at.iter().cloned().chain([name.clone()]).collect();
                    module.names.insert(name.clone(), Name::Module(path.clone()));
                    match &mut child.content {
                        Some((_, items)) => self.take(file, &path, items),
                        None => self.read(&child_file(file, at, &name), &path),
                    }
                }
                syn::Item::Use(used) if !is_for_tests(&used.attrs) => {
                    let hands_on = !matches!(used.vis, syn::Visibility::Inherited);
                    module.take_use(&used.tree, &mut Vec::new(), hands_on);
                }
                other => module.take_item(other),
            }
        }
        self.0.insert(at.clone(), module);
    }

    /// The module that defines what `path` names, seen from the module `from`; `None`: another crate's,
    /// or nothing that has a name of its own.
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

impl Module {
    fn take_use(&mut self, tree: &syn::UseTree, prefix: &mut Vec<String>, hands_on: bool) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.take_use(&path.tree, prefix, hands_on);
                prefix.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.take_use(tree, prefix, hands_on);
                }
            }
            syn::UseTree::Glob(_) => self.globs.push(prefix.clone()),
            syn::UseTree::Name(name) => self.import(&name.ident, &name.ident, prefix, hands_on),
            syn::UseTree::Rename(name) => self.import(&name.ident, &name.rename, prefix, hands_on),
        }
    }

    fn import(&mut self, name: &syn::Ident, alias: &syn::Ident, prefix: &[String], hands_on: bool) {
        let mut path = prefix.to_vec();
        if name != "self" {
            path.push(name.to_string());
        }
        let alias =
            if alias == "self" { path.last().cloned().unwrap_or_default() } else { alias.to_string() };
        self.names.insert(alias, Name::Use(path.clone()));
        if !hands_on {
            self.paths.push(path);
        }
    }

    fn take_item(&mut self, item: &mut syn::Item) {
        let (ident, attributes) = match &*item {
            syn::Item::Const(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Enum(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Fn(item) => (Some(&item.sig.ident), &item.attrs),
            syn::Item::Static(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Struct(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Trait(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Type(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Macro(item) => (item.ident.as_ref(), &item.attrs),
            syn::Item::Impl(item) => (None, &item.attrs),
            _ => return,
        };
        if is_for_tests(attributes) {
            return;
        }
        if let Some(ident) = ident {
            self.names.insert(ident.to_string(), Name::Item);
        }
        let mut visitor = Paths::default();
        visitor.visit_item_mut(item);
        self.paths.extend(visitor.0);
    }
}

/// Collects the paths of an item's code. It changes nothing: `visit-mut` is the visitor of `syn` that
/// other crates build anyway, so nothing is built twice for this test.
#[derive(Debug, Default)]
struct Paths(Vec<Vec<String>>);

impl VisitMut for Paths {
    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        self.0.push(segments(path));
        syn::visit_mut::visit_path_mut(self, path);
    }

    fn visit_item_use_mut(&mut self, used: &mut syn::ItemUse) {
        let mut module = Module::default();
        module.take_use(&used.tree, &mut Vec::new(), false);
        self.0.extend(module.paths);
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
