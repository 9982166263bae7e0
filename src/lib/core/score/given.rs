//! Orderings of contexts that a file gives, instead of drawn ones.
//!
//! JSON lines; line s is of sequence s of the set: an array over the steps i of its order, each an
//! array of M orderings, each an array of the first i positions of the order in any sequence.

use std::io::BufRead;
use std::path::Path;

use crate::format::jsonl;
use crate::{Error, Result};

/// Orderings of each step's context: step, line, positions.
pub type Contexts = Vec<Vec<Vec<u32>>>;

/// A file of orderings, read forward.
pub struct GivenOrderings {
    reader: jsonl::Reader<Box<dyn BufRead + Send>>,
    size: usize,
    next: u64,
}

impl GivenOrderings {
    /// Opens a file of `size` orderings of each context.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path, size: usize) -> Result<GivenOrderings> {
        Ok(GivenOrderings { reader: jsonl::Reader::open(path)?, size, next: 0 })
    }

    /// The orderings of sequence `index`, whose order is `order`; `index` may only rise.
    ///
    /// # Errors
    /// When the file ends before, or an ordering is none of its context; the error names the line.
    pub fn read(&mut self, index: u64, order: &[u32]) -> Result<Contexts> {
        loop {
            let Some(value) = self.reader.next_value()? else {
                return Err(Error::input(
                    self.reader.place(),
                    format!("ends before sequence {index}; give a line for every sequence"),
                ));
            };
            self.next += 1;
            if self.next > index {
                let contexts: Contexts = serde_json::from_value(value).map_err(|e| {
                    Error::input(self.reader.place(), format!("no lists of orderings: {e}"))
                })?;
                return self.check(&contexts, order).map(|()| contexts);
            }
        }
    }

    fn check(&self, contexts: &Contexts, order: &[u32]) -> Result<()> {
        let refuse = |message: String| Err(Error::input(self.reader.place(), message));
        if contexts.len() != order.len() {
            return refuse(format!(
                "orderings of {} steps for a sequence of {} tokens",
                contexts.len(),
                order.len()
            ));
        }
        for (step, orderings) in contexts.iter().enumerate() {
            if orderings.len() != self.size {
                return refuse(format!(
                    "step {step} has {} orderings, --ensemble says {}",
                    orderings.len(),
                    self.size
                ));
            }
            let mut expected = order[..step].to_vec();
            expected.sort_unstable();
            for ordering in orderings {
                let mut found = ordering.clone();
                found.sort_unstable();
                if found != expected {
                    return refuse(format!(
                        "step {step} has an ordering that is none of the {step} positions before it"
                    ));
                }
            }
        }
        Ok(())
    }
}
