//! Orders of the scored sequences, and whether they are all one order.

use ao_core::Result;
use ao_core::cli::Input;
use ao_core::orders::OrderSource;
use ao_core::score::{Estimate, ONE_ORDER};
use serde_json::Value;

/// The rows that sequences are scored along.
pub struct Orders {
    source: OrderSource,
    per_sequence: u64,
    /// `None` if only the rows themselves can tell.
    by_spec: Option<bool>,
    widest: Vec<u32>,
    alike: bool,
}

impl Orders {
    /// `per_sequence` rows of `source` for each sequence.
    pub fn new(source: OrderSource, per_sequence: u64) -> Orders {
        let by_spec = match &source {
            OrderSource::Spec(stream) => Some(stream.spec().is_one_order()),
            _ => None,
        };
        Orders { source, per_sequence, by_spec, widest: Vec::new(), alike: true }
    }

    /// Row k of sequence `index`, for `length` tokens.
    ///
    /// # Errors
    /// As [`OrderSource::row`].
    pub fn row(&mut self, index: u64, k: u64, length: usize) -> Result<Vec<u32>> {
        let mut row = Vec::new();
        self.source.row(self.number(index, k), length, &mut row)?;
        if self.by_spec.is_none() && self.alike {
            self.note(&row);
        }
        Ok(row)
    }

    /// The number of row k of sequence `index` in the source.
    pub fn number(&self, index: u64, k: u64) -> u64 {
        index.saturating_mul(self.per_sequence).saturating_add(k)
    }

    /// Finds out in advance whether all rows of a file are one order. A pipe tells it only as its rows
    /// come. `lengths` are the lengths of the sequences, by number.
    ///
    /// # Errors
    /// As [`OrderSource::row`], and what `lengths` yields.
    pub fn look_ahead(
        &mut self,
        lengths: impl Iterator<Item = Result<(u64, usize)>>,
    ) -> Result<()> {
        if self.by_spec.is_some() || self.source.is_pipe() {
            return Ok(());
        }
        for length in lengths {
            let (index, length) = length?;
            for k in 0..self.per_sequence {
                self.row(index, k, length)?;
            }
            if !self.alike {
                break;
            }
        }
        Ok(())
    }

    /// What a mean over the rows estimates; of a pipe, over the rows so far.
    pub fn estimate(&self) -> Estimate {
        if self.by_spec.unwrap_or(self.alike) { Estimate::Exact } else { Estimate::Bound }
    }

    /// The orders, for the summary: [`OrderSource::describe`], and the hash of the order if all rows of
    /// a file are one. By the hash two parts of an evaluation see that they had the same order.
    pub fn describe(&self) -> Value {
        let mut described = self.source.describe();
        if let (None, true, Value::Object(object)) = (self.by_spec, self.alike, &mut described) {
            let bytes: Vec<u8> = self.widest.iter().flat_map(|p| p.to_le_bytes()).collect();
            let hash = Input::of_bytes(std::path::Path::new(""), &bytes).xxh3;
            object.insert(ONE_ORDER.into(), hash.into());
        }
        described
    }

    fn note(&mut self, row: &[u32]) {
        if row.len() > self.widest.len() {
            let before = std::mem::replace(&mut self.widest, row.to_vec());
            self.alike = before.iter().copied().eq(restricted(row, before.len()));
        } else {
            self.alike = row.iter().copied().eq(restricted(&self.widest, row.len()));
        }
    }
}

/// The entries below `length`, in their order.
fn restricted(row: &[u32], length: usize) -> impl Iterator<Item = u32> + '_ {
    row.iter().copied().filter(move |&p| (p as usize) < length)
}
