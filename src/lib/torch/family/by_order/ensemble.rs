//! Ensembled NLL: the mean probability over orderings of each context (AO-GPT, arXiv 2506.19935,
//! Eq. 7).
//!
//! Of M orderings the given one is the first. Where a context has no more than M orderings at all,
//! each counts once: that is the whole mean, and no draw. Means are taken over probabilities, in
//! f64, from log-probabilities.

use ao_core::Result;
use ao_core::score::Cost;
use ao_core::score::orderings::{
    all_orderings, curve_sizes, distinct, mean_probability, orderings, subset,
};

use super::prefixes::{Orderings, Passes, Prefix, at_once, predict};
use crate::family::traits::{Scored, Work};

/// How an ensemble is scored.
#[derive(Debug, Clone)]
pub struct Ensemble {
    /// Orderings of each context M.
    pub size: usize,
    /// Whether M = 1, 2, 4, … are wanted too.
    pub curve: bool,
    /// Steps of each sequence that are scored, a random subset; all if `None`.
    pub positions: Option<usize>,
    /// Seed of orderings and subsets.
    pub seed: u64,
    /// Leading tokens of an order that are given and not scored.
    pub given: usize,
}

impl Ensemble {
    /// The sizes that [`Scored::curve`] has.
    pub fn sizes(&self) -> Vec<usize> {
        curve_sizes(self.size)
    }

    /// Scores works. The contexts of all of them share passes; each is what it would be alone.
    ///
    /// # Errors
    /// Only from libtorch.
    pub fn score(&self, passes: Passes, works: &[Work], cost: &mut Cost) -> Result<Vec<Scored>> {
        let given = self.given;
        let steps: Vec<Vec<usize>> = works
            .iter()
            .map(|work| {
                let count = self.positions.unwrap_or(usize::MAX);
                subset(self.seed, work.row, given..work.tokens.len(), count)
            })
            .collect();
        // Steps whose contexts have no more than M orderings come first, as steps ascend.
        let short: Vec<usize> = works
            .iter()
            .zip(&steps)
            .map(|(work, steps)| match work.contexts {
                Some(_) => 0, // repeats among given orderings count
                None => steps.partition_point(|&step| distinct(step, self.size).is_some()),
            })
            .collect();

        // Every ordering of the short contexts, then every line behind them.
        let (mut whole, mut lines) = (Vec::new(), Vec::new());
        for ((work, steps), &short) in works.iter().zip(&steps).zip(&short) {
            for at in 0..short {
                for ordering in all_orderings(steps[at]) {
                    let path = ordering.iter().map(|&s| work.order[s as usize]).collect();
                    let given = Orderings::Given(vec![path].into_iter());
                    whole.push(prefix(work, &steps[at..=at], given));
                }
            }
            if let Some(contexts) = &work.contexts {
                lines.extend((0..self.size).map(|line| {
                    let given: Vec<Vec<u32>> =
                        steps.iter().map(|&step| contexts[step][line].clone()).collect();
                    prefix(work, steps, Orderings::Given(given.into_iter()))
                }));
                continue;
            }
            for line in orderings(self.seed, work.row, self.size, work.tokens.len()) {
                lines.push(prefix(work, &steps[short..], Orderings::Drawn(line)));
            }
        }
        let whole = predict_all(passes, &mut whole, cost)?;
        let lines = predict_all(passes, &mut lines, cost)?;

        let (mut whole, mut lines) = (whole.into_iter(), lines.into_iter());
        let mut scored = Vec::with_capacity(works.len());
        for ((work, steps), &short) in works.iter().zip(&steps).zip(&short) {
            let of_steps: Vec<Vec<f64>> = steps[..short]
                .iter()
                .map(|&step| {
                    let count = distinct(step, self.size).unwrap_or(1);
                    whole.by_ref().take(count).flatten().collect()
                })
                .collect();
            let of_lines: Vec<Vec<f64>> = lines.by_ref().take(self.size).collect();
            scored.push(self.combine(work, steps, &of_steps, &of_lines));
        }
        Ok(scored)
    }

    /// Means over orderings, for M and, if wanted, for the smaller ensembles that its first lines
    /// make: each is what a run with that M gives.
    fn combine(
        &self,
        work: &Work,
        steps: &[usize],
        whole: &[Vec<f64>],
        lines: &[Vec<f64>],
    ) -> Scored {
        let mut drawn = orderings(self.seed, work.row, self.size, work.tokens.len());
        let sizes = if self.curve { self.sizes() } else { vec![self.size] };
        let mut nll: Vec<Vec<f64>> = vec![Vec::with_capacity(steps.len()); sizes.len()];
        for (at, &step) in steps.iter().enumerate() {
            // NLL under each line in turn.
            let of_lines: Vec<f64> = match whole.get(at) {
                None => lines.iter().map(|line| line[at - whole.len()]).collect(),
                Some(whole) => {
                    let all = all_orderings(step);
                    let find = |ordering: &[u32]| all.iter().position(|o| o == ordering);
                    drawn.iter_mut().map(|l| whole[find(l.of(step)).unwrap_or(0)]).collect()
                }
            };
            for (size, nll) in sizes.iter().zip(&mut nll) {
                nll.push(match (distinct(step, *size), whole.get(at)) {
                    (Some(_), Some(whole)) => mean_probability(whole.iter().copied()),
                    _ => mean_probability(of_lines[..*size].iter().copied()),
                });
            }
        }
        let curve = nll.iter().map(|nll| self.total(work, nll).0).collect::<Vec<f64>>();
        let nll = nll.pop().unwrap_or_default();
        let (sum, error) = self.total(work, &nll);
        Scored {
            nth: work.nth,
            sum,
            curve: self.curve.then_some(curve),
            subset: self.positions.map(|_| (nll.len() as u64, error)),
            nll,
        }
    }

    /// The sum over all tokens that the scored ones stand for, and its standard error, which is
    /// that of a sample without replacement and NaN for one token.
    fn total(&self, work: &Work, nll: &[f64]) -> (f64, f64) {
        let sum: f64 = nll.iter().sum();
        if self.positions.is_none() {
            return (sum, 0.0);
        }
        let all = (work.tokens.len() - self.given) as f64;
        let count = nll.len() as f64;
        let mean = sum / count;
        let squares: f64 = nll.iter().map(|x| (x - mean).powi(2)).sum();
        if count >= all {
            return (sum, 0.0);
        }
        let variance = squares / (count - 1.0); // NaN of one: nothing is known
        (all * mean, all * ((1.0 - count / all) * variance / count).sqrt())
    }
}

/// NLL of all prefixes, as many together as a pass is meant for.
fn predict_all(passes: Passes, prefixes: &mut [Prefix], cost: &mut Cost) -> Result<Vec<Vec<f64>>> {
    let longest = prefixes.iter().map(Prefix::longest).max().unwrap_or(0);
    let mut nll = Vec::with_capacity(prefixes.len());
    for part in prefixes.chunks_mut(at_once(passes.0, longest)) {
        nll.extend(predict(passes, part, cost)?);
    }
    Ok(nll)
}

fn prefix<'a>(work: &'a Work, steps: &'a [usize], orderings: Orderings) -> Prefix<'a> {
    Prefix { tokens: &work.tokens, order: &work.order, steps, orderings }
}
