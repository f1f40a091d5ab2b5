//! The page in Chromium: every plot is there, is not empty, and has labelled axes.

use std::fs;
use std::process::Command;

use crate::{Reports, samples};

/// Measures what the browser draws of each plot: `id|width|height|shapes|texts`.
const PROBE: &str = "<script>
const lines = [...document.querySelectorAll('svg.plot')].map(svg => {
  const box = svg.getBBox(), drawn = svg.querySelectorAll('polyline, rect, circle, line, path');
  const seen = [...drawn].filter(it => !it.closest('.hover')
    && (it.getBBox().width > 0 || it.getBBox().height > 0));
  const texts = [...svg.querySelectorAll('text')].filter(it => it.getBBox().width > 0)
    .map(it => it.textContent.trim());
  const wide = svg.getBoundingClientRect().width > 300;
  const colour = getComputedStyle(svg.querySelector('text')).fill;
  return [svg.closest('figure').id, wide, box.height > 100, seen.length, colour, texts.join(';')].join('|');
});
const pre = document.createElement('pre');
pre.textContent = 'PROBE\\n' + lines.join('\\n') + '\\nEND';
document.body.append(pre);
</script>";

#[test]
fn every_plot_is_drawn_with_labelled_axes() {
    if Command::new("chromium").arg("--version").output().is_err() {
        println!("skipped: not installed: chromium");
        return;
    }
    let reports = Reports { version: "0.1.0".to_owned(), studies: vec![samples::report()] };
    let page = super::page(&reports).unwrap().replace("</body>", &format!("{PROBE}</body>"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    fs::write(&file, page).unwrap();
    for dark in [false, true] {
        let mut browser = Command::new("chromium");
        // Its sandbox does not work for root, and a container's shared memory may be small.
        browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        if dark {
            browser.arg("--blink-settings=preferredColorScheme=0");
        }
        browser.arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
        browser.args(["--virtual-time-budget=2000", "--dump-dom"]);
        let output = browser.arg(format!("file://{}", file.display())).output().unwrap();
        let dom = String::from_utf8_lossy(&output.stdout);
        let probe = dom.split_once("PROBE\n").and_then(|(_, rest)| rest.split_once("\nEND"));
        let Some((probe, _)) = probe else {
            panic!("no probe in: {dom}\n{}", String::from_utf8_lossy(&output.stderr));
        };
        let plots: Vec<Vec<&str>> = probe.lines().map(|line| line.split('|').collect()).collect();
        let ids: Vec<&str> = plots.iter().map(|plot| plot[0]).collect();
        assert_eq!(ids, ["shrinker-plot-scan-bars", "shrinker-plot-scan-lines"]);
        for plot in plots {
            assert_eq!((plot[1], plot[2]), ("true", "true"), "{plot:?}");
            assert!(plot[3].parse::<usize>().unwrap() > 8, "{plot:?}");
            let ink = if dark { "rgb(230, 237, 243)" } else { "rgb(27, 31, 36)" };
            assert_eq!(plot[4], ink, "{plot:?}");
            let texts: Vec<&str> = plot[5].split(';').collect();
            for text in ["policy", "scan time [us]", "ours", "posting (posting)"] {
                assert!(texts.contains(&text), "{text}: {texts:?}");
            }
            // Labels of the y axis are numbers.
            assert!(texts.iter().filter(|text| text.replace(',', "").parse::<f64>().is_ok()).count() > 1);
        }
    }
}
