//! docs/reference.md: all commands and options, from the definitions that parse them.
//!
//! `cargo xtask reference` writes the page, and without it the test compares. So the page cannot be out of
//! date, and the command has no code for it.

use clap::{Arg, Command, CommandFactory};

use crate::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference.md");

const HEAD: &str = "\
# All commands and options

This page is generated from the definitions that the command parses its arguments with (`cargo xtask
reference`). `extant COMMAND --help` prints the same, and `extant man DIR` writes it as man pages. The pages
of the [commands](tour.md#all-commands) explain them, and have examples with their output.

All commands also have these options:


";

fn page() -> String {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = HEAD.to_owned();
    page += "| Options of all commands | |\n|---|---|\n| `-h, --help` | Print help |\n";
    for arg in command.get_arguments().filter(|arg| arg.is_global_set() && !arg.is_hide_set()) {
        page += &format!("| `{}` | {} |\n", names(arg).replace('|', "\\|"), explained(arg));
    }
    page.push('\n');
    for command in command.get_subcommands() {
        page += &section(command, "##");
    }
    page += "## Exit codes\n\n";
    page += &block(command.get_after_help().map(ToString::to_string).unwrap_or_default().as_str());
    page
}

/// The section of a command, and those of its own commands.
fn section(command: &Command, heading: &str) -> String {
    let name = command.get_bin_name().unwrap_or_default();
    let mut text = format!("{heading} {name}\n\n");
    let about = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string);
    text += &format!("{}\n\n", wrapped(&prose(&about.unwrap_or_default())));
    let usage = command.clone().render_usage().to_string();
    text += &block(usage.trim_start_matches("Usage: "));
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in shown(command) {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for title in headings {
        text += &format!("| {} | |\n|---|---|\n", title.unwrap_or("Arguments and options"));
        for arg in shown(command).filter(|arg| arg.get_help_heading() == title) {
            text += &format!("| `{}` | {} |\n", names(arg).replace('|', "\\|"), explained(arg));
        }
        text.push('\n');
    }
    let after = command.get_after_long_help().or_else(|| command.get_after_help());
    if let Some(after) = after {
        text += &block(&after.to_string());
    }
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        text += &section(command, &format!("{heading}#"));
    }
    text
}

/// The arguments of a command that its help shows, without those that all commands have.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_common = |arg: &Arg| ["help", "version"].contains(&arg.get_id().as_str()) || arg.is_global_set();
    command.get_arguments().filter(move |arg| !arg.is_hide_set() && !is_common(arg))
}

/// `-o, --output <IMAGE>`
fn names(arg: &Arg) -> String {
    if arg.is_positional() {
        return arg.to_string();
    }
    // The text of an option has its long name, if it has one, and its values.
    let text = arg.to_string();
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(_)) => format!("-{short}, {text}"),
        _ => text,
    }
}

/// The help of an argument, its default and its possible values.
fn explained(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = prose(&help).split_whitespace().collect::<Vec<_>>().join(" ");
    let has_values = arg.get_action().takes_values();
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|v| v.get_name().to_owned())
        .collect();
    if has_values && !values.is_empty() && !arg.is_hide_possible_values_set() {
        text += &format!(" (`{}`)", values.join("`, `"));
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if has_values && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        text += &format!(" [default: `{}`]", defaults.join(" "));
    }
    text
}

/// Text that Markdown shows as it is, except for its code in backquotes.
fn prose(text: &str) -> String {
    let mut out = String::new();
    for (number, part) in text.split('`').enumerate() {
        if number > 0 {
            out.push('`');
        }
        for c in part.chars() {
            let is_mark = if number % 2 == 1 { c == '|' } else { "|<*\\".contains(c) };
            if is_mark {
                out.push('\\');
            }
            out.push(c);
        }
    }
    out
}

/// A code block, with lines as long as on a terminal.
fn block(text: &str) -> String {
    let wrapper = Command::new("wrapper").help_template("{after-help}").after_help(text.to_owned());
    let text = wrapper.term_width(100).render_help().to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    format!("```text\n{}\n```\n\n", lines.join("\n").trim_matches('\n'))
}

fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is a first line");
        if last.is_empty() {
            word.clone_into(last);
        } else if last.chars().count() + 1 + word.chars().count() <= 110 {
            *last += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

#[test]
fn the_reference_is_that_of_the_command() {
    let page = format!("{}\n", page().trim_end());
    if std::env::var_os("EXTANT_WRITE_REFERENCE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let committed = std::fs::read_to_string(PAGE).unwrap_or_default();
    let first = page.lines().zip(committed.lines()).find(|(new, old)| new != old);
    assert!(page == committed, "docs/reference.md is not up to date: run `cargo xtask reference`: {first:?}");
}

/// The recipes and the tours use no option that does not exist.
#[test]
fn the_commands_of_the_recipes_are_valid() {
    let pages = ["recipes", "tour-build", "tour-edit", "tour-mount", "tour-check", "tour-study"];
    let mut count = 0;
    for page in pages {
        let path = PAGE.replace("reference", page);
        let text = std::fs::read_to_string(&path).unwrap();
        let mut in_code = false;
        for (number, line) in (1..).zip(text.lines()) {
            if line.starts_with("```") {
                in_code = !in_code
                    && ["```sh", "```console", "```make", "```dockerfile", "```yaml"].contains(&line);
                continue;
            }
            let line = line.trim_start().trim_start_matches("$ ").trim_start_matches("sudo ");
            let Some(rest) = line.strip_prefix("extant ").filter(|_| in_code) else { continue };
            // The quotes of the shell are in the commands of a namespace only.
            let rest =
                rest.split_once(" -- ").map_or(rest.to_owned(), |(before, _)| format!("{before} -- true"));
            let words = rest.split_whitespace().take_while(|word| !["|", ">", "2>&1", "&&"].contains(word));
            let words = words.map(|word| word.trim_matches('\''));
            let result = Cli::command().try_get_matches_from(std::iter::once("extant").chain(words));
            assert!(result.is_ok(), "docs/{page}.md:{number}: {}", result.unwrap_err());
            count += 1;
        }
    }
    assert!(count > 40, "{count}");
}
