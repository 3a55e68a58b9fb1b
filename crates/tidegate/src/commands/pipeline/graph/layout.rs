//! A layered layout (Sugiyama, Tagawa and Toda, 1981) of a graph without circles, from left to
//! right.
//!
//! 1. A table stands in the layer after the last of its sources.
//! 2. An edge that passes layers gets a bend in each of them.
//! 3. Layers are ordered by the mean place of their neighbours, which unties crossings.
//! 4. Nodes are moved towards the mean height of their neighbours, as far as there is room.

use tidegate_lake::pipeline::graph::Graph;

/// How often layers are ordered, to the right and back. More does not help on graphs of a hundred
/// tables.
const SWEEPS: usize = 24;
/// How often heights are evened out.
const ROUNDS: usize = 60;
/// Height of a table, and of the room of a bend.
pub const NODE_HEIGHT: f64 = 34.0;
const BEND_HEIGHT: f64 = 6.0;
/// Least room between tables or bends of a layer.
const GAP: f64 = 10.0;
/// Room between layers, for the arrows.
const LAYER_GAP: f64 = 80.0;

/// A table or a bend of an edge: its middle, and how wide it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    pub x: f64,
    pub y: f64,
    pub width: f64,
}

/// Where everything stands.
#[derive(Debug)]
pub struct Layout {
    /// Of each table, in the order of the graph.
    pub nodes: Vec<Place>,
    /// Of each edge, in the order of the graph, the points that it passes between its tables.
    pub bends: Vec<Vec<Place>>,
    pub width: f64,
    pub height: f64,
}

/// An item of a layer while it is ordered and placed.
struct Item {
    layer: usize,
    height: f64,
    y: f64,
    /// Items of the layer before and the layer after that it is joined with.
    left: Vec<usize>,
    right: Vec<usize>,
}

/// Lays out a graph; `widths` are those of the tables.
pub fn lay_out(graph: &Graph, widths: &[f64]) -> Layout {
    let layers_of = layers(graph);
    let count = layers_of.iter().max().map_or(0, |last| last + 1);
    let mut items: Vec<Item> = layers_of.iter().map(|layer| Item::new(*layer, NODE_HEIGHT)).collect();
    let mut chains = Vec::new();
    for (source, reader) in &graph.edges {
        let mut chain = vec![*source];
        for layer in layers_of[*source] + 1..layers_of[*reader] {
            chain.push(items.len());
            items.push(Item::new(layer, BEND_HEIGHT));
        }
        chain.push(*reader);
        for pair in chain.windows(2) {
            items[pair[0]].right.push(pair[1]);
            items[pair[1]].left.push(pair[0]);
        }
        chains.push(chain);
    }
    let mut layers = vec![Vec::new(); count];
    for (place, item) in items.iter().enumerate() {
        layers[item.layer].push(place);
    }
    order(&items, &mut layers);
    set_heights(&mut items, &layers);

    let (mut x, mut middles, mut layer_widths) = (0.0, Vec::new(), Vec::new());
    for layer in &layers {
        let width = layer.iter().filter_map(|place| widths.get(*place)).copied().fold(0.0, f64::max);
        middles.push(x + width / 2.0);
        layer_widths.push(width);
        x += width + LAYER_GAP;
    }
    let top = items.iter().map(|item| item.y - item.height / 2.0).fold(f64::INFINITY, f64::min);
    let bottom = items.iter().map(|item| item.y + item.height / 2.0).fold(f64::NEG_INFINITY, f64::max);
    let at =
        |place: usize, width: f64| Place { x: middles[items[place].layer], y: items[place].y - top, width };
    Layout {
        nodes: widths.iter().enumerate().map(|(place, width)| at(place, *width)).collect(),
        bends: chains
            .iter()
            .map(|chain| {
                let bends = &chain[1..chain.len() - 1];
                bends.iter().map(|place| at(*place, layer_widths[items[*place].layer])).collect()
            })
            .collect(),
        width: (x - LAYER_GAP).max(0.0),
        height: (bottom - top).max(0.0),
    }
}

impl Item {
    fn new(layer: usize, height: f64) -> Self {
        Self { layer, height, y: 0.0, left: Vec::new(), right: Vec::new() }
    }
}

/// The layer of each table: one more than the last of its sources, and as far right as its readers
/// let it, if it has no sources, so that arrows are short.
fn layers(graph: &Graph) -> Vec<usize> {
    let mut layers = vec![0; graph.nodes.len()];
    // As many rounds as the longest way through the graph: it has no circles.
    loop {
        let before = layers.clone();
        for (source, reader) in &graph.edges {
            layers[*reader] = layers[*reader].max(layers[*source] + 1);
        }
        if layers == before {
            break;
        }
    }
    for place in 0..layers.len() {
        let nearest = graph.readers_of(place).map(|reader| layers[reader]).min();
        if let (None, Some(nearest)) = (graph.sources_of(place).next(), nearest) {
            layers[place] = nearest - 1;
        }
    }
    layers
}

/// Orders the layers so that few edges cross. Keeps the best order that was seen.
fn order(items: &[Item], layers: &mut [Vec<usize>]) {
    let mut best = (crossings(items, layers), layers.to_vec());
    for sweep in 0..SWEEPS {
        let to_right = sweep % 2 == 0;
        let ways: Vec<usize> = if to_right {
            (1..layers.len()).collect()
        } else {
            (0..layers.len().saturating_sub(1)).rev().collect()
        };
        for layer in ways {
            let beside = if to_right { layer - 1 } else { layer + 1 };
            let places = positions(items.len(), &layers[beside]);
            let own = positions(items.len(), &layers[layer]);
            let mean = |item: &usize| {
                let joined = if to_right { &items[*item].left } else { &items[*item].right };
                match joined.len() {
                    0 => own[*item],
                    joined_count => joined.iter().map(|n| places[*n]).sum::<f64>() / joined_count as f64,
                }
            };
            layers[layer].sort_by(|a, b| mean(a).total_cmp(&mean(b)));
        }
        let found = crossings(items, layers);
        if found < best.0 {
            best = (found, layers.to_vec());
        }
    }
    layers.clone_from_slice(&best.1);
}

/// Place of each item of a layer, from 0 to 1.
fn positions(items: usize, layer: &[usize]) -> Vec<f64> {
    let mut positions = vec![0.0; items];
    for (position, item) in layer.iter().enumerate() {
        positions[*item] = (position as f64 + 0.5) / layer.len() as f64;
    }
    positions
}

/// How many pairs of edges cross.
fn crossings(items: &[Item], layers: &[Vec<usize>]) -> usize {
    let mut count = 0;
    for pair in layers.windows(2) {
        let right = positions(items.len(), &pair[1]);
        let ends: Vec<f64> = (pair[0].iter())
            .flat_map(|item| {
                let mut ends: Vec<f64> = items[*item].right.iter().map(|n| right[*n]).collect();
                ends.sort_by(f64::total_cmp);
                ends
            })
            .collect();
        for (place, end) in ends.iter().enumerate() {
            count += ends[place + 1..].iter().filter(|later| *later < end).count();
        }
    }
    count
}

/// Stacks the layers, then moves items towards their neighbours without changing their order.
fn set_heights(items: &mut [Item], layers: &[Vec<usize>]) {
    for layer in layers {
        let mut y = 0.0;
        for place in layer {
            items[*place].y = y + items[*place].height / 2.0;
            y += items[*place].height + GAP;
        }
        for place in layer {
            items[*place].y -= y / 2.0;
        }
    }
    for round in 0..ROUNDS {
        let layers: Vec<&Vec<usize>> =
            if round % 2 == 0 { layers.iter().collect() } else { layers.iter().rev().collect() };
        for layer in layers {
            let wanted: Vec<f64> = layer.iter().map(|place| wanted(items, *place)).collect();
            let heights: Vec<f64> = layer.iter().map(|place| items[*place].height).collect();
            for (place, y) in layer.iter().zip(apart(&wanted, &heights)) {
                items[*place].y = y;
            }
        }
    }
}

/// The mean height of what an item is joined with.
fn wanted(items: &[Item], place: usize) -> f64 {
    let joined: Vec<usize> = items[place].left.iter().chain(&items[place].right).copied().collect();
    match joined.len() {
        0 => items[place].y,
        count => joined.iter().map(|n| items[*n].y).sum::<f64>() / count as f64,
    }
}

/// Heights nearest to the wanted ones (least squares) at which items of these sizes, in this order,
/// do not overlap: pool adjacent violators.
fn apart(wanted: &[f64], heights: &[f64]) -> Vec<f64> {
    // An item's distance from the first one, if all stand as close as they may.
    let mut offsets = Vec::with_capacity(heights.len());
    let mut offset = 0.0;
    for (place, height) in heights.iter().enumerate() {
        if place > 0 {
            offset += heights[place - 1] / 2.0 + GAP + height / 2.0;
        }
        offsets.push(offset);
    }
    // Blocks of items that touch: mean wanted height of its first item, and how many they are.
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for (wanted, offset) in wanted.iter().zip(&offsets) {
        let mut block = (wanted - offset, 1);
        while let Some(last) = blocks.last().filter(|last| last.0 > block.0) {
            let count = last.1 + block.1;
            block = ((last.0 * last.1 as f64 + block.0 * block.1 as f64) / count as f64, count);
            blocks.pop();
        }
        blocks.push(block);
    }
    let bases = blocks.iter().flat_map(|(base, count)| std::iter::repeat_n(*base, *count));
    bases.zip(&offsets).map(|(base, offset)| base + offset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Graph {
        Graph::new(&tidegate_lake::pipeline::shipped()).unwrap()
    }

    #[test]
    fn tables_do_not_overlap_and_arrows_lead_to_the_right() {
        let graph = shipped();
        let widths: Vec<f64> = graph.nodes.iter().map(|node| 20.0 + node.name.len() as f64 * 7.0).collect();
        let layout = lay_out(&graph, &widths);
        for (place, a) in layout.nodes.iter().enumerate() {
            for b in &layout.nodes[place + 1..] {
                let beside = (a.x - b.x).abs() >= f64::midpoint(a.width, b.width);
                assert!(beside || (a.y - b.y).abs() >= NODE_HEIGHT, "{a:?} {b:?}");
            }
            assert!(a.y >= 0.0 && a.y <= layout.height && a.x <= layout.width, "{a:?}");
        }
        for ((source, reader), bends) in graph.edges.iter().zip(&layout.bends) {
            let xs = std::iter::once(&layout.nodes[*source]).chain(bends).chain([&layout.nodes[*reader]]);
            assert!(xs.map(|place| place.x).is_sorted(), "{source} {reader}");
        }
        assert_eq!(format!("{layout:?}"), format!("{:?}", lay_out(&graph, &widths)), "the same every time");
    }

    #[test]
    fn items_are_moved_apart_as_little_as_possible() {
        assert_eq!(apart(&[0.0, 100.0], &[20.0, 20.0]), [0.0, 100.0]);
        assert_eq!(apart(&[0.0, 0.0], &[20.0, 20.0]), [-15.0, 15.0]);
        assert_eq!(apart(&[10.0, 0.0, 80.0], &[20.0, 20.0, 20.0]), [-10.0, 20.0, 80.0]);
        assert!(apart(&[], &[]).is_empty());
    }
}
