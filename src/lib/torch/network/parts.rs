//! The parts of a decoder as plain tensors, for kernels that go around libtorch's operations.

use tch::Tensor;

/// A matrix (N, K) in the compute kind, and its bias (N).
pub struct MatrixParts {
    /// (N, K), contiguous.
    pub weight: Tensor,
    /// (N).
    pub bias: Option<Tensor>,
}

/// One block: RMSNorms, attention, an MLP with the exact GELU.
pub struct BlockParts {
    /// Weight of the norm before attention, (C).
    pub ln_1: Tensor,
    /// C to 3C: queries, keys, values, each head after head.
    pub c_attn: MatrixParts,
    /// Weights of the norms of queries and keys, (hs) each.
    pub qk_norm: Option<[Tensor; 2]>,
    /// C to C.
    pub attn_proj: MatrixParts,
    /// Weight of the norm before the MLP, (C).
    pub ln_2: Tensor,
    /// C to 4C.
    pub c_fc: MatrixParts,
    /// 4C to C.
    pub mlp_proj: MatrixParts,
}

/// A decoder whose rows are told their target by tables over positions.
pub struct Parts {
    /// Token table, (V, C).
    pub wte: Tensor,
    /// Table of own positions, (T + 1, C); row 0 is [None]'s.
    pub wpe: Tensor,
    /// The embedding of [None], (1, C).
    pub wnonee: Tensor,
    /// What the target adds to the input, (T, C).
    pub target: Option<Tensor>,
    /// The blocks.
    pub blocks: Vec<BlockParts>,
    /// Weight of the last norm, (C).
    pub ln_f: Tensor,
    /// The output layer, C to V.
    pub head: MatrixParts,
    /// Attention heads of a block.
    pub heads: usize,
}
