//! Scores of encoders (RADD, MDLM, SEDD).
//!
//! An encoder says of a sequence with masks how likely each token is at each masked position. Two
//! numbers come of it: the NLL of the chain along an order, exact, which needs a pass for every
//! token ([`chain`]); and a bound on −log p by a few random masks ([`bound`]).
//!
//! | file | owns |
//! |---|---|
//! | [`chain`] | NLL along orders and of held-out spans |
//! | [`bound`] | the bounds' forms and draws |
//! | `scorer` | both in `ao-score` |

pub mod bound;
pub mod chain;
mod scorer;

use tch::Tensor;

use crate::model::{Encoder, Masked};

pub(super) use scorer::form;
pub use scorer::{Elbo, EncoderScorer};

/// A masked copy with the true tokens of the positions that it is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// What the network sees.
    pub masked: Masked,
    /// The token at each asked position.
    pub targets: Vec<u32>,
}

impl Question {
    /// `tokens` with the positions `hidden` masked, of which `asked` are asked for.
    pub fn new(
        encoder: &Encoder,
        tokens: &[u32],
        hidden: &[u32],
        asked: &[u32],
        sigma: f64,
    ) -> Question {
        let mut masked = tokens.to_vec();
        hidden.iter().for_each(|&p| masked[p as usize] = encoder.mask());
        let targets = asked.iter().map(|&p| tokens[p as usize]).collect();
        Question { masked: Masked { tokens: masked, asked: asked.to_vec(), sigma }, targets }
    }
}

/// Puts questions to an encoder, several in one pass.
pub struct Asker<'a> {
    /// Who is asked.
    pub encoder: &'a Encoder,
    /// Copies in one pass; 1 where results must not depend on neighbours to the last bit.
    pub at_once: usize,
    /// Token rows that went through the blocks, padding not counted.
    pub rows_forwarded: u64,
    /// Token rows that went through the head.
    pub rows_through_head: u64,
}

impl<'a> Asker<'a> {
    /// Nothing asked yet.
    pub fn new(encoder: &'a Encoder, at_once: usize) -> Asker<'a> {
        Asker { encoder, at_once: at_once.max(1), rows_forwarded: 0, rows_through_head: 0 }
    }

    /// NLL of the targets of each question, nats. SEDD's scores are normalised over the real ids.
    pub fn nll(&mut self, questions: &[Question]) -> Vec<Vec<f64>> {
        self.each(questions, |encoder, rows, targets, _| encoder.head().nll(rows, targets))
    }

    /// SEDD's score entropy at every asked position, in units of a = 1/(e^σ̄ − 1)
    /// ([`crate::model::Head::score_entropy`]).
    pub fn score_entropy(&mut self, questions: &[Question]) -> Vec<Vec<f64>> {
        self.each(questions, |encoder, rows, targets, part| {
            let shift = |q: &Question| encoder.score_shift(q.masked.sigma);
            let shifts: Vec<f64> =
                part.iter().flat_map(|q| std::iter::repeat_n(shift(q), q.targets.len())).collect();
            encoder.head().score_entropy(rows, targets, &shifts)
        })
    }

    /// Calls `work` with the hidden rows, the targets and the questions of a pass; a list for each
    /// question. What asks for nothing needs no pass.
    fn each(
        &mut self,
        questions: &[Question],
        work: impl Fn(&Encoder, &Tensor, &[i64], &[Question]) -> Vec<f64>,
    ) -> Vec<Vec<f64>> {
        let mut out = Vec::with_capacity(questions.len());
        for part in questions.chunks(self.at_once) {
            let copies: Vec<&Masked> =
                part.iter().map(|q| &q.masked).filter(|m| !m.asked.is_empty()).collect();
            let targets: Vec<i64> =
                part.iter().flat_map(|q| q.targets.iter().map(|&t| i64::from(t))).collect();
            let mut values = Vec::new();
            if !targets.is_empty() {
                let rows = self.encoder.asked_rows(&copies);
                self.rows_forwarded += copies.iter().map(|c| c.tokens.len() as u64).sum::<u64>();
                self.rows_through_head += targets.len() as u64;
                values = work(self.encoder, &rows, &targets, part);
            }
            let mut values = values.into_iter();
            out.extend(part.iter().map(|q| values.by_ref().take(q.targets.len()).collect()));
        }
        out
    }
}
