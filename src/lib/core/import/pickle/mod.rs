//! Pickles as `torch.save` writes them, read as data: nothing is imported, called or executed.
//!
//! A pickle is a program for a stack machine. This one builds plain values ([`Node`]) in a heap
//! ([`Pickle`]) and knows by name the few functions that rebuild tensors ([`Global`]). What any
//! other name would make is a value of which only the name is kept ([`Node::Object`]): training
//! codes leave their settings beside the weights. An opcode that `torch.save` has no use for ends
//! the reading. Protocols 2 to 5.
//!
//! Values refer to each other by number, so a list that holds itself or one value shared a
//! thousand times costs what its opcodes cost, and no code here walks values recursively: neither
//! deep nesting nor sharing can exhaust stack or memory. What is left are the limits below.
//!
//! It is our own: `serde-pickle` 1.2 has no persistent references, the opcode (0x51) by which
//! every tensor of `torch.save` names its storage.

mod globals;
mod machine;
mod value;

#[cfg(test)]
mod tests;

pub use globals::Global;
pub use value::{Node, Pickle, Ref, Storage, Tensor};

/// The longest pickle that is read; those of the largest published models have a few megabytes.
pub const MAX_PICKLE: usize = 32 << 20;

/// The most values on the heap; an optimizer's state of a thousand tensors has some 50,000.
const MAX_VALUES: usize = 2 << 20;

/// The most values that wait on the stack, and the most that the memo remembers.
const MAX_STACK: usize = 1 << 20;

/// The most dimensions of a tensor.
const MAX_DIMS: usize = 16;
