//! Tokenizers, documents to blocks, and their place in a corpus.
//!
//! [`Dataset`] maps a shard folder, [`Blocks`] cuts it, [`EpochShuffle`] orders the blocks of an
//! epoch without memory, [`Tokenizer`] turns text into ids and back, and a [`Job`] makes a shard
//! folder out of text.

mod blocks;
mod bpe;
mod dataset;
mod decode;
pub mod detokenize;
mod documents;
mod encode;
mod folder;
mod gpt2;
mod inspect;
mod job;
mod pieces;
mod pipeline;
mod reader;
mod shuffle;
mod source;
#[cfg(feature = "parquet")]
mod table;
mod tokenizer;
mod tokenizer_json;
mod train;

pub use blocks::Blocks;
pub use dataset::{Dataset, OpenOptions};
pub use decode::decode;
pub use documents::Documents;
pub use encode::{Document, Encoded, Rule};
pub use inspect::inspect;
pub use job::{EosChoice, Existing, Job};
pub use pipeline::{Pipeline, Watch};
pub use reader::{DocumentUnit, InputFormat, Progress, ReadOptions};
pub use shuffle::EpochShuffle;
pub use source::Source;
pub use tokenizer::{Encoder, Tokenizer};
pub use train::train_tokenizer;
