//! Which average: the checked rule, and its factors for the checkpoints that it is taken over.

use std::collections::BTreeMap;

use serde_json::Value;

use super::args::RuleArgs;
use super::{
    EmaDecay, Profile, Snapshot, check_alike, decay_coefficients, gamma_of_sigma, normalised,
    reconstruct,
};
use crate::cli::{Input, RunRecord, VERSION};
use crate::format::checkpoint::{CheckpointFile, Kind, Metadata};
use crate::{Error, Result};

/// One way to average, its numbers in range.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// The first file starts the average, each further one is an update.
    Decay(f64),
    /// Equal factors.
    Mean,
    /// These factors, scaled to sum to 1.
    Coefficients(Vec<f64>),
    /// The average that this profile would have kept, and the words it was asked for with.
    Posthoc(Profile, String),
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

impl TryFrom<RuleArgs> for Rule {
    type Error = Error;

    fn try_from(args: RuleArgs) -> Result<Rule> {
        if let Some(decay) = args.decay {
            check_decay("--decay", decay)?;
            return Ok(Rule::Decay(decay));
        }
        if let Some(text) = args.posthoc {
            return Ok(Rule::Posthoc(parse_profile(&text)?, text));
        }
        Ok(if args.mean { Rule::Mean } else { Rule::Coefficients(args.coefficients) })
    }
}

fn check_decay(flag: &str, decay: f64) -> Result<()> {
    if (0.0..1.0).contains(&decay) {
        return Ok(());
    }
    Err(Error::usage(format!("{flag} {decay}: must be at least 0 and below 1")))
}

/// Reads `decay:B`, `power:G` or `sigma:S`.
fn parse_profile(text: &str) -> Result<Profile> {
    let wrong = || {
        Error::usage(format!(
            "--posthoc '{text}': allowed are decay:B (0 to 1), power:G (above 0) and sigma:S \
             (above 0, below 0.288)"
        ))
    };
    let (kind, number) = text.split_once(':').ok_or_else(wrong)?;
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Ok(match kind {
        "decay" => {
            check_decay("--posthoc decay:", number)?;
            Profile::Exponential(EmaDecay { decay: number, warmup: true })
        }
        "power" if number > 0.0 && number < 1e9 => Profile::Power(number),
        "sigma" => Profile::Power(gamma_of_sigma(number).ok_or_else(wrong)?),
        _ => return Err(wrong()),
    })
}

impl Rule {
    /// The factors of these files.
    ///
    /// # Errors
    /// When files or counts differ, or a file does not say what average it is.
    pub fn over(&self, files: &[CheckpointFile]) -> Result<Average> {
        check_alike(files)?;
        let average = |factors| Average { factors, decay: None, built: None };
        match self {
            Rule::Decay(decay) => {
                let kept = EmaDecay { decay: *decay, warmup: false };
                let factors = decay_coefficients(*decay, files.len());
                Ok(Average { decay: Some(kept), ..average(factors) })
            }
            Rule::Mean => normalised(&vec![1.0; files.len()]).map(average),
            Rule::Coefficients(factors) if factors.len() != files.len() => {
                Err(Error::usage(format!(
                    "--coefficients: {} numbers for {} files; give one a file",
                    factors.len(),
                    files.len()
                )))
            }
            Rule::Coefficients(factors) => normalised(factors).map(average),
            Rule::Posthoc(profile, text) => posthoc(*profile, text, files),
        }
    }
}

fn posthoc(profile: Profile, text: &str, files: &[CheckpointFile]) -> Result<Average> {
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

/// The relative error of a profile from which on people are warned.
const FAR_OFF: f64 = 0.1;

/// Profiles are summed over all steps, so a damaged number must not run for ever.
const MAX_STEP: u64 = 100_000_000;

impl Average {
    /// The metadata of the result: that of the last file (of the latest step, if built), told as
    /// an average, with the files, their hashes and factors under `ema_source`.
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
                created_by: format!("ao-ema {}", VERSION),
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

    /// A table for people: the factor of each file, its step, its weights and its name.
    pub fn table(&self, files: &[CheckpointFile]) -> Vec<String> {
        let mut lines = vec![format!("{:>9}  {:>9}  {:<11}  file", "factor", "step", "weights")];
        for (factor, file) in self.factors.iter().zip(files) {
            let of = |key: &str| file.metadata().get(key).map(String::as_str);
            let weights = match (of("kind"), of("ema_decay")) {
                (Some("ema"), Some(decay)) => format!("ema:{decay}"),
                (Some("ema"), None) => "average".into(),
                (_, _) => "raw".into(),
            };
            let (step, name) = (of("step").unwrap_or("-"), file.path().display());
            lines.push(format!("{factor:>9.6}  {step:>9}  {weights:<11}  {name}"));
        }
        if let Some((_, error)) = self.built {
            let percent = 100.0 * error;
            lines.push(format!("profile off by {percent:.3} % of its norm (0 is exact)"));
            if error > FAR_OFF {
                lines.push(
                    "warning: this is not the average that --posthoc names: the files hold too \
                     little of it; give more steps, or a decay near those that were kept"
                        .into(),
                );
            }
        }
        lines
    }
}
