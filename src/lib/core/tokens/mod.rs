//! Tokenizers, documents to blocks, and their place in a corpus.
//!
//! [`Dataset`] maps a shard folder, [`Blocks`] cuts it, [`EpochShuffle`] orders the blocks of an
//! epoch without memory, [`Tokenizer`] turns text into ids and back, [`TextBytes`] counts the bytes
//! behind ids, and [`run()`] is `ao-tokenize`: text to shard folders, and ids back to text.

mod added;
mod args;
mod blocks;
mod bpe;
mod bytes;
mod choice;
mod dataset;
mod decode;
pub mod detokenize;
mod documents;
mod encode;
mod eos;
mod folder;
mod foreign;
mod gaps;
mod gpt2;
mod inspect;
mod job;
mod json_line;
mod packed;
mod pattern;
mod pieces;
mod pipeline;
mod reader;
mod run;
mod shuffle;
mod sniff;
mod source;
#[cfg(feature = "parquet")]
mod table;
mod tokenizer;
mod tokenizer_json;
mod train;

pub use args::TokenizeArgs;
pub use blocks::Blocks;
pub use bytes::TextBytes;
pub use dataset::{Dataset, OpenOptions};
pub use documents::Documents;
pub use encode::{Encoded, Rule};
pub use gaps::GappedPart;
pub use pipeline::{Pipeline, Watch};
pub use reader::{Cursor, DocumentUnit, ReadOptions};
pub use run::run;
pub use shuffle::EpochShuffle;
pub use sniff::InputFormat;
pub use source::Source;
pub use tokenizer::{Encoder, Tokenizer};
