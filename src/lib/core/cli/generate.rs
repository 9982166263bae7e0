//! `--generate man|bash|zsh|fish`: a program's own man page and completions, from its flags.

use clap_complete::{Shell, generate};

use crate::{Error, Result};

/// What a program can write about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Form {
    Man,
    Bash,
    Zsh,
    Fish,
}

/// The page or script for `command`.
///
/// # Errors
/// When the page cannot be made, which writing to memory rules out.
pub(super) fn text(form: Form, mut command: clap::Command) -> Result<Vec<u8>> {
    let name = command.get_name().to_owned();
    let mut out = Vec::new();
    let shell = match form {
        Form::Man => {
            man(command, &mut out).map_err(|e| Error::write("stdout", e))?;
            return Ok(out);
        }
        Form::Bash => Shell::Bash,
        Form::Zsh => Shell::Zsh,
        Form::Fish => Shell::Fish,
    };
    generate(shell, &mut command, name, &mut out);
    Ok(out)
}

/// The sections of a man page; what stands before the help is its examples.
fn man(command: clap::Command, out: &mut Vec<u8>) -> std::io::Result<()> {
    let before = command.get_before_help().map(|text| text.to_string()).unwrap_or_default();
    let after = command.get_after_help().map(|text| text.to_string()).unwrap_or_default();
    let page = clap_mangen::Man::new(command);
    page.render_title(out)?;
    page.render_name_section(out)?;
    page.render_synopsis_section(out)?;
    page.render_description_section(out)?;
    page.render_options_section(out)?;
    literal("EXAMPLES", &before, out);
    literal("NOTES", &after, out);
    page.render_version_section(out)
}

/// A section whose lines stay as they are.
fn literal(title: &str, text: &str, out: &mut Vec<u8>) {
    if text.is_empty() {
        return;
    }
    out.extend(format!(".SH {title}\n.nf\n").bytes());
    for line in text.lines() {
        // A dot or quote at the start would be a request, a backslash an escape.
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        out.extend(format!("\\&{line}\n").bytes());
    }
    out.extend(b".fi\n");
}
