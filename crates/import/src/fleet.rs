//! Nodes declared for a history without node events: `gpu[01-64]:8:a100:batch`, or a table.

use std::collections::BTreeMap;

use tidegate_events::{Event, v1};
use tidegate_slurm::expand_hosts;

use crate::error::{FleetError, ImportError};
use crate::outbox::Outbox;
use crate::rows::csv::Dialect;
use crate::rows::open::{Source, open};
use crate::rows::{Cell, Next, Rows};

/// More GPUs than any node has; a larger number means a wrong column.
const MAX_GPUS: u32 = 1024;

/// A declared node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DeclaredNode {
    /// `None`: the only cluster of the history.
    cluster: Option<String>,
    node: String,
    gpus: u32,
    gpu_model: Option<String>,
    /// Comma separated if there are several.
    pool: Option<String>,
}

/// Declared nodes of a history; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fleet {
    nodes: Vec<DeclaredNode>,
    since_ms: Option<i64>,
}

impl Fleet {
    /// Adds `gpu[01-64]:8:a100:batch`: a Slurm host list, GPUs per node, their model, and the
    /// pools.
    ///
    /// # Errors
    /// [`FleetError`] names the part that cannot be parsed.
    pub fn add_spec(&mut self, spec: &str) -> Result<(), FleetError> {
        let bad = |what: String| FleetError::Spec { spec: spec.to_owned(), what };
        let (cluster, rest) = match spec.split_once('/') {
            Some(("", _)) => return Err(bad("the cluster before / has no name".into())),
            Some((cluster, rest)) => (Some(cluster), rest),
            None => (None, spec),
        };
        let parts: Vec<&str> = rest.split(':').collect();
        let [names, gpus, more @ ..] = &parts[..] else {
            return Err(bad("the number of GPUs of a node is missing".into()));
        };
        if more.len() > 2 {
            return Err(bad("it has more than four parts".into()));
        }
        let [model, pool] = [0, 1].map(|at| more.get(at).copied());
        self.add(cluster, names, gpus, model, pool).map_err(bad)
    }

    /// Adds a table with a row per node or host list; CSV, CSV.gz or Parquet.
    ///
    /// # Errors
    /// The file cannot be read, lacks a column, or has an invalid row.
    pub fn add_table(&mut self, source: Source) -> Result<(), ImportError> {
        let file = source.name();
        let mut rows = open(source, Dialect { delimiter: b',', quoted: true })?;
        let find = |name: &str| rows.columns().iter().position(|column| column.name == name);
        let required = |column| find(column).ok_or(FleetError::Column { file: file.clone(), column });
        let (node, gpus) = (required("node")?, required("gpus")?);
        let [model, pool, cluster] = ["gpu_model", "pool", "cluster"].map(find);
        loop {
            let next = rows.next()?;
            let bad = |what| FleetError::Line { file: file.clone(), line: rows.line(), what };
            match next {
                Next::End => return Ok(()),
                Next::Bad(reject) => return Err(bad(reject.reason).into()),
                Next::Row => {}
            }
            let text = |column| text(rows.as_ref(), column);
            let [cluster, model, pool] = [cluster, model, pool].map(|column| column.map(text));
            let [cluster, model, pool] = [&cluster, &model, &pool].map(Option::as_deref);
            self.add(cluster, &text(node), &text(gpus), model, pool).map_err(bad)?;
        }
    }

    /// Sets when the nodes start to exist, ms since the epoch, instead of at the beginning of the
    /// history.
    pub fn since(&mut self, since_ms: i64) {
        self.since_ms = Some(since_ms);
    }

    /// Whether no node is declared.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn add(
        &mut self,
        cluster: Option<&str>,
        names: &str,
        gpus: &str,
        model: Option<&str>,
        pool: Option<&str>,
    ) -> Result<(), String> {
        let gpus: u32 = match gpus.trim().parse() {
            Ok(gpus @ 0..=MAX_GPUS) => gpus,
            _ => return Err(format!("{gpus:?} is no number of GPUs of a node, 0 to {MAX_GPUS}")),
        };
        let given =
            |text: Option<&str>| text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        let mut listed = String::new();
        expand_hosts(names.trim(), &mut listed).map_err(|error| error.message)?;
        if listed.split(',').any(str::is_empty) {
            return Err("a node has no name".into());
        }
        self.nodes.extend(listed.split(',').map(|node| DeclaredNode {
            cluster: given(cluster),
            node: node.to_owned(),
            gpus,
            gpu_model: given(model),
            pool: given(pool),
        }));
        Ok(())
    }

    /// Adds the events that register the nodes, at the beginning of each cluster's history
    /// (`clusters`: first and last time of each).
    pub(crate) fn register(
        &self,
        clusters: &BTreeMap<String, (i64, i64)>,
        out: &mut Outbox<'_>,
    ) -> Result<(), ImportError> {
        if clusters.is_empty() {
            return Ok(());
        }
        let mut placed = BTreeMap::new();
        for declared in &self.nodes {
            let cluster = declared.cluster_of(clusters)?;
            if placed.insert((cluster, declared.node.as_str()), declared).is_some() {
                return Err(FleetError::Twice { node: declared.node.clone() }.into());
            }
        }
        for ((cluster, _), declared) in placed {
            let at_ms = self.since_ms.unwrap_or(clusters[cluster].0);
            // It has everything an event needs, so adding it cannot fail.
            if out.add(&mut declared.registered(cluster, at_ms)).is_err() {
                out.drop_row();
            }
            out.accept_row()?;
        }
        Ok(())
    }
}

impl DeclaredNode {
    fn cluster_of<'a>(&self, clusters: &'a BTreeMap<String, (i64, i64)>) -> Result<&'a str, FleetError> {
        let found = || clusters.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        match &self.cluster {
            Some(cluster) => clusters
                .get_key_value(cluster)
                .map(|(name, _)| name.as_str())
                .ok_or_else(|| FleetError::NoSuchCluster { cluster: cluster.clone(), found: found() }),
            None => match clusters.keys().collect::<Vec<_>>()[..] {
                [only] => Ok(only),
                _ => Err(FleetError::WhichCluster { found: found() }),
            },
        }
    }

    fn registered(&self, cluster: &str, at_ms: i64) -> Event {
        Event::Node(v1::NodeEvent {
            envelope: Some(v1::Envelope {
                cluster: cluster.to_owned(),
                event_time_ms: at_ms,
                ..v1::Envelope::default()
            }),
            kind: v1::NodeEventKind::NodeRegistered.into(),
            node: self.node.clone(),
            pool: self.pool.clone(),
            gpu_model: self.gpu_model.clone(),
            gpus_milli: Some(u64::from(self.gpus) * 1000),
            ..v1::NodeEvent::default()
        })
    }
}

/// The cell as text; empty if it has no value.
fn text(rows: &dyn Rows, column: usize) -> String {
    match rows.cell(column) {
        Cell::Text(text) => text.to_owned(),
        Cell::Int(number) => number.to_string(),
        Cell::Float(number) => number.to_string(),
        Cell::Null | Cell::NaiveMs(_) | Cell::InstantMs(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(spec: &str) -> Vec<String> {
        let mut fleet = Fleet::default();
        fleet.add_spec(spec).unwrap();
        let shown = |d: &DeclaredNode| {
            let [cluster, model, pool] =
                [&d.cluster, &d.gpu_model, &d.pool].map(|text| text.as_deref().unwrap_or("-").to_owned());
            format!("{cluster} {} {} {model} {pool}", d.node, d.gpus)
        };
        fleet.nodes.iter().map(shown).collect()
    }

    #[test]
    fn a_spec_names_nodes_gpus_model_and_pools() {
        assert_eq!(shown("gpu[08-10]:8"), ["- gpu08 8 - -", "- gpu09 8 - -", "- gpu10 8 - -"]);
        assert_eq!(shown("a1,b[1-2]:4:a100:x,y"), ["- a1 4 a100 x,y", "- b1 4 a100 x,y", "- b2 4 a100 x,y"]);
        assert_eq!(shown("prod/n:2::debug"), ["prod n 2 - debug"]);
    }

    #[test]
    fn an_invalid_spec_is_explained() {
        let cases = [
            ("gpu[1-4]", "the number of GPUs of a node is missing"),
            ("gpu[1-4]:", "is no number of GPUs of a node"),
            ("gpu[1-4]:eight", "\"eight\" is no number of GPUs"),
            ("gpu[1-4]:9999", "0 to 1024"),
            ("gpu[4-1]:8", "is not a host list"),
            ("gpu[1-:8", "is not a host list"),
            (":8", "a node has no name"),
            ("/n1:8", "the cluster before / has no name"),
            ("n1:8:a:b:c", "more than four parts"),
        ];
        for (spec, says) in cases {
            let error = Fleet::default().add_spec(spec).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("gpu[01-64]:8:a100:batch"), "{spec}: {error}");
        }
    }
}
