//! Tokenizers, documents to blocks, and their place in a corpus.
//!
//! [`Dataset`] maps a shard folder, [`Blocks`] cuts it, [`EpochShuffle`] orders the blocks of an
//! epoch without memory, [`Tokenizer`] turns text into ids and back.

mod blocks;
mod bpe;
mod dataset;
pub mod detokenize;
mod gpt2;
mod pieces;
mod shuffle;
mod tokenizer;
mod tokenizer_json;

pub use blocks::Blocks;
pub use dataset::{Dataset, OpenOptions};
pub use shuffle::EpochShuffle;
pub use tokenizer::{Encoder, Tokenizer};
