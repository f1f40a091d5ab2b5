//! Findings in Markdown: per posting its claims, the figures and the verdicts.

use std::fmt::Write;

use extant_lab::report::{StudyReport, Verdict};
use extant_lab::studies;

use crate::numbers::{bytes, counted, duration};
use crate::{BEYOND, Reports, beyond_words, verdict_words};

/// Columns of a line, except in tables.
const COLUMNS: usize = 110;

/// The page. `source`: the file of these reports, as the page names it.
#[must_use]
pub fn markdown(reports: &Reports, source: &str) -> String {
    let mut text = String::new();
    text.push_str("# Findings of the studies\n\n");
    paragraph(
        &mut text,
        &format!(
            "Five mail threads of linux-ext4 claim improvements. `extant lab all` repeats their measurements \
             on extant, and each claim gets a verdict. This page is generated from [{source}]({source}) by \
             `cargo xtask findings`; extant {}.",
            reports.version
        ),
    );
    paragraph(
        &mut text,
        "Verdicts are computed from the figures, by the [rules of each study](#rules). \"Kernel\" is ext4 of \
         the running kernel under the same load. The tables are in the JSON; `extant lab all --html` shows \
         them with plots.",
    );
    text.push_str("| study | claims | confirmed | beaten | refuted | open |\n|---|---|---|---|---|---|\n");
    for report in &reports.studies {
        let count =
            |verdict: Verdict| report.claims_of_posting().filter(|claim| claim.verdict == verdict).count();
        let [confirmed, beaten, refuted, open] =
            [Verdict::Confirmed, Verdict::Beaten, Verdict::Refuted, Verdict::Open].map(count);
        let (study, all) = (&report.study, report.claims_of_posting().count());
        let _ =
            writeln!(text, "| [{study}](#{study}) | {all} | {confirmed} | {beaten} | {refuted} | {open} |");
    }
    beyond(&mut text, reports);
    let is_missing = |study: &&studies::Study| reports.studies.iter().all(|made| made.study != study.name);
    let missing: Vec<&str> = studies::ALL.iter().filter(is_missing).map(|study| study.name).collect();
    if !missing.is_empty() {
        text.push('\n');
        paragraph(&mut text, &format!("Not in these reports: {}.", missing.join(", ")));
    }
    rules(&mut text, reports);
    for report in &reports.studies {
        text.push('\n');
        study(&mut text, report);
    }
    text
}

/// Our own claims.
fn beyond(text: &mut String, reports: &Reports) {
    let all = || reports.studies.iter().flat_map(|report| report.claims_beyond().map(move |of| (report, of)));
    if all().next().is_none() {
        return;
    }
    text.push_str("\n## Beyond the posting\n\n");
    paragraph(text, BEYOND);
    text.push_str("| study | claim | posting | ours | kernel | verdict |\n|---|---|---|---|---|---|\n");
    for (report, (sentence, claim)) in all() {
        let kernel = claim.kernel.as_deref().unwrap_or("not measured");
        let cells = [sentence, &claim.posting, &claim.ours, kernel].map(cell).join(" | ");
        let (study, verdict) = (&report.study, beyond_words(claim.verdict));
        let _ = writeln!(text, "| {study} | {cells} | **{verdict}**: {} |", cell(&claim.why));
    }
}

/// What the verdicts mean.
fn rules(text: &mut String, reports: &Reports) {
    text.push_str("\n## Rules\n\n| study | confirmed | confirmed and beaten | refuted | open |\n");
    text.push_str("|---|---|---|---|---|\n");
    let is_here = |study: &&studies::Study| reports.studies.iter().any(|made| made.study == study.name);
    for study in studies::ALL.iter().filter(is_here) {
        let cells = study.rules.all().map(|(_, rule)| cell(rule));
        let _ = writeln!(text, "| {} | {} |", study.name, cells.join(" | "));
    }
}

fn study(text: &mut String, report: &StudyReport) {
    let _ = writeln!(text, "## {}\n", report.study);
    paragraph(text, &report.question);
    let posting = &report.posting;
    let on =
        if posting.machine.is_empty() { String::new() } else { format!(" Machine: {}.", posting.machine) };
    paragraph(text, &format!("Posting: \"{}\", {}.{on}", posting.subject, posting.date));
    let machine = &report.machine;
    let model = if machine.model.is_empty() { "unknown CPU" } else { machine.model.as_str() };
    paragraph(
        text,
        &format!(
            "Ours: `{}`, {}, on {model}, {}, {} of memory, {}.",
            report.command,
            duration(report.seconds),
            counted(machine.cpus, "CPU"),
            bytes(machine.memory_bytes),
            machine.kernel
        ),
    );
    text.push_str("| claim | posting | ours | kernel | verdict |\n|---|---|---|---|---|\n");
    for claim in report.claims_of_posting() {
        let kernel = claim.kernel.as_deref().unwrap_or("not measured");
        let cells = [&claim.claim, &claim.posting, &claim.ours, kernel].map(cell);
        let verdict = verdict_words(claim.verdict);
        let _ = writeln!(text, "| {} | **{verdict}**: {} |", cells.join(" | "), cell(&claim.why));
    }
    let notes: Vec<_> = report.tables.iter().filter(|table| !table.note.is_empty()).collect();
    if !notes.is_empty() {
        text.push_str("\nTables:\n\n");
    }
    for table in notes {
        let item = wrapped(&format!("- {}: {}", table.title, plain(&table.note)), "  ");
        text.push_str(&item);
    }
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    plain(text).replace('|', "\\|")
}

/// One line, without markup.
fn plain(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('<', "&lt;").replace('*', "\\*").replace('_', "\\_")
}

fn paragraph(text: &mut String, words: &str) {
    text.push_str(&wrapped(words, ""));
    text.push('\n');
}

fn wrapped(words: &str, indent: &str) -> String {
    let mut text = String::new();
    let mut line = String::new();
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            text.push_str(&line);
            text.push('\n');
            line = indent.to_owned();
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    text + &line + "\n"
}

#[cfg(test)]
mod tests {
    use crate::{Reports, samples};

    #[test]
    fn claims_are_counted_and_listed() {
        let reports = Reports { version: "0.1.0".to_owned(), studies: vec![samples::report()] };
        let page = super::markdown(&reports, "full.json");
        assert!(page.contains("| [shrinker](#shrinker) | 1 | 1 | 0 | 0 | 0 |"), "{page}");
        assert!(page.contains("| scans are shorter | 10196 to 357 us |"), "{page}");
        assert!(page.contains("**confirmed**: The change is -99 %. |\n"), "{page}");
        assert!(page.contains("| shrinker | no scan is long | no figure |"), "{page}");
        assert!(page.contains("**held**: The change is -99 %. |\n"), "{page}");
        assert!(page.contains("\n| shrinker | times: shorter"), "{page}");
        let long = page.lines().filter(|line| !line.starts_with('|') && line.chars().count() > 110);
        assert_eq!(long.count(), 0, "{page}");
    }
}
