use super::*;
use crate::report::{Better, Machine, Posted, Posting, Row};
use crate::shrinker::tables::ENDED_EARLY;

/// A row: policy, our runs, mean and standard deviation of the posting's three runs, extras.
type Line<'a> = (&'a str, [f64; 3], (f64, f64), &'a [f64]);

fn table(id: &str, labels: &[&str], extras: &[&str], lines: &[Line<'_>]) -> Table {
    let rows = lines.iter().map(|(policy, runs, (avg, stddev), extras)| Row {
        posting: Some(Posted { runs: Some(3), avg: *avg, stddev: Some(*stddev), ..Posted::default() }),
        extras: extras.iter().copied().map(Some).collect(),
        ..Row::ours(&[labels, &[policy]].concat(), runs)
    });
    Table {
        id: id.to_owned(),
        title: String::new(),
        in_posting: true,
        quantity: String::new(),
        unit: String::new(),
        better: Better::Lower,
        labels: Vec::new(),
        extras: extras.iter().map(|&head| head.to_owned()).collect(),
        rows: rows.collect(),
        note: String::new(),
    }
}

fn report(scale: f64, tables: Vec<Table>) -> StudyReport {
    StudyReport {
        study: "shrinker".to_owned(),
        question: String::new(),
        posting: Posting { subject: String::new(), date: String::new(), machine: String::new() },
        command: String::new(),
        machine: Machine { cpus: 2, model: String::new(), memory_bytes: 0, kernel: String::new() },
        parameters: [("scale".to_owned(), scale.to_string())].into(),
        seconds: 0.0,
        tables,
        plots: Vec::new(),
        claims: Vec::new(),
    }
}

/// The claim whose first table has this id.
fn judged(report: &StudyReport, id: &str) -> Judged {
    let claim = claims(report).into_iter().find(|claim| claim.tables[0] == id).unwrap();
    (claim.verdict, claim.why)
}

/// The claim on the mean scan of case (a); the posting's falls from 1000 to 10.
fn on_mean(scale: f64, old: [f64; 3], new: [f64; 3], own: [f64; 3]) -> Judged {
    let lines: [Line<'_>; 3] =
        [(OLD, old, (1000.0, 10.0), &[]), (NEW, new, (10.0, 1.0), &[]), (OWN, own, (0.0, 0.0), &[])];
    judged(&report(scale, vec![table("scan-avg-a", &[], &[], &lines)]), "scan-avg-a")
}

#[test]
fn a_shorter_time_needs_a_third_of_the_factor() {
    let (slow, fast) = ([99.0, 100.0, 101.0], [1.9, 2.0, 2.1]);
    assert_eq!(
        on_mean(1.0, slow, fast, fast),
        (
            Verdict::Confirmed,
            "The mean scan falls to 1/50 of baseline's; in the posting it falls to 1/100.".to_owned()
        )
    );
    let (verdict, why) = on_mean(1.0, slow, fast, [0.5, 0.5, 0.5]);
    assert!(
        verdict == Verdict::Beaten && why.ends_with("With es-chunk the mean scan is 1/4.0 of es-gc's."),
        "{why}"
    );
    let (verdict, why) = on_mean(1.0, slow, [49.0, 50.0, 51.0], fast);
    assert!(verdict == Verdict::Open && why.contains("less than a third"), "{why}");
    // The opposite: refuted at the posting's size only.
    assert_eq!(on_mean(1.0, fast, slow, fast).0, Verdict::Refuted);
    assert_eq!(on_mean(0.05, fast, slow, fast).0, Verdict::Open);
}

#[test]
fn noise_leaves_a_claim_open() {
    let noise = [10.0, 100.0, 50.0];
    let (verdict, why) = on_mean(1.0, noise, [20.0, 90.0, 70.0], noise);
    assert_eq!(verdict, Verdict::Open);
    assert!(why.starts_with("Unlike those of the posting, our runs do not show"), "{why}");
    let lines: [Line<'_>; 3] = [
        (OLD, noise, (1000.0, 900.0), &[5172.0]),
        (NEW, noise, (500.0, 400.0), &[290.0]),
        (OWN, noise, (0.0, 0.0), &[66.0]),
    ];
    let report = report(1.0, vec![table("scan-max-c", &[], &["most visits"], &lines)]);
    assert_eq!(
        judged(&report, "scan-max-c"),
        (
            Verdict::Open,
            "Neither our runs nor those of the posting show a difference at 95 % confidence (3 runs of \
             each policy). By count, a scan visits at most 5172 entries and inodes with baseline, 290 \
             with es-gc."
                .to_owned()
        )
    );
    let posting = &claims(&report).into_iter().find(|claim| claim.tables[0] == "scan-max-c").unwrap().posting;
    assert_eq!(posting, "baseline 1000 us, es-gc 500 us; no difference at 95 %");
}

#[test]
fn a_run_that_ended_early_decides_if_its_part_is_worse() {
    let tables = |cut: f64, new: f64, hits: f64| {
        let extras = ["misses", "hit ratio", "calls", "scans", "most visits", ENDED_EARLY];
        let lines = |old: f64, new: f64, own: f64| -> [Line<'_>; 3] {
            const EXTRAS: [[f64; 6]; 4] = [
                [41.0, 0.1, 50.0, 174.0, 1000.0, 0.0],
                [41.0, 0.1, 50.0, 174.0, 1000.0, 1.0],
                [0.0, 1.0, 200.0, 900.0, 134.0, 0.0],
                [0.0, 1.0, 200.0, 900.0, 99.0, 0.0],
            ];
            [
                (OLD, [old; 3], (100.0, 1.0), &EXTRAS[if cut == 1.0 { 1 } else { 0 }]),
                (NEW, [new; 3], (10.0, 1.0), &EXTRAS[2]),
                (OWN, [own; 3], (0.0, 0.0), &EXTRAS[3]),
            ]
        };
        let scans = ["scan-avg-b", "scan-max-b"].map(|id| table(id, &[], &extras, &lines(9.0, new, new)));
        let hits = table("hits-b", &[], &extras, &lines(9.0, hits, hits));
        report(1.0, scans.into_iter().chain([hits]).collect())
    };
    let (complete, cut) = (tables(0.0, 1.0, 1.0), tables(1.0, 1.0, 200.0));
    for id in ["scan-avg-b", "scan-max-b"] {
        assert_eq!(judged(&complete, id).0, Verdict::Confirmed);
    }
    // Fewer hits.
    assert_eq!(judged(&complete, "hits-b").0, Verdict::Refuted);
    let (verdict, why) = judged(&cut, "scan-avg-b");
    assert_eq!(verdict, Verdict::Confirmed);
    assert!(why.contains("baseline ended early: its mean is of the 174 scans until then."), "{why}");
    assert_eq!(
        judged(&cut, "scan-max-b"),
        (
            Verdict::Confirmed,
            "The longest scan falls to at most 1/9.0 of baseline's; in the posting it falls to 1/10. \
             baseline ended early, after 50 of 200 calls; its longest scan takes at least the 9.0 us of \
             the part that ran. By count, a scan visits at most 1000 entries and inodes with baseline, \
             134 with es-gc."
                .to_owned()
        )
    );
    assert_eq!(
        judged(&cut, "hits-b"),
        (
            Verdict::Confirmed,
            "baseline ended early, after 50 of 200 calls, with 41 misses. Even if all its other lookups \
             hit, it has at most 159 hits, fewer than the 200 of es-gc. In what was run, the hit ratio \
             is 10 % with baseline, 100 % with es-gc, 100 % with es-chunk."
                .to_owned()
        )
    );
    // The rest of the run may have a scan longer than 10 us.
    let undecided = tables(1.0, 10.0, 200.0);
    let (verdict, why) = judged(&undecided, "scan-max-b");
    assert_eq!(verdict, Verdict::Open);
    assert!(why.starts_with("baseline ended early, after 50 of 200 calls, because its scans had"), "{why}");
}

#[test]
fn a_longer_scan_is_explained_by_its_visits() {
    let lines: [Line<'_>; 3] = [
        (OLD, [6.0, 6.1, 6.2], (178.0, 10.0), &[10.0, 1280.0, 300.0]),
        (NEW, [19.0, 19.1, 19.2], (69.0, 10.0), &[20.0, 2560.0, 130.0]),
        (OWN, [1.0, 1.0, 1.1], (0.0, 0.0), &[20.0, 2560.0, 7.0]),
    ];
    let extras = ["scans", "reclaimed", "visited [1/scan]"];
    let report = report(1.0, vec![table("scan-avg-c", &[], &extras, &lines)]);
    assert_eq!(
        judged(&report, "scan-avg-c"),
        (
            Verdict::Refuted,
            "The mean scan rises to 3.1 times baseline's; in the posting it falls to 1/2.6. A scan of \
             either reclaims 128 entries. For that, es-gc visits 130 entries and inodes, baseline 300; a \
             visit takes 147 ns with es-gc, 20 ns with baseline."
                .to_owned()
        )
    );
}

/// Of 100 calls every second is the reader's. The writers' 50 lookups miss with baseline and hit with
/// es-gc.
#[test]
fn added_hits_are_split_into_those_of_writers_and_reader() {
    let extras = ["misses", "hit ratio", "reader's", "calls"];
    let lines: [Line<'_>; 4] = [
        (OLD, [40.0; 3], (1.0, 0.1), &[60.0, 0.4, 0.8, 100.0]),
        (SLIST, [80.0; 3], (90.0, 1.0), &[20.0, 0.8, 0.6, 100.0]),
        (NEW, [95.0; 3], (100.0, 1.0), &[5.0, 0.95, 0.9, 100.0]),
        (OWN, [96.0; 3], (0.0, 0.0), &[4.0, 0.96, 0.92, 100.0]),
    ];
    let report = report(1.0, vec![table("hits-c", &[], &extras, &lines)]);
    assert_eq!(
        judged(&report, "hits-c"),
        (
            Verdict::Beaten,
            "The hit ratio is 40 % with baseline, 95 % with es-gc, 96 % with es-chunk. The number of \
             hits rises to 2.4 times; in the posting it rises to 100 times. Of the 55 hits that es-gc \
             adds, 50 are lookups of the writers, which find the holes that patch 3 caches. The factor \
             is below the posting's because the reader's lookups hit with baseline, too: 40; the \
             posting's baseline has 1.0 hits in all. The reader's hit ratio is 80 % with baseline, 60 % \
             with es-slist, 90 % with es-gc, 92 % with es-chunk: patch 6 (es-gc) restores what round \
             robin, patch 4 (es-slist), loses."
                .to_owned()
        )
    );
}

#[test]
fn about_the_same_needs_narrow_intervals() {
    let verdict = |read: [f64; 3], write: [f64; 3]| {
        let old = [99.0, 100.0, 101.0];
        let rows = |labels: &[&str], new: [f64; 3]| {
            let lines: [Line<'_>; 3] =
                [(OLD, old, (0.0, 0.0), &[]), (NEW, new, (0.0, 0.0), &[]), (OWN, new, (0.0, 0.0), &[])];
            table("files-max", labels, &[], &lines).rows
        };
        let mut files = table("files-max", &[], &[], &[]);
        files.rows = [rows(&["(c)", "read"], read), rows(&["(c)", "write"], write)].concat();
        SAME[1].judge(&report(1.0, vec![files]))
    };
    let same = verdict([100.0, 101.0, 102.0], [98.0, 100.0, 101.0]);
    assert_eq!(same.verdict, Verdict::Confirmed, "{}", same.why);
    assert_eq!(same.ours, "on files: reads +1 ± 2 %, writes 0 ± 3 %");
    let noisy = verdict([100.0, 101.0, 102.0], [60.0, 100.0, 140.0]);
    assert_eq!(noisy.verdict, Verdict::Open);
    assert!(noisy.why.contains("The change is undecided in writes,"), "{}", noisy.why);
    assert_eq!(verdict([50.0, 51.0, 52.0], [98.0, 100.0, 101.0]).verdict, Verdict::Refuted);
    assert_eq!(SAME[1].judge(&report(1.0, Vec::new())).verdict, Verdict::Open);
}
