//! `--config FILE.json` gives any long option, the command line wins, and `--print-config` shows
//! the outcome. `--resume RUN` counts as `--config RUN/config.json`.
//!
//! The file is one JSON object whose keys are the flags with underscores. It is turned into flags
//! that stand before those typed, and a flag that was typed drops its key, so there is one parser
//! and one set of checks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use serde_json::Value;

use crate::error::IoContext;
use crate::{Error, Result};

/// What a run that is gone on with has for good: beside `--resume RUN` it would change nothing.
const OF_THE_RUN: [&str; 3] = ["model", "init", "out"];

/// What `--resume RUN` does not take from the run's own options: they were those of one start.
const OF_ONE_START: [&str; 4] = ["force", "dry_run", "resume", "quiet"];

/// An option's id, and the flags that a config file gives for it.
type Given = (String, Vec<String>);

/// The command line with the flags of its config files in front of those typed; `typed` is what the
/// parser makes of those alone, whatever is still missing.
///
/// # Errors
/// When a file cannot be read, is not a JSON object, or has a key that is no flag of `command`.
/// When `--resume RUN` comes with what the run has for good.
pub(super) fn expand(
    argv: Vec<OsString>,
    command: &clap::Command,
    typed: &ArgMatches,
) -> Result<Vec<OsString>> {
    let named: Vec<PathBuf> = typed.get_many("config_file").unwrap_or_default().cloned().collect();
    let run = run_of(command, typed);
    if let (Some(run), Some(id)) = (&run, typed_of(typed, command, &OF_THE_RUN)) {
        return Err(Error::usage(format!(
            "--{id}: --resume {} goes on with the model, the weights and the folder of that run; \
             leave --{id} out, or start another run without --resume",
            run.display()
        )));
    }
    let fixed = if run.is_some() { &OF_THE_RUN[..] } else { &[] };
    let mut files: Vec<_> = named.into_iter().map(|path| (path, fixed)).collect();
    // `--resume RUN` takes the options of that run, where its folder holds them.
    let config = run.map(|run| run.join("config.json")).filter(|path| path.is_file());
    files.extend(config.map(|path| (path, &OF_ONE_START[..])));
    let mut flags: Vec<Given> = Vec::new();
    for (path, left_out) in files {
        for (id, words) in flags_of(&path, command)? {
            if !left_out.contains(&id.as_str()) && !was_typed(typed, &id) {
                flags.retain(|(earlier, _)| *earlier != id);
                flags.push((id, words));
            }
        }
    }
    let mut words = argv.into_iter();
    let mut out: Vec<OsString> = words.next().into_iter().collect();
    out.extend(flags.into_iter().flat_map(|(_, words)| words).map(OsString::from));
    out.extend(words);
    Ok(out)
}

/// What `--resume` names, where it takes a value.
fn run_of(command: &clap::Command, typed: &ArgMatches) -> Option<PathBuf> {
    let mut options = command.get_arguments();
    options.find(|a| a.get_id() == "resume" && a.get_action().takes_values())?;
    typed.get_raw("resume")?.next_back().map(PathBuf::from)
}

/// The first of `ids` that is an option of `command` and was typed.
fn typed_of<'a>(typed: &ArgMatches, command: &clap::Command, ids: &[&'a str]) -> Option<&'a str> {
    let known = |id: &str| command.get_arguments().any(|a| a.get_id() == id);
    ids.iter().copied().find(|id| known(id) && was_typed(typed, id))
}

/// Whether the user typed this option.
fn was_typed(typed: &ArgMatches, id: &str) -> bool {
    typed.value_source(id) == Some(ValueSource::CommandLine)
}

fn names(arg: &clap::Arg) -> Vec<String> {
    let mut names: Vec<String> = arg.get_long().into_iter().map(String::from).collect();
    names.extend(arg.get_all_aliases().unwrap_or_default().into_iter().map(String::from));
    names
}

/// The options that the file gives. One at its default has no flags, so that what goes together on
/// the command line goes together in a file of all options too.
fn flags_of(path: &Path, command: &clap::Command) -> Result<Vec<Given>> {
    let bytes = std::fs::read(path).reading(path)?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::input_at(path, format!("not JSON: {e}")))?;
    let Value::Object(object) = value else {
        return Err(Error::input_at(path, "not a JSON object; give {\"option\": value, …}"));
    };
    let mut flags = Vec::new();
    for (key, value) in object {
        let long = key.replace('_', "-");
        let Some(arg) = command
            .get_arguments()
            .find(|a| a.get_id().as_str() == key || names(a).contains(&long))
        else {
            return Err(Error::input_at(
                path,
                format!("'{key}' is no option of this tool; see --help for its flags"),
            ));
        };
        let Some(long) = arg.get_long() else { continue }; // a positional one, of the run record
        let takes_value = arg.get_action().takes_values();
        let words = match value {
            Value::Null => continue,
            Value::Bool(false) if !takes_value => Vec::new(),
            Value::Bool(true) if !takes_value => vec![format!("--{long}")],
            Value::Array(items) => {
                let values = items.iter().map(|item| scalar(path, &key, item));
                let values: Vec<String> = values.collect::<Result<_>>()?;
                // Several values that belong to one flag stand behind it.
                match arg.get_num_args().is_some_and(|count| count.min_values() > 1) {
                    true if !values.is_empty() => [vec![format!("--{long}")], values].concat(),
                    _ => values.iter().map(|value| format!("--{long}={value}")).collect(),
                }
            }
            other if takes_value => match scalar(path, &key, &other)? {
                text if arg.get_default_values() == [text.as_str()] => Vec::new(),
                text => vec![format!("--{long}={text}")],
            },
            _ => return Err(Error::input_at(path, format!("'{key}' must be true or false"))),
        };
        flags.push((arg.get_id().to_string(), words));
    }
    Ok(flags)
}

fn scalar(path: &Path, key: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(s) => Ok(s.clone()),
        Value::Number(n) => Ok(n.to_string()),
        Value::Bool(b) => Ok(b.to_string()),
        _ => Err(Error::input_at(path, format!("'{key}' must be a number or a text"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction, Command};

    use super::*;

    fn command() -> Command {
        Command::new("t")
            .args_override_self(true)
            .arg(
                Arg::new("config_file")
                    .long("config")
                    .action(ArgAction::Append)
                    .value_parser(clap::value_parser!(PathBuf)),
            )
            .arg(Arg::new("steps").long("steps").required(true))
            .arg(Arg::new("lr").long("lr").short('l').default_value("1"))
            .arg(Arg::new("force").long("force").action(ArgAction::SetTrue))
            .arg(Arg::new("resume").long("resume"))
            .arg(Arg::new("files").num_args(0..))
    }

    fn expanded(words: &[&str]) -> Result<Vec<String>> {
        let argv: Vec<_> = ["t"].iter().chain(words).map(OsString::from).collect();
        let lenient = command().ignore_errors(true).try_get_matches_from(&argv).unwrap();
        let words = expand(argv, &command(), &lenient)?.into_iter();
        Ok(words.map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn what_was_typed_wins_in_every_spelling_and_defaults_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, r#"{"steps": 5, "lr": 0.5, "force": true}"#).unwrap();
        let file = path.to_str().unwrap();
        let joined = format!("--config={file}");
        let own = ["--steps=5", "--lr=0.5", "--force"];
        for (typed, want) in [
            (vec!["--config", file], &own[..]),
            (vec![&joined], &own),
            (vec![&joined, "--lr=1"], &["--steps=5", "--force"]), // its default, but typed
            (vec!["-l2", &joined, "--force"], &["--steps=5"]),
            (vec!["--resume", dir.path().to_str().unwrap()], &["--steps=5", "--lr=0.5"]),
            (vec!["--", &joined], &[]),
        ] {
            let got = expanded(&typed).unwrap();
            assert_eq!(got[1..got.len() - typed.len()], *want, "{typed:?}");
            assert_eq!(got[got.len() - typed.len()..], typed);
        }
        let text = expanded(&["--config", "/no/such.json"]).unwrap_err().to_string();
        assert_eq!(text, "/no/such.json: no such file or directory");
        std::fs::write(&path, r#"{"lrr": 1}"#).unwrap();
        assert!(expanded(&[&joined]).unwrap_err().to_string().contains("'lrr' is no option"));
    }
}
