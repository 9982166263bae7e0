//! Families of models: what each one's config is, and what it can be asked for.
//!
//! A model config is one JSON object, the same in `--model FILE`, in `--model-config FILE` and in a
//! checkpoint's metadata. Its `arch` picks the family; unknown keys are refused by name. A family is
//! one file that implements [`Architecture`] and [`Config`], and one line in the list of `config`. All of
//! their methods are required, so that a family that forgets something does not compile. Networks
//! are in the tensor crate, which has a list of its own.

mod ao_gpt;
mod architecture;
mod config;
mod ddit;
mod gpt;
mod gpt2;
mod mdlm;
mod radd;
mod sedd;
mod sigma_gpt;
mod table;

pub use ao_gpt::{AoGptConfig, PositionEncoding};
pub use architecture::{
    Architecture, Capabilities, Config, Published, Sizes, TokenCost, check_sizes,
};
pub use config::{ModelConfig, register};
pub use ddit::{DditShape, TIME_WIDTH};
pub use gpt2::{Activation, Gpt2Config};
pub use mdlm::MdlmConfig;
pub use radd::RaddConfig;
pub use sedd::SeddConfig;
pub use sigma_gpt::SigmaGptConfig;
pub use table::{Init, Parameter, Table};
