//! A report for tests.

use extant_lab::Summary;
use extant_lab::report::{
    Better, Change, Claim, Form, Machine, Plot, Posted, Posting, Row, Series, StudyReport, Table, Verdict,
};

/// A small report with every part of the model.
pub(crate) fn report() -> StudyReport {
    let base = Summary::of(&[10_000.0, 11_000.0, 10_500.0]);
    let new = Summary::of(&[100.0, 110.0, 105.0]);
    let posted = |avg: f64| Some(Posted { avg, ..Posted::default() });
    let first = Row {
        posting: posted(10_196.0),
        extras: vec![Some(1.5)],
        ..Row::ours(&["baseline"], &[10_000.0, 11_000.0, 10_500.0])
    };
    let second = Row {
        posting: posted(357.0),
        change: Some(Change::between(&new, &base, "baseline")),
        posting_change_percent: Some(-96.5),
        extras: vec![None],
        ..Row::ours(&["es-gc <new>"], &[100.0, 110.0, 105.0])
    };
    let points = |a: f64, b: f64| vec![(0.0, a), (1.0, b)];
    let series = |name: &str, posting: bool, points| Series { name: name.to_owned(), posting, points };
    let plot = |id: &str, form: Form| Plot {
        id: id.to_owned(),
        title: format!("Scan time, {id}"),
        x: "policy".to_owned(),
        y: "scan time [us]".to_owned(),
        x_log: false,
        y_log: true,
        form,
        categories: vec!["baseline".to_owned(), "es-gc <new>".to_owned()],
        series: vec![
            series("ours", false, points(10_500.0, 105.0)),
            series("posting", true, points(10_196.0, 357.0)),
        ],
        table: "scan-a".to_owned(),
    };
    let claim = |claim: &str, posting: &str, verdict: Verdict| Claim {
        claim: claim.to_owned(),
        posting: posting.to_owned(),
        ours: "10500 to 105 us".to_owned(),
        kernel: None,
        verdict,
        why: "The change is -99 %.".to_owned(),
        tables: vec!["scan-a".to_owned()],
    };
    StudyReport {
        study: "shrinker".to_owned(),
        question: "Which policy has the shortest scans?".to_owned(),
        posting: Posting {
            subject: "[PATCH v3 0/6] shrinker".to_owned(),
            date: "7 August 2014".to_owned(),
            machine: "4 cores".to_owned(),
        },
        command: "extant lab all --quick --only shrinker".to_owned(),
        machine: Machine {
            cpus: 2,
            model: "a CPU".to_owned(),
            memory_bytes: 1 << 30,
            kernel: "Linux 6".to_owned(),
        },
        parameters: [("size", "quick"), ("clock", "real")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        seconds: 1.0,
        tables: vec![Table {
            id: "scan-a".to_owned(),
            title: "Scan time (a)".to_owned(),
            in_posting: true,
            quantity: "scan time".to_owned(),
            unit: "us".to_owned(),
            better: Better::Lower,
            labels: vec!["policy".to_owned()],
            extras: vec!["work".to_owned()],
            rows: vec![first, second],
            note: "the change of the posting is seen".to_owned(),
        }],
        plots: vec![plot("scan-bars", Form::Bars), plot("scan-lines", Form::Lines)],
        claims: vec![
            claim("scans are shorter", "10196 to 357 us", Verdict::Confirmed),
            claim("Beyond the posting: no scan is long", "no figure", Verdict::Beaten),
        ],
    }
}
