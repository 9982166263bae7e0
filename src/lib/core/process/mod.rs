//! Processes: how a text is destroyed for a model to restore, and how it is restored; one file each.
//! A process owns its draws, what a draw weighs, what the sum is of (`exact`, `bound`), and the
//! reverse step. It knows no tensors and no network: a family is a network with a process.
//!
//! | file | owns |
//! |---|---|
//! | `objective` | the objectives' names, and which a run takes |
//! | [`order`] | texts along orders |
//! | [`masking`] | masks by time, probability or count; when each is taken away again |
//! | [`score_entropy`] | the scale of concrete scores, and the analytic reverse step |
//! | `noise` | how the noise grows with the time |

pub mod masking;
mod noise;
mod objective;
pub mod order;
pub mod score_entropy;

pub use masking::{Level, MaskDraw, Masking, Masks, Spread};
pub use noise::LogLinear;
pub use objective::Objective;
pub use order::Orders;
