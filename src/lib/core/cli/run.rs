//! `run_main`: parse, run, map the outcome to an exit code. The one place that prints errors.

use std::io::Write;
use std::panic::{self, AssertUnwindSafe};

use clap::{CommandFactory, Parser};
use serde::Serialize;

use super::exit::leave;
use super::{config_file, generate, signals};
use crate::{Error, Result};

/// Parses the command line (and `--config`), runs the tool and ends the process.
///
/// Prints an error as one line `tool: place: fact; remedy` and exits with its code. A closed pipe
/// downstream is a quiet success, a panic is one line and exit 1, and no destructors of foreign
/// libraries run (libtorch's take 90 ms): every file is closed by then.
pub fn run_main<A>(run: impl FnOnce(A) -> Result<()>) -> !
where
    A: Parser + CommandFactory + Serialize,
{
    run_main_with(String::new, run)
}

/// As [`run_main`], for a tool on libraries of its own: `libraries` are the lines that `--version`
/// adds to the tool's version.
pub fn run_main_with<A>(libraries: impl FnOnce() -> String, run: impl FnOnce(A) -> Result<()>) -> !
where
    A: Parser + CommandFactory + Serialize,
{
    let command = command::<A>();
    let tool = command.get_name().to_owned();
    install_panic_hook(&tool);
    signals::install();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| start(command, libraries, run)));
    let code = match outcome {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            report(&tool, &error);
            error.exit_code()
        }
        Err(_) => 1, // the hook has printed its line
    };
    leave(code)
}

fn command<A: CommandFactory>() -> clap::Command {
    let option = |id: &'static str, long: &'static str| clap::Arg::new(id).long(long);
    A::command()
        .args_override_self(true)
        .arg(
            option("config_file", "config")
                .value_name("FILE.json")
                .value_parser(clap::value_parser!(std::path::PathBuf))
                .action(clap::ArgAction::Append)
                .help("Read options from a JSON object. Flags on the command line win")
                .display_order(9000),
        )
        .arg(
            option("print_config", "print-config")
                .action(clap::ArgAction::SetTrue)
                .help("Print the resolved options as JSON and stop")
                .display_order(9001),
        )
        .arg(
            option("generate", "generate")
                .value_parser(clap::value_parser!(generate::Form))
                .hide(true),
        )
}

fn start<A>(
    command: clap::Command,
    libraries: impl FnOnce() -> String,
    run: impl FnOnce(A) -> Result<()>,
) -> Result<()>
where
    A: Parser + CommandFactory + Serialize,
{
    let mut argv: Vec<_> = std::env::args_os().collect();
    // What was typed, whatever is still missing: a config file may hold it, and a page needs
    // nothing. What is wrong in itself is refused below; help and version end here.
    let lenient = command.clone().ignore_errors(true);
    if let Ok(typed) = lenient.try_get_matches_from(&argv) {
        if let Some(&form) = typed.get_one::<generate::Form>("generate") {
            return print(&generate::text(form, command)?);
        }
        argv = config_file::expand(argv, &command, &typed)?;
    }
    let parsed = command
        .try_get_matches_from(&argv)
        .and_then(|matches| Ok((A::from_arg_matches(&matches)?, matches.get_flag("print_config"))));
    match parsed {
        Ok((args, false)) => run(args),
        Ok((args, true)) => {
            let text = serde_json::to_string_pretty(&args)
                .map_err(|e| Error::usage(format!("--print-config: {e}")))?;
            print(format!("{text}\n").as_bytes())
        }
        Err(error) => {
            let long = argv.iter().any(|word| word == "--version");
            finish_clap(error, || if long { libraries() } else { String::new() })
        }
    }
}

fn print(bytes: &[u8]) -> Result<()> {
    std::io::stdout().lock().write_all(bytes).map_err(|e| Error::write("stdout", e))
}

/// Help and version go to stdout and succeed; a wrong call becomes one line.
fn finish_clap(error: clap::Error, libraries: impl FnOnce() -> String) -> Result<()> {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp => error.print().map_err(|e| Error::write("stdout", e)),
        ErrorKind::DisplayVersion => {
            error.print().map_err(|e| Error::write("stdout", e))?;
            print(libraries().as_bytes())
        }
        _ => Err(Error::usage(one_line(&error.to_string()))),
    }
}

/// Clap's several lines as one sentence, without its "error:" and usage block.
fn one_line(text: &str) -> String {
    let mut words = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        if !line.is_empty() {
            words.push(line.strip_prefix("error: ").unwrap_or(line));
        }
    }
    format!("{}; see --help", words.join(" "))
}

fn report(tool: &str, error: &Error) {
    if matches!(error, Error::BrokenPipe) {
        return;
    }
    // One line whatever a path or a foreign message holds.
    let text = error.to_string().replace(['\n', '\r'], " ");
    let _ = writeln!(std::io::stderr(), "{tool}: {text}");
}

fn install_panic_hook(tool: &str) {
    let tool = tool.to_owned();
    panic::set_hook(Box::new(move |info| {
        let message = info
            .payload()
            .downcast_ref::<&str>()
            .map(|s| s.to_string())
            .or_else(|| info.payload().downcast_ref::<String>().cloned())
            .unwrap_or_default();
        let line = match of_libtorch(&message) {
            Some(line) => line,
            None => {
                let first = message.lines().next().unwrap_or("");
                let place = info.location().map(|l| format!("{}:{}", l.file(), l.line()));
                format!("internal error at {}: {first}", place.unwrap_or_default())
            }
        };
        let _ = writeln!(std::io::stderr(), "{tool}: {line}");
    }));
}

/// What libtorch said, where a panic is one of its bindings unwrapping its error: the first line
/// alone (the rest is a C++ stack), and what helps where memory ran out.
fn of_libtorch(message: &str) -> Option<String> {
    let quoted = message.split_once("Torch(\"")?.1;
    // The text stands there as Rust prints a string: its line ends are two characters.
    let first = quoted.split("\\n").next().unwrap_or(quoted);
    let first = first.trim_end_matches("\")").replace("\\\"", "\"");
    let remedy = if first.contains("allocate memory") || first.contains("out of memory") {
        "; give a smaller batch or model"
    } else {
        ""
    };
    Some(format!("libtorch: {first}{remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_call_is_one_line_without_usage() {
        let text = "error: unexpected argument '--x' found\n\n  tip: a similar one\n\nUsage: t\n";
        assert_eq!(
            one_line(text),
            "unexpected argument '--x' found tip: a similar one; see --help"
        );
    }

    #[test]
    fn a_libtorch_panic_is_its_first_line() {
        let text = "called `Result::unwrap()` on an `Err` value: Torch(\"shape '[2]' is \\\"bad\\\"\\n\
                    Exception raised from here\\nframe #0\")";
        assert_eq!(of_libtorch(text).as_deref(), Some("libtorch: shape '[2]' is \"bad\""));
        let text = "value: Torch(\"can't allocate memory: you tried\")";
        let line = of_libtorch(text).unwrap();
        assert_eq!(
            line,
            "libtorch: can't allocate memory: you tried; give a smaller batch or model"
        );
        assert_eq!(of_libtorch("index out of bounds"), None);
    }
}
