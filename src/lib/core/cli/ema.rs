//! The rule of `ao-ema`: which average, resolved against the checkpoints it is taken over.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{Input, RunRecord};
use crate::ema::{
    EmaDecay, Profile, Snapshot, check_alike, decay_coefficients, gamma_of_sigma, normalised,
    reconstruct,
};
use crate::format::checkpoint::{CheckpointFile, Kind, Metadata};
use crate::{Error, Result};

/// Exactly one way to average.
#[derive(Debug, Clone, clap::Args, Serialize)]
#[group(id = "rule", required = true, multiple = false)]
pub struct Rule {
    /// Exponential average: the first file starts it, one update per further file
    #[arg(long, value_name = "B", group = "rule")]
    pub decay: Option<f64>,
    /// The plain mean
    #[arg(long, group = "rule")]
    pub mean: bool,
    /// Weights of the files, scaled to sum to 1: 1,2,3
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', group = "rule")]
    pub coefficients: Vec<f64>,
    /// Build the average that another decay would have kept: decay:B, power:G or sigma:S
    #[arg(long, value_name = "PROFILE", group = "rule")]
    pub posthoc: Option<String>,
}

/// A rule with its factors.
#[derive(Debug, Clone, PartialEq)]
pub struct Average {
    /// One factor per file; they sum to 1.
    pub factors: Vec<f64>,
    decay: Option<EmaDecay>,
    /// What was built after training, and how far its profile is from the wanted one.
    built: Option<(Profile, f64)>,
}

impl Rule {
    /// The factors of these files.
    ///
    /// # Errors
    /// When numbers are out of range, counts differ, or a file does not say what average it is.
    pub fn resolve(&self, files: &[CheckpointFile]) -> Result<Average> {
        let average = |factors| Average { factors, decay: None, built: None };
        check_alike(files)?;
        if let Some(decay) = self.decay {
            check_decay("--decay", decay)?;
            let law = EmaDecay { decay, warmup: false };
            let factors = decay_coefficients(decay, files.len());
            return Ok(Average { decay: Some(law), ..average(factors) });
        }
        if let Some(text) = &self.posthoc {
            return posthoc(text, files);
        }
        if self.mean {
            return normalised(&vec![1.0; files.len()]).map(average);
        }
        let (given, need) = (self.coefficients.len(), files.len());
        if given != need {
            return Err(Error::usage(format!(
                "--coefficients: {given} numbers for {need} files; give one a file"
            )));
        }
        normalised(&self.coefficients).map(average)
    }
}

fn check_decay(flag: &str, decay: f64) -> Result<()> {
    if (0.0..1.0).contains(&decay) {
        return Ok(());
    }
    Err(Error::usage(format!("{flag} {decay}: must be at least 0 and below 1")))
}

fn posthoc(text: &str, files: &[CheckpointFile]) -> Result<Average> {
    let wrong = || {
        Error::usage(format!(
            "--posthoc '{text}': allowed are decay:B (0 to 1), power:G (above 0) and sigma:S \
             (above 0, below 0.288)"
        ))
    };
    let (kind, number) = text.split_once(':').ok_or_else(wrong)?;
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let profile = match kind {
        "decay" => {
            check_decay("--posthoc decay:", number)?;
            Profile::Exponential(EmaDecay { decay: number, warmup: true })
        }
        "power" if number > 0.0 && number < 1e9 => Profile::Power(number),
        "sigma" => Profile::Power(gamma_of_sigma(number).ok_or_else(wrong)?),
        _ => return Err(wrong()),
    };
    let snapshots = files.iter().map(snapshot).collect::<Result<Vec<_>>>()?;
    let step = snapshots.iter().map(|s| s.step).max().unwrap_or(0);
    let result = reconstruct(&snapshots, Snapshot { profile, step }).ok_or_else(|| {
        Error::usage(format!("--posthoc '{text}': these files hold none of it; give more steps"))
    })?;
    let decay = match profile {
        Profile::Exponential(decay) => Some(decay),
        _ => None,
    };
    let built = Some((profile, result.relative_error));
    Ok(Average { factors: result.coefficients, decay, built })
}

/// What average a file holds, by its metadata.
fn snapshot(file: &CheckpointFile) -> Result<Snapshot> {
    let bad = |message: &str| Error::input_at(file.path(), message);
    let metadata = file
        .ao_metadata()?
        .ok_or_else(|| bad("has no metadata; --posthoc needs the step and the decay of each"))?;
    if file.metadata().contains_key("ema_source") {
        return Err(bad("is an average of files; --posthoc takes those that ao-train wrote"));
    }
    let profile = match (metadata.kind, metadata.ema_decay) {
        (Kind::Model, _) => Profile::Raw,
        (Kind::Ema, Some(decay)) if (0.0..1.0).contains(&decay) => {
            let warmup = metadata.ema_warmup.unwrap_or(true);
            Profile::Exponential(EmaDecay { decay, warmup })
        }
        (Kind::Ema, Some(_)) => return Err(bad("metadata 'ema_decay' is not between 0 and 1")),
        (Kind::Ema, None) => return Err(bad("is an average without 'ema_decay' in its metadata")),
    };
    if metadata.step > MAX_STEP {
        return Err(bad("metadata 'step' is beyond 100 million; it is damaged"));
    }
    Ok(Snapshot { profile, step: metadata.step })
}

/// Profiles are summed over all steps, so a damaged number must not run for ever.
const MAX_STEP: u64 = 100_000_000;

impl Average {
    /// The metadata of the result: that of the last file (of the latest step, if built), told as an average, with the files,
    /// their hashes and factors under `ema_source`.
    ///
    /// # Errors
    /// When a file's metadata is malformed or a file cannot be hashed.
    pub fn metadata(
        &self,
        files: &[CheckpointFile],
        config: Value,
    ) -> Result<BTreeMap<String, String>> {
        let step = |f: &&CheckpointFile| f.metadata().get("step").and_then(|s| s.parse().ok());
        let last = match self.built {
            Some(_) => files.iter().max_by_key(|f| step(f).unwrap_or(0u64)),
            None => files.last(),
        };
        let Some(last) = last else { return Ok(BTreeMap::new()) };
        let mut map = match last.ao_metadata()? {
            Some(own) => Metadata {
                kind: Kind::Ema,
                ema_decay: self.decay.map(|d| d.decay),
                ema_warmup: self.decay.map(|d| d.warmup),
                created_by: format!("ao-ema {}", super::VERSION),
                ..own
            }
            .to_map(),
            None => last.metadata().clone(),
        };
        let inputs = files.iter().map(|f| Input::of_file(f.path())).collect::<Result<Vec<_>>>()?;
        let record = RunRecord { tool: "ao-ema", config, seed: None, device: None, inputs };
        let mut record = record.to_json();
        record["factors"] = self.factors.clone().into();
        if let Some((profile, error)) = self.built {
            record["profile_relative_error"] = error.into();
            if let Profile::Power(gamma) = profile {
                map.insert("ema_power".into(), gamma.to_string());
            }
        }
        map.insert("ema_source".into(), record.to_string());
        Ok(map)
    }

    /// Factor and name of each file, for people.
    pub fn describe(&self, files: &[CheckpointFile]) -> Vec<String> {
        let pairs = self.factors.iter().zip(files);
        let mut lines: Vec<String> =
            pairs.map(|(x, file)| format!("{x:+.6} {}", file.path().display())).collect();
        if let Some((_, error)) = self.built {
            let percent = 100.0 * error;
            lines.push(format!("profile off by {percent:.3} % of its norm (0 is exact)"));
        }
        lines
    }
}
