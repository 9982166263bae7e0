//! NLL along orders, and of held-out spans: a pass of the network for each token, exact.
//!
//! All tokens are known, so the masked copies of many steps go through the network together; each
//! is asked for one row.

use std::ops::Range;

use super::questions::{Asker, Question};
use crate::network::{Network, masks};

/// A sequence and the order that it is scored along.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// Token ids in text order.
    pub tokens: &'a [u32],
    /// A permutation of their positions.
    pub order: &'a [u32],
    /// The positions that are scored, ascending; `None` for all.
    pub held: Option<&'a [u32]>,
}

/// NLL of every scored token of each line, nats, in generation order.
///
/// A network that is conditioned on the time has none along an order; it gets that of the expected
/// fraction of masks ([`ao_core::process::Masks::sigma_of_count`]).
pub fn chain_nll(asker: &mut Asker, lines: &[Line]) -> Vec<Vec<f64>> {
    let steps: Vec<(usize, usize)> = lines
        .iter()
        .enumerate()
        .flat_map(|(i, line)| {
            let all = line.order.iter().enumerate();
            let scored = all.filter(|(_, position)| {
                line.held.is_none_or(|held| held.binary_search(position).is_ok())
            });
            scored.map(move |(step, _)| (i, step))
        })
        .collect();
    let mut out: Vec<Vec<f64>> = vec![Vec::new(); lines.len()];
    for part in steps.chunks(asker.at_once) {
        let questions: Vec<Question> =
            part.iter().map(|&(i, step)| question(asker.network, &lines[i], step)).collect();
        for (&(i, _), nll) in part.iter().zip(asker.nll(&questions)) {
            out[i].extend(nll);
        }
    }
    out
}

/// Step `step` of a line: what is not revealed yet is masked.
fn question(network: &dyn Network, line: &Line, step: usize) -> Question {
    let hidden = &line.order[step..];
    let sigma = masks(network).sigma_of_count(hidden.len(), line.tokens.len());
    Question::new(network, line.tokens, hidden, &hidden[..1], sigma)
}

/// NLL of held-out spans given all that is left and right of them, nats: the chain that reveals
/// their positions in ascending order, the tokens outside of all spans known from the start.
///
/// Returns a list of NLLs for each span, in text order within it. The spans are ascending, do not
/// overlap, and end within the tokens.
pub fn span_nll(asker: &mut Asker, tokens: &[u32], spans: &[Range<usize>]) -> Vec<Vec<f64>> {
    let held: Vec<u32> = spans.iter().flat_map(|s| s.clone().map(|p| p as u32)).collect();
    let mut order: Vec<u32> = (0..tokens.len() as u32).collect();
    order.sort_by_key(|position| held.binary_search(position).is_ok()); // stable
    let line = Line { tokens, order: &order, held: Some(&held) };
    let mut nll = chain_nll(asker, &[line]).remove(0).into_iter();
    spans.iter().map(|s| nll.by_ref().take(s.len()).collect()).collect()
}
