//! Imports the location of nodes: from a table (`node,switch,rack`) or Slurm's topology.conf.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_events::{Event, SchemaId, v1};
use tidegate_log::{EventLog, TopicConfig};
use tidegate_slurm::expand_hosts;

use crate::error::ImportError;
use crate::outbox::Outbox;

/// More levels of switches than any network has; a deeper tree is a cycle.
const MAX_DEPTH: usize = 16;
/// Most nodes of a file of Slurm, and most switches: a line of 30 bytes can name 100,000.
const MAX_NAMES: usize = 100_000;

/// Location of one node, as far as known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Name of the node.
    pub node: String,
    /// Its rack.
    pub rack: Option<String>,
    /// The switch that it is connected to.
    pub switch: Option<String>,
    /// Switches above it, from the lowest up.
    pub switches_above: Vec<String>,
}

/// Invalid topology file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum TopologyError {
    #[error(
        "it names no node; write a table with the columns node, switch and rack, or Slurm's SwitchName=… Nodes=… lines"
    )]
    Empty,
    #[error("line {line}: {what}")]
    Line { line: usize, what: String },
    #[error("switch {switch} is above itself")]
    Ring { switch: String },
}

/// Parses the locations of all nodes of a file, sorted by node.
///
/// # Errors
/// A line cannot be parsed, a node appears twice, or there is no node.
pub fn read(text: &str) -> Result<Vec<Place>, TopologyError> {
    let is_slurm = |line: &str| line.get(..11).is_some_and(|head| head.eq_ignore_ascii_case("SwitchName="));
    let places = if text.lines().any(|line| is_slurm(line.trim())) { slurm(text)? } else { table(text)? };
    if places.is_empty() { Err(TopologyError::Empty) } else { Ok(places.into_values().collect()) }
}

fn refuse(line: usize, what: impl Into<String>) -> TopologyError {
    TopologyError::Line { line, what: what.into() }
}

/// Parses a table. Fields hold no comma, as names of nodes, switches and racks do not.
fn table(text: &str) -> Result<BTreeMap<String, Place>, TopologyError> {
    let fields = |line: &'_ str| -> Vec<String> {
        line.split(',').map(|field| field.trim().trim_matches('"').to_owned()).collect()
    };
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().ok_or(TopologyError::Empty)?;
    let header = fields(header);
    let column = |name: &str| header.iter().position(|title| title.eq_ignore_ascii_case(name));
    let (Some(node), switch, rack) = (column("node"), column("switch"), column("rack")) else {
        return Err(refuse(1, "there is no column `node`; the header is node,switch,rack"));
    };
    if switch.is_none() && rack.is_none() {
        return Err(refuse(1, "there is neither a column `switch` nor `rack`"));
    }
    let mut places = BTreeMap::new();
    for (index, line) in lines {
        let row = fields(line);
        let text = |at: Option<usize>| at.and_then(|at| row.get(at)).filter(|text| !text.is_empty()).cloned();
        let name = text(Some(node)).ok_or_else(|| refuse(index + 1, "the node has no name"))?;
        let place =
            Place { node: name.clone(), rack: text(rack), switch: text(switch), switches_above: Vec::new() };
        if places.insert(name.clone(), place).is_some() {
            return Err(refuse(index + 1, format!("node {name} stands there a second time")));
        }
    }
    Ok(places)
}

/// Parses `SwitchName=s0 Nodes=n[1-4]` and `SwitchName=top Switches=s[0-3]`; other settings of a
/// line are ignored.
fn slurm(text: &str) -> Result<BTreeMap<String, Place>, TopologyError> {
    let (mut places, mut above) = (BTreeMap::new(), BTreeMap::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let settings: Vec<(String, &str)> = line
            .split_whitespace()
            .filter_map(|word| word.split_once('='))
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .collect();
        let value = |wanted: &str| settings.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
        let Some(switch) = value("switchname") else { continue };
        let expand = |list: Option<&str>| {
            let mut names = String::new();
            let Some(list) = list else { return Ok(Vec::new()) };
            expand_hosts(list, &mut names).map_err(|error| refuse(index + 1, error.message))?;
            Ok(names.split(',').map(str::to_owned).collect())
        };
        let (nodes, switches) = (expand(value("nodes"))?, expand(value("switches"))?);
        if places.len() + nodes.len() > MAX_NAMES || above.len() + switches.len() > MAX_NAMES {
            return Err(refuse(index + 1, format!("the file names more than {MAX_NAMES} nodes or switches")));
        }
        for node in nodes {
            let place = Place { node: node.clone(), switch: Some(switch.to_owned()), ..Place::default() };
            if places.insert(node.clone(), place).is_some() {
                return Err(refuse(index + 1, format!("node {node} is at another switch already")));
            }
        }
        for below in switches {
            if above.insert(below.clone(), switch.to_owned()).is_some() {
                return Err(refuse(index + 1, format!("switch {below} is below another one already")));
            }
        }
    }
    for place in places.values_mut() {
        let mut next = place.switch.as_ref();
        while let Some(switch) = next.and_then(|switch| above.get(switch)) {
            if place.switches_above.len() == MAX_DEPTH {
                return Err(TopologyError::Ring { switch: switch.clone() });
            }
            place.switches_above.push(switch.clone());
            next = Some(switch);
        }
    }
    Ok(places)
}

/// Result of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labeled {
    /// Nodes in the file.
    pub nodes: usize,
    /// Distinct switches.
    pub switches: usize,
    /// Distinct racks.
    pub racks: usize,
    /// Events appended.
    pub events_written: u64,
    /// Events that the log already had.
    pub events_already_present: u64,
}

/// Appends the location of each node from `since_ms` on, ms since the epoch.
///
/// # Errors
/// The log refuses the events.
pub fn label(
    places: &[Place],
    cluster: &str,
    since_ms: i64,
    log: &dyn EventLog,
    topics: TopicConfig,
) -> Result<Labeled, ImportError> {
    let mut outbox = Outbox::new(log, "topology", topics);
    outbox.prepare(SchemaId::NodeEvent)?;
    for place in places {
        let above = &place.switches_above;
        let mut event = Event::Node(v1::NodeEvent {
            envelope: Some(v1::Envelope {
                cluster: cluster.to_owned(),
                event_time_ms: since_ms,
                ..Default::default()
            }),
            kind: v1::NodeEventKind::NodeLabeled.into(),
            node: place.node.clone(),
            rack: place.rack.clone(),
            switch: place.switch.clone(),
            switches_above: (!above.is_empty()).then(|| above.join(",")),
            ..Default::default()
        });
        if outbox.add(&mut event).is_ok() {
            outbox.accept_row()?;
        }
    }
    outbox.flush_all()?;
    let distinct =
        |text: fn(&Place) -> Option<&String>| places.iter().filter_map(text).collect::<BTreeSet<_>>().len();
    Ok(Labeled {
        nodes: places.len(),
        switches: distinct(|place| place.switch.as_ref()),
        racks: distinct(|place| place.rack.as_ref()),
        events_written: outbox.written,
        events_already_present: outbox.already_present,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_trees_are_read_from_the_leaves_up() {
        let text = "# fabric\nSwitchName=leaf1 Nodes=n[1-2] LinkSpeed=400\nswitchname=leaf2 nodes=n3 # last\n\
                    SwitchName=spine Switches=leaf[1-2]\nSwitchName=core Switches=spine\n";
        let places = read(text).unwrap();
        let shown: Vec<_> = places
            .iter()
            .map(|p| (p.node.as_str(), p.switch.as_deref().unwrap(), p.switches_above.join(",")))
            .collect();
        let above = || "spine,core".to_owned();
        assert_eq!(shown, [("n1", "leaf1", above()), ("n2", "leaf1", above()), ("n3", "leaf2", above())]);
    }

    #[test]
    fn a_file_names_no_more_nodes_than_a_cluster_has() {
        let lines =
            |list: &str| (0..3).map(|at| format!("SwitchName=s{at} {list}{at}_[0-49999]\n")).collect();
        for text in [lines("Nodes=n"), lines("Switches=s")] {
            let text: String = text;
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains("more than 100000 nodes or switches"), "{error}");
        }
    }

    #[test]
    fn a_table_names_switch_or_rack_or_both() {
        let places = read("Rack, node\nr1, n1\n, n2\n").unwrap();
        let racks: Vec<_> = places.iter().map(|p| (p.node.as_str(), p.rack.as_deref())).collect();
        assert_eq!(racks, [("n1", Some("r1")), ("n2", None)]);
    }

    #[test]
    fn invalid_files_are_explained() {
        let cases = [
            ("", "names no node"),
            ("node,switch\n", "names no node"),
            ("node,weight\nn1,2\n", "neither"),
            ("node,switch\nn1,s1\nn1,s2\n", "line 3: node n1 stands there a second time"),
            ("SwitchName=a Nodes=n[1-\n", "line 1"),
            ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[1-2]\n", "line 2: node n1 is at another switch"),
            ("SwitchName=a Nodes=n1 Switches=b\nSwitchName=b Switches=a\n", "above itself"),
        ];
        for (text, says) in cases {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
