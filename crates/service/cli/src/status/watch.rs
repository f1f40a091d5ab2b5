//! `--watch`: a mount on the terminal, anew each second.
//!
//! Invariant: the terminal is as before when this returns, also after an error, a panic or a signal.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Reading, Report, StatusError, page, read, with_windows};
use crate::exit;

const INTERVAL: Duration = Duration::from_secs(1);
/// Rows from which on there is room for everything.
const TALL: u16 = 36;
/// How soon a signal is noticed.
const TICK: Duration = Duration::from_millis(100);

pub(super) fn run(dir: Option<&Path>, interval: Option<Duration>) -> Result<(), StatusError> {
    let target = |text: String| StatusError::new(exit::TARGET, text);
    // Before the terminal is changed, because an error message belongs on a normal one.
    let first = read(dir, &mut |_| ())?;
    if !rustix::termios::isatty(std::io::stdout()) || !rustix::termios::isatty(std::io::stdin()) {
        let text = "--watch needs a terminal; --json, --metrics and the plain page do not".to_owned();
        return Err(StatusError::new(exit::USAGE_CODE, text));
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(|error| target(format!("signals cannot be handled: {error}")))?;
    }
    // Also has panics restore the terminal.
    let mut terminal =
        ratatui::try_init().map_err(|error| target(format!("the terminal cannot be used: {error}")))?;
    let mut watch = Watch { before: first, reports: Vec::new(), shown: 0, notes: Vec::new() };
    let watched = watch.run(&mut terminal, (dir, interval.unwrap_or(INTERVAL)), &ended);
    ratatui::restore();
    watched
}

struct Watch {
    before: Vec<Reading>,
    reports: Vec<Report>,
    /// Which of the reports is on the screen.
    shown: usize,
    /// Why mounts are missing.
    notes: Vec<String>,
}

/// What a key asks for.
enum Action {
    End,
    Redraw,
}

impl Watch {
    fn run(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        (dir, interval): (Option<&Path>, Duration),
        ended: &AtomicBool,
    ) -> Result<(), StatusError> {
        let failed = |error: std::io::Error| {
            StatusError::new(exit::TARGET, format_args!("the terminal cannot be used: {error}"))
        };
        // The first page shows rates since the mount.
        self.reports = with_windows(&[], std::mem::take(&mut self.before));
        let mut next = Instant::now() + interval;
        loop {
            terminal.draw(|frame| self.draw(frame)).map_err(failed)?;
            loop {
                if ended.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    self.update(dir)?;
                    next = Instant::now() + interval;
                    break;
                }
                if event::poll(left.min(TICK)).map_err(failed)? {
                    match self.act(&event::read().map_err(failed)?) {
                        Some(Action::End) => return Ok(()),
                        Some(Action::Redraw) => break,
                        None => {}
                    }
                }
            }
        }
    }

    fn update(&mut self, dir: Option<&Path>) -> Result<(), StatusError> {
        self.notes.clear();
        let notes = &mut self.notes;
        let now = read(dir, &mut |error| notes.push(error.text))?;
        let before: Vec<Reading> = self.reports.drain(..).map(|report| report.reading).collect();
        self.reports = with_windows(&before, now);
        Ok(())
    }

    fn act(&mut self, event: &Event) -> Option<Action> {
        let key = match event {
            Event::Key(key) if key.kind == KeyEventKind::Press => key,
            Event::Resize(..) => return Some(Action::Redraw),
            _ => return None,
        };
        let count = self.reports.len().max(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Action::End),
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Some(Action::End),
            KeyCode::Tab | KeyCode::Right | KeyCode::Down => self.shown = (self.shown + 1) % count,
            KeyCode::BackTab | KeyCode::Left | KeyCode::Up => self.shown = (self.shown + count - 1) % count,
            _ => return None,
        }
        Some(Action::Redraw)
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let [body, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(
            Paragraph::new(self.footer()).style(Style::new().add_modifier(Modifier::DIM)),
            foot,
        );
        let Some(report) = self.reports.get(self.shown.min(self.reports.len().saturating_sub(1))) else {
            let mut lines = vec![Line::from("Nothing is mounted by extant here.")];
            lines.extend(self.notes.iter().map(|note| Line::from(note.as_str())));
            frame.render_widget(Paragraph::new(lines), body);
            return;
        };
        let state = state_lines(report, body);
        let used = (state.len() as u16).min(body.height);
        let [title, requests, rest] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(used)])
                .areas(body);
        frame.render_widget(Paragraph::new(page::title(report)).style(bold), title);
        let heading = Line::styled(page::heading(), bold.add_modifier(Modifier::REVERSED));
        let rows = page::rows(report).into_iter().map(Line::from);
        // An empty line before the state.
        let room = usize::from(requests.height.saturating_sub(1));
        let lines: Vec<Line<'_>> = std::iter::once(heading).chain(rows).take(room).collect();
        frame.render_widget(Paragraph::new(lines), requests);
        frame.render_widget(Paragraph::new(state), rest);
    }

    fn footer(&self) -> String {
        let (count, shown) = (self.reports.len(), self.shown + 1);
        let window = self.reports.first().map_or(0.0, |report| report.window.seconds);
        let which = if count > 1 { format!(" | mount {shown} of {count}, Tab: next") } else { String::new() };
        let missing = match self.notes.len() {
            0 => String::new(),
            missing => format!(" | {missing} mounts do not answer"),
        };
        format!("rates of {window:.1} s | q: end{which}{missing}")
    }
}

fn state_lines(report: &Report, area: Rect) -> Vec<Line<'static>> {
    let width = usize::from(area.width).saturating_sub(page::LABEL);
    let mut lines = Vec::new();
    for (label, parts) in page::state(report) {
        // Requests need the room more than the smaller caches do.
        let lines_max = if label == "memory" && area.height < TALL { 1 } else { usize::MAX };
        for (number, text) in page::wrapped(&parts, width).into_iter().take(lines_max).enumerate() {
            let label = if number == 0 { label } else { "" };
            let label = format!("{label:<width$}", width = page::LABEL);
            let label = Span::styled(label, Style::new().add_modifier(Modifier::BOLD));
            lines.push(Line::from(vec![label, Span::raw(text)]));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;

    use super::super::tests::report;
    use super::*;

    fn screen(watch: &Watch, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| watch.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(width.into());
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned())
            .collect()
    }

    fn watch(mounts: &[&str]) -> Watch {
        let reports = mounts.iter().map(|mount| report(mount)).collect();
        Watch { before: Vec::new(), reports, shown: 0, notes: Vec::new() }
    }

    #[test]
    fn a_page_fits_on_a_terminal_of_80_columns_and_24_rows() {
        let lines = screen(&watch(&["/mnt"]), 80, 24);
        assert!(lines[0].starts_with("/mnt: /srv/root.img, read-write"), "{lines:#?}");
        assert!(lines[1].starts_with("requests") && lines[2].starts_with("write"), "{lines:#?}");
        for label in ["commits", "log", "dirty data", "fsync", "orphans", "memory", "extent status", "errors"]
        {
            assert!(lines.iter().any(|line| line.starts_with(label)), "{label}: {lines:#?}");
        }
        assert_eq!(lines[23], "rates of 2.0 s | q: end");
    }

    #[test]
    fn any_size_of_terminal_and_no_mount_can_be_drawn() {
        for (width, height) in [(1, 1), (10, 2), (40, 10), (300, 100)] {
            screen(&watch(&["/mnt"]), width, height);
            screen(&watch(&[]), width, height);
        }
    }

    #[test]
    fn keys_change_the_mount_and_end() {
        let mut watch = watch(&["/a", "/b"]);
        let key = |code| Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
        assert!(matches!(watch.act(&key(KeyCode::Tab)), Some(Action::Redraw)));
        let lines = screen(&watch, 80, 24);
        assert!(lines[0].starts_with("/b: ") && lines[23].contains("mount 2 of 2"), "{lines:#?}");
        watch.act(&key(KeyCode::Tab));
        watch.act(&key(KeyCode::Left));
        assert_eq!(watch.shown, 1);
        assert!(matches!(watch.act(&key(KeyCode::Char('q'))), Some(Action::End)));
        let interrupt = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(matches!(watch.act(&interrupt), Some(Action::End)));
        assert!(watch.act(&key(KeyCode::Char('c'))).is_none());
    }
}
