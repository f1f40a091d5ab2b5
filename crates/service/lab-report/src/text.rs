//! Reports as text: the claims with their verdicts, what verdicts and names mean, then tables in the form of
//! ministat.

use std::fmt::Write;

use extant_lab::report::{Better, Claim, StudyReport, Table};
use extant_lab::studies;

use crate::grid::{Grid, grid};
use crate::numbers::{bytes, duration};
use crate::{BEYOND, beyond_words, verdict_words};

/// One study.
#[must_use]
pub fn study(report: &StudyReport) -> String {
    let mut text = String::new();
    let machine = &report.machine;
    let _ = writeln!(text, "## {}: {}\n", report.study, report.question);
    let _ = writeln!(text, "posting: {} ({})", report.posting.subject, report.posting.date);
    if !report.posting.machine.is_empty() {
        let _ = writeln!(text, "         on {}", report.posting.machine);
    }
    let model = if machine.model.is_empty() { "unknown CPU" } else { machine.model.as_str() };
    let memory = bytes(machine.memory_bytes);
    let _ = writeln!(text, "ours:    on {model}, {} CPUs, {memory}, {}", machine.cpus, machine.kernel);
    let _ = writeln!(text, "command: {} ({})", report.command, duration(report.seconds));
    for (at, (name, value)) in report.parameters.iter().enumerate() {
        let head = if at == 0 { "with:" } else { "" };
        let _ = writeln!(text, "{head:8} {name}: {value}");
    }
    write_claims(&mut text, report);
    if let Some(study) = studies::ALL.iter().find(|study| study.name == report.study) {
        how_to_read(&mut text, study);
    }
    text += &tables(&report.tables);
    text.push('\n');
    text
}

fn write_claims(text: &mut String, report: &StudyReport) {
    let mut of_posting = report.claims_of_posting().peekable();
    if of_posting.peek().is_some() {
        text.push_str("\nClaims of the posting:\n");
    }
    for claim in of_posting {
        write_claim(text, verdict_words(claim.verdict), &claim.claim, claim);
    }
    let mut beyond = report.claims_beyond().peekable();
    if beyond.peek().is_some() {
        let _ = writeln!(text, "\nBeyond the posting. {BEYOND}");
    }
    for (sentence, claim) in beyond {
        write_claim(text, beyond_words(claim.verdict), sentence, claim);
    }
}

/// What verdicts and names of a study mean.
fn how_to_read(text: &mut String, study: &studies::Study) {
    text.push_str(
        "\nHow to read:\n  ours: extant on this machine. kernel: ext4 of the running kernel under the same \
         load, where it was\n  measured. posting: the figures of the mail thread, from its machine. change \
         at 95 %: the mean against the\n  row that the posting compares with, by Student's t test; it \
         differs if the interval excludes 0.\n\nVerdicts:\n",
    );
    for (verdict, rule) in study.rules.all() {
        let _ = writeln!(text, "  {}: {rule}", verdict_words(verdict));
    }
    text.push_str("\nNames in the tables:\n");
    for (name, meaning) in study.names {
        let _ = writeln!(text, "  {name}: {meaning}");
    }
}

/// Tables alone, with an empty line before each.
#[must_use]
pub fn tables(tables: &[Table]) -> String {
    let mut text = String::new();
    for table in tables {
        write_table(&mut text, table);
    }
    text
}

/// What a table shows, in words.
pub(crate) fn caption(table: &Table) -> String {
    let unit = if table.unit.is_empty() { String::new() } else { format!(" [{}]", table.unit) };
    let better = match table.better {
        Better::Lower => "; lower is better",
        Better::Higher => "; higher is better",
        Better::Neither => "",
    };
    let has_figures = || table.rows.iter().any(|row| row.posting.is_some());
    let origin = match table.in_posting {
        true => "a table of the posting",
        false if has_figures() => "our own table, with figures of the posting",
        false => "our own table",
    };
    format!("{}{unit}{better}; {origin}", table.quantity)
}

fn write_table(text: &mut String, table: &Table) {
    let _ = writeln!(text, "\n{}\n  {}", table.title, caption(table));
    let Grid { columns, rows } = grid(table);
    let width = |index: usize| {
        let cells = rows.iter().map(|row| row[index].chars().count());
        cells.chain([columns[index].head.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut groups = String::new();
    let mut heads = String::new();
    for (index, column) in columns.iter().enumerate() {
        let is_first = index == 0 || columns[index - 1].group != column.group;
        let separator = if is_first && index > 0 { " | " } else { "  " };
        let width = widths[index];
        let _ = write!(heads, "{separator}{}", aligned(&column.head, width, column.numeric));
        let group = if is_first { column.group.as_str() } else { "" };
        // A name longer than its column runs into the next one of the same group.
        let at = heads.chars().count() - width;
        if !group.is_empty() {
            while groups.chars().count() < at - 2 {
                groups.push(' ');
            }
            groups.push_str("| ");
            groups.push_str(group);
        }
    }
    if columns.iter().any(|column| !column.group.is_empty()) {
        let _ = writeln!(text, "{}", groups.trim_end());
    }
    let _ = writeln!(text, "{}", heads.trim_end());
    for row in &rows {
        let mut line = String::new();
        for (index, cell) in row.iter().enumerate() {
            let is_first = index == 0 || columns[index - 1].group != columns[index].group;
            let separator = if is_first && index > 0 { " | " } else { "  " };
            let _ = write!(line, "{separator}{}", aligned(cell, widths[index], columns[index].numeric));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if !table.note.is_empty() {
        let _ = writeln!(text, "  {}", table.note);
    }
}

fn aligned(cell: &str, width: usize, right: bool) -> String {
    let pad = " ".repeat(width - cell.chars().count().min(width));
    if right { pad + cell } else { cell.to_owned() + &pad }
}

fn write_claim(text: &mut String, verdict: &str, sentence: &str, claim: &Claim) {
    let _ = writeln!(text, "\n  {}: {sentence}", verdict.to_uppercase());
    let _ = writeln!(text, "    posting: {}", claim.posting);
    let _ = writeln!(text, "    ours:    {}", claim.ours);
    if let Some(kernel) = &claim.kernel {
        let _ = writeln!(text, "    kernel:  {kernel}");
    }
    let _ = writeln!(text, "    {}", claim.why);
}

#[cfg(test)]
mod tests {
    use crate::samples;

    #[test]
    fn a_study_is_shown_with_statistics_posting_and_verdicts() {
        let text = super::study(&samples::report());
        let expected = "\
Scan time (a)
scan time [us]; lower is better; a table of the posting
| ours | posting
policy | N Min Max Median Avg Stddev change at 95 % | Avg change | work
baseline | 3 10,000 11,000 10,500 10,500 500 | 10,196 | 1.50
es-gc <new> | 3 100 110 105 105 5.00 -99.0 % ± 7.63 differs | 357 -96.5 % |
";
        let from = text.find("Scan time (a)").unwrap();
        let got: String = text[from..].lines().take(6).map(|line| format!("{line}\n")).collect();
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (line, expected) in got.lines().zip(expected.lines()) {
            assert_eq!(plain(line), plain(expected));
        }
        let bars: Vec<Vec<usize>> =
            got.lines().skip(3).map(|line| line.match_indices('|').map(|(at, _)| at).collect()).collect();
        assert!(bars[0].len() == 3, "{got}");
        for part in [
            "with:    clock: real\n         size: quick\n",
            "CONFIRMED: scans are shorter\n    posting: 10196 to 357 us",
            "\nBeyond the posting. ",
            "  HELD: no scan is long\n",
            "\nVerdicts:\n  confirmed: times: shorter",
            "\nNames in the tables:\n  baseline: ",
        ] {
            let at = text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
            assert!(at < from, "{part}: {text}");
        }
    }
}
