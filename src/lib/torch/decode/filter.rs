//! Which tokens may be drawn, and how their distribution is changed: the settings, and their checks.

use ao_core::{Error, Result};
use serde::Serialize;

/// What `--top-p` keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TopPRule {
    /// Keeps the smallest set of most likely tokens whose probability is at least P.
    #[default]
    Smallest,
    /// As AO-GPT's code: drops the token that crosses P. The most likely token always stays.
    Published,
}

/// Temperature, filters and bans.
#[derive(Debug, Clone)]
pub struct Filter {
    /// Divides the logits; 0 takes the likeliest token, of equal ones the lowest id.
    pub temperature: f64,
    /// Keeps this many likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the likeliest tokens up to this probability; 1 keeps all.
    pub top_p: f64,
    /// Which set `top_p` keeps.
    pub top_p_rule: TopPRule,
    /// Keeps tokens at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: f64,
    /// Divides positive logits of tokens already there, multiplies negative ones; 1 is off.
    pub repetition_penalty: f64,
    /// Ids that are never drawn, ascending.
    pub banned: Vec<u32>,
    /// Real ids: those at and above are padding and never drawn.
    pub vocab_used: usize,
}

impl Filter {
    /// Plain draws from the model's distribution over `vocab_used` real ids.
    pub fn plain(vocab_used: usize) -> Filter {
        Filter {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            top_p_rule: TopPRule::Smallest,
            min_p: 0.0,
            repetition_penalty: 1.0,
            banned: Vec::new(),
            vocab_used,
        }
    }

    /// Refuses settings that have no meaning.
    ///
    /// # Errors
    /// One line that names the flag.
    pub fn check(&self) -> Result<()> {
        let need = |ok: bool, flag: &str, value: f64, allowed: &str| {
            if ok {
                Ok(())
            } else {
                Err(Error::usage(format!("{flag} {value}: must be {allowed}")))
            }
        };
        let t = self.temperature;
        need(t.is_finite() && t >= 0.0, "--temperature", t, "a finite number of at least 0")?;
        let p = self.top_p;
        need(p > 0.0 && p <= 1.0, "--top-p", p, "above 0 and at most 1")?;
        need((0.0..=1.0).contains(&self.min_p), "--min-p", self.min_p, "0 to 1")?;
        let r = self.repetition_penalty;
        need(r.is_finite() && r > 0.0, "--repetition-penalty", r, "a finite number above 0")?;
        let mut banned: Vec<_> =
            self.banned.iter().filter(|&&b| b < self.vocab_used as u32).collect();
        banned.dedup();
        if banned.len() >= self.vocab_used {
            return Err(Error::usage("--ban: every id is banned; leave at least one"));
        }
        Ok(())
    }

    pub(super) fn keeps_all(&self) -> bool {
        self.temperature > 0.0 && self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }

    /// Whether [`Filter::touch`] may change a row.
    pub(super) fn touches(&self) -> bool {
        self.repetition_penalty != 1.0 || !self.banned.is_empty()
    }

    /// The repetition penalty and the bans, on logits of the real ids.
    pub(super) fn touch(&self, row: &mut [f32], seen: &[u32]) {
        if self.repetition_penalty != 1.0 {
            let mut ids = seen.to_vec();
            ids.sort_unstable();
            ids.dedup();
            for id in ids {
                if let Some(x) = row.get_mut(id as usize) {
                    let r = self.repetition_penalty as f32;
                    *x = if *x > 0.0 { *x / r } else { *x * r };
                }
            }
        }
        for &id in &self.banned {
            if let Some(x) = row.get_mut(id as usize) {
                *x = f32::NEG_INFINITY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_meaning_are_refused() {
        for bad in [
            Filter { temperature: -1.0, ..Filter::plain(4) },
            Filter { temperature: f64::NAN, ..Filter::plain(4) },
            Filter { top_p: 0.0, ..Filter::plain(4) },
            Filter { top_p: 1.1, ..Filter::plain(4) },
            Filter { min_p: 2.0, ..Filter::plain(4) },
            Filter { repetition_penalty: 0.0, ..Filter::plain(4) },
            Filter { banned: vec![0, 1, 2, 3], ..Filter::plain(4) },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
