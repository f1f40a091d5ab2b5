//! `cargo xtask terminal`: runs commands in a new directory, and writes docs/terminal.svg, a recording of the
//! terminal that README shows.
//!
//! `anstyle-svg` draws the last state. This adds an animation in CSS: a line appears when its command was
//! run. A viewer without animations shows the last state.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::workspace;

const FILE: &str = "docs/terminal.svg";

/// Commands before the recording: a small tree.
const BEFORE: &str = "mkdir -p src/etc src/usr/bin mnt && echo hello >src/etc/motd \
    && head -c 300000 /dev/urandom >src/usr/bin/tool && touch -d 2026-01-01 src/etc/motd";

/// The commands of the recording.
const COMMANDS: [&str; 9] = [
    "extant build -o root.img --from src --size 64M",
    "extant check root.img",
    "echo box7 | extant put root.img:/etc/hostname",
    "extant tree root.img:/etc",
    "extant mount root.img mnt -o rw",
    "cp mnt/etc/motd mnt/etc/issue; ls mnt/etc",
    "extant umount mnt",
    "extant export root.img --tar root.tar.zst",
    "ls -sh root.img root.tar.zst",
];

/// Seconds before a command, and before a line of its output.
const PAUSES: (f64, f64) = (1.0, 0.08);

pub(crate) fn run() -> Result<(), String> {
    let profile = ["build", "--quiet", "--profile", "ci", "-p", "extant-cli"];
    workspace::succeed(workspace::cargo_of_tests().args(profile))?;
    let program = workspace::target_dir().join("ci");
    let dir = workspace::target_dir().join("terminal");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    shell(BEFORE, &dir, &program)?;
    let mut screen = String::new();
    let mut starts = Vec::new();
    let mut now = 0.0;
    for command in COMMANDS {
        let output = shell(command, &dir, &program)?;
        // The prompt is bold and green, the command bold.
        screen += &format!("\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m\n");
        now += PAUSES.0;
        starts.push(now);
        for line in output.lines() {
            screen += &format!("{line}\n");
            now += PAUSES.1;
            starts.push(now);
        }
    }
    let svg = animated(&anstyle_svg::Term::new().render_svg(&screen), &starts)?;
    let path = workspace::root().join(FILE);
    std::fs::write(&path, svg).map_err(|error| format!("{FILE}: {error}"))?;
    println!("{FILE}: {} lines", starts.len());
    Ok(())
}

/// Runs a command, and returns its output and its messages. `program` is the folder of `extant`.
fn shell(command: &str, dir: &Path, program: &Path) -> Result<String, String> {
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("exec 2>&1; {command}")]).current_dir(dir).env("PATH", path);
    let output = shell.stdin(Stdio::null()).output().map_err(|error| format!("bash: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("terminal: `{command}` fails: {text}")) }
}

/// Lets each line of the drawing appear at its time, in seconds.
fn animated(svg: &str, starts: &[f64]) -> Result<String, String> {
    const LINE: &str = "<tspan x=\"10px\" ";
    const STYLE: &str = "  tspan[x] { animation: appear 0.01s both }
    @keyframes appear { from { visibility: hidden } }
  </style>";
    let mut parts = svg.split(LINE);
    let mut out = parts.next().unwrap_or_default().replacen("</style>", STYLE, 1);
    let lines: Vec<&str> = parts.collect();
    // The drawing may end with an empty line.
    if !(starts.len()..=starts.len() + 1).contains(&lines.len()) {
        return Err(format!("terminal: {} lines are drawn, not {}", lines.len(), starts.len()));
    }
    for (number, line) in lines.iter().enumerate() {
        let start = starts.get(number).or(starts.last()).copied().unwrap_or_default();
        out += &format!("{LINE}style=\"animation-delay: {start:.2}s\" {line}");
    }
    Ok(out.lines().map(|line| format!("{}\n", line.trim_end())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_drawing_has_its_time() {
        let drawn = anstyle_svg::Term::new().render_svg("\x1b[1m1st\x1b[0m\n2nd\n");
        let svg = animated(&drawn, &[0.5, 1.5]).unwrap();
        let at = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{svg}"));
        assert!(at("delay: 0.50s") < at("1st") && at("1st") < at("delay: 1.50s"), "{svg}");
        assert!(svg.contains("@keyframes appear"), "{svg}");
        assert!(animated(&drawn, &[0.5; 5]).unwrap_err().contains("lines are drawn, not 5"));
    }
}
