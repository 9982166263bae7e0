//! From a row of logits to a token: penalties, temperature, filters and the draw.
//!
//! The law is a softmax in f64 over the real ids that the filters leave; the draw inverts its
//! cumulative sum, in id order, at one uniform of 53 bits. Filters apply in the order: repetition
//! penalty, bans, temperature, top-k, top-p, min-p.

use ao_core::{Error, Result};
use serde::Serialize;

use crate::kernels::categorical::{self, SPAN};

/// How draws are made, for the record.
pub const DRAW: &str = "f64 softmax, inverse CDF, one 53-bit uniform a token";

/// What `--top-p` keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TopPRule {
    /// The smallest set of likeliest tokens whose probability is at least p.
    #[default]
    Smallest,
    /// As the paper's code: without the token that crosses p (the likeliest always stays).
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
    /// Plain draws from the model's law over `vocab_used` real ids.
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

    fn keeps_all(&self) -> bool {
        self.temperature > 0.0 && self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }
}

/// Draws tokens; holds the memory that a draw needs.
#[derive(Default)]
pub struct Sampler {
    row: Vec<f32>,
    sums: Vec<f64>,
    kept: Vec<(u32, f64)>,
}

/// A drawn token and −ln of its probability under the unfiltered model, over all rows of the head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// The id.
    pub token: u32,
    /// −ln softmax(logits)[token], nats.
    pub nll: f64,
}

impl Sampler {
    /// Draws from `logits` (V) at `u` in [0, 1); `seen` are the tokens already in the sequence.
    ///
    /// # Errors
    /// [`Error::NonFinite`] when a logit is NaN or infinite.
    pub fn draw(&mut self, filter: &Filter, logits: &[f32], seen: &[u32], u: f64) -> Result<Draw> {
        let (max, bad) = categorical::row_max(logits);
        if bad || max == f32::NEG_INFINITY {
            return Err(Error::NonFinite(
                "the model gave a logit that is not finite; are its weights sound?".into(),
            ));
        }
        let used = filter.vocab_used.min(logits.len());
        let touched = filter.repetition_penalty != 1.0 || !filter.banned.is_empty();
        let mut row = std::mem::take(&mut self.row);
        let real = if touched {
            row.clear();
            row.extend_from_slice(&logits[..used]);
            filter.touch(&mut row, seen);
            row.as_slice()
        } else {
            &logits[..used]
        };
        let token = self.choose(filter, real, u);
        self.row = row;
        categorical::span_sums(logits, max, 1.0, &mut self.sums);
        let sum: f64 = self.sums.iter().sum();
        let nll = sum.ln() + f64::from(max) - f64::from(logits[token as usize]);
        Ok(Draw { token, nll })
    }

    fn choose(&mut self, filter: &Filter, row: &[f32], u: f64) -> u32 {
        let (max, _) = categorical::row_max(row);
        if filter.temperature == 0.0 {
            return row.iter().position(|&x| x == max).unwrap_or(0) as u32;
        }
        let scale = 1.0 / filter.temperature;
        if filter.keeps_all() {
            categorical::span_sums(row, max, scale, &mut self.sums);
            return invert_row(row, max, scale, &self.sums, u);
        }
        self.law(filter, row, max, scale);
        let total: f64 = self.kept.iter().map(|k| k.1).sum();
        let mut left = u * total;
        for &(id, weight) in &self.kept {
            left -= weight;
            if left < 0.0 {
                return id;
            }
        }
        // Rounding may leave a hair; the last token with weight takes it.
        self.kept.iter().rev().find(|k| k.1 > 0.0).map_or(0, |k| k.0)
    }

    /// The filtered law: ids ascending with weights that are not normalised, in `self.kept`.
    fn law(&mut self, filter: &Filter, row: &[f32], max: f32, scale: f64) {
        let weight = |x: f32| categorical::exp((f64::from(x) - f64::from(max)) * scale);
        let kept = &mut self.kept;
        kept.clear();
        let all = row.iter().enumerate().map(|(id, &x)| (id as u32, weight(x)));
        kept.extend(all.filter(|k| k.1 > 0.0));
        let likelier = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if filter.top_k > 0 && filter.top_k < kept.len() {
            kept.select_nth_unstable_by(filter.top_k - 1, likelier);
            kept.truncate(filter.top_k);
        }
        if filter.top_p < 1.0 {
            let need = filter.top_p * kept.iter().map(|k| k.1).sum::<f64>();
            // Only the likeliest are sorted: those above a floor that falls until they suffice.
            let mut floor: f64 = 0.02;
            let mut front;
            loop {
                front = partition(kept, floor);
                let mass: f64 = kept[..front].iter().map(|k| k.1).sum();
                if mass >= need || front == kept.len() {
                    break;
                }
                floor *= 0.02;
            }
            kept[..front].sort_unstable_by(likelier);
            let mut mass = 0.0;
            let crossing = kept[..front].iter().position(|k| {
                mass += k.1;
                mass >= need
            });
            let crossing = crossing.unwrap_or(front - 1);
            let size = match filter.top_p_rule {
                TopPRule::Smallest => crossing + 1,
                // It keeps what has a cumulative probability of at most p.
                TopPRule::Published if mass <= need => crossing + 1,
                TopPRule::Published => crossing.max(1),
            };
            kept.truncate(size);
        }
        if filter.min_p > 0.0 {
            kept.retain(|k| k.1 >= filter.min_p); // the likeliest has weight 1
        }
        kept.sort_unstable_by_key(|k| k.0);
    }

    /// The law that [`Sampler::draw`] draws from: ids ascending with their probabilities.
    pub fn probabilities(
        &mut self,
        filter: &Filter,
        logits: &[f32],
        seen: &[u32],
    ) -> Vec<(u32, f64)> {
        let mut row = logits[..filter.vocab_used.min(logits.len())].to_vec();
        filter.touch(&mut row, seen);
        let (max, _) = categorical::row_max(&row);
        if filter.temperature == 0.0 {
            return vec![(row.iter().position(|&x| x == max).unwrap_or(0) as u32, 1.0)];
        }
        self.law(filter, &row, max, 1.0 / filter.temperature);
        let total: f64 = self.kept.iter().map(|k| k.1).sum();
        self.kept.iter().map(|&(id, weight)| (id, weight / total)).collect()
    }
}

impl Filter {
    fn touch(&self, row: &mut [f32], seen: &[u32]) {
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

/// Moves entries of at least `floor` to the front; how many they are.
fn partition(kept: &mut [(u32, f64)], floor: f64) -> usize {
    let mut front = 0;
    for i in 0..kept.len() {
        if kept[i].1 >= floor || floor < 1e-300 {
            kept.swap(front, i);
            front += 1;
        }
    }
    front
}

/// The id at which the cumulative weight passes u · total.
fn invert_row(row: &[f32], max: f32, scale: f64, sums: &[f64], u: f64) -> u32 {
    let mut left = u * sums.iter().sum::<f64>();
    let mut last = 0;
    for (span, &sum) in sums.iter().enumerate() {
        if left >= sum {
            left -= sum;
            continue;
        }
        let start = span * SPAN;
        for (id, &x) in row.iter().enumerate().skip(start).take(SPAN) {
            let weight = categorical::exp((f64::from(x) - f64::from(max)) * scale);
            left -= weight;
            if weight > 0.0 {
                last = id as u32;
            }
            if left < 0.0 {
                return id as u32;
            }
        }
        // The span's sum was added up in another order; a hair remains, its last token takes it.
        return last;
    }
    row.iter().rposition(|&x| x > f32::NEG_INFINITY).unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(filter: &Filter, logits: &[f32]) -> Vec<u32> {
        Sampler::default().probabilities(filter, logits, &[]).iter().map(|k| k.0).collect()
    }

    /// Probabilities .4 .3 .2 .1 as logits, twice: in falling order and another.
    fn row() -> Vec<f32> {
        [0.2f32, 0.4, 0.1, 0.3].iter().map(|p| p.ln()).collect()
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_p_and_the_published_rule_drops_the_crossing_one() {
        let mut filter = Filter { top_p: 0.65, ..Filter::plain(4) };
        assert_eq!(ids(&filter, &row()), [1, 3]);
        filter.top_p_rule = TopPRule::Published;
        assert_eq!(ids(&filter, &row()), [1]);
        filter.top_p = 0.05;
        assert_eq!(ids(&filter, &row()), [1], "the likeliest always stays");
        filter.top_p_rule = TopPRule::Smallest;
        filter.top_p = 0.95;
        assert_eq!(ids(&filter, &row()), [0, 1, 2, 3]);
    }

    #[test]
    fn top_k_and_min_p_keep_the_likeliest_with_low_ids_first_among_equals() {
        assert_eq!(ids(&Filter { top_k: 1, ..Filter::plain(4) }, &row()), [1]);
        assert_eq!(ids(&Filter { top_k: 3, ..Filter::plain(4) }, &row()), [0, 1, 3]);
        assert_eq!(ids(&Filter { top_k: 2, ..Filter::plain(4) }, &[0.0; 4]), [0, 1]);
        assert_eq!(ids(&Filter { min_p: 0.6, ..Filter::plain(4) }, &row()), [1, 3]);
    }

    #[test]
    fn bans_padding_and_the_penalty_act_before_the_softmax() {
        assert_eq!(ids(&Filter { banned: vec![1], ..Filter::plain(3) }, &row()), [0, 2]);
        let filter = Filter { repetition_penalty: 2.0, ..Filter::plain(2) };
        let law = Sampler::default().probabilities(&filter, &[2.0, 1.0], &[0, 0]);
        assert!((law[0].1 - 0.5).abs() < 1e-12, "{law:?}");
    }

    #[test]
    fn temperature_zero_is_the_lowest_of_the_likeliest() {
        let filter = Filter { temperature: 0.0, ..Filter::plain(4) };
        let draw = Sampler::default().draw(&filter, &[1.0, 3.0, 3.0, 0.0, 9.0], &[], 0.99).unwrap();
        assert_eq!(draw.token, 1);
    }

    #[test]
    fn the_draw_inverts_the_cumulative_law_with_and_without_filters() {
        let wide: Vec<f32> = (0..1000).map(|i| ((i * 7) % 13) as f32 / 3.0).collect();
        let law = Sampler::default().probabilities(&Filter::plain(1000), &wide, &[]);
        let mut sampler = Sampler::default();
        for filter in [Filter::plain(1000), Filter { top_k: 999, ..Filter::plain(1000) }] {
            let law = if filter.top_k == 0 {
                law.clone()
            } else {
                Sampler::default().probabilities(&filter, &wide, &[])
            };
            for i in 0..500 {
                let u = (f64::from(i) + 0.37) / 500.0;
                let mut sum = 0.0;
                let expected = law.iter().find(|k| {
                    sum += k.1;
                    u < sum
                });
                let draw = sampler.draw(&filter, &wide, &[], u).unwrap();
                assert_eq!(Some(draw.token), expected.map(|k| k.0));
                let p = Sampler::default().probabilities(&Filter::plain(1000), &wide, &[])
                    [draw.token as usize]
                    .1;
                assert!((draw.nll + p.ln()).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn the_ends_of_the_unit_interval_give_tokens_that_have_weight() {
        let logits = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
        let mut sampler = Sampler::default();
        for u in [0.0, 1.0 - f64::EPSILON / 2.0] {
            assert_eq!(sampler.draw(&Filter::plain(3), &logits, &[], u).unwrap().token, 1);
        }
    }

    #[test]
    fn a_row_that_is_not_finite_is_an_error() {
        let row = [0.0, f32::NAN];
        assert!(Sampler::default().draw(&Filter::plain(2), &row, &[], 0.5).is_err());
    }

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
