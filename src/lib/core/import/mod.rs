//! Published checkpoints, read without Python and without a tensor library.
//!
//! A [`Source`] is a `.pt` file of AO-GPT, σ-GPT or nanoGPT, a Hugging Face folder of GPT-2, SEDD,
//! RADD or MDLM, or a safetensors file. It knows its [`ModelConfig`](crate::family::ModelConfig)
//! and hands out each parameter under this toolkit's name, in this toolkit's layout, one at a time:
//! the files are mapped, and no more than a piece of one tensor is copied.
//!
//! Files are taken for hostile. A pickle is read as data and executes nothing ([`pickle`]); every
//! length is checked before it is used; tensors that are missing, too many, of another shape or of
//! another architecture are named in one line.

mod args;
mod bind;
mod contents;
mod hf;
mod hub;
mod infer;
mod job;
mod locate;
pub mod pickle;
mod repository;
mod source;
mod torch_file;
mod view;
mod write;
mod zip;

pub use args::{Export, ImportArgs};
pub use job::Job;
pub use locate::{locate, locate_with, published};
pub use source::{OpenOptions, Source, WeightsKind, open_source};
pub use write::{check_exportable, write_checkpoint, write_hugging_face};
