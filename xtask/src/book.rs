//! `cargo xtask book`: builds the book of docs/ with mdBook in target/book/html, and checks its links.
//!
//! ```text
//!  docs/  book.toml                     target/book/source/             target/book/html/
//!  README.md ARCHITECTURE.md ... ------> docs/project/*.md ---mdbook---> *.html, search, scripts
//!  other files that pages link to -----> docs/files/PATH.txt
//! ```
//!
//! mdBook sees only the files below its source folder. So this builds from a copy, to which it adds what the
//! pages link to outside of docs/, and changes those links. The book needs no network and no server.
//!
//! It does not check the Markdown: `tidy` does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::markdown::{Page, line_at, resolve};
use crate::{tidy, tools, workspace};

/// Pages at the root of the repository that are chapters of the book, in the folder `project`.
const ROOT_PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

pub(crate) fn run() -> Result<(), String> {
    tidy::run()?;
    tools::spell()?;
    let mdbook = tools::mdbook()?;
    let out = workspace::target_dir().join("book");
    let _ = fs::remove_dir_all(&out);
    let source = out.join("source");
    let pages = copy_sources(&workspace::root(), &source)?;
    let html = out.join("html");
    let mut command = Command::new(mdbook);
    workspace::succeed(command.arg("build").arg(&source).arg("--dest-dir").arg(&html))?;
    let links = check_html(&html)?;
    println!("{}: {pages} pages, {links} links lead to files and anchors of the book", html.display());
    Ok(())
}

/// Copies docs/ and what its pages link to into `source`. Returns the number of pages.
fn copy_sources(root: &Path, source: &Path) -> Result<usize, String> {
    put(&source.join("book.toml"), &read(&root.join("book.toml"))?)?;
    let mut pages = 0;
    let mut pending: Vec<String> = files_below(&root.join("docs"))?
        .iter()
        .map(|path| format!("docs/{}", path.display()))
        .chain(ROOT_PAGES.map(str::to_owned))
        .collect();
    let mut copied: BTreeSet<String> = pending.iter().cloned().collect();
    while let Some(path) = pending.pop() {
        let bytes = read(&root.join(&path))?;
        let to = source.join(place(&path));
        if !path.ends_with(".md") {
            put(&to, &bytes)?;
            continue;
        }
        pages += 1;
        let text = String::from_utf8(bytes).map_err(|error| format!("{path}: {error}"))?;
        let (text, others) = with_links_of_the_book(root, &path, &text)?;
        put(&to, text.as_bytes())?;
        pending.extend(others.into_iter().filter(|other| copied.insert(other.clone())));
    }
    Ok(pages)
}

/// Where a file of the repository is in the copy. mdBook makes a README the first page of its folder.
fn place(path: &str) -> String {
    match path {
        "README.md" => "docs/project/the-readme.md".to_owned(),
        _ if ROOT_PAGES.contains(&path) => format!("docs/project/{}", path.to_lowercase()),
        _ if path.starts_with("docs/") => path.replace("/README.md", "/index.md"),
        // Browsers show a text file, and download others.
        _ => format!("docs/files/{path}.txt"),
    }
}

/// Changes the links of a page to files outside of docs/. Returns these files.
fn with_links_of_the_book(root: &Path, path: &str, text: &str) -> Result<(String, Vec<String>), String> {
    let mut changed = text.to_owned();
    let mut files = Vec::new();
    // From the last to the first, so that the places of the others stay.
    for link in Page::parse(text).links.iter().rev() {
        let Some((target, part)) = link.parts().filter(|(target, _)| !target.is_empty()) else { continue };
        let line = line_at(text, link.range.start);
        let to =
            resolve(path, target).ok_or_else(|| format!("{path}:{line}: {target} leaves the project"))?;
        if !root.join(&to).is_file() {
            return Err(format!("{path}:{line}: {target} is not a file, which a link of the book needs"));
        }
        if !to.starts_with("docs/") && !ROOT_PAGES.contains(&to.as_str()) {
            files.push(to.clone());
        }
        let part = part.map(|part| format!("#{part}")).unwrap_or_default();
        changed.replace_range(link.range.clone(), &(relative(&place(path), &place(&to)) + &part));
    }
    Ok((changed, files))
}

/// The path to `to` from the folder of `from`.
fn relative(from: &str, to: &str) -> String {
    let (mut from, mut to): (Vec<&str>, Vec<&str>) = (from.split('/').collect(), to.split('/').collect());
    while from.len() > 1 && to.len() > 1 && from[0] == to[0] {
        from.remove(0);
        to.remove(0);
    }
    "../".repeat(from.len() - 1) + &to.join("/")
}

/// Checks that each link of the book leads to a file and an anchor of it. Returns their number.
fn check_html(html: &Path) -> Result<usize, String> {
    let mut pages = BTreeMap::new();
    let files = files_below(html)?;
    for file in files.iter().filter(|file| file.extension().is_some_and(|name| name == "html")) {
        let text = String::from_utf8_lossy(&read(&html.join(file))?).into_owned();
        pages.insert(file.to_string_lossy().into_owned(), text);
    }
    let files: BTreeSet<String> = files.iter().map(|file| file.to_string_lossy().into_owned()).collect();
    let mut links = 0;
    let mut faults = Vec::new();
    for (page, text) in &pages {
        // A page shows without a network: scripts, styles and pictures are files of the book.
        let styles = text.split("<link ").skip(1).filter_map(|rest| rest.split('>').next());
        let loaded = styles.flat_map(|link| values(link, "href")).chain(values(text, "src"));
        faults.extend(
            loaded.filter(|target| target.contains("//")).map(|target| format!("{page}: loads {target}")),
        );
        for target in ["href", "src"].iter().flat_map(|name| values(text, name)) {
            // The page of missing pages has absolute links.
            if target.contains(':') || target.starts_with("//") || page == "404.html" {
                continue;
            }
            links += 1;
            let (path, part) = target.split_once('#').unwrap_or((target, ""));
            let to = if path.is_empty() { Some(page.clone()) } else { resolve(page, path) };
            let is_good = to.is_some_and(|to| {
                files.contains(&to)
                    && (part.is_empty()
                        || pages.get(&to).is_none_or(|text| values(text, "id").any(|id| id == part)))
            });
            if !is_good {
                faults.push(format!("{page}: {target} leads nowhere"));
            }
        }
    }
    match faults.is_empty() {
        true => Ok(links),
        false => Err(format!("book: {} faults\n  {}", faults.len(), faults.join("\n  "))),
    }
}

/// The values of an attribute in a page, as mdBook writes them: in double quotes.
fn values<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    text.split(&format!(" {name}=\""))
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect::<Vec<_>>()
        .into_iter()
}

/// Relative paths of all files below a directory, sorted.
fn files_below(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let fail = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut files = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(next) = pending.pop() {
        for item in fs::read_dir(&next).map_err(fail)? {
            let path = item.map_err(fail)?.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                files.push(path.strip_prefix(dir).unwrap_or(&path).to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(fail)?;
    fs::write(path, bytes).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_leave_docs_lead_to_copies() {
        let root = tempfile::tempdir().unwrap();
        for path in ["README.md", "docs/README.md", "docs/a.md", "crates/x/lib.rs"] {
            put(&root.path().join(path), b"").unwrap();
        }
        let text = "[r](../README.md#top) [x](../crates/x/lib.rs) [a](a.md) [d](README.md)\n";
        let (changed, files) = with_links_of_the_book(root.path(), "docs/a.md", text).unwrap();
        let wanted =
            "[r](project/the-readme.md#top) [x](files/crates/x/lib.rs.txt) [a](a.md) [d](index.md)\n";
        assert_eq!((changed.as_str(), files), (wanted, vec!["crates/x/lib.rs".to_owned()]));
        let (changed, _) = with_links_of_the_book(root.path(), "README.md", "[a](docs/a.md#b)\n").unwrap();
        assert_eq!(changed, "[a](../a.md#b)\n");
        let gone = with_links_of_the_book(root.path(), "docs/a.md", "\n[x](../crates)\n").unwrap_err();
        assert!(gone.starts_with("docs/a.md:2: ../crates is not a file"), "{gone}");
    }

    #[test]
    fn a_dead_link_of_the_book_is_found() {
        let html = tempfile::tempdir().unwrap();
        put(&html.path().join("a.html"), b"<p id=\"x\"><a href=\"b/c.html#y\"></a><a href=\"#x\"></a>")
            .unwrap();
        put(&html.path().join("b/c.html"), b"<p id=\"y\"><img src=\"../d.svg\">").unwrap();
        let found = check_html(html.path()).unwrap_err();
        assert_eq!(found, "book: 1 faults\n  b/c.html: ../d.svg leads nowhere");
        put(&html.path().join("d.svg"), b"").unwrap();
        assert_eq!(check_html(html.path()), Ok(3));
        put(&html.path().join("e.html"), b"<link rel=\"stylesheet\" href=\"https://x/a.css\">").unwrap();
        let found = check_html(html.path()).unwrap_err();
        assert_eq!(found, "book: 1 faults\n  e.html: loads https://x/a.css");
    }
}
