//! Questions to a bidirectional network: masked copies, with the true tokens of what is asked.

use ao_core::Error;
use tch::{Device, Tensor};

use crate::network::{MaskedText, Network, asked_rows, masks};

/// The error of a text that holds the mask's own id, which would be hidden from the start.
pub fn holds_mask(mask: u32) -> Error {
    Error::usage(format!(
        "--shards: the text holds id {mask}, which is the model's mask_id; tokenize it without that \
         token"
    ))
}

/// A masked copy with the true tokens of the positions that are asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// What the network sees.
    pub masked: MaskedText,
    /// The token at each asked position.
    pub targets: Vec<u32>,
}

impl Question {
    /// `tokens` with the positions `hidden` masked, of which `asked` are asked for.
    pub fn new(
        network: &dyn Network,
        tokens: &[u32],
        hidden: &[u32],
        asked: &[u32],
        sigma: f64,
    ) -> Question {
        let mask = masks(network).id as u32;
        let targets = asked.iter().map(|&p| tokens[p as usize]).collect();
        Question { masked: MaskedText::new(mask, tokens, hidden, asked, sigma), targets }
    }
}

/// Losses of questions, several in one pass.
pub struct Asker<'a> {
    /// The network.
    pub network: &'a dyn Network,
    /// Copies in one pass.
    pub at_once: usize,
    /// Token rows that went through the blocks, padding not counted.
    pub rows_forwarded: u64,
    /// Token rows that went through the head.
    pub rows_through_head: u64,
}

impl<'a> Asker<'a> {
    /// Nothing asked yet.
    pub fn new(network: &'a dyn Network, at_once: usize) -> Asker<'a> {
        Asker { network, at_once: at_once.max(1), rows_forwarded: 0, rows_through_head: 0 }
    }

    /// NLL of the targets of each question, nats. Scores are normalised over the real ids.
    pub fn nll(&mut self, questions: &[Question]) -> Vec<Vec<f64>> {
        self.each(questions, |network, rows, targets, _| network.base().head.nll(rows, targets))
    }

    /// Score entropy at every asked position in units of a = 1/(e^σ̄ − 1)
    /// ([`crate::network::Head::score_entropy`]); NLL where a family has no scores.
    pub fn score_entropy(&mut self, questions: &[Question]) -> Vec<Vec<f64>> {
        let Some(scores) = masks(self.network).scores else { return self.nll(questions) };
        self.each(questions, |network, rows, targets, part| {
            let shift = |q: &Question| scores.shift(q.masked.sigma);
            let shifts: Vec<f64> =
                part.iter().flat_map(|q| std::iter::repeat_n(shift(q), q.targets.len())).collect();
            network.base().head.score_entropy(rows, targets, &shifts)
        })
    }

    /// Calls `work` with hidden rows, their targets and their questions, those of one question at a
    /// time on a CPU, where the shapes of products decide their rounding; a list for each question.
    /// What asks for nothing needs no pass.
    fn each(
        &mut self,
        questions: &[Question],
        work: impl Fn(&dyn Network, &Tensor, &[i64], &[Question]) -> Vec<f64>,
    ) -> Vec<Vec<f64>> {
        let on_cpu = self.network.base().device() == Device::Cpu;
        let mut out = Vec::with_capacity(questions.len());
        for part in questions.chunks(self.at_once) {
            let copies: Vec<&MaskedText> =
                part.iter().map(|q| &q.masked).filter(|m| !m.asked.is_empty()).collect();
            if copies.is_empty() {
                out.extend(part.iter().map(|_| Vec::new()));
                continue;
            }
            let rows = asked_rows(self.network, &copies);
            self.rows_forwarded += copies.iter().map(|c| c.tokens.len() as u64).sum::<u64>();
            self.rows_through_head += rows.size()[0] as u64;
            let mut at = 0;
            for some in part.chunks(if on_cpu { 1 } else { part.len() }) {
                let targets: Vec<i64> =
                    some.iter().flat_map(|q| q.targets.iter().map(|&t| i64::from(t))).collect();
                let own = rows.narrow(0, at, targets.len() as i64);
                at += targets.len() as i64;
                let mut values = work(self.network, &own, &targets, some).into_iter();
                out.extend(some.iter().map(|q| values.by_ref().take(q.targets.len()).collect()));
            }
        }
        out
    }
}
