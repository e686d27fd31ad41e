//! `docs/architecture.svg`: the crates, the folders in them and who imports whom, drawn from the `use` lines. `EFFECTD_BLESS=1` draws it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::folders::{Edges, Imports, all, height, is_circle, reduced};
use crate::tree::agree;

const FOLDER: (f64, f64) = (96.0, 24.0);
/// Between two boxes beside each other, and below each other.
const GAP: (f64, f64) = (14.0, 34.0);
const PADDING: f64 = 14.0;
/// What a crate has above its folders.
const TITLE: f64 = 32.0;
const HEAD: &str = "<title>An arrow means: imports. Arrows that follow from others are left out.</title>\n\
    <style>text{font:12px sans-serif;text-anchor:middle;fill:#222}.crate{fill:#eef2f7;stroke:#8296ad}\
    .crate+text{font-weight:bold}.folder{fill:#fff;stroke:#8296ad}path{fill:none;marker-end:url(#tip)}\
    .arrow{stroke:#5b7189}.circle{stroke:#c62828}#tip path{fill:#5b7189;marker-end:none}</style>\n\
    <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
    <path d=\"M0,0 L8,4 L0,8 z\"/></marker></defs>\n<rect x=\"-20\" y=\"-20\" width=\"100%\" height=\"100%\" fill=\"#fff\"/>";

/// A box with its upper left corner and its size.
#[derive(Debug, Clone, Copy)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// Rows from the top: an importer is above what it imports.
fn rows(nodes: &BTreeSet<String>, edges: &Edges) -> Vec<Vec<String>> {
    let mut rows: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for node in nodes {
        rows.entry(height(edges, node)).or_default().push(node.clone());
    }
    rows.into_values().rev().collect()
}

/// Places boxes of these sizes in rows, each row in the middle. Answers where they are, and the size of the whole.
fn place(rows: &[Vec<String>], size: impl Fn(&str) -> (f64, f64)) -> (BTreeMap<String, Area>, (f64, f64)) {
    let width = |row: &Vec<String>| row.iter().map(|node| size(node).0 + GAP.0).sum::<f64>() - GAP.0;
    let widest = rows.iter().map(width).fold(0.0, f64::max);
    let (mut placed, mut y) = (BTreeMap::new(), 0.0);
    for row in rows {
        let mut x = (widest - width(row)) / 2.0;
        let highest = row.iter().map(|node| size(node).1).fold(0.0, f64::max);
        for node in row {
            let (width, height) = size(node);
            placed.insert(node.clone(), Area { x, y, width, height });
            x += width + GAP.0;
        }
        y += highest + GAP.1;
    }
    (placed, (widest, (y - GAP.1).max(0.0)))
}

/// Arrows from the lower edge of one box to the upper edge of another; those of a circle in red.
fn arrows(edges: &Edges, placed: &BTreeMap<String, Area>) -> String {
    let mut out = String::new();
    for edge in &reduced(edges) {
        let (from, to) = (placed[&edge.0], placed[&edge.1]);
        let within = |area: Area, other: Area| {
            (other.x + other.width / 2.0).clamp(area.x + 12.0, area.x + area.width - 12.0)
        };
        let (start, end) = (within(from, to), within(to, from));
        let (top, bottom) = (from.y + from.height, to.y);
        let bend = ((bottom - top) / 2.0).max(GAP.1 / 2.0);
        let class = if is_circle(edges, edge) { "circle" } else { "arrow" };
        let (first, second) = (top + bend, bottom - bend);
        let curve = format!("M{start},{top} C{start},{first} {end},{second} {end},{bottom}");
        writeln!(out, "<path class=\"{class}\" d=\"{curve}\"/>").unwrap();
    }
    out
}

/// A box with its name at the top.
fn named(area: Area, class: &str, name: &str) -> String {
    let Area { x, y, width, height } = area;
    let (middle, line) = (x + width / 2.0, y + 17.0);
    format!(
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\"/>\
         <text x=\"{middle}\" y=\"{line}\">{name}</text>\n"
    )
}

/// The folders of a crate, and the size of their picture.
fn folders(imports: &Imports) -> (String, (f64, f64)) {
    let is_folder = |node: &String| imports.folders.contains(node);
    let edges = imports.edges.keys().filter(|(from, to)| is_folder(from) && is_folder(to));
    let edges: Edges = edges.cloned().collect();
    let (placed, size) = place(&rows(&imports.folders, &edges), |_| FOLDER);
    let boxes = placed.iter().map(|(name, area)| named(*area, "folder", name));
    (arrows(&edges, &placed) + &boxes.collect::<String>(), size)
}

fn picture(crates: &BTreeMap<String, Imports>) -> String {
    let inside: BTreeMap<_, _> =
        crates.iter().map(|(name, imports)| (name.as_str(), folders(imports))).collect();
    let edges = crates
        .iter()
        .flat_map(|(name, imports)| imports.crates.iter().map(|other| (name.clone(), other.clone())));
    let edges: Edges = edges.filter(|(from, to)| from != to && crates.contains_key(to)).collect();
    let size = |name: &str| {
        let (width, height) = inside[name].1;
        (width.max(150.0) + 2.0 * PADDING, height + TITLE + PADDING)
    };
    let (placed, (width, height)) = place(&rows(&crates.keys().cloned().collect(), &edges), size);
    let mut body = arrows(&edges, &placed);
    for (name, area) in &placed {
        let files = crates[name].nodes.len() - crates[name].folders.len();
        body += &named(*area, "crate", &format!("{name} (and {files} files)"));
        let (drawn, (own, _)) = &inside[name.as_str()];
        let (x, y) = (area.x + (area.width - own) / 2.0, area.y + TITLE);
        writeln!(body, "<g transform=\"translate({x},{y})\">\n{drawn}</g>").unwrap();
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-20 -20 {} {}\">\n{HEAD}\n{body}</svg>\n",
        width + 40.0,
        height + 40.0
    )
}

#[test]
fn the_picture_shows_the_folders_as_they_are() {
    agree("docs/architecture.svg", &picture(&all()));
}
