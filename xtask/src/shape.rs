//! `cargo xtask shape`: lines of the crates, methods of the types, modules in knots. `cargo xtask unused`:
//! functions that only tests call.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{ImplItem, Item, Type};

use crate::knots;
use crate::sources::{self, Crate};
use crate::workspace;

/// A type with more methods does too much.
const METHODS_MAX: usize = 40;
/// A file with more lines needs a reason at its head.
const LINES_MAX: usize = 700;

/// `cargo xtask shape`
pub(crate) fn run() -> Result<(), String> {
    let crates = sources::crates(&workspace::packages()?)?;
    println!("{:24} {:>6} {:>7} {:>7} {:>6}  longest file", "crate", "lines", "modules", "knotted", "knots");
    for of in &crates {
        let knots = knots::knots(of);
        let lines: usize = of.modules.iter().map(|module| module.lines).sum();
        let knotted: usize = knots.iter().map(Vec::len).sum();
        let longest = of.modules.iter().max_by_key(|module| module.lines);
        let longest = longest.map_or(String::new(), |of| format!("{} {}", of.lines, of.file.display()));
        let modules = of.modules.len();
        println!("{:24} {lines:>6} {modules:>7} {knotted:>7} {:>6}  {longest}", of.name, knots.len());
    }
    for of in &crates {
        for knot in knots::knots(of) {
            let names: Vec<String> = knot.into_iter().map(|at| of.modules[at].name()).collect();
            println!("knot of {}: {}", of.name, names.join(" "));
        }
    }
    for (name, methods) in methods(&crates).into_iter().filter(|(_, methods)| *methods > METHODS_MAX) {
        println!("{methods} methods: {name}");
    }
    for module in crates.iter().flat_map(|of| &of.modules).filter(|of| of.lines > LINES_MAX) {
        println!("{} lines: {}", module.lines, module.file.display());
    }
    Ok(())
}

/// Methods and functions of each type outside of traits; the most first.
fn methods(crates: &[Crate]) -> Vec<(String, usize)> {
    let mut methods: BTreeMap<String, usize> = BTreeMap::new();
    for of in crates {
        for item in of.modules.iter().flat_map(|module| &module.items) {
            if let Item::Impl(block) = item
                && block.trait_.is_none()
                && let Type::Path(of_type) = &*block.self_ty
                && let Some(last) = of_type.path.segments.last()
            {
                let functions = block.items.iter().filter(|item| matches!(item, ImplItem::Fn(_))).count();
                *methods.entry(format!("{} {}", of.name, last.ident)).or_default() += functions;
            }
        }
    }
    let mut methods: Vec<_> = methods.into_iter().collect();
    methods.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    methods
}

/// `cargo xtask unused`: functions whose names occur nowhere outside of tests but where they are defined.
pub(crate) fn unused() -> Result<(), String> {
    let packages = workspace::packages()?;
    let crates = sources::crates(&packages)?;
    let mut occurrences = BTreeMap::new();
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for of in &crates {
        for module in &of.modules {
            for item in &module.items {
                count(item.to_token_stream(), &mut occurrences);
            }
            // The library's functions are for its users, and tests' helpers are for tests.
            if !matches!(of.name.as_str(), "extant" | "extant-testkit" | "extant-fsmodel") {
                for name in defined(&module.items) {
                    definitions.entry(name).or_default().push(module.file.display().to_string());
                }
            }
        }
    }
    for package in &packages {
        for of in sources::programs(package)? {
            let items = of.modules.iter().flat_map(|module| &module.items);
            items.for_each(|item| count(item.to_token_stream(), &mut occurrences));
        }
    }
    let mut unused = 0;
    for (name, places) in definitions {
        if occurrences.get(&name).copied().unwrap_or_default() <= places.len() && name != "main" {
            unused += 1;
            println!("{name}: {}", places.join(" "));
        }
    }
    println!("unused: {unused} functions occur in tests only, or nowhere");
    Ok(())
}

/// Functions and methods outside of traits.
fn defined(items: &[Item]) -> Vec<String> {
    let mut names = Vec::new();
    for item in items {
        match item {
            Item::Fn(of) => names.push(of.sig.ident.to_string()),
            Item::Impl(block) if block.trait_.is_none() => {
                names.extend(block.items.iter().filter_map(|item| match item {
                    ImplItem::Fn(of) => Some(of.sig.ident.to_string()),
                    _ => None,
                }));
            }
            _ => {}
        }
    }
    names
}

fn count(tokens: TokenStream, occurrences: &mut BTreeMap<String, usize>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => *occurrences.entry(name.to_string()).or_default() += 1,
            TokenTree::Group(group) => count(group.stream(), occurrences),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::sample;

    #[test]
    fn methods_of_all_modules_are_counted() {
        let of = sample(&[
            ("a", "impl T { fn a(&self) {} fn b() {} } impl Clone for T { fn clone(&self) -> T { T } }"),
            ("b", "impl super::T { fn c(&self) {} const N: u8 = 1; } impl<'a> U<'a> { fn d() {} }"),
        ]);
        assert_eq!(methods(&[of]), [("sample T".to_owned(), 3), ("sample U".to_owned(), 1)]);
    }
}
