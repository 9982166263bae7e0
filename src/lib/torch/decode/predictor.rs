//! How decoding asks a network, whichever it is.

use ao_core::Result;
use tch::Tensor;

use super::sequence::Sequence;

/// What a sequence asks the network for; nothing where it takes no part in a pass.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// Positions that are to be predicted, each given the tokens so far alone. The first is the next
    /// in the sequence's order.
    pub positions: Vec<u32>,
    /// σ̄, for networks that are conditioned on the time.
    pub sigma: f64,
}

/// A network as decoding asks it.
pub trait Predictor {
    /// Forgets what it knows of sequences before, and makes room for these.
    fn start(&mut self, sequences: &[Sequence]);

    /// Hidden rows that predict what each sequence asks for, (N, C), sequence by sequence.
    ///
    /// # Errors
    /// When a sequence asks for what it has not.
    fn predict(&mut self, sequences: &[Sequence], asks: &[Ask]) -> Result<Tensor>;

    /// After a pass, lets position `chosen` of those that sequence `r` asked for be the one that its
    /// newest row predicts.
    fn choose(&mut self, r: usize, chosen: usize);

    /// Logits of hidden rows (N, C), f32 (N, V), into the first N·V of `out`.
    fn logits(&self, hidden: &Tensor, out: &mut [f32]);

    /// Logits of a row V.
    fn vocab_size(&self) -> usize;

    /// Rows forwarded since the start, padding not counted.
    fn rows_forwarded(&self) -> u64;

    /// The same as a reader of drafts; `None` of networks that cannot be one.
    fn reader(&mut self) -> Option<&mut dyn Reader>;
}

/// Reading rows of one sequence in a pass, drafts among them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading<'a> {
    /// Rows before this one that the cache lacks are forwarded, causal, and stay in it.
    pub until: usize,
    /// Positions that copies of the last of these rows predict; the copies see neither each other
    /// nor it, and do not stay.
    pub copies: &'a [u32],
    /// How many of the last rows are wanted.
    pub wanted: usize,
}

/// A causal network, which can read tokens that are not settled yet.
pub trait Reader {
    /// One pass: the wanted rows, (Σ wanted, C), sequence by sequence.
    ///
    /// # Errors
    /// When a sequence has not the tokens or steps that it is asked for.
    fn read(&mut self, sequences: &[Sequence], readings: &[Reading]) -> Result<Tensor>;

    /// Forgets the rows of sequence `r` from `count` on.
    fn keep_rows(&mut self, r: usize, count: usize);
}
