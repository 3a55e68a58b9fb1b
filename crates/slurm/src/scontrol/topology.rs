//! Topology: the text of `scontrol show topology`, of the plugins tree and block.

use super::{fields, text};
use crate::client::{CommandError, SlurmClient};
use crate::hostlist::HostList;

/// Asked for in this program.
const PROGRAM: &str = "scontrol show topology";
/// Nodes of an answer that are read; more make it unusable. Each line alone is bounded by the host
/// list, and a short line can name 100,000.
const MAX_NODES: usize = 200_000;

/// Nodes that are next to each other: at one leaf switch, or in one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbours {
    /// Name of the switch or block.
    pub name: String,
    /// The nodes.
    pub nodes: HostList,
}

impl SlurmClient {
    /// Leaf switches or blocks with their nodes; empty where Slurm knows no topology.
    ///
    /// # Errors
    /// scontrol failed, or its answer cannot be read.
    pub fn topology(&self) -> Result<Vec<Neighbours>, CommandError> {
        match self.text("scontrol", &["show", "topology"]) {
            Ok(answer) => parse_topology(&answer),
            // So it says with the plugin `topology/none` or `topology/default`.
            Err(CommandError::Failed { stderr, .. }) if stderr.contains("No topology") => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Parses the answer of `scontrol show topology`. Of a tree the leaves count, of blocks the blocks
/// and not what they are aggregated to.
///
/// # Errors
/// A line is neither a switch nor a block, its nodes cannot be read, or it names too many.
pub fn parse_topology(answer: &str) -> Result<Vec<Neighbours>, CommandError> {
    let mut found = Vec::new();
    let mut count = 0;
    for line in answer.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("No ")) {
        let fields = fields(line);
        let is_aggregate = fields.contains_key("AggregatedBlock");
        let Some(name) = text(&fields, "SwitchName").or(text(&fields, "BlockName")) else {
            if is_aggregate {
                continue;
            }
            let shown: String = line.chars().take(80).collect();
            return Err(CommandError::unusable(
                PROGRAM,
                format!("a line is no switch and no block: {shown:?}"),
            ));
        };
        // A switch above others lists the nodes of all of them.
        let is_leaf = match fields.get("Level") {
            Some(level) => *level == "0",
            None => text(&fields, "Switches").is_none() && !is_aggregate,
        };
        let Some(nodes) = text(&fields, "Nodes").filter(|_| is_leaf) else { continue };
        let nodes = HostList::parse(nodes)
            .map_err(|error| CommandError::unusable(PROGRAM, format!("nodes of {name:?}: {error}")))?;
        count += nodes.count() as usize;
        if count > MAX_NODES {
            return Err(CommandError::unusable(PROGRAM, format!("it names more than {MAX_NODES} nodes")));
        }
        found.push(Neighbours { name: name.to_owned(), nodes });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &str) -> Vec<(String, String)> {
        let found = parse_topology(answer).unwrap().into_iter();
        found.map(|it| (it.name, it.nodes.into_string())).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, nodes)| ((*name).to_owned(), (*nodes).to_owned())).collect()
    }

    /// As 22.05 prints it.
    #[test]
    fn the_leaves_of_a_tree_count() {
        let tree = "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2] \n\
                    SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4] \n\
                    SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2] \n";
        assert_eq!(read(tree), pairs(&[("leaf1", "n1,n2"), ("leaf2", "n3,n4")]));
        assert_eq!(read("SwitchName=lonely Level=0 LinkSpeed=1\n"), []);
    }

    #[test]
    fn blocks_count_and_not_what_they_make_up() {
        let blocks = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n\
                      BlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n\
                      AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n";
        assert_eq!(read(blocks), pairs(&[("b1", "n1,n2"), ("b2", "n3,n4")]));
    }

    #[test]
    fn no_topology_is_none_and_anything_else_is_no_answer() {
        assert_eq!(read("No topology information available\n"), []);
        assert_eq!(read(""), []);
        let bad = |answer: &str| parse_topology(answer).unwrap_err().to_string();
        assert!(bad("slurm_load_topo error\n").contains("no switch and no block"));
        assert!(bad("SwitchName=a Level=0 Nodes=n[1-\n").contains("nodes of \"a\""));
        let escaped = bad("\u{1b}[31m oops\n");
        assert!(escaped.contains("\\u{1b}") && !escaped.contains('\u{1b}'), "{escaped}");
        let many = "SwitchName=a Level=0 Nodes=n[1-99999]\n".repeat(3);
        assert!(bad(&many).contains("more than 200000 nodes"));
    }
}
