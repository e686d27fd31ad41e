//! The names of what actions change: under them others wait, and what was done before is found again or is open again.

use effectd_bus::ResourceName;
use effectd_bus::limits::RESOURCES_MAX;
use effectd_contracts::{SpaceId, ToolSpec, Touch};
use serde_json::{Map, Value};

use crate::key;

/// What a path is known by.
pub(crate) fn of_touch(space: &SpaceId, touch: &Touch) -> String {
    format!("file:{space}/{}", touch.path)
}

/// The names under which others wait for what an action changes.
pub(crate) fn of_action(
    spec: &ToolSpec,
    space: &SpaceId,
    params: &Map<String, Value>,
    touched: &[Touch],
) -> Vec<ResourceName> {
    if touched.is_empty() {
        let name = key::resource_of(spec, space, params);
        return name
            .and_then(|name| ResourceName::new(name).ok())
            .into_iter()
            .collect();
    }
    let paths = touched.iter().map(|touch| touch.path.as_str());
    let names = topmost(paths.collect()).into_iter().take(RESOURCES_MAX);
    names.filter_map(|path| named(space, path)).collect()
}

/// A path of a space as a name.
pub(crate) fn named(space: &SpaceId, path: &str) -> Option<ResourceName> {
    ResourceName::new(format!("file:{space}/{path}")).ok()
}

/// Those that lie beneath none of the others.
pub(crate) fn topmost(mut paths: Vec<&str>) -> Vec<&str> {
    paths.sort_unstable();
    let mut above: Vec<&str> = Vec::new();
    for path in paths {
        let is_beneath = |other: &&str| {
            path.strip_prefix(*other)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        // Those above it stand before it, and the nearest not far.
        if !above.iter().rev().any(is_beneath) {
            above.push(path);
        }
    }
    above
}
