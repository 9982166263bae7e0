//! Adaptive orders: each step reveals the free positions that the model is most confident of.
//!
//! Source: "Train for the worst, plan for the best" (arXiv 2502.06768). One pass asks for every free
//! position: of a bidirectional network all at once, of a causal one by copies of the newest row, of
//! whose keys and values those stay whose position was chosen. One token a step then costs n(n+1)/2
//! rows a sample, n·w with a window of w. Confidence is that of the unfiltered model over the real ids; of equal
//! ones the lowest position is first. Tokens of one step are drawn independently of each other.

use std::str::FromStr;

use ao_core::Result;
use tch::Tensor;

use super::engine::Engine;
use super::predictor::Ask;
use super::schedule::Schedule;
use super::sequence::Sequence;
use crate::kernels::categorical;

/// What confidence is, of a position's distribution p.
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
    /// The confidence that the logits of the real ids speak of; more is more confident.
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

/// Draws a batch, each sample in the order that the network finds itself, in groups of the sizes
/// that the schedule gives.
///
/// # Errors
/// [`ao_core::Error::NonFinite`] when the model's logits are not finite.
pub fn run(
    engine: &mut Engine,
    sequences: &mut [Sequence],
    order: &AdaptiveOrder,
    schedule: Schedule,
    steps: Option<usize>,
) -> Result<()> {
    let groups: Vec<Vec<usize>> = sequences
        .iter_mut()
        .map(|sequence| {
            let free = sequence.free().len();
            schedule.groups(free, steps.unwrap_or(free), &mut sequence.stream)
        })
        .collect();
    for step in 0..groups.iter().map(Vec::len).max().unwrap_or(0) {
        let sizes: Vec<usize> = groups.iter().map(|g| g.get(step).copied().unwrap_or(0)).collect();
        let asks: Vec<Ask> = sequences
            .iter_mut()
            .zip(&sizes)
            .map(|(sequence, &size)| candidates(engine, sequence, size, order.window))
            .collect();
        let hidden = engine.predict(sequences, &asks)?;
        let (rule, used) = (order.rule, engine.filter.vocab_used);
        let confidence = engine.each_row(&hidden, &|_, logits, drawer| {
            drawer.check(logits)?;
            Ok(rule.confidence(&logits[..used.min(logits.len())]))
        })?;
        let (mut rows, mut owners, mut start) = (Vec::new(), Vec::new(), 0);
        for (r, ask) in asks.iter().enumerate().filter(|(_, ask)| !ask.positions.is_empty()) {
            let end = start + ask.positions.len();
            let chosen = most_confident(&confidence[start..end], sizes[r]);
            rows.extend(chosen.iter().map(|&i| (start + i) as i64));
            owners.extend(chosen.iter().map(|_| r));
            engine.predictor.choose(r, chosen[0]);
            let next: Vec<u32> = chosen.iter().map(|&i| ask.positions[i]).collect();
            sequences[r].put_next(&next);
            sequences[r].steps += 1;
            start = end;
        }
        let rows = Tensor::from_slice(&rows).to_device(hidden.device());
        let draws = engine.draw(sequences, &hidden.index_select(0, &rows), &owners)?;
        for (draw, r) in draws.into_iter().zip(owners) {
            sequences[r].push(draw, None);
        }
    }
    Ok(())
}

/// The positions that are ranked: the lowest of the window, and at least as many as the step
/// reveals. They come next in the sequence's order.
fn candidates(engine: &Engine, sequence: &mut Sequence, size: usize, window: Option<usize>) -> Ask {
    if size == 0 {
        return Ask::default();
    }
    let mut positions = sequence.free_ascending();
    sequence.put_next(&positions);
    positions.truncate(window.unwrap_or(positions.len()).max(size));
    Ask { positions, sigma: engine.sigma_of_count(sequence) }
}

/// The indices of the `count` largest confidences, largest first, of equal ones the lowest index.
pub fn most_confident(confidence: &[f64], count: usize) -> Vec<usize> {
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
            "adaptive:certain",
            "adaptive:margin:window=0",
            "adaptive:margin:4",
            "adaptive:margin:window=4:window=4",
        ] {
            assert!(text.parse::<AdaptiveOrder>().is_err(), "{text}");
        }
    }

    #[test]
    fn confidences_are_those_of_the_distribution_and_ties_go_to_the_lowest() {
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
        assert_eq!(most_confident(&[0.1, 0.5, 0.5, 0.3], 3), [1, 2, 3]);
    }
}
