//! What a pickle holds once it is read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Global;
use crate::format::checkpoint::DType;

/// A value on the heap of a [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ref(pub(super) u32);

/// The bytes that a tensor looks at: an entry `data/KEY` of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// Type of the elements.
    pub dtype: DType,
    /// Name of the entry.
    pub key: Box<str>,
    /// Number of elements.
    pub count: usize,
}

/// A tensor: a view of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// What it looks at.
    pub storage: Storage,
    /// Element of the storage at which it begins.
    pub offset: usize,
    /// Lengths of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Elements from one index to the next, for each dimension.
    pub stride: Vec<usize>,
}

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// A whole number of at most 64 bits.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A text.
    Text(Box<str>),
    /// Bytes.
    Bytes(Box<[u8]>),
    /// A list.
    List(Vec<Ref>),
    /// A tuple.
    Tuple(Vec<Ref>),
    /// A dictionary or ordered dictionary, in the order of insertion.
    Dict(Vec<(Ref, Ref)>),
    /// A name of Python's that is known.
    Global(Global),
    /// What a tensor looks at.
    Storage(Box<Storage>),
    /// A tensor.
    Tensor(Box<Tensor>),
    /// A value that is known and of no use here, such as a device or a large integer.
    Opaque(&'static str),
    /// A name of Python's that is not known, such as `argparse.Namespace`: nothing is looked up.
    Unknown(Arc<str>),
    /// What such a name was called for or given: an object of which only that name is kept.
    Object(Arc<str>),
}

impl Node {
    /// What it is, for people.
    pub fn kind(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Node::None => "None",
            Node::Bool(_) => "a truth value",
            Node::Int(_) => "an integer",
            Node::Float(_) => "a float",
            Node::Text(_) => "a text",
            Node::Bytes(_) => "bytes",
            Node::List(_) => "a list",
            Node::Tuple(_) => "a tuple",
            Node::Dict(_) => "a dictionary",
            Node::Global(_) => "a name",
            Node::Storage(_) => "a storage",
            Node::Tensor(_) => "a tensor",
            Node::Opaque(what) => what,
            Node::Unknown(name) => return format!("the name '{name}'").into(),
            Node::Object(name) => return format!("an object of '{name}'").into(),
        })
    }
}

/// A pickle that was read: its values and the one that it is about.
#[derive(Debug)]
pub struct Pickle {
    pub(super) nodes: Vec<Node>,
    pub(super) root: Ref,
    /// Names that are not known and were called, and how often.
    pub(super) unknown: BTreeMap<Arc<str>, usize>,
}

impl Pickle {
    /// The value that was pickled.
    pub fn root(&self) -> Ref {
        self.root
    }

    /// The names that stand for objects which were not made, and how many of each.
    pub fn unknown(&self) -> impl Iterator<Item = (&str, usize)> {
        self.unknown.iter().map(|(name, &count)| (&**name, count))
    }

    /// A value.
    pub fn node(&self, at: Ref) -> &Node {
        // Every Ref was made with its node, by this heap.
        &self.nodes[at.0 as usize]
    }

    /// A value of a dictionary by its text key; the last one, as Python's would be.
    pub fn get(&self, dict: Ref, key: &str) -> Option<Ref> {
        let Node::Dict(pairs) = self.node(dict) else { return None };
        let mut found = pairs.iter().rev().filter(|(k, _)| self.text(*k) == Some(key));
        found.next().map(|(_, value)| *value)
    }

    /// A text.
    pub fn text(&self, at: Ref) -> Option<&str> {
        match self.node(at) {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A tensor.
    pub fn tensor(&self, at: Ref) -> Option<&Tensor> {
        match self.node(at) {
            Node::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// A number as f64.
    pub fn number(&self, at: Ref) -> Option<f64> {
        match self.node(at) {
            Node::Int(n) => Some(*n as f64),
            Node::Float(x) => Some(*x),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub fn count(&self, at: Ref) -> Option<u64> {
        match self.node(at) {
            Node::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }
}
