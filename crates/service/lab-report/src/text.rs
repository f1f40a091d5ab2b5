//! Reports as text: tables in the form of ministat, then the claims with their verdicts.

use std::fmt::Write;

use extant_lab::report::{Better, Claim, StudyReport, Table};

use crate::grid::{Grid, grid};
use crate::numbers::{bytes, duration};
use crate::verdict_words;

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
    let parameters = report.parameters.iter().map(|(name, value)| format!("{name} {value}"));
    let parameters = parameters.collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "command: {} ({})", report.command, duration(report.seconds));
    if !parameters.is_empty() {
        let _ = writeln!(text, "with:    {parameters}");
    }
    text += &tables(&report.tables);
    if !report.claims.is_empty() {
        text.push_str("\nClaims of the posting:\n");
    }
    for claim in &report.claims {
        write_claim(&mut text, claim);
    }
    text.push('\n');
    text
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
    let origin = if table.in_posting { "a table of the posting" } else { "our own table" };
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

fn write_claim(text: &mut String, claim: &Claim) {
    let _ = writeln!(text, "\n  {}: {}", verdict_words(claim.verdict).to_uppercase(), claim.claim);
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
        assert!(text.contains("CONFIRMED: scans are shorter\n    posting: 10196 to 357 us"), "{text}");
    }
}
