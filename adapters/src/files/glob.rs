//! Glob patterns: `*` and `?` within a name, `**` for any folders. A pattern without a slash matches the file name.

/// Whether a path matches. The work is bounded by the product of both lengths.
pub fn matches(pattern: &str, path: &str) -> bool {
    let path: Vec<_> = path.split('/').collect();
    if !pattern.contains('/') {
        return path.last().is_some_and(|name| name_matches(pattern, name));
    }
    let pattern: Vec<_> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    // Which suffixes of the path the rest of the pattern matches, from the end of the pattern to its beginning.
    let mut matched: Vec<bool> = (0..=path.len()).map(|at| at == path.len()).collect();
    for part in pattern.iter().rev() {
        matched = (0..=path.len())
            .map(|at| {
                if *part == "**" {
                    matched[at..].contains(&true)
                } else {
                    at < path.len() && matched[at + 1] && name_matches(part, path[at])
                }
            })
            .collect();
    }
    matched[0]
}

/// `*` matches any characters, `?` one.
fn name_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<_>, Vec<_>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            Some(_) | None => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a bound on real time")]
    fn patterns_match_what_people_expect() {
        for (pattern, path, wanted) in [
            ("*.rs", "src/a/b.rs", true),
            ("*.rs", "b.txt", false),
            ("src/*.rs", "src/b.rs", true),
            ("src/*.rs", "src/a/b.rs", false),
            ("src/**/*.rs", "src/a/c/b.rs", true),
            ("src/**/*.rs", "src/b.rs", true),
            ("**/b?", "x/y/b1", true),
            ("**", "anything/at/all", true),
            ("a*b*c", "aXXbYYc", true),
            ("a*b*c", "aXXcYYb", false),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, path), wanted, "{pattern} {path}");
        }
        let begun = std::time::Instant::now();
        assert!(!matches(&"*a".repeat(300), &"a".repeat(250)));
        assert!(matches(&"**/".repeat(300), "x"));
        assert!(begun.elapsed().as_secs() < 60, "patterns must not explode");
    }
}
