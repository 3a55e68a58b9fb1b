//! The graph of pipelines as a picture.

use std::collections::BTreeSet;
use std::fmt::Write;

use tidegate_lake::pipeline::graph::{Graph, Kind, Node};

use super::layout::{Layout, NODE_HEIGHT, Place, lay_out};

const MARGIN: f64 = 24.0;
const LEGEND_HEIGHT: f64 = 44.0;
/// Of the font below, a generous mean: a name that is wider than its box would be worse.
const LETTER_WIDTH: f64 = 7.2;
const SMALL_LETTER_WIDTH: f64 = 5.6;
const FONT: &str = "font-family=\"DejaVu Sans, Verdana, Helvetica, sans-serif\"";

/// Draws the graph, with a legend of the kinds of tables that it has.
pub fn draw(graph: &Graph) -> String {
    let widths: Vec<f64> = graph.nodes.iter().map(width).collect();
    let layout = lay_out(graph, &widths);
    let legend = legend(graph);
    let width = layout.width.max(legend.1) + 2.0 * MARGIN;
    let height = layout.height + LEGEND_HEIGHT + 2.0 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\">\n\
         <title>Pipelines</title>\n\
         <defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0 0 L8 4 L0 8 z\" fill=\"#9ca3af\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}\
         <g transform=\"translate({MARGIN} {:.0})\">\n",
        legend.0,
        MARGIN + LEGEND_HEIGHT
    );
    edges(&mut svg, graph, &layout);
    for (node, place) in graph.nodes.iter().zip(&layout.nodes) {
        table(&mut svg, node, place);
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

fn width(node: &Node) -> f64 {
    let name = node.name.chars().count() as f64 * LETTER_WIDTH;
    let when = node.when.chars().count() as f64 * SMALL_LETTER_WIDTH;
    name.max(when) + 20.0
}

/// Lines from right side to left side, through their bends; each is a smooth curve.
fn edges(svg: &mut String, graph: &Graph, layout: &Layout) {
    for ((source, reader), bends) in graph.edges.iter().zip(&layout.bends) {
        let (from, to) = (&layout.nodes[*source], &layout.nodes[*reader]);
        let (mut x, mut y) = (from.x + from.width / 2.0, from.y);
        let mut path = format!("M{x:.1} {y:.1}");
        // A bend is passed level, over the width of its layer, so that no line crosses a table.
        let stops = bends.iter().map(|bend| (bend.x - bend.width / 2.0, bend.y, bend.width));
        for (next_x, next_y, level) in stops.chain([(to.x - to.width / 2.0, to.y, 0.0)]) {
            let middle = f64::midpoint(x, next_x);
            write!(path, " C{middle:.1} {y:.1} {middle:.1} {next_y:.1} {next_x:.1} {next_y:.1}").ok();
            (x, y) = (next_x + level, next_y);
            if level > 0.0 {
                write!(path, " H{x:.1}").ok();
            }
        }
        let (source, reader) = (&graph.nodes[*source].name, &graph.nodes[*reader].name);
        writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"#9ca3af\" stroke-width=\"1.2\" marker-end=\"url(#arrow)\">\
             <title>{source} to {reader}</title></path>"
        )
        .ok();
    }
}

fn table(svg: &mut String, node: &Node, place: &Place) {
    let (left, top) = (place.x - place.width / 2.0, place.y - NODE_HEIGHT / 2.0);
    shape(svg, node.kind, node.is_outside, (left, top, place.width, NODE_HEIGHT));
    let name_y = if node.when.is_empty() { place.y + 4.0 } else { place.y - 2.0 };
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{name_y:.1}\" text-anchor=\"middle\" {FONT} font-size=\"12\" fill=\"#111827\">{}</text>",
        place.x, node.name
    )
    .ok();
    if !node.when.is_empty() {
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" {FONT} font-size=\"9\" fill=\"#4b5563\">{}</text>",
            place.x,
            place.y + 11.0,
            node.when
        )
        .ok();
    }
}

fn shape(svg: &mut String, kind: Kind, is_outside: bool, (x, y, width, height): (f64, f64, f64, f64)) {
    let (fill, line) = kind.colours();
    let corner = match kind {
        Kind::Raw => 0.0,
        Kind::Catalog => 2.0,
        Kind::Keyed | Kind::Windowed => 5.0,
        Kind::View => height / 2.0,
    };
    let dashes = if is_outside { " stroke-dasharray=\"4 3\"" } else { "" };
    writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"{corner:.1}\" fill=\"{fill}\" \
         stroke=\"{line}\" stroke-width=\"1.3\"{dashes}/>"
    )
    .ok();
}

/// One example of each kind that the graph has, and how wide they are together.
fn legend(graph: &Graph) -> (String, f64) {
    let used: BTreeSet<Kind> = graph.nodes.iter().map(|node| node.kind).collect();
    let mut labels: Vec<(Kind, bool, &str)> = (Kind::ALL.into_iter())
        .filter(|kind| used.contains(kind))
        .map(|kind| {
            let label = match kind {
                Kind::Raw => "events as they came",
                Kind::Catalog => "catalogue (CSV)",
                Kind::Keyed => "recomputed by key",
                Kind::Windowed => "recomputed by window",
                Kind::View => "view: computed when asked",
            };
            (kind, false, label)
        })
        .collect();
    if graph.nodes.iter().any(|node| node.is_outside) {
        labels.push((Kind::View, true, "of another subject"));
    }
    let (mut svg, mut x) = (String::new(), MARGIN);
    for (kind, is_outside, label) in labels {
        shape(&mut svg, kind, is_outside, (x, MARGIN - 6.0, 26.0, 16.0));
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" {FONT} font-size=\"11\" fill=\"#374151\">{label}</text>",
            x + 33.0,
            MARGIN + 6.0
        )
        .ok();
        x += 33.0 + label.chars().count() as f64 * 6.8 + 20.0;
    }
    (svg, x - MARGIN)
}
