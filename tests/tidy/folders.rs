//! Which folder of a crate imports which, read from the `use` lines; folders do not import each other in circles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::tree::{files_ending, is_test_file, members, none, text, without_tests};

/// Who imports whom.
pub(crate) type Edges = BTreeSet<(String, String)>;

/// What the imports of one crate say. A node is a folder below `src/`, or a file beside them; `foo.rs` belongs to `foo/`.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    pub(crate) nodes: BTreeSet<String>,
    pub(crate) folders: BTreeSet<String>,
    /// The importing node and the imported one, with the lines that make it so.
    pub(crate) edges: BTreeMap<(String, String), Vec<String>>,
    /// The other crates of this workspace that it imports.
    pub(crate) crates: BTreeSet<String>,
    /// The paths from the root that lead to nothing known, with their lines. Each may hide an edge.
    pub(crate) unknown: Vec<String>,
}

/// Every crate, by the folder it is in.
pub(crate) fn all() -> BTreeMap<String, Imports> {
    let mut crates: Vec<_> = members().into_iter().map(|name| (format!("{name}/src/"), name)).collect();
    crates.push(("runtime/".to_owned(), "runtime".to_owned()));
    let sources: Vec<_> = files_ending(".rs").into_iter().map(|file| (text(&file), file)).collect();
    crates.into_iter().map(|(root, name)| (name, imports(&root, &sources))).collect()
}

fn imports(root: &str, sources: &[(String, String)]) -> Imports {
    let mut found = Imports::default();
    let shipped: Vec<_> = sources
        .iter()
        .filter(|(_, file)| file.starts_with(root) && !is_test_file(file))
        .map(|(source, file)| (source, file, module(&file[root.len()..])))
        .collect();
    for (_, file, module) in shipped.iter().filter(|(_, _, module)| !module.is_empty()) {
        found.nodes.insert(module[0].clone());
        if file[root.len()..].contains('/') {
            found.folders.insert(module[0].clone());
        }
    }
    // `crate::Store` is an import of the module that the root exports it from.
    let lib = sources.iter().find(|(_, file)| *file == format!("{root}lib.rs"));
    let mut exports = lib.map_or_else(Vec::new, |(source, _)| paths(source));
    for (source, _, module) in &shipped {
        let home = module.iter().take(1).cloned();
        exports.extend(exported_macros(source).map(|name| (0, home.clone().chain([name]).collect())));
    }
    let defined = lib.map_or_else(BTreeSet::new, |(source, _)| items(source));
    let is_known = |name: &str| {
        let mut names = exports.iter().filter_map(|(_, path)| path.last());
        found.nodes.contains(name) || defined.contains(name) || names.any(|exported| exported == name)
    };
    let home = |name: &str| -> Option<String> {
        let named = |path: &&(usize, Vec<String>)| path.1.last().is_some_and(|last| last == name);
        let exported =
            || exports.iter().find(named).and_then(|(_, path)| path.iter().find(|part| is_module(part)));
        [Some(&name.to_owned()), exported()]
            .into_iter()
            .flatten()
            .find(|name| found.nodes.contains(*name))
            .cloned()
    };
    let mut edges: BTreeMap<_, Vec<String>> = BTreeMap::new();
    let mut unknown = Vec::new();
    for (source, file, module) in &shipped {
        for (line, path) in paths(source) {
            if let Some(other) = path[0].strip_prefix("effectd_") {
                found.crates.insert(other.to_owned());
            }
            let above = path.iter().take_while(|part| *part == "super").count();
            let from_root = path[0] == "crate" || (above > 0 && above == module.len());
            let named = path.iter().find(|part| is_module(part));
            // The root brings all of it together, and imports everything.
            let (Some(from), Some(named), true) = (module.first(), named, from_root) else {
                continue;
            };
            if path[0] == "crate" && !is_known(named) {
                unknown.push(format!("{file}:{line}: {}", path.join("::")));
            }
            if let Some(to) = home(named).filter(|to| to != from) {
                edges.entry((from.clone(), to)).or_default().push(format!("{file}:{line}"));
            }
        }
    }
    found.edges = edges;
    found.unknown = unknown;
    found
}

fn is_module(part: &str) -> bool {
    !["crate", "self", "super", "*"].contains(&part)
}

/// The macros that a file puts at the root of its crate.
fn exported_macros(source: &str) -> impl Iterator<Item = String> {
    let after = source.split("#[macro_export]\nmacro_rules! ").skip(1);
    after.filter_map(|rest| rest.split_whitespace().next().map(str::to_owned))
}

/// The names of the items that a file defines at its top level, modules too.
fn items(source: &str) -> BTreeSet<String> {
    const KINDS: [&str; 10] =
        ["async", "const", "enum", "fn", "mod", "static", "struct", "trait", "type", "unsafe"];
    let name = |(_, line): (usize, &str)| {
        let mut words = line.split(' ').skip_while(|word| word.starts_with("pub")).peekable();
        words.next_if(|word| KINDS.contains(word))?;
        let name = words.find(|word| !KINDS.contains(word))?;
        let end = name.find(|other: char| !other.is_alphanumeric() && other != '_');
        Some(name[..end.unwrap_or(name.len())].to_owned())
    };
    without_tests(source).into_iter().filter_map(name).collect()
}

/// The path of a file's module: nothing for `lib.rs` and `main.rs`.
fn module(file: &str) -> Vec<String> {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let parts = path.split('/').filter(|part| !["lib", "main"].contains(part));
    parts.map(str::to_owned).collect()
}

/// Every path in the code that is not for tests, with its line: of `use` lines each that they import, elsewhere those from the root.
fn paths(source: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut lines =
        without_tests(source).into_iter().filter(|(_, line)| !line.trim_start().starts_with("//"));
    while let Some((number, line)) = lines.next() {
        let start = line.trim_start();
        let visible =
            start.strip_prefix("pub").map_or(start, |rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
        if let Some(import) = visible.strip_prefix("use ") {
            let mut whole = import.to_owned();
            while !whole.ends_with(';') {
                let Some((_, more)) = lines.next() else { break };
                whole.push_str(more.trim());
            }
            expand(&[], whole.trim_end_matches(';'), &mut |path| found.push((number, path)));
            continue;
        }
        for start in ["crate::", "super::", "effectd_"] {
            for (at, _) in line.match_indices(start) {
                let whole = !line[..at]
                    .ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':');
                let end =
                    line[at..].find(|other: char| !other.is_alphanumeric() && other != '_' && other != ':');
                let path = &line[at..end.map_or(line.len(), |end| at + end)];
                if whole && path.contains("::") {
                    found.push((number, path.split("::").map(str::to_owned).collect()));
                }
            }
        }
    }
    found
}

/// The paths of a tree such as `a::{b, c::{d, e as f}}`. The last part is the name that it has here.
fn expand(before: &[String], tree: &str, found: &mut impl FnMut(Vec<String>)) {
    let tree = tree.trim();
    let (path, group) = tree.split_once('{').map_or((tree, None), |(path, group)| (path, Some(group)));
    let mut all = before.to_vec();
    all.extend(
        path.split("::")
            .flat_map(|part| part.split(" as "))
            .filter(|part| !part.is_empty())
            .map(|part| part.trim().to_owned()),
    );
    let Some(group) = group.and_then(|group| group.strip_suffix('}')) else {
        return found(all);
    };
    let (mut depth, mut from) = (0, 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&all, &group[from..at], found);
                from = at + 1;
            }
            _ => {}
        }
    }
    if !group[from..].trim().is_empty() {
        expand(&all, &group[from..], found);
    }
}

impl Imports {
    pub(crate) fn imported_by(&self, node: &str) -> impl Iterator<Item = &String> {
        self.edges.keys().filter(move |(from, _)| from == node).map(|(_, to)| to)
    }

    /// The shortest way from a node back to itself.
    pub(crate) fn circle(&self, node: &str) -> Option<Vec<String>> {
        let mut ways = VecDeque::from([vec![node.to_owned()]]);
        let mut seen = BTreeSet::new();
        while let Some(way) = ways.pop_front() {
            for next in self.imported_by(way.last()?) {
                let longer = [way.clone(), vec![next.clone()]].concat();
                if next == node {
                    return Some(longer);
                }
                if seen.insert(next) {
                    ways.push_back(longer);
                }
            }
        }
        None
    }
}

/// What can be reached from a node.
fn reach(edges: &Edges, node: &str) -> BTreeSet<String> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![node.to_owned()]);
    while let Some(node) = open.pop() {
        let next = edges.iter().filter(|(from, _)| *from == node).map(|(_, to)| to);
        open.extend(next.filter(|to| seen.insert((*to).clone())).cloned());
    }
    seen
}

/// Whether an edge is part of a circle.
pub(crate) fn is_circle(edges: &Edges, (from, to): &(String, String)) -> bool {
    reach(edges, to).contains(from)
}

/// Without the edges that follow from others.
pub(crate) fn reduced(edges: &Edges) -> Edges {
    let follows = |edge: &(String, String)| {
        let mut others = edges.iter().filter(|other| other.0 == edge.0 && *other != edge);
        others.any(|other| !is_circle(edges, other) && reach(edges, &other.1).contains(&edge.1))
    };
    let kept = edges.iter().filter(|edge| is_circle(edges, edge) || !follows(edge));
    kept.cloned().collect()
}

/// The longest way down from a node; circles do not count.
pub(crate) fn height(edges: &Edges, node: &str) -> usize {
    let below = edges.iter().filter(|edge| edge.0 == node && !is_circle(edges, edge));
    below.map(|(_, to)| 1 + height(edges, to)).max().unwrap_or(0)
}

#[test]
fn no_circles_between_folders() {
    let mut findings = Vec::new();
    for (name, imports) in all() {
        let mut reported = BTreeSet::new();
        for circle in imports.folders.iter().filter_map(|folder| imports.circle(folder)) {
            if !reported.insert(circle.iter().cloned().collect::<BTreeSet<_>>()) {
                continue;
            }
            findings.push(format!("{name}: {}", circle.join(" -> ")));
            for edge in circle.windows(2) {
                let mut lines = imports.edges[&(edge[0].clone(), edge[1].clone())].clone();
                lines.dedup();
                let some = lines[..lines.len().min(2)].join(", ");
                findings.push(format!("    {} -> {} at {some} ({} in all)", edge[0], edge[1], lines.len()));
            }
        }
    }
    none(&findings, "These folders import each other in circles; move what both need into the one below:");
}

#[test]
fn paths_from_the_root_lead_to_something_known() {
    let unknown: Vec<_> = all().into_values().flat_map(|imports| imports.unknown).collect();
    none(
        &unknown,
        "Nobody can tell which folder these import; name the module that has it, or export it in lib.rs by name:",
    );
}

#[test]
fn a_path_that_leads_nowhere_is_unknown() {
    let file = |source: &str, name: &str| (source.to_owned(), format!("x/src/{name}.rs"));
    let sources = [
        file("mod a;\nmod b;\npub mod c {}\npub use b::D as E;\n/// The fn f.\npub const fn g() {}\n", "lib"),
        file("use crate::{E, b::D, c::X, g, h, m};\nfn i() { crate::f() }\nuse crate::*;\n", "a"),
        file("#[macro_export]\nmacro_rules! m {\n}\n", "b"),
    ];
    let found = imports("x/src/", &sources);
    assert_eq!(found.unknown, ["x/src/a.rs:1: crate::h", "x/src/a.rs:2: crate::f"]);
    let lines = &found.edges[&("a".to_owned(), "b".to_owned())];
    assert_eq!(lines.len(), 3, "E, D and m are of b: {lines:?}");
}

#[test]
fn imports_are_read_as_the_compiler_reads_them() {
    let source = "//! crate::docs::X\nuse crate::{a::X, b::{self, c::Y as Z}, D};\npub(crate) use super::\n    e::F;\n\
        #[cfg(test)]\nuse crate::test::G;\nfn f() -> crate::h::I { $crate::j::k(effectd_bus::L) }\n\
        #[cfg(test)]\nmod tests {\n    use crate::m::N;\n}\nuse crate::o;\n";
    let read: Vec<_> =
        paths(source).iter().map(|(line, path)| format!("{line} {}", path.join("::"))).collect();
    let expected = [
        "2 crate::a::X",
        "2 crate::b::self",
        "2 crate::b::c::Y::Z",
        "2 crate::D",
        "3 super::e::F",
        "7 crate::h::I",
        "7 crate::j::k",
        "7 effectd_bus::L",
        "12 crate::o",
    ];
    assert_eq!(read, expected);
    assert_eq!(module("stages/gate.rs"), ["stages", "gate"]);
    assert_eq!(module("lib.rs"), [""; 0]);
}
