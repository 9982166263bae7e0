//! Texts along orders: every token is predicted from those before it in the order. The orders
//! themselves, their SPEC and their files are in [`crate::orders`].

/// The orders of the paper's training: a tenth from left to right (arXiv 2506.19935).
pub const TRAINING: &str = "mix:0.1*l2r+0.9*uniform";

/// The orders of scores and samples: any-order NLL is the mean over them.
pub const UNIFORM: &str = "uniform";

/// In which orders a model can generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orders {
    /// Any permutation, known before the model runs or chosen as it does.
    Any,
    /// From left to right alone.
    LeftToRight,
}
