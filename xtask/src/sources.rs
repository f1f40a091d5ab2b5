//! The syntax of the workspace's crates, without their tests.
//!
//! A module is a file, or a `mod` block in one. Items under `#[cfg(test)]` and `#[test]` are left out, in
//! their files' numbers of lines as well.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Attribute, ImplItem, Item, UseTree};

use crate::workspace::{self, Package};

/// A library or a program.
pub(crate) struct Crate {
    /// Name of its package.
    pub(crate) name: String,
    /// The root first; a module comes before the modules in it.
    pub(crate) modules: Vec<Module>,
}

/// A module.
pub(crate) struct Module {
    /// Its path below the root, which has an empty one.
    pub(crate) path: Vec<String>,
    /// Its file.
    pub(crate) file: PathBuf,
    /// Lines of its file without tests; 0 for a `mod` block.
    pub(crate) lines: usize,
    pub(crate) items: Vec<Item>,
    /// Names that its `use` declarations bring in, with the path as it is written.
    pub(crate) imports: BTreeMap<String, Vec<String>>,
}

impl Module {
    /// Its path as text, such as `write::open`.
    pub(crate) fn name(&self) -> String {
        if self.path.is_empty() { "(root)".to_owned() } else { self.path.join("::") }
    }
}

/// The libraries and programs of the packages: one for each package.
pub(crate) fn crates(packages: &[Package]) -> Result<Vec<Crate>, String> {
    let mut crates = Vec::new();
    for package in packages {
        let is_kind = |kind: &str| {
            let of_kind = package.targets.iter().find(|target| target.kind.iter().any(|of| of == kind));
            of_kind.map(|target| target.src_path.clone())
        };
        if let Some(root) = is_kind("lib").or_else(|| is_kind("bin")) {
            crates.push(load(&package.name, &root)?);
        }
    }
    crates.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(crates)
}

/// Files of the package that are programs beside its crate: examples and benchmarks.
pub(crate) fn programs(package: &Package) -> Result<Vec<Crate>, String> {
    let is_program = |kind: &String| matches!(kind.as_str(), "example" | "bench" | "bin");
    let programs = package.targets.iter().filter(|target| target.kind.iter().any(is_program));
    programs.map(|target| load(&package.name, &target.src_path)).collect()
}

fn load(name: &str, root: &Path) -> Result<Crate, String> {
    let mut modules = Vec::new();
    let dir = root.parent().unwrap_or(root);
    load_file(root, dir, Vec::new(), &mut modules)?;
    Ok(Crate { name: name.to_owned(), modules })
}

/// Reads a file and the files of its modules, which are in `dir`.
fn load_file(file: &Path, dir: &Path, path: Vec<String>, modules: &mut Vec<Module>) -> Result<(), String> {
    let shown = file.strip_prefix(workspace::root()).unwrap_or(file).to_owned();
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", shown.display()))?;
    let syntax = syn::parse_file(&text).map_err(|error| format!("{}: {error}", shown.display()))?;
    let mut in_tests = 0;
    let items = without_tests(syntax.items, &mut in_tests);
    let lines = text.lines().count() - in_tests;
    add_module(Module { path, file: shown, lines, items, imports: BTreeMap::new() }, dir, modules)
}

/// Adds a module and the modules in it.
fn add_module(mut module: Module, dir: &Path, modules: &mut Vec<Module>) -> Result<(), String> {
    let mut inner = Vec::new();
    for item in &mut module.items {
        match item {
            Item::Mod(child) => {
                let items = child.content.take().map(|of| of.1);
                inner.push((child.ident.to_string(), items, path_of(&child.attrs)));
            }
            Item::Use(item) => flatten(&item.tree, Vec::new(), &mut |name, path| {
                module.imports.insert(name, path);
            }),
            _ => {}
        }
    }
    let (path, file) = (module.path.clone(), module.file.clone());
    modules.push(module);
    for (name, items, at) in inner {
        let mut child = path.clone();
        child.push(name.clone());
        match items {
            Some(items) => {
                let file = file.clone();
                let module = Module { path: child, file, lines: 0, items, imports: BTreeMap::new() };
                add_module(module, &dir.join(&name), modules)?;
            }
            None => {
                let beside = at.map_or_else(|| dir.join(format!("{name}.rs")), |at| dir.join(at));
                let file = if beside.exists() { beside } else { dir.join(&name).join("mod.rs") };
                load_file(&file, &dir.join(&name), child, modules)?;
            }
        }
    }
    Ok(())
}

/// The value of `#[path = "..."]`.
fn path_of(attributes: &[Attribute]) -> Option<String> {
    let path = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    match &path.meta.require_name_value().ok()?.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// Calls `each` for each name of a `use` declaration. A glob has the name `*`.
fn flatten(tree: &UseTree, mut path: Vec<String>, each: &mut impl FnMut(String, Vec<String>)) {
    match tree {
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            flatten(&inner.tree, path, each);
        }
        UseTree::Name(name) if name.ident == "self" => {
            each(path.last().cloned().unwrap_or_default(), path);
        }
        UseTree::Name(name) => {
            path.push(name.ident.to_string());
            each(name.ident.to_string(), path);
        }
        UseTree::Rename(rename) => {
            if rename.ident != "self" {
                path.push(rename.ident.to_string());
            }
            each(rename.rename.to_string(), path);
        }
        UseTree::Glob(_) => each(format!("*{}", path.join("::")), path),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, path.clone(), each);
            }
        }
    }
}

/// The items that are no tests; adds the number of lines of the others.
fn without_tests(items: Vec<Item>, lines: &mut usize) -> Vec<Item> {
    let mut kept = Vec::new();
    for mut item in items {
        if attributes(&item).iter().any(is_test) {
            *lines += lines_of(&item);
            continue;
        }
        match &mut item {
            Item::Mod(module) => {
                if let Some((_, content)) = &mut module.content {
                    *content = without_tests(std::mem::take(content), lines);
                }
            }
            Item::Impl(of) => of.items.retain(|item| {
                let is_test = matches!(item, ImplItem::Fn(of) if of.attrs.iter().any(is_test));
                if is_test {
                    *lines += lines_of(item);
                }
                !is_test
            }),
            _ => {}
        }
        kept.push(item);
    }
    kept
}

fn lines_of(of: &(impl Spanned + ToTokens)) -> usize {
    let span = of.span();
    span.end().line + 1 - span.start().line
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[test]`, `#[cfg(test)]` and `#[cfg(all(test, ...))]`.
fn is_test(attribute: &Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    let condition = attribute.meta.to_token_stream().to_string().replace(' ', "");
    condition == "cfg(test)" || condition.starts_with("cfg(all(test,")
}

/// A crate of one module for each text, for tests: `("a::b", "use super::c;")`.
#[cfg(test)]
pub(crate) fn sample(modules: &[(&str, &str)]) -> Crate {
    let modules = modules.iter().map(|(path, text)| {
        let items = without_tests(syn::parse_file(text).unwrap().items, &mut 0);
        let path = path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let mut module = Module { path, file: PathBuf::new(), lines: 0, items, imports: BTreeMap::new() };
        for item in &module.items {
            if let Item::Use(item) = item {
                flatten(&item.tree, Vec::new(), &mut |name, path| {
                    module.imports.insert(name, path);
                });
            }
        }
        module
    });
    Crate { name: "sample".to_owned(), modules: modules.collect() }
}
