//! The resources of actions: an action waits for others that change the same resource, and a change of a resource frees keys.

use effectd_bus::ResourceName;
use effectd_bus::limits::RESOURCES_MAX;
use effectd_contracts::batch::is_batch;
use effectd_contracts::text::without_case;
use effectd_contracts::{SpaceId, ToolSpec, Touch};
use effectd_policy::NamedCommand;
use serde_json::{Map, Value};

use crate::claims::key;

pub(crate) fn of_touch(space: &SpaceId, touch: &Touch) -> String {
    format!("file:{space}/{}", touch.path)
}

pub(crate) fn of_action(
    spec: &ToolSpec,
    space: &SpaceId,
    params: &Map<String, Value>,
    touched: &[Touch],
) -> Vec<ResourceName> {
    if touched.is_empty() {
        let name = key::resource_of(spec, space, params);
        return name.and_then(|name| ResourceName::new(name).ok()).into_iter().collect();
    }
    let mut paths: Vec<_> = touched.iter().map(|touch| touch.path.as_str()).collect();
    if is_batch(&spec.tool_id) {
        // Its items have none of their own, so also a path beneath another one is claimed.
        paths.sort_unstable();
    } else {
        paths = topmost(paths);
    }
    let names = paths.into_iter().take(RESOURCES_MAX);
    names.filter_map(|path| named(space, path)).collect()
}

/// The resources of a named command. One that writes excludes the commands that are not named, which may change the whole space.
/// One that only reads excludes nobody, but its caches have one run at a time.
pub(crate) fn of_command(
    spec: &ToolSpec,
    space: &SpaceId,
    params: &Map<String, Value>,
    command: &NamedCommand,
    mut paths: Vec<ResourceName>,
) -> Vec<ResourceName> {
    let also = match (command.writes.is_empty(), command.caches.is_empty()) {
        (true, true) => return Vec::new(),
        (true, false) => {
            paths.clear();
            of_caches(space, command)
        }
        (false, _) => key::resource_of(spec, space, params).and_then(|name| ResourceName::new(name).ok()),
    };
    paths.extend(also.filter(|name| !paths.contains(name)));
    paths
}

/// The resource of a command's caches.
pub(crate) fn of_caches(space: &SpaceId, command: &NamedCommand) -> Option<ResourceName> {
    ResourceName::new(format!("cache:{space}/{}", command.name)).ok()
}

/// The names as they are compared: where the file system ignores case, one file has one name, whatever its spelling.
pub(crate) fn compared(names: Vec<ResourceName>, ignores_case: bool) -> Vec<ResourceName> {
    if !ignores_case {
        return names;
    }
    let folded = names.into_iter().map(|name| ResourceName::new(without_case(name.as_str())).unwrap_or(name));
    let mut folded: Vec<_> = folded.collect();
    folded.sort_unstable();
    folded.dedup();
    folded
}

/// The name of a path as a resource; `None` if no resource may have that name.
pub(crate) fn named(space: &SpaceId, path: &str) -> Option<ResourceName> {
    ResourceName::new(format!("file:{space}/{path}")).ok()
}

/// The paths that lie beneath none of the others.
pub(crate) fn topmost(mut paths: Vec<&str>) -> Vec<&str> {
    paths.sort_unstable();
    let mut above: Vec<&str> = Vec::new();
    for path in paths {
        let is_beneath = |other: &&str| path.strip_prefix(*other).is_some_and(|rest| rest.starts_with('/'));
        // Sorted: a folder comes before the paths beneath it.
        if !above.iter().rev().any(is_beneath) {
            above.push(path);
        }
    }
    above
}
