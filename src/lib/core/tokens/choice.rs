//! Which files of folders and archives are read.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::{Error, Result};

/// Patterns that choose among the files of folders and archives.
#[derive(Debug, Clone, Default)]
pub(super) struct Choice {
    /// A file must match one of these, if there are any.
    include: Option<GlobSet>,
    /// It must match none of these.
    exclude: GlobSet,
}

/// Files of folders and archives that were not read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PassedOver {
    /// Left out by the patterns.
    pub excluded: u64,
    /// Names that start with a dot, links and special files.
    pub skipped: u64,
}

impl Choice {
    /// The patterns of `--include` and `--exclude`.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Self> {
        Ok(Choice {
            include: match include {
                [] => None,
                patterns => Some(glob_set("--include", patterns)?),
            },
            exclude: glob_set("--exclude", exclude)?,
        })
    }

    /// Whether the file of this path inside its folder or archive is to be read. A pattern without
    /// `/` may also match the last part of the path alone.
    pub fn chooses(&self, name: &str) -> bool {
        let last = name.rsplit('/').next().unwrap_or(name);
        let matches = |set: &GlobSet| set.is_match(name) || set.is_match(last);
        self.include.as_ref().is_none_or(matches) && !matches(&self.exclude)
    }
}

fn glob_set(flag: &str, patterns: &[String]) -> Result<GlobSet> {
    let bad = |e: globset::Error| Error::usage(format!("{flag}: {e}"));
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(GlobBuilder::new(pattern).build().map_err(bad)?);
    }
    set.build().map_err(bad)
}
