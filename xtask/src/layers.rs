//! Compares the order of the crates (`layers.toml`) with their imports.
//!
//! Rules
//! 1. `layers.toml` names every package of the workspace once, and no others.
//! 2. A crate imports only crates of lower floors, also for its tests and build scripts.
//! 3. A crate named in `[only]` imports no crates of the project except those listed.
//! 4. Crates in `outside.tests` are imported only in `[dev-dependencies]` and by tools, and import no crate
//!    of the project. No crate imports crates in `outside.tools`.
//! 5. Modules of a crate form no knots: groups that use each other, see [`crate::knots`].
//! 6. A crate is in `crates/FOLDER/NAME`: the folder of its floor, or the one that `[folders]` gives it.
//! 7. Every library and binary root contains `#![forbid(unsafe_code)]`, except those in `unsafe-code.crates`.
//! 8. Third-party packages that `extant` without features needs for WASI are listed, see [`crate::wasi`].

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::knots;
use crate::sources::{self, Crate};
use crate::wasi;
use crate::workspace::{self, Package};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Layers {
    floor: Vec<Floor>,
    #[serde(default)]
    only: BTreeMap<String, Vec<String>>,
    outside: Outside,
    #[serde(default)]
    folders: BTreeMap<String, String>,
    unsafe_code: UnsafeCode,
    wasi: wasi::Wasi,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Floor {
    name: String,
    folder: String,
    crates: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Outside {
    tests: Vec<String>,
    tools: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnsafeCode {
    crates: Vec<String>,
}

/// The position of a crate in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place<'a> {
    Floor(usize, &'a str),
    Tests,
    Tool,
}

/// `cargo xtask layers`
pub(crate) fn run() -> Result<(), String> {
    let layers: Layers = workspace::read_toml("layers.toml")?;
    let packages = workspace::packages()?;
    let mut faults = order_faults(&layers, &packages);
    faults.extend(knot_faults(&sources::crates(&packages)?));
    faults.extend(folder_faults(&layers, &packages));
    faults.extend(unsafe_faults(&layers, &packages)?);
    faults.extend(wasi::faults(&layers.wasi)?);
    if !faults.is_empty() {
        return Err(format!("layers: {} fault(s)\n  {}", faults.len(), faults.join("\n  ")));
    }
    println!("layers: {} crates in order", packages.len());
    Ok(())
}

/// Rules 1 to 4.
fn order_faults(layers: &Layers, packages: &[Package]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut places: BTreeMap<&str, Place<'_>> = BTreeMap::new();
    let floors = layers.floor.iter().enumerate().flat_map(|(height, floor)| {
        floor.crates.iter().map(move |name| (name, Place::Floor(height, &floor.name)))
    });
    let tests = layers.outside.tests.iter().map(|name| (name, Place::Tests));
    let tools = layers.outside.tools.iter().map(|name| (name, Place::Tool));
    for (name, place) in floors.chain(tests).chain(tools) {
        if places.insert(name, place).is_some() {
            faults.push(format!("{name} is named twice in layers.toml"));
        }
    }
    let known: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mentioned = places.keys().copied().chain(layers.only.keys().map(String::as_str));
    for name in mentioned.filter(|name| !known.contains(name)).collect::<BTreeSet<_>>() {
        faults.push(format!("{name} is named in layers.toml but is no crate of the workspace"));
    }

    for package in packages {
        let name = package.name.as_str();
        let Some(&place) = places.get(name) else {
            faults.push(format!("{name} is not named in layers.toml: give it a floor"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| known.contains(d.name.as_str())) {
            let other = dependency.name.as_str();
            // A package that needs itself in [dev-dependencies] switches its features on for its tests.
            if other == name {
                continue;
            }
            // An unlisted crate is reported separately.
            let Some(&other_place) = places.get(other) else { continue };
            let is_dev = dependency.kind.as_deref() == Some("dev");
            if let Some(reason) = refusal(place, other_place, is_dev) {
                faults.push(format!("{name} imports {other}: {reason}"));
            } else if let (Some(allowed), Place::Floor(..)) = (layers.only.get(name), other_place)
                && !allowed.iter().any(|name| name == other)
            {
                faults.push(format!("{name} imports {other}: [only] allows {}", allowed.join(", ")));
            }
        }
    }
    faults
}

/// The reason why a crate here must not import one there; `None` if it may.
fn refusal(here: Place<'_>, there: Place<'_>, is_dev: bool) -> Option<String> {
    match (here, there) {
        (_, Place::Tool) => Some("no crate imports a tool".to_owned()),
        (Place::Floor(..), Place::Tests) if !is_dev => {
            Some("it is for tests: move it to [dev-dependencies]".to_owned())
        }
        (Place::Floor(height, name), Place::Floor(other_height, other_name)) if other_height >= height => {
            Some(if height == other_height {
                format!("both are on floor \"{name}\"")
            } else {
                format!("floor \"{other_name}\" is above floor \"{name}\"")
            })
        }
        (Place::Tests, Place::Floor(..)) => Some("a judge must not stand on what it judges".to_owned()),
        _ => None,
    }
}

/// Rule 6.
fn folder_faults(layers: &Layers, packages: &[Package]) -> Vec<String> {
    let of_floor = |name: &str| {
        layers.floor.iter().find(|floor| floor.crates.iter().any(|of| of == name)).map(|floor| &floor.folder)
    };
    let mut faults = Vec::new();
    for package in packages {
        let name = package.name.as_str();
        let Some(folder) = layers.folders.get(name).or_else(|| of_floor(name)) else { continue };
        let place = format!("crates/{folder}/{}/Cargo.toml", name.strip_prefix("extant-").unwrap_or(name));
        if !package.manifest_path.ends_with(&place) {
            faults.push(format!("{name} is at {}, not at {place}", package.manifest_path.display()));
        }
    }
    faults
}

/// Rule 5.
fn knot_faults(crates: &[Crate]) -> Vec<String> {
    let mut faults = Vec::new();
    for of in crates {
        for knot in knots::knots(of) {
            let names: Vec<String> = knot.into_iter().map(|at| of.modules[at].name()).collect();
            faults.push(format!("{}: these modules use each other: {}", of.name, names.join(" ")));
        }
    }
    faults
}

/// Rule 7.
fn unsafe_faults(layers: &Layers, packages: &[Package]) -> Result<Vec<String>, String> {
    let mut faults = Vec::new();
    for package in packages.iter().filter(|package| !layers.unsafe_code.crates.contains(&package.name)) {
        let is_root =
            |kind: &String| matches!(kind.as_str(), "lib" | "bin" | "proc-macro" | "cdylib" | "staticlib");
        for target in package.targets.iter().filter(|target| target.kind.iter().any(is_root)) {
            let text = std::fs::read_to_string(&target.src_path)
                .map_err(|error| format!("{}: {error}", target.src_path.display()))?;
            if !forbids_unsafe(&text) {
                let path = target.src_path.strip_prefix(workspace::root()).unwrap_or(&target.src_path);
                faults.push(format!("{} lacks #![forbid(unsafe_code)]", path.display()));
            }
        }
    }
    Ok(faults)
}

fn forbids_unsafe(text: &str) -> bool {
    text.lines().any(|line| line.trim_end() == "#![forbid(unsafe_code)]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn layers() -> Layers {
        toml::from_str(
            r#"
            floor = [
                { name = "ground", folder = "f", crates = ["base"] },
                { name = "bytes", folder = "f", crates = ["left", "right"] },
                { name = "roof", folder = "f", crates = ["top"] },
            ]
            [only]
            top = ["base", "left"]
            [outside]
            tests = ["kit"]
            tools = ["tool"]
            [unsafe-code]
            crates = []
            [wasi]
            packages = []
            "#,
        )
        .unwrap()
    }

    /// A package and its imports; `dev:NAME` is a dev-dependency.
    fn package(name: &str, imports: &[&str]) -> Package {
        let dependency = |import: &&str| match import.strip_prefix("dev:") {
            Some(name) => Dependency { name: name.to_owned(), kind: Some("dev".to_owned()) },
            None => Dependency { name: (*import).to_owned(), kind: None },
        };
        let dependencies = imports.iter().map(dependency).collect();
        let manifest_path = format!("/w/crates/f/{name}/Cargo.toml").into();
        Package { name: name.to_owned(), manifest_path, dependencies, ..Package::default() }
    }

    /// The faults if this package has these imports and all others are correct.
    fn faults_with(name: &str, imports: &[&str]) -> Vec<String> {
        let mut packages: Vec<Package> = ["base", "left", "right", "top", "kit", "tool"]
            .iter()
            .filter(|other| **other != name)
            .map(|name| package(name, &["serde"]))
            .collect();
        packages.push(package(name, imports));
        order_faults(&layers(), &packages)
    }

    #[test]
    fn what_is_below_may_be_imported() {
        assert_eq!(faults_with("left", &["base", "serde", "dev:kit"]), [""; 0]);
        assert_eq!(faults_with("top", &["base", "left"]), [""; 0]);
        assert_eq!(faults_with("tool", &["kit", "top"]), [""; 0]);
    }

    #[test]
    fn each_rule_has_its_fault() {
        let cases = [
            ("left", "right", "left imports right: both are on floor \"bytes\""),
            ("base", "top", "base imports top: floor \"roof\" is above floor \"ground\""),
            ("base", "dev:left", "base imports left: floor \"bytes\" is above floor \"ground\""),
            ("top", "right", "top imports right: [only] allows base, left"),
            ("left", "kit", "left imports kit: it is for tests: move it to [dev-dependencies]"),
            ("kit", "base", "kit imports base: a judge must not stand on what it judges"),
            ("top", "tool", "top imports tool: no crate imports a tool"),
            ("new", "base", "new is not named in layers.toml: give it a floor"),
        ];
        for (name, import, fault) in cases {
            assert_eq!(faults_with(name, &[import]), [fault]);
        }
    }

    #[test]
    fn a_name_without_a_crate_is_a_fault() {
        let packages = ["base", "left", "top", "kit", "tool"].map(|name| package(name, &[]));
        let faults = order_faults(&layers(), &packages);
        assert_eq!(faults, ["right is named in layers.toml but is no crate of the workspace"]);
    }

    #[test]
    fn a_knot_is_a_fault() {
        let crates = [sources::sample(&[("", ""), ("a", "use crate::b::B;"), ("b", "use super::a::A;")])];
        assert_eq!(knot_faults(&crates), ["sample: these modules use each other: a b"]);
    }

    #[test]
    fn a_crate_in_another_folder_is_found() {
        let mut layers = layers();
        let packages = [package("base", &[]), package("tests", &[])];
        assert_eq!(folder_faults(&layers, &packages), [""; 0]);
        layers.folders.insert("tests".to_owned(), "g".to_owned());
        let fault = "tests is at /w/crates/f/tests/Cargo.toml, not at crates/g/tests/Cargo.toml";
        assert_eq!(folder_faults(&layers, &packages), [fault]);
    }

    #[test]
    fn unsafe_is_forbidden_by_the_attribute_and_not_by_a_comment() {
        assert!(forbids_unsafe("//! Doc.\n\n#![forbid(unsafe_code)]\n"));
        assert!(!forbids_unsafe("//! #![forbid(unsafe_code)]\n"));
        assert!(!forbids_unsafe("// #![forbid(unsafe_code)]\n"));
    }
}
