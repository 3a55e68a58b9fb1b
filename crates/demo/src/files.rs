//! What somebody at the site has written: the topology and the price book.

use crate::plan::{CLUSTER, NODES, node_name};

/// The table of nodes, switches and racks, as `tidegate topology import` reads it.
pub fn topology() -> String {
    let line = |node: usize| format!("{},leaf-{},rack-{}\n", node_name(node), node / 4 + 1, node / 2 + 1);
    std::iter::once("node,switch,rack\n".to_owned()).chain((0..NODES.iter().sum()).map(line)).collect()
}

/// The price book, as `tidegate price import` reads it: from the beginning of the site on.
pub fn prices(from_time: &str) -> String {
    let header = "from_time,cluster,pool,gpu_model,contract,price_per_gpu_hour,currency";
    let line = |pool: &str, contract: &str, price: &str| {
        format!("{from_time},{},{pool},,{contract},{price},EUR", CLUSTER)
    };
    let lines = [
        line("", "on_demand", "3.90"),
        line("train", "reserved", "2.30"),
        line("serve", "reserved", "2.30"),
        line("burst", "reserved", "2.60"),
    ];
    format!("{header}\n{}\n", lines.join("\n"))
}
