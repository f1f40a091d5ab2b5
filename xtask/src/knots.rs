//! Which modules of a crate use which, and the groups of modules that use each other: *knots*.
//!
//! A module uses another if a path in it leads there, through re-exports as well. Uses between a module and
//! the modules in it do not count. Methods are not resolved: a call of a method that another module defines
//! on the same type is not seen.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::sources::{Crate, Module};

/// Re-exports that are followed; longer chains are loops.
const REEXPORTS_MAX: usize = 8;

/// The uses of a crate's modules: indices in [`Crate::modules`].
pub(crate) fn uses(of: &Crate) -> Vec<BTreeSet<usize>> {
    let index = Index::new(of);
    of.modules.iter().enumerate().map(|(at, module)| index.used_by(at, module)).collect()
}

/// The knots of a crate, each with at least two modules.
pub(crate) fn knots(of: &Crate) -> Vec<Vec<usize>> {
    let uses = uses(of);
    let reached: Vec<BTreeSet<usize>> = (0..uses.len()).map(|from| reached(&uses, from)).collect();
    let mut done = BTreeSet::new();
    let mut knots = Vec::new();
    for from in 0..uses.len() {
        let knot: Vec<usize> =
            reached[from].iter().copied().filter(|to| reached[*to].contains(&from)).collect();
        if knot.len() > 1 && done.insert(knot.clone()) {
            knots.push(knot);
        }
    }
    knots
}

/// All modules that are used from here, directly or not.
fn reached(uses: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(at) = left.pop() {
        left.extend(uses[at].iter().filter(|to| reached.insert(**to)));
    }
    reached
}

/// Modules by path.
struct Index<'a> {
    of: &'a Crate,
    paths: BTreeMap<&'a [String], usize>,
}

impl<'a> Index<'a> {
    fn new(of: &'a Crate) -> Self {
        let paths = of.modules.iter().enumerate().map(|(at, module)| (module.path.as_slice(), at)).collect();
        Self { of, paths }
    }

    fn used_by(&self, at: usize, module: &Module) -> BTreeSet<usize> {
        let mut paths = Paths::default();
        for item in &module.items {
            paths.visit_item(item);
        }
        paths.found.extend(module.imports.values().cloned());
        let targets = paths.found.iter().filter_map(|path| self.target(at, path, 0));
        targets.filter(|to| *to != at && !self.are_related(at, *to)).collect()
    }

    /// The module in which a path, written in module `at`, ends.
    fn target(&self, at: usize, path: &[String], reexports: usize) -> Option<usize> {
        let here = &self.of.modules[at];
        let absolute = self.absolute(here, path)?;
        let known =
            (0..=absolute.len()).rev().find_map(|len| Some((len, *self.paths.get(&absolute[..len])?)));
        let (len, module) = known?;
        let rest = &absolute[len..];
        // A name that the module has from elsewhere leads there.
        if let Some(from) = rest.first().and_then(|name| self.of.modules[module].imports.get(name))
            && reexports < REEXPORTS_MAX
        {
            let further: Vec<String> = from.iter().chain(&rest[1..]).cloned().collect();
            // A name from another crate: the module uses only the re-export.
            return self.target(module, &further, reexports + 1).or(Some(module));
        }
        Some(module)
    }

    /// The path from the root of the crate; `None` for a path into another crate.
    fn absolute(&self, here: &Module, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Vec::new(),
            "self" => here.path.clone(),
            "super" => here.path[..here.path.len().checked_sub(1)?].to_vec(),
            name => {
                let mut child = here.path.clone();
                child.push(name.to_owned());
                if self.paths.contains_key(child.as_slice()) {
                    child
                } else {
                    let from = here.imports.get(name)?;
                    // `use syn::syn;` leads out of the crate.
                    if from.first().is_none_or(|of| of == name) {
                        return None;
                    }
                    self.absolute(here, from)?
                }
            }
        };
        let mut rest = rest;
        while let Some((first, further)) = rest.split_first()
            && first == "super"
        {
            base.pop()?;
            rest = further;
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    /// One of the two is in the other.
    fn are_related(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.of.modules[a].path, &self.of.modules[b].path);
        a.starts_with(b) || b.starts_with(a)
    }
}

/// All paths of an item with more than their first name.
#[derive(Default)]
struct Paths {
    found: BTreeSet<Vec<String>>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.found.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::sample;

    fn knots_of(modules: &[(&str, &str)]) -> Vec<Vec<String>> {
        let of = sample(modules);
        let name = |at: usize| of.modules[at].name();
        knots(&of).into_iter().map(|knot| knot.into_iter().map(name).collect()).collect()
    }

    #[test]
    fn two_modules_that_use_each_other_are_a_knot() {
        let modules = [
            ("", "mod a; mod b; mod c;"),
            ("a", "use crate::b::B; fn f() { super::c::g() }"),
            ("b", "fn h() { crate::a::f() } #[cfg(test)] mod tests { use crate::c::g; }"),
            ("c", "use crate::b::B;"),
        ];
        assert_eq!(knots_of(&modules), [["a", "b", "c"]]);
        let modules = [("", "mod a; mod b;"), ("a", "use crate::b::B;"), ("b", "use std::a::f; struct B;")];
        assert_eq!(knots_of(&modules), [[""; 0]; 0]);
    }

    #[test]
    fn re_exports_are_followed() {
        let modules = [
            ("", "mod a; mod b; pub use b::B;"),
            ("a", "use crate::B;"),
            ("b", "use super::a::f; pub struct B;"),
        ];
        assert_eq!(knots_of(&modules), [["a", "b"]]);
    }

    #[test]
    fn a_module_and_the_modules_in_it_may_use_each_other() {
        let modules = [
            ("", "mod a;"),
            ("a", "mod b; use b::B; pub struct A;"),
            ("a::b", "use super::A; pub struct B;"),
        ];
        assert_eq!(knots_of(&modules), [[""; 0]; 0]);
    }
}
