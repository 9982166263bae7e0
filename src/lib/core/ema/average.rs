//! Weighted sums of checkpoints, tensor by tensor and piece by piece, never a whole one in memory.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::format::checkpoint::{CheckpointFile, CheckpointWriter, DType};
use crate::{Error, Result};

/// Elements that are summed at once.
const PIECE: usize = 1 << 18;

/// The factors of an exponential average over `count` files: the first starts it, each further
/// one is an update.
pub fn decay_coefficients(decay: f64, count: usize) -> Vec<f64> {
    let mut factors = vec![1.0; count.min(1)];
    for _ in 1..count {
        factors.iter_mut().for_each(|f| *f *= decay);
        factors.push(1.0 - decay);
    }
    factors
}

/// Factors scaled to sum to 1.
///
/// # Errors
/// When one is not finite or they sum to 0.
pub fn normalised(factors: &[f64]) -> Result<Vec<f64>> {
    let sum: f64 = factors.iter().sum();
    if !sum.is_finite() || sum == 0.0 {
        return Err(Error::usage(format!("coefficients that sum to {sum} make no average")));
    }
    Ok(factors.iter().map(|f| f / sum).collect())
}

/// Refuses checkpoints that are not of the same model: config, tokenizer, tensor names, shapes.
///
/// # Errors
/// Names the two files and the first difference.
pub fn check_alike(files: &[CheckpointFile]) -> Result<()> {
    let Some((first, rest)) = files.split_first() else {
        return Err(Error::usage("no checkpoints; name at least one"));
    };
    for file in rest {
        let differs = |what: String| {
            let message = format!("{what} in {}; average one model's own", first.path().display());
            Err(Error::input_at(file.path(), message))
        };
        if let Some(what) = config_difference(file.config()?, first.config()?) {
            return differs(what);
        }
        let tokenizer = |f: &CheckpointFile| f.metadata().get("tokenizer").cloned();
        if let (Some(a), Some(b)) = (tokenizer(file), tokenizer(first))
            && a != b
        {
            return differs(format!("tokenizer is {a}, but {b}"));
        }
        for name in first.names() {
            let (Some(a), Some(b)) = (file.tensor(name), first.tensor(name)) else {
                return differs(format!("tensor '{name}' is missing, but stands"));
            };
            if a.shape != b.shape {
                let message = format!("tensor '{name}' has shape {:?}, but {:?}", a.shape, b.shape);
                return differs(message);
            }
            if a.dtype.is_float() != b.dtype.is_float() {
                return differs(format!("tensor '{name}' is {}, but {}", a.dtype, b.dtype));
            }
        }
        if let Some(name) = file.names().find(|name| first.tensor(name).is_none()) {
            return differs(format!("tensor '{name}' stands, but not"));
        }
    }
    Ok(())
}

/// The first key in which two configs differ, in words.
fn config_difference(mine: Option<Value>, first: Option<Value>) -> Option<String> {
    let text = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    match (mine, first) {
        (Some(Value::Object(mine)), Some(Value::Object(first))) => {
            let key = first.keys().chain(mine.keys()).find(|k| mine.get(*k) != first.get(*k))?;
            let (a, b) = (text(mine.get(key)), text(first.get(key)));
            Some(format!("config '{key}' is {a}, but {b}"))
        }
        (a, b) if a == b => None,
        (a, b) => Some(format!("config is {}, but {}", text(a.as_ref()), text(b.as_ref()))),
    }
}

/// Writes Σ factor·file to `path`. Numbers are summed in f64 and stored as F32 (F64 if the first
/// file's are); tensors that are no floats are those of the last file. The average of one file is
/// that file: its tensors keep their types and every bit.
///
/// # Errors
/// When files differ ([`check_alike`]), a weight is not finite, or the target cannot be written.
pub fn write_average(
    files: &[CheckpointFile],
    factors: &[f64],
    path: &Path,
    force: bool,
    metadata: &BTreeMap<String, String>,
    mut done: impl FnMut(u64),
) -> Result<()> {
    check_alike(files)?;
    let (Some(first), Some(last)) = (files.first(), files.last()) else { return Ok(()) };
    let names: Vec<&str> = first.names().collect();
    let mut entries = Vec::with_capacity(names.len());
    for name in &names {
        let view = first.require(name)?;
        let kept = last.require(name)?;
        let dtype = match view.dtype {
            own if files.len() == 1 => own,
            DType::F64 => DType::F64,
            float if float.is_float() => DType::F32,
            _ => kept.dtype,
        };
        entries.push((name.to_string(), dtype, view.shape));
    }
    let mut writer = CheckpointWriter::create(path, force, metadata, &entries)?;
    let mut sums = Vec::new();
    let mut bytes = Vec::new();
    for (name, dtype, _) in &entries {
        let count = first.require(name)?.element_count();
        if !dtype.is_float() || files.len() == 1 {
            last.check_finite(name)?;
            writer.put(last.require(name)?.bytes)?;
            last.release(name, 0..count);
            done(if dtype.is_float() { count as u64 } else { 0 });
            continue;
        }
        for start in (0..count).step_by(PIECE) {
            let range = start..count.min(start + PIECE);
            sums.clear();
            sums.resize(range.len(), 0.0);
            for (file, &factor) in files.iter().zip(factors) {
                file.require(name)?.add_scaled(range.clone(), factor, &mut sums);
                if let Some(i) = sums.iter().position(|x| !x.is_finite()) {
                    let (file, element) = (file.path().display(), start + i);
                    return Err(Error::NonFinite(format!(
                        "{file}, tensor '{name}': element {element} is not finite; leave this \
                         checkpoint out"
                    )));
                }
                file.release(name, range.clone());
            }
            bytes.clear();
            match dtype {
                DType::F64 => bytes.extend(sums.iter().flat_map(|x| x.to_le_bytes())),
                _ => bytes.extend(sums.iter().flat_map(|x| (*x as f32).to_le_bytes())),
            }
            writer.put(&bytes)?;
            done(range.len() as u64);
        }
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decay_factors_are_one_update_per_further_file() {
        assert_eq!(decay_coefficients(0.75, 1), [1.0]);
        assert_eq!(decay_coefficients(0.75, 3), [0.5625, 0.1875, 0.25]);
    }

    #[test]
    fn factors_that_cancel_are_refused() {
        assert_eq!(normalised(&[1.0, 3.0]).unwrap(), [0.25, 0.75]);
        assert!(normalised(&[1.0, -1.0]).is_err());
        assert!(normalised(&[f64::INFINITY]).is_err());
    }
}
