//! `cargo xtask tidy`: rules for text that no compiler checks.
//!
//! It reads every file that git tracks or would add, once, and lists all faults. The numbers and words of the
//! rules are in `xtask/tidy.toml`.

mod examples;
mod exports;
mod findings;
mod markdown;
mod references;
mod rules;
mod words;

use std::io::IsTerminal;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace;
use findings::{File, Findings};
use rules::Rules;

/// `cargo xtask tidy`
pub(crate) fn run() -> Result<(), String> {
    let root = workspace::root();
    let mut rules: Rules = workspace::read_toml("xtask/tidy.toml")?;
    rules.text.forbidden_words.extend(local_words(&root));
    let mut findings = Findings::default();
    let mut words = words::Counts::default();
    let mut references = references::References::default();
    let mut exports = exports::Exports::default();
    let mut examples = examples::Examples::default();
    let mut pages = markdown::Pages::default();
    let paths = files(&root)?;
    for path in &paths {
        let full = root.join(path);
        // A symlink's target is checked under its own name. git may still list a deleted file.
        let Ok(metadata) = full.symlink_metadata() else { continue };
        if !metadata.is_file() {
            continue;
        }
        let bytes = std::fs::read(&full).map_err(|error| format!("{}: {error}", full.display()))?;
        // Binary files are not checked.
        let Ok(text) = String::from_utf8(bytes) else { continue };
        if text.contains('\0') {
            continue;
        }
        let file = File {
            path: &path.to_string_lossy(),
            text: &text,
            is_executable: metadata.permissions().mode() & 0o111 == 0o111,
        };
        rules.check(&file, &mut findings);
        pages.collect(&file);
        rules.prose.count(&file, &mut words);
        references.collect(&file);
        exports.collect(&file);
        examples.collect(&file);
    }
    rules.prose.judge(&words, &mut findings);
    references.judge(&rules.claims, &mut findings);
    exports.judge(&rules.exports, &mut findings);
    examples.judge(&rules.examples, &mut findings);
    pages.judge(&root, &mut findings);
    let (bold, plain) = if std::io::stderr().is_terminal() { ("\x1B[1m", "\x1B[0m") } else { ("", "") };
    for warning in &findings.warnings {
        eprintln!("{bold}warning{plain}: {warning}");
    }
    if !findings.faults.is_empty() {
        return Err(format!("tidy: {} fault(s)\n  {}", findings.faults.len(), findings.faults.join("\n  ")));
    }
    println!("tidy: {} files in order, {} warning(s)", paths.len(), findings.warnings.len());
    Ok(())
}

/// Relative paths of the files that git tracks or would add; without git, all files except build output.
fn files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output();
    if let Ok(output) = listed
        && output.status.success()
    {
        let mut paths: Vec<PathBuf> = output
            .stdout
            .split(|&byte| byte == 0)
            .filter(|path| !path.is_empty())
            .map(|path| PathBuf::from(String::from_utf8_lossy(path).into_owned()))
            .collect();
        paths.sort();
        paths.dedup();
        return Ok(paths);
    }
    let mut paths = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        let items =
            std::fs::read_dir(root.join(&dir)).map_err(|error| format!("{}: {error}", dir.display()))?;
        for item in items {
            let item = item.map_err(|error| format!("{}: {error}", dir.display()))?;
            let path = dir.join(item.file_name());
            let is_dir = item.file_type().is_ok_and(|kind| kind.is_dir());
            if ["target", "out", ".git"].iter().any(|left_out| path == Path::new(left_out)) {
                continue;
            }
            if is_dir { pending.push(path) } else { paths.push(path) }
        }
    }
    paths.sort();
    Ok(paths)
}

/// Words forbidden only in this clone: `.git/info/tidy-words`, one per line.
fn local_words(root: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(root.join(".git/info/tidy-words")).unwrap_or_default();
    text.lines().map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}
