//! One run of `ao-ema`: what is typed, checked and opened; then the average, written.

use std::path::PathBuf;

use serde_json::Value;

use super::args::EmaArgs;
use super::rule::{Average, Rule};
use super::write_average;
use crate::cli::Progress;
use crate::format::checkpoint::CheckpointFile;
use crate::{Error, Result};

/// Files of one model, the factor of each, and where the sum goes.
pub struct Job {
    files: Vec<CheckpointFile>,
    average: Average,
    target: PathBuf,
    force: bool,
    quiet: bool,
    /// The flags as they were typed, for the record.
    typed: Value,
}

impl TryFrom<EmaArgs> for Job {
    type Error = Error;

    /// Opens the files and finds their factors.
    fn try_from(args: EmaArgs) -> Result<Job> {
        let typed = serde_json::to_value(&args).map_err(|e| Error::usage(e.to_string()))?;
        let target = args.out.file("a checkpoint")?.to_owned();
        let rule = Rule::try_from(args.rule)?;
        let files = args.files.iter().map(|path| CheckpointFile::open(path));
        let files = files.collect::<Result<Vec<_>>>()?;
        let average = rule.over(&files)?;
        let (force, quiet) = (args.out.force, args.quiet.quiet);
        Ok(Job { files, average, target, force, quiet, typed })
    }
}

impl Job {
    /// Writes the average and tells people the factors.
    ///
    /// # Errors
    /// When a weight is not finite or the target cannot be written.
    pub fn run(self) -> Result<()> {
        let Job { files, average, .. } = &self;
        let metadata = average.metadata(files, self.typed.clone())?;
        if !self.quiet {
            average.table(files).iter().for_each(|line| eprintln!("{line}"));
        }
        let count = |file: &CheckpointFile| {
            let views = file.names().filter_map(|name| file.tensor(name));
            views.filter(|v| v.dtype.is_float()).map(|v| v.element_count() as u64).sum()
        };
        let mut progress = Progress::new("weights", files.first().map(count), self.quiet);
        let factors = &average.factors;
        write_average(files, factors, &self.target, self.force, &metadata, |n| progress.add(n))
    }
}
