//! What is fuzzed, by where its bytes come from, with its seeds.

mod control;
mod events;
mod files;
mod node;
mod receiver;
mod slurm;

use std::path::{Path, PathBuf};

/// Parses an input.
pub type Parser = Box<dyn FnMut(&[u8])>;

/// A parser of bytes from outside.
pub struct Target {
    pub name: &'static str,
    /// Makes what it needs, once for a process.
    pub start: fn() -> Parser,
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Target> {
    let groups: [&[Target]; 6] = [
        &events::TARGETS,
        &slurm::TARGETS,
        &receiver::TARGETS,
        &node::TARGETS,
        &files::TARGETS,
        &control::TARGETS,
    ];
    groups.into_iter().flatten()
}

/// A path in the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The files of a folder with that ending, by name.
fn files_of(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let all = std::fs::read_dir(repository(folder)).unwrap().map(|file| file.unwrap().path());
    let mut all: Vec<_> = all.filter(|file| file.extension().is_some_and(|it| it == ending)).collect();
    all.sort();
    all.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn lines(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A parser of text, which gets other bytes replaced as its callers do.
fn of_text<T: 'static>(mut parse: impl FnMut(&str) -> T + 'static) -> Parser {
    Box::new(move |input| drop(std::hint::black_box(parse(&String::from_utf8_lossy(input)))))
}
