//! `--config FILE.json` gives any long option, the command line wins, and `--print-config` shows
//! the outcome. `--resume RUN` counts as `--config RUN/config.json`.
//!
//! The file is one JSON object whose keys are the flags with underscores. It is turned into flags
//! that stand before those typed, and a flag that was typed drops its key, so there is one parser
//! and one set of checks.

use std::ffi::OsString;
use std::path::Path;

use serde_json::Value;

use crate::error::IoContext;
use crate::{Error, Result};

/// What the pre-scan of the command line found.
pub(super) struct Prepared {
    /// The command line with the config file's flags in front.
    pub argv: Vec<OsString>,
    /// Whether `--print-config` was given.
    pub print_config: bool,
}

/// Reads `--config` and `--print-config` out of `argv` and puts the file's options in their place.
///
/// # Errors
/// When the file cannot be read, is not a JSON object, or has a key that is no flag of `command`.
pub(super) fn prepare(argv: Vec<OsString>, command: &clap::Command) -> Result<Prepared> {
    let mut rest = Vec::with_capacity(argv.len());
    let mut files = Vec::new();
    let mut print_config = false;
    let mut words = argv.into_iter();
    let program = words.next().unwrap_or_default();
    // `--resume RUN` takes the options of that run, where its folder holds them.
    let resumes_a_run =
        command.get_arguments().any(|a| a.get_id() == "resume" && a.get_action().takes_values());
    let mut literal = false;
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if literal {
            rest.push(word);
        } else if text == "--" {
            literal = true;
            rest.push(word);
        } else if text == "--print-config" {
            print_config = true;
        } else if text == "--config" {
            files.push(words.next().ok_or_else(|| {
                Error::usage("--config: a file is missing; give a JSON object of options")
            })?);
        } else if let Some(file) = text.strip_prefix("--config=") {
            files.push(file.into());
        } else {
            if resumes_a_run && text == "--resume" {
                rest.push(word);
                let Some(run) = words.next() else { continue };
                files.extend(config_of_run(Path::new(&run)));
                rest.push(run);
                continue;
            }
            if let Some(run) = text.strip_prefix("--resume=").filter(|_| resumes_a_run) {
                files.extend(config_of_run(Path::new(run)));
            }
            rest.push(word);
        }
    }
    let typed: Vec<String> = rest
        .iter()
        .take_while(|w| w.to_string_lossy() != "--")
        .filter_map(|w| canonical_name(command, &w.to_string_lossy()))
        .collect();
    let mut out = vec![program];
    for file in files {
        for flag in flags_of(Path::new(&file), command, &typed)? {
            out.push(flag.into());
        }
    }
    out.extend(rest);
    Ok(Prepared { argv: out, print_config })
}

/// The options that a run folder keeps.
fn config_of_run(run: &Path) -> Option<OsString> {
    let path = run.join("config.json");
    path.is_file().then(|| path.into_os_string())
}

/// The id of the option that a typed word names, if it is an option of `command`.
fn canonical_name(command: &clap::Command, word: &str) -> Option<String> {
    let found = if let Some(long) = word.strip_prefix("--") {
        let long = long.split('=').next().unwrap_or(long);
        command.get_arguments().find(|a| names(a).iter().any(|n| n == long))
    } else {
        let short = word.strip_prefix('-')?.chars().next()?;
        command.get_arguments().find(|a| a.get_short() == Some(short))
    };
    found.map(|a| a.get_id().to_string())
}

fn names(arg: &clap::Arg) -> Vec<String> {
    let mut names: Vec<String> = arg.get_long().into_iter().map(String::from).collect();
    names.extend(arg.get_all_aliases().unwrap_or_default().into_iter().map(String::from));
    names
}

fn flags_of(path: &Path, command: &clap::Command, typed: &[String]) -> Result<Vec<String>> {
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
        let superseded = typed.iter().any(|id| id == "resume")
            && matches!(arg.get_id().as_str(), "init" | "force" | "dry_run" | "resume");
        if superseded || typed.iter().any(|id| id == arg.get_id().as_str()) {
            continue;
        }
        let Some(long) = arg.get_long() else { continue }; // a positional one, of the run record
        let takes_value = arg.get_action().takes_values();
        match value {
            Value::Null | Value::Bool(false) if !takes_value => {}
            Value::Null => {}
            Value::Bool(true) if !takes_value => flags.push(format!("--{long}")),
            Value::Array(items) => {
                for item in items {
                    flags.push(format!("--{long}={}", scalar(path, &key, &item)?));
                }
            }
            other if takes_value => flags.push(format!("--{long}={}", scalar(path, &key, &other)?)),
            _ => return Err(Error::input_at(path, format!("'{key}' must be true or false"))),
        }
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
