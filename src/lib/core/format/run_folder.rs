//! The run folder of `ao-train`, as those see it who read its checkpoints (`docs/formats.md`):
//! `RUN/latest` names the newest whole folder in `RUN/checkpoints/`.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::error::IoContext;

/// The newest whole step of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Latest {
    /// Its folder.
    pub path: PathBuf,
    /// What people are to know: `latest` did not name it.
    pub note: Option<String>,
}

/// The step folder that `latest` names, or where that is missing, empty or leads nowhere, the newest
/// whole one; `None` where no step was saved.
///
/// # Errors
/// When the folder cannot be read.
pub fn latest_step(run: &Path) -> Result<Option<Latest>> {
    let checkpoints = run.join("checkpoints");
    let whole =
        |step: &Path| step.join("trainer.json").is_file() && step.join("model.st").is_file();
    let named = std::fs::read_to_string(run.join("latest")).unwrap_or_default();
    let named = Some(named.trim()).filter(|name| !name.is_empty()).map(|n| checkpoints.join(n));
    if let Some(path) = named.filter(|step| whole(step)) {
        return Ok(Some(Latest { path, note: None }));
    }
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in std::fs::read_dir(&checkpoints).reading(&checkpoints)? {
        let path = entry.reading(&checkpoints)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let step = name.strip_prefix("step-").and_then(|s| s.parse::<u64>().ok());
        if let Some(step) = step.filter(|_| whole(&path))
            && newest.as_ref().is_none_or(|(best, _)| step > *best)
        {
            newest = Some((step, path));
        }
    }
    Ok(newest.map(|(step, path)| {
        let run = run.display();
        let note =
            format!("{run}: 'latest' names no whole checkpoint; taking the newest, step {step}");
        Latest { path, note: Some(note) }
    }))
}
