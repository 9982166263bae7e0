//! Adaptive orders: each step reveals the free positions that the model is surest of.
//!
//! Source: "Train for the worst, plan for the best" (arXiv 2502.06768); on a decoder's cache one
//! pass asks for every free position by copies of the newest row, and the keys and values that stay
//! are those of the copy whose position was chosen. One token a step costs n(n+1)/2 rows a sample,
//! n·w with a window of w. Confidence is that of the unfiltered model over the real ids; of equal
//! ones the lowest position is first. Tokens of one step are drawn independently of each other.

use std::str::FromStr;

use ao_core::Result;
use tch::Tensor;

use super::generate::{Generator, Making, Request, Sample};
use super::session::Ask;
use crate::kernels::categorical;

/// What confidence is, of a position's law p.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The largest probability.
    TopProb,
    /// The difference of the two largest.
    Margin,
    /// The negative entropy Σ p ln p.
    Entropy,
}

/// `adaptive:RULE[:window=W]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdaptiveOrder {
    /// How positions are ranked.
    pub rule: Rule,
    /// How many of the lowest free positions are ranked; all without it.
    pub window: Option<usize>,
}

impl FromStr for AdaptiveOrder {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = || {
            format!(
                "'{text}' is no adaptive order; give adaptive:top-prob, adaptive:margin or \
                 adaptive:entropy, each with :window=W if wanted"
            )
        };
        let mut parts = text.split(':');
        let (kind, rule) = (parts.next(), parts.next());
        let rule = match rule {
            Some("top-prob") => Rule::TopProb,
            Some("margin") => Rule::Margin,
            Some("entropy") => Rule::Entropy,
            _ => return Err(allowed()),
        };
        let window = match parts.next() {
            None => None,
            Some(part) => {
                let size = part.strip_prefix("window=").and_then(|w| w.parse().ok());
                Some(size.filter(|&w| w > 0).ok_or_else(allowed)?)
            }
        };
        if kind != Some("adaptive") || parts.next().is_some() {
            return Err(allowed());
        }
        Ok(AdaptiveOrder { rule, window })
    }
}

impl std::fmt::Display for AdaptiveOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let rule = match self.rule {
            Rule::TopProb => "top-prob",
            Rule::Margin => "margin",
            Rule::Entropy => "entropy",
        };
        write!(f, "adaptive:{rule}")?;
        self.window.map_or(Ok(()), |w| write!(f, ":window={w}"))
    }
}

impl Rule {
    /// The confidence that the logits of the real ids speak of; more is surer.
    pub fn confidence(self, row: &[f32]) -> f64 {
        let (max, _) = categorical::row_max(row);
        let (sum, dot) = categorical::moments(row, max);
        match self {
            Rule::TopProb => 1.0 / sum,
            Rule::Margin => {
                let first = row.iter().position(|&x| x == max).unwrap_or(0);
                let (left, right) = (&row[..first], row.get(first + 1..).unwrap_or_default());
                let second = categorical::row_max(left).0.max(categorical::row_max(right).0);
                (1.0 - (f64::from(second) - f64::from(max)).exp()) / sum
            }
            Rule::Entropy => dot / sum - sum.ln(),
        }
    }
}

impl Generator<'_> {
    /// Draws a batch of samples, each in the order that it finds itself. Of a request's order only
    /// the given positions count; its groups say how many tokens each step reveals.
    ///
    /// # Errors
    /// As [`Generator::generate`].
    pub fn generate_adaptive(
        &mut self,
        mut requests: Vec<Request>,
        order: &AdaptiveOrder,
    ) -> Result<Vec<Sample>> {
        let groups: Vec<Vec<usize>> =
            requests.iter_mut().map(|r| std::mem::take(&mut r.groups)).collect();
        let mut making = self.start(requests);
        let steps = groups.iter().map(Vec::len).max().unwrap_or(0);
        for step in 0..steps {
            let sizes: Vec<usize> =
                groups.iter().map(|g| g.get(step).copied().unwrap_or(0)).collect();
            let free = ask_candidates(&mut making, &sizes, order.window);
            let asks: Vec<Ask> = making
                .session
                .lines
                .iter()
                .zip(&free)
                .map(|(line, free)| match free.as_slice() {
                    [] => Ask::default(),
                    [_, copies @ ..] => {
                        Ask { until: line.tokens.len() + 1, copies, wanted: free.len() }
                    }
                })
                .collect();
            let hidden = self.trunk(|| making.session.pass(&asks))?;
            let (rule, used) = (order.rule, self.filter.vocab_used);
            let confidence = self.each_row(&hidden, &|_, logits, sampler| {
                sampler.check(logits)?;
                Ok(rule.confidence(&logits[..used.min(logits.len())]))
            })?;
            let mut chosen_rows = Vec::new();
            let mut start = 0;
            for (r, free) in free.iter().enumerate().filter(|(_, free)| !free.is_empty()) {
                let chosen = surest(&confidence[start..start + free.len()], sizes[r]);
                chosen_rows.extend(chosen.iter().map(|&i| (start + i) as i64));
                making.session.keep_copy(r, chosen[0]);
                let line = &mut making.session.lines[r];
                let tail = line.tokens.len();
                let mut next: Vec<u32> = chosen.iter().map(|&i| free[i]).collect();
                let rest = line.order[tail..].iter().filter(|p| !next.contains(p));
                let rest: Vec<u32> = rest.copied().collect();
                next.extend(rest);
                line.order[tail..].copy_from_slice(&next);
                making.steps[r] += 1;
                start += free.len();
            }
            let index = Tensor::from_slice(&chosen_rows).to_device(hidden.device());
            self.draw_rows(&mut making, &hidden.index_select(0, &index), &sizes)?;
        }
        Ok(self.finish(making))
    }
}

/// Sorts what is left of each order by position, and gives the positions that are asked for: the
/// lowest of the window, and at least as many as the step reveals.
fn ask_candidates(making: &mut Making, sizes: &[usize], window: Option<usize>) -> Vec<Vec<u32>> {
    let lines = making.session.lines.iter_mut().zip(sizes);
    lines
        .map(|(line, &size)| {
            let tail = &mut line.order[line.tokens.len()..];
            tail.sort_unstable();
            let wide = window.unwrap_or(tail.len()).max(size).min(tail.len());
            if size == 0 { Vec::new() } else { tail[..wide].to_vec() }
        })
        .collect()
}

/// The indices of the `count` largest confidences, largest first, of equal ones the lowest index.
pub(super) fn surest(confidence: &[f64], count: usize) -> Vec<usize> {
    let mut index: Vec<usize> = (0..confidence.len()).collect();
    index.sort_by(|&a, &b| confidence[b].total_cmp(&confidence[a]));
    index.truncate(count);
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print_alike_and_others_are_refused() {
        for text in ["adaptive:top-prob", "adaptive:margin:window=4", "adaptive:entropy"] {
            assert_eq!(text.parse::<AdaptiveOrder>().unwrap().to_string(), text);
        }
        for text in [
            "adaptive:",
            "adaptive",
            "adaptive:sure",
            "adaptive:margin:window=0",
            "adaptive:margin:4",
            "adaptive:margin:window=4:window=4",
        ] {
            assert!(text.parse::<AdaptiveOrder>().is_err(), "{text}");
        }
    }

    #[test]
    fn confidences_are_those_of_the_law_and_ties_go_to_the_lowest() {
        let row: Vec<f32> = [0.2f32, 0.5, 0.3].iter().map(|p| p.ln() + 3.0).collect();
        let close = |rule: Rule, expected: f64| {
            let found = rule.confidence(&row);
            assert!((found - expected).abs() < 1e-6, "{rule:?}: {found}, not {expected}");
        };
        close(Rule::TopProb, 0.5);
        close(Rule::Margin, 0.2);
        close(Rule::Entropy, 0.2 * 0.2f64.ln() + 0.5 * 0.5f64.ln() + 0.3 * 0.3f64.ln());
        assert_eq!(Rule::Margin.confidence(&[1.0, 1.0]), 0.0);
        assert_eq!(Rule::Margin.confidence(&[1.0]), 1.0);
        assert_eq!(surest(&[0.1, 0.5, 0.5, 0.3], 3), [1, 2, 3]);
    }
}
