//! The graph of pipelines: which table is computed from which, as Mermaid or Graphviz text.
//!
//! Nodes are raw tables and pipelines; an edge leads from a source to each pipeline that reads it.
//! Order is deterministic: nodes are sorted by name, edges by the names of their ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::error::{LakeError, Result};
use crate::pipeline::compile::in_order;
use crate::pipeline::definition::{Pipeline, Shape};
use crate::raw::raw_tables;

/// What fills a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Events as they came.
    Raw,
    /// A CSV file that comes with the program, or beside a user's pipeline.
    Catalog,
    /// A keyed pipeline: recomputed for a key when the key gets an event.
    Keyed,
    /// A windowed or joined pipeline: recomputed for a window of event time when it gets rows.
    Windowed,
    /// A view: computed when a query asks for it.
    View,
}

impl Kind {
    /// All kinds, in the order of a legend.
    pub const ALL: [Self; 5] = [Self::Raw, Self::Catalog, Self::Keyed, Self::Windowed, Self::View];

    /// Its name in legends and style classes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Catalog => "catalog",
            Self::Keyed => "keyed",
            Self::Windowed => "windowed",
            Self::View => "view",
        }
    }

    /// Fill and line colour, as `#rrggbb`. Text on the fill is dark.
    pub const fn colours(self) -> (&'static str, &'static str) {
        match self {
            Self::Raw => ("#e5e7eb", "#4b5563"),
            Self::Catalog => ("#fef3c7", "#b45309"),
            Self::Keyed => ("#dbeafe", "#1d4ed8"),
            Self::Windowed => ("#dcfce7", "#15803d"),
            Self::View => ("#ffffff", "#6b7280"),
        }
    }
}

/// A table of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Name of the table.
    pub name: String,
    /// What fills it.
    pub kind: Kind,
    /// When it is computed, e.g. `per cluster, job_id` or `per 1 h`; empty for raw tables,
    /// catalogues and views.
    pub when: String,
    /// Folder of its pipeline file; `None` for raw tables.
    pub subject: Option<String>,
    /// Whether it stands at the edge of a part of the graph: read by it, but not of it.
    pub is_outside: bool,
}

/// Tables, and which are computed from which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    /// Sorted by name.
    pub nodes: Vec<Node>,
    /// Places of source and reader in `nodes`, sorted.
    pub edges: Vec<(usize, usize)>,
}

impl Graph {
    /// The graph of these pipelines and the raw tables that they read.
    ///
    /// # Errors
    /// [`LakeError::Pipeline`] if a source is no table, two pipelines have one name, or pipelines
    /// read each other in a cycle.
    pub fn new(pipelines: &[Pipeline]) -> Result<Self> {
        let ordered = in_order(pipelines.to_vec())?;
        let raw: BTreeSet<String> = raw_tables().into_iter().map(|raw| raw.spec.name.clone()).collect();
        let mut nodes: BTreeMap<String, Node> =
            ordered.iter().map(|pipeline| (pipeline.name.clone(), node(pipeline))).collect();
        let mut edges = BTreeSet::new();
        for pipeline in &ordered {
            for source in &pipeline.sources {
                if raw.contains(source) {
                    nodes.entry(source.clone()).or_insert_with(|| raw_node(source));
                } else if !nodes.contains_key(source) {
                    return Err(LakeError::Pipeline {
                        file: pipeline.file.clone(),
                        message: format!("source {source:?} is not a table"),
                    });
                }
                edges.insert((source.clone(), pipeline.name.clone()));
            }
        }
        Ok(Self::from_parts(nodes.into_values().collect(), &edges))
    }

    fn from_parts(nodes: Vec<Node>, edges: &BTreeSet<(String, String)>) -> Self {
        let place = |name: &str| nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok();
        let edges = edges.iter().filter_map(|(source, reader)| Some((place(source)?, place(reader)?)));
        let edges = edges.collect();
        Self { nodes, edges }
    }

    /// The tables that `keep` chooses, and the edges between them.
    fn part(&self, keep: impl Fn(usize) -> Option<Node>) -> Self {
        let edges = self.edges.iter().filter(|(source, reader)| {
            keep(*reader).is_some_and(|reader| !reader.is_outside) && keep(*source).is_some()
        });
        let edges = edges
            .map(|(source, reader)| (self.nodes[*source].name.clone(), self.nodes[*reader].name.clone()))
            .collect();
        Self::from_parts((0..self.nodes.len()).filter_map(&keep).collect(), &edges)
    }

    /// Folders of pipeline files, sorted.
    pub fn subjects(&self) -> BTreeSet<&str> {
        self.nodes.iter().filter_map(|node| node.subject.as_deref()).collect()
    }

    /// The pipelines of one folder, and the tables that they read.
    ///
    /// # Errors
    /// [`LakeError::Refused`] if there is no such folder.
    pub fn of_subject(&self, subject: &str) -> Result<Self> {
        let is_of_it = |place: usize| self.nodes[place].subject.as_deref() == Some(subject);
        if !(0..self.nodes.len()).any(is_of_it) {
            let subjects: Vec<_> = self.subjects().into_iter().collect();
            return Err(LakeError::Refused(format!(
                "there is no subject {subject:?}; there are: {}",
                subjects.join(", ")
            )));
        }
        let read = |place| self.edges.iter().any(|(source, reader)| *source == place && is_of_it(*reader));
        let read: BTreeSet<usize> = (0..self.nodes.len()).filter(|place| read(*place)).collect();
        Ok(self.part(|place| match is_of_it(place) {
            true => Some(self.nodes[place].clone()),
            false if read.contains(&place) => Some(Node { is_outside: true, ..self.nodes[place].clone() }),
            false => None,
        }))
    }

    /// A table, everything that it is computed from, and everything that is computed from it.
    ///
    /// # Errors
    /// [`LakeError::Refused`] if there is no such table.
    pub fn of_table(&self, table: &str) -> Result<Self> {
        let Some(start) = self.nodes.iter().position(|node| node.name == table) else {
            return Err(LakeError::Refused(format!(
                "there is no pipeline {table:?}, nor a raw table of this name that pipelines read; tidegate pipeline list shows \
                 the pipelines"
            )));
        };
        let reached = |next: &dyn Fn(usize) -> Vec<usize>| {
            let (mut found, mut unread) = (BTreeSet::from([start]), vec![start]);
            while let Some(place) = unread.pop() {
                unread.extend(next(place).into_iter().filter(|place| found.insert(*place)));
            }
            found
        };
        let sources = reached(&|place| self.sources_of(place).collect());
        let readers = reached(&|place| self.readers_of(place).collect());
        // An edge from a source to a reader of the table that passes it by would only distract.
        let edges = self.edges.iter().filter(|(source, reader)| {
            [&sources, &readers].iter().any(|side| side.contains(source) && side.contains(reader))
        });
        let edges = edges
            .map(|(source, reader)| (self.nodes[*source].name.clone(), self.nodes[*reader].name.clone()))
            .collect();
        let nodes = sources.union(&readers).map(|place| self.nodes[*place].clone()).collect();
        Ok(Self::from_parts(nodes, &edges))
    }

    /// Places of the tables that a table is computed from.
    pub fn sources_of(&self, place: usize) -> impl Iterator<Item = usize> {
        self.edges.iter().filter(move |(_, reader)| *reader == place).map(|(source, _)| *source)
    }

    /// Places of the tables that are computed from a table.
    pub fn readers_of(&self, place: usize) -> impl Iterator<Item = usize> {
        self.edges.iter().filter(move |(source, _)| *source == place).map(|(_, reader)| *reader)
    }

    /// The graph as a Mermaid flowchart, from left to right.
    pub fn mermaid(&self) -> String {
        let mut text = String::from("flowchart LR\n");
        for node in &self.nodes {
            let label = match node.when.as_str() {
                "" => node.name.clone(),
                when => format!("{}<br/><small>{when}</small>", node.name),
            };
            let shape = match node.kind {
                Kind::Raw => format!("[(\"{label}\")]"),
                Kind::Catalog => format!("[/\"{label}\"/]"),
                Kind::View => format!("(\"{label}\")"),
                Kind::Keyed | Kind::Windowed => format!("[\"{label}\"]"),
            };
            let outside = if node.is_outside { "Outside" } else { "" };
            writeln!(text, "    {}{shape}:::{}{outside}", id(&node.name), node.kind.name()).ok();
        }
        for (source, reader) in &self.edges {
            writeln!(text, "    {} --> {}", id(&self.nodes[*source].name), id(&self.nodes[*reader].name))
                .ok();
        }
        let used: BTreeSet<_> = self.nodes.iter().map(|node| (node.kind, node.is_outside)).collect();
        for (kind, is_outside) in used {
            let (fill, line) = kind.colours();
            let (outside, dashes) = if is_outside { ("Outside", ",stroke-dasharray:4 3") } else { ("", "") };
            writeln!(
                text,
                "    classDef {}{outside} fill:{fill},stroke:{line},color:#111827{dashes}",
                kind.name()
            )
            .ok();
        }
        text
    }

    /// The graph as text for Graphviz's `dot`.
    pub fn dot(&self) -> String {
        let mut text = String::from(
            "digraph pipelines {\n    rankdir=LR;\n    node [fontname=\"Helvetica\", fontsize=11, style=\"filled,rounded\"];\n",
        );
        for node in &self.nodes {
            let shape = match node.kind {
                Kind::Raw => "cylinder",
                Kind::Catalog => "note",
                Kind::Keyed | Kind::Windowed | Kind::View => "box",
            };
            let label = match node.when.as_str() {
                "" => node.name.clone(),
                when => format!("{}\\n{when}", node.name),
            };
            let style = if node.is_outside { ", style=\"filled,dashed\"" } else { "" };
            let (fill, line) = node.kind.colours();
            writeln!(
                text,
                "    \"{}\" [label=\"{label}\", shape={shape}, fillcolor=\"{fill}\", color=\"{line}\"{style}];",
                node.name
            )
            .ok();
        }
        for (source, reader) in &self.edges {
            writeln!(text, "    \"{}\" -> \"{}\";", self.nodes[*source].name, self.nodes[*reader].name).ok();
        }
        text.push_str("}\n");
        text
    }
}

/// A name that Mermaid takes for no keyword, such as `end`.
fn id(name: &str) -> String {
    format!("t_{name}")
}

fn raw_node(name: &str) -> Node {
    Node { name: name.to_owned(), kind: Kind::Raw, when: String::new(), subject: None, is_outside: false }
}

fn node(pipeline: &Pipeline) -> Node {
    let (kind, when) = match &pipeline.shape {
        Shape::Keyed { per } => (Kind::Keyed, format!("per {}", per.join(", "))),
        Shape::Windowed { width_ms, .. } | Shape::Joined { width_ms, .. } => {
            (Kind::Windowed, format!("per {}", duration(*width_ms)))
        }
        Shape::View if pipeline.is_catalog => (Kind::Catalog, String::new()),
        Shape::View => (Kind::View, String::new()),
    };
    Node {
        name: pipeline.name.clone(),
        kind,
        when,
        subject: pipeline.subject().map(str::to_owned),
        is_outside: false,
    }
}

/// A width of windows in the largest unit that divides it, e.g. `1 h`.
pub fn duration(ms: i64) -> String {
    match ms {
        ms if ms % 86_400_000 == 0 => format!("{} d", ms / 86_400_000),
        ms if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms => format!("{} min", ms / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::shipped;

    fn names(graph: &Graph) -> Vec<&str> {
        graph.nodes.iter().map(|node| node.name.as_str()).collect()
    }

    fn pipeline(file: &str, name: &str, sources: &str) -> Pipeline {
        let text =
            format!("--! name = \"{name}\"\n--! doc = \"One.\"\n--! sources = [{sources}]\nSELECT 1 AS n\n");
        Pipeline::parse(file, &text).unwrap()
    }

    #[test]
    fn a_table_has_its_sources_and_readers_and_no_others() {
        let graph = Graph::new(&[
            pipeline("p/x/a.sql", "a", "\"job_events\""),
            pipeline("p/x/b.sql", "b", "\"a\""),
            pipeline("p/y/c.sql", "c", "\"b\", \"a\""),
            pipeline("p/y/d.sql", "d", "\"node_events\""),
        ])
        .unwrap();
        assert_eq!(names(&graph), ["a", "b", "c", "d", "job_events", "node_events"]);
        assert_eq!(names(&graph.of_table("b").unwrap()), ["a", "b", "c", "job_events"]);
        assert_eq!(graph.of_table("b").unwrap().edges, [(0, 1), (1, 2), (3, 0)], "a -> c passes b by");
        let subject = graph.of_subject("y").unwrap();
        assert_eq!(names(&subject), ["a", "b", "c", "d", "node_events"]);
        let outside: Vec<_> =
            subject.nodes.iter().filter(|n| n.is_outside).map(|n| n.name.as_str()).collect();
        assert_eq!(outside, ["a", "b", "node_events"]);
        assert_eq!(subject.edges, [(0, 2), (1, 2), (4, 3)], "what tables outside read is left out");
        let refused = graph.of_subject("z").unwrap_err().to_string();
        assert!(refused.contains("no subject \"z\"; there are: x, y"), "{refused}");
    }

    #[test]
    fn wrong_sources_and_circles_are_refused() {
        let refused = |pipelines: &[Pipeline]| Graph::new(pipelines).unwrap_err().to_string();
        let unknown = refused(&[pipeline("a.sql", "a", "\"nothing\"")]);
        assert!(unknown.contains("a.sql") && unknown.contains("\"nothing\" is not a table"), "{unknown}");
        let circle = refused(&[pipeline("a.sql", "a", "\"b\""), pipeline("b.sql", "b", "\"a\"")]);
        assert!(circle.contains("a, b depend on each other in a cycle"), "{circle}");
    }

    #[test]
    fn text_names_every_table_once_and_every_edge() {
        let graph = Graph::new(&shipped()).unwrap();
        assert!(graph.nodes.len() > 90, "{}", graph.nodes.len());
        for text in [graph.mermaid(), graph.dot()] {
            let arrows = text.matches("->").count();
            assert_eq!(arrows, graph.edges.len(), "{text}");
        }
        assert!(
            graph
                .mermaid()
                .contains("t_attempts[\"attempts<br/><small>per cluster, job_id</small>\"]:::keyed")
        );
        assert!(graph.mermaid().contains("t_job_events[(\"job_events\")]:::raw"));
        assert!(graph.mermaid().contains("t_xid_catalog[/\"xid_catalog\"/]:::catalog"));
        assert_eq!(graph.subjects().len(), 11, "{:?}", graph.subjects());
    }
}
