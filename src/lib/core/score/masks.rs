//! Masks of a bound that a file gives, instead of drawn ones.
//!
//! JSON lines; line s·K + j is draw j of sequence s of the set: `{"masked":[3,0,7],"level":0.4}`.
//! `level` is the time t of the bounds over t, λ of that over λ; that over k has none.

use std::path::Path;

use serde_json::Value;

use crate::format::jsonl;
use crate::{Error, Result};

/// The masks of one draw.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenMask {
    /// Masked positions, ascending.
    pub masked: Vec<u32>,
    /// t or λ, in (0, 1].
    pub level: Option<f64>,
}

/// A file of masks.
#[derive(Debug, Clone)]
pub struct GivenMasks {
    place: String,
    masks: Vec<GivenMask>,
}

impl GivenMasks {
    /// Reads a file whose lines have a level, or have none.
    ///
    /// # Errors
    /// A line that is no such object, by its number.
    pub fn open(path: &Path, levels: bool) -> Result<GivenMasks> {
        let mut reader = jsonl::Reader::open(path)?;
        let mut masks = Vec::new();
        while let Some(object) = reader.next_object()? {
            let refuse = |message: &str| Err(Error::input(reader.place(), message));
            let masked = object.get("masked").cloned().unwrap_or_default();
            let Ok(mut masked) = serde_json::from_value::<Vec<u32>>(masked) else {
                return refuse("'masked' must be a list of positions");
            };
            masked.sort_unstable();
            if masked.windows(2).any(|w| w[0] == w[1]) {
                return refuse("'masked' names a position twice");
            }
            let level = object.get("level").and_then(Value::as_f64);
            if levels && !level.is_some_and(|x| x > 0.0 && x <= 1.0) {
                return refuse("'level' must be a number above 0, at most 1");
            }
            masks.push(GivenMask { masked, level: level.filter(|_| levels) });
        }
        Ok(GivenMasks { place: path.display().to_string(), masks })
    }

    /// The file.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Draw number `row` for a sequence of `length` tokens.
    ///
    /// # Errors
    /// When the file ends before, or a position lies outside.
    pub fn of(&self, row: u64, length: usize) -> Result<&GivenMask> {
        let found = usize::try_from(row).ok().and_then(|row| self.masks.get(row));
        let mask = found.ok_or_else(|| {
            Error::input(
                &self.place,
                format!(
                    "has {} draws, number {row} is asked for; give --mc of them a sequence",
                    self.masks.len()
                ),
            )
        })?;
        match mask.masked.last() {
            Some(&last) if last as usize >= length => Err(Error::input(
                &self.place,
                format!("draw {row} masks position {last} of a sequence of {length} tokens"),
            )),
            _ => Ok(mask),
        }
    }
}
