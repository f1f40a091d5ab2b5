//! Reports as a page: one file, without scripts and without network.

use std::fmt::Write;

use extant_lab::report::{Claim, Plot, StudyReport, Table, Verdict};
use extant_lab::studies;

use crate::grid::{Grid, grid};
use crate::numbers::{bytes, counted, duration, escaped};
use crate::text::caption;
use crate::{BEYOND, ReportFault, Reports, beyond_words, plot, verdict_words};

const STYLE: &str = include_str!("page.css");

const HOW_TO_READ: &str = include_str!("how_to_read.html");

/// The page.
///
/// # Errors
/// A plot has no points, or cannot be drawn.
pub fn page(reports: &Reports) -> Result<String, ReportFault> {
    let mut body = String::new();
    contents(&mut body, reports);
    how_to_read(&mut body, reports);
    for report in &reports.studies {
        study(&mut body, report)?;
    }
    let version = escaped(&reports.version);
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Studies of \
         ext4</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta \
         name=\"color-scheme\" content=\"light dark\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>Studies of ext4</h1>\n<p>Measurements of five mail threads of linux-ext4, repeated by extant \
         {version}.</p>\n{body}</body>\n</html>\n"
    ))
}

/// The class of a verdict in the style sheet.
fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Confirmed => "confirmed",
        Verdict::Beaten => "beaten",
        Verdict::Refuted => "refuted",
        Verdict::Open => "open",
    }
}

/// What columns and verdicts mean.
fn how_to_read(out: &mut String, reports: &Reports) {
    out.push_str(HOW_TO_READ);
    out.push_str("<div class=\"wide\"><table class=\"claims\">\n<thead><tr><th>study</th>");
    for verdict in [Verdict::Confirmed, Verdict::Beaten, Verdict::Refuted, Verdict::Open] {
        let words = verdict_words(verdict);
        let _ = write!(out, "<th><span class=\"verdict {}\">{words}</span></th>", class(verdict));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    let is_here = |study: &&studies::Study| reports.studies.iter().any(|made| made.study == study.name);
    for study in studies::ALL.iter().filter(is_here) {
        let _ = write!(out, "<tr><td>{}</td>", study.name);
        for (_, rule) in study.rules.all() {
            let _ = write!(out, "<td>{}</td>", escaped(rule));
        }
        out.push_str("</tr>\n");
    }
    let _ = writeln!(out, "</tbody></table></div>\n<p>Beyond the posting: {BEYOND}</p>\n</section>");
}

fn contents(out: &mut String, reports: &Reports) {
    out.push_str("<nav>\n<h2>Contents</h2>\n<ol>\n");
    for report in &reports.studies {
        let name = escaped(&report.study);
        let _ = write!(out, "<li><a href=\"#{name}\">{name}</a>: {}", escaped(&report.question));
        for verdict in [Verdict::Confirmed, Verdict::Beaten, Verdict::Refuted, Verdict::Open] {
            let count = report.claims_of_posting().filter(|claim| claim.verdict == verdict).count();
            if count > 0 {
                let words = verdict_words(verdict);
                let _ = write!(out, " <span class=\"verdict {}\">{count} {words}</span>", class(verdict));
            }
        }
        out.push_str("\n<ul>");
        for table in &report.tables {
            let title = escaped(&table.title);
            let _ = write!(out, "<li><a href=\"#{name}-{}\">{title}</a></li>", escaped(&table.id));
        }
        out.push_str("</ul></li>\n");
    }
    let is_missing = |study: &&studies::Study| reports.studies.iter().all(|made| made.study != study.name);
    for study in studies::ALL.iter().filter(is_missing) {
        let _ = writeln!(out, "<li>{}: not in this report</li>", study.name);
    }
    out.push_str("</ol>\n</nav>\n");
}

fn study(out: &mut String, report: &StudyReport) -> Result<(), ReportFault> {
    let name = escaped(&report.study);
    let _ = writeln!(out, "<section id=\"{name}\">\n<h2>{name}</h2>");
    let _ = writeln!(out, "<p class=\"question\">{}</p>\n<dl>", escaped(&report.question));
    let posting = &report.posting;
    let on = if posting.machine.is_empty() { String::new() } else { format!("; {}", posting.machine) };
    let machine = &report.machine;
    let model = if machine.model.is_empty() { "unknown CPU" } else { machine.model.as_str() };
    let machine = format!(
        "{model}, {}, {} of memory, {}",
        counted(machine.cpus, "CPU"),
        bytes(machine.memory_bytes),
        machine.kernel
    );
    let facts = [
        ("Posting", format!("{}, {}{on}", posting.subject, posting.date)),
        ("Our machine", machine),
        ("Took", duration(report.seconds)),
    ];
    for (term, fact) in facts.iter().filter(|(_, fact)| !fact.is_empty()) {
        let _ = writeln!(out, "<dt>{term}</dt><dd>{}</dd>", escaped(fact));
    }
    if !report.parameters.is_empty() {
        out.push_str("<dt>Parameters</dt><dd><ul class=\"parameters\">\n");
        for (name, value) in &report.parameters {
            let _ = writeln!(out, "<li>{}: {}</li>", escaped(name), escaped(value));
        }
        out.push_str("</ul></dd>\n");
    }
    let _ = writeln!(out, "<dt>Command</dt><dd><code>{}</code></dd>\n</dl>", escaped(&report.command));
    claims(out, report);
    names(out, report);
    for table in &report.tables {
        for plot in report.plots.iter().filter(|plot| plot.table == table.id) {
            figure(out, report, plot)?;
        }
        write_table(out, report, table);
    }
    let is_alone = |plot: &&Plot| report.tables.iter().all(|table| table.id != plot.table);
    for plot in report.plots.iter().filter(is_alone) {
        figure(out, report, plot)?;
    }
    out.push_str("</section>\n");
    Ok(())
}

fn claims(out: &mut String, report: &StudyReport) {
    let of_posting = report.claims_of_posting().map(|claim| (claim.claim.as_str(), claim));
    let of_ours = |verdict| match verdict {
        Verdict::Beaten => (beyond_words(verdict), class(Verdict::Confirmed)),
        _ => (beyond_words(verdict), class(verdict)),
    };
    let of_its = |verdict| (verdict_words(verdict), class(verdict));
    claim_table(out, report, ("Claims of the posting", ""), of_its, of_posting);
    claim_table(out, report, ("Beyond the posting", BEYOND), of_ours, report.claims_beyond());
}

fn claim_table<'a>(
    out: &mut String,
    report: &StudyReport,
    (title, about): (&str, &str),
    shown: fn(Verdict) -> (&'static str, &'static str),
    claims: impl Iterator<Item = (&'a str, &'a Claim)>,
) {
    let mut claims = claims.peekable();
    if claims.peek().is_none() {
        return;
    }
    let _ = writeln!(
        out,
        "<div class=\"wide\"><table class=\"claims\">\n<caption>{title} <small>{}</small></caption>\n<thead>\
         <tr><th>claim</th><th>posting</th><th>ours</th><th>kernel</th><th>verdict</th></tr></thead>\n\
         <tbody>",
        escaped(about)
    );
    for (sentence, claim) in claims {
        let kernel = claim.kernel.as_deref().unwrap_or("not measured");
        out.push_str("<tr>");
        for text in [sentence, &claim.posting, &claim.ours, kernel] {
            let _ = write!(out, "<td>{}</td>", escaped(text));
        }
        let (words, class) = shown(claim.verdict);
        let _ = write!(out, "<td><span class=\"verdict {class}\">{words}</span> ");
        out.push_str(&escaped(&claim.why));
        for id in &claim.tables {
            let title = report.tables.iter().find(|table| table.id == *id).map(|table| &table.title);
            if let Some(title) = title {
                let (name, id) = (escaped(&report.study), escaped(id));
                let _ = write!(out, " <a href=\"#{name}-{id}\">[{}]</a>", escaped(title));
            }
        }
        out.push_str("</td></tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// What the names of rows mean.
fn names(out: &mut String, report: &StudyReport) {
    let Some(study) = studies::ALL.iter().find(|study| study.name == report.study) else { return };
    out.push_str("<details open><summary>Names in the tables</summary>\n<dl>\n");
    for (name, meaning) in study.names {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(meaning));
    }
    out.push_str("</dl></details>\n");
}

fn figure(out: &mut String, report: &StudyReport, of: &Plot) -> Result<(), ReportFault> {
    let (name, id) = (escaped(&report.study), escaped(&of.id));
    let _ = writeln!(out, "<figure id=\"{name}-plot-{id}\">\n{}", plot::svg(of)?);
    let command = escaped(&report.command);
    let _ = writeln!(out, "<figcaption><code>{command}</code></figcaption>\n</figure>");
    Ok(())
}

fn write_table(out: &mut String, report: &StudyReport, table: &Table) {
    let id = format!("{}-{}", escaped(&report.study), escaped(&table.id));
    let _ = writeln!(out, "<div class=\"wide\"><table id=\"{id}\">");
    let (title, about) = (escaped(&table.title), escaped(&caption(table)));
    let _ = writeln!(out, "<caption>{title} <small>{about}</small></caption>\n<thead>");
    let Grid { columns, rows } = grid(table);
    out.push_str("<tr>");
    let mut index = 0;
    while index < columns.len() {
        let group = &columns[index].group;
        let span = columns[index..].iter().take_while(|column| column.group == *group).count();
        let title = match group.as_str() {
            "posting" => format!(" title=\"{}\"", escaped(&report.posting.machine)),
            _ => String::new(),
        };
        let first = if index > 0 { " class=\"first\"" } else { "" };
        let _ = write!(out, "<th colspan=\"{span}\"{title}{first}>{}</th>", escaped(group));
        index += span;
    }
    out.push_str("</tr>\n<tr>");
    let class = |index: usize| {
        let is_first = index > 0 && columns[index - 1].group != columns[index].group;
        let theirs = if columns[index].group == "posting" { "posting" } else { "" };
        let classes =
            [if columns[index].numeric { "n" } else { "" }, if is_first { "first" } else { "" }, theirs];
        let classes = classes.into_iter().filter(|class| !class.is_empty()).collect::<Vec<_>>().join(" ");
        if classes.is_empty() { classes } else { format!(" class=\"{classes}\"") }
    };
    for (index, column) in columns.iter().enumerate() {
        let _ = write!(out, "<th{}>{}</th>", class(index), escaped(&column.head));
    }
    out.push_str("</tr>\n</thead>\n<tbody>\n");
    for row in &rows {
        out.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", class(index), escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n");
    if !table.note.is_empty() {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(&table.note));
    }
}

#[cfg(test)]
mod browser;
#[cfg(test)]
mod tests {
    use crate::{Reports, samples};

    #[test]
    fn texts_are_escaped_and_all_parts_are_there() {
        let reports = Reports { version: "0.1.0".to_owned(), studies: vec![samples::report()] };
        let page = super::page(&reports).unwrap();
        assert!(page.contains("es-gc &lt;new&gt;") && !page.contains("<new>"), "{page}");
        for part in [
            "<a href=\"#shrinker\">shrinker</a>",
            "<table id=\"shrinker-scan-a\">",
            "<figure id=\"shrinker-plot-scan-bars\">",
            "<span class=\"verdict confirmed\">confirmed</span> The change is -99 %.",
            "<code>extant lab all --quick --only shrinker</code>",
            "<dt>es-slist</dt><dd>also visits inodes round robin",
            "<li>fsync: not in this report</li>",
            "<span class=\"verdict confirmed\">1 confirmed</span>\n<ul>",
            "<caption>Beyond the posting <small>",
            "<td>no scan is long</td>",
            "<span class=\"verdict confirmed\">held</span>",
            "<tr><td>shrinker</td><td>times: shorter",
            "<li>clock: real</li>\n<li>size: quick</li>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("<script") && !page.contains("https://"), "{page}");
    }
}
