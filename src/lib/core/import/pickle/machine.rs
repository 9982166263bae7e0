//! The stack machine that a pickle is a program for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::value::{Node, Pickle, Ref, Storage};
use super::{Global, MAX_DIMS, MAX_PICKLE, MAX_STACK, MAX_VALUES};

/// The most arguments of a call.
const MAX_ARGUMENTS: usize = 16;

/// The longest name of a storage, a number in practice.
const MAX_KEY: usize = 64;

impl Pickle {
    /// Reads a pickle.
    ///
    /// # Errors
    /// One sentence with the byte at which reading ended: an opcode or a name that is not known, a
    /// stack that does not hold what an opcode needs, a limit, or the end of the bytes.
    pub fn read(bytes: &[u8]) -> Result<Pickle, String> {
        if bytes.len() > MAX_PICKLE {
            return Err(format!(
                "the pickle has {} bytes; those of checkpoints have less than {MAX_PICKLE}",
                bytes.len()
            ));
        }
        let mut machine = Machine::new(bytes);
        let root = loop {
            let at = machine.at;
            match machine.step() {
                Ok(None) => {}
                Ok(Some(root)) => break root,
                Err(what) => return Err(format!("at byte {at} of its pickle, {what}")),
            }
        };
        Ok(Pickle { nodes: machine.nodes, root, unknown: machine.unknown })
    }
}

/// The state of the machine.
pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Ref>,
    /// Heights of the stack at each open mark.
    marks: Vec<usize>,
    memo: HashMap<u32, Ref>,
    /// Values and members of values made so far.
    made: usize,
    /// Names that are not known and were called, and how often.
    unknown: BTreeMap<Arc<str>, usize>,
}

impl<'a> Machine<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Machine {
            bytes,
            at: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            made: 0,
            unknown: BTreeMap::new(),
        }
    }

    pub(super) fn node(&self, at: Ref) -> &Node {
        &self.nodes[at.0 as usize]
    }

    /// Counts `members` against the limit of values.
    pub(super) fn charge(&mut self, members: usize) -> Result<(), String> {
        self.made += members;
        if self.made > MAX_VALUES {
            return Err(format!("the values pass {MAX_VALUES}; no checkpoint has as many"));
        }
        Ok(())
    }

    pub(super) fn add(&mut self, node: Node) -> Result<Ref, String> {
        self.charge(1)?;
        let at = Ref(self.nodes.len() as u32); // below MAX_VALUES
        self.nodes.push(node);
        Ok(at)
    }

    /// A length or place.
    pub(super) fn size(&self, at: Ref) -> Result<usize, String> {
        match self.node(at) {
            Node::Int(n) => usize::try_from(*n).map_err(|_| format!("{n} is no length")),
            other => Err(format!("{} stands where a length belongs", other.kind())),
        }
    }

    /// Lengths, in a tuple.
    pub(super) fn sizes(&self, at: Ref) -> Result<Vec<usize>, String> {
        match self.node(at) {
            Node::Tuple(items) | Node::List(items) if items.len() <= MAX_DIMS => {
                items.iter().map(|&item| self.size(item)).collect()
            }
            Node::Tuple(_) | Node::List(_) => {
                Err(format!("a tensor has over {MAX_DIMS} dimensions"))
            }
            other => Err(format!("{} stands where lengths belong", other.kind())),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let left = &self.bytes[self.at..];
        let taken = left.get(..count).ok_or("the pickle ends in the middle of a value")?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A length of 1, 4 or 8 bytes.
    fn length(&mut self, width: usize) -> Result<usize, String> {
        match width {
            1 => Ok(self.byte()?.into()),
            4 => Ok(self.u32()? as usize),
            _ => usize::try_from(u64::from_le_bytes(self.array()?))
                .map_err(|_| "a length passes the address space".into()),
        }
    }

    /// Bytes up to a line feed, which is taken too.
    fn line(&mut self) -> Result<&'a str, String> {
        let left = &self.bytes[self.at..];
        let left = &left[..left.len().min(512)];
        let end = left.iter().position(|&b| b == b'\n').ok_or("a name does not end")?;
        let line = &left[..end];
        self.at += end + 1;
        std::str::from_utf8(line).map_err(|_| "a name is not UTF-8".into())
    }

    fn push(&mut self, at: Ref) -> Result<(), String> {
        if self.stack.len() >= MAX_STACK {
            return Err(format!("the stack passes {MAX_STACK} values; no checkpoint has as many"));
        }
        self.stack.push(at);
        Ok(())
    }

    fn push_new(&mut self, node: Node) -> Result<(), String> {
        let at = self.add(node)?;
        self.push(at)
    }

    /// The lowest place that may be taken from the stack: above the innermost mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Ref, String> {
        match self.stack.last() {
            Some(&top) if self.stack.len() > self.floor() => Ok(top),
            _ => Err("the stack is empty".into()),
        }
    }

    fn pop(&mut self) -> Result<Ref, String> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Ref>, String> {
        match self.stack.len().checked_sub(count) {
            Some(start) if start >= self.floor() => Ok(self.stack.split_off(start)),
            _ => Err("the stack is empty".into()),
        }
    }

    /// What lies above the innermost mark, which is taken too.
    fn pop_mark(&mut self) -> Result<Vec<Ref>, String> {
        let mark = self.marks.pop().ok_or("a mark is missing")?;
        Ok(self.stack.split_off(mark))
    }

    fn remember(&mut self, index: u32) -> Result<(), String> {
        let top = self.top()?;
        if self.memo.len() >= MAX_STACK {
            return Err(format!("the memo passes {MAX_STACK} values; no checkpoint has as many"));
        }
        self.memo.insert(index, top);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<(), String> {
        let found = self.memo.get(&index).copied();
        self.push(found.ok_or_else(|| format!("memo {index} was never set"))?)
    }

    fn text(&mut self, width: usize) -> Result<(), String> {
        let length = self.length(width)?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| "a text is not UTF-8")?;
        self.push_new(Node::Text(text.into()))
    }

    fn binary(&mut self, width: usize) -> Result<(), String> {
        let length = self.length(width)?;
        let bytes = self.take(length)?;
        self.push_new(Node::Bytes(bytes.into()))
    }

    /// A little-endian two's complement number of any width.
    fn long(&mut self, width: usize) -> Result<(), String> {
        let length = self.length(width)?;
        let bytes = self.take(length)?;
        if bytes.len() > 8 {
            return self.push_new(Node::Opaque("an integer of more than 64 bits"));
        }
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        self.push_new(Node::Int(i64::from_le_bytes(wide)))
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), String> {
        self.push_new(match Global::named(module, name) {
            Some(known) => Node::Global(known),
            None => Node::Unknown(format!("{module}.{name}").into()),
        })
    }

    /// `callable(*args)`: what a known name makes of them, and for a name that is not known a
    /// value that holds its place. Nothing is called.
    fn reduce(&mut self) -> Result<(), String> {
        let (args, callable) = (self.pop()?, self.pop()?);
        let Node::Tuple(args) = self.node(args) else {
            return Err("the arguments of a call are no tuple".into());
        };
        let global = match self.node(callable) {
            Node::Global(global) => *global,
            Node::Unknown(name) | Node::Object(name) => {
                let name = name.clone();
                *self.unknown.entry(name.clone()).or_default() += 1;
                return self.push_new(Node::Object(name));
            }
            other => return Err(format!("{} is called like a function", other.kind())),
        };
        // One tuple may be the arguments of a million calls; those of real ones have at most 7.
        if args.len() > MAX_ARGUMENTS {
            return Err(format!("a call has {} arguments", args.len()));
        }
        let args = args.clone();
        let result = global.apply(self, &args)?;
        self.push(result)
    }

    /// `("storage", type, key, place, count)`.
    fn persistent(&mut self) -> Result<(), String> {
        let at = self.pop()?;
        let Node::Tuple(parts) = self.node(at) else {
            return Err(format!("{} stands where a storage belongs", self.node(at).kind()));
        };
        // A storage of a type that is not known holds its place until a tensor is wanted of it.
        if let [tag, kind, ..] = parts[..]
            && let (Node::Text(tag), Node::Unknown(kind)) = (self.node(tag), self.node(kind))
            && **tag == *"storage"
        {
            let kind = kind.clone();
            return self.push_new(Node::Object(kind));
        }
        let storage = match parts[..] {
            [tag, kind, key, _place, count] | [tag, kind, key, _place, count, _] => {
                match (self.node(tag), self.node(kind), self.node(key)) {
                    (Node::Text(tag), Node::Global(Global::Storage(dtype)), Node::Text(key))
                        if **tag == *"storage" && key.len() <= MAX_KEY =>
                    {
                        let count = self.size(count)?;
                        Some(Storage { dtype: *dtype, key: key.clone(), count })
                    }
                    _ => None,
                }
            }
            _ => None,
        };
        let storage = storage.ok_or("a storage is not told as torch.save tells it")?;
        self.push_new(Node::Storage(Box::new(storage)))
    }

    /// Attributes of an object, which are of no use here: those of an OrderedDict (`_metadata`).
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        let top = self.top()?;
        match self.node(top) {
            Node::Dict(_) | Node::Opaque(_) | Node::Object(_) | Node::Tensor(_) => Ok(()),
            other => Err(format!("{} is given attributes", other.kind())),
        }
    }

    fn append(&mut self, items: Vec<Ref>) -> Result<(), String> {
        self.charge(items.len())?;
        let top = self.top()?;
        match &mut self.nodes[top.0 as usize] {
            Node::List(list) => list.extend(items),
            Node::Opaque("a set") | Node::Object(_) => {}
            other => return Err(format!("{} is appended to", other.kind())),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Ref>) -> Result<(), String> {
        self.charge(items.len())?;
        if !items.len().is_multiple_of(2) {
            return Err("a key has no value".into());
        }
        let top = self.top()?;
        match &mut self.nodes[top.0 as usize] {
            Node::Dict(pairs) => pairs.extend(items.chunks_exact(2).map(|p| (p[0], p[1]))),
            Node::Object(_) => {}
            other => return Err(format!("{} is given keys", other.kind())),
        }
        Ok(())
    }

    fn tuple(&mut self, items: Vec<Ref>) -> Result<(), String> {
        self.charge(items.len())?;
        self.push_new(Node::Tuple(items))
    }

    /// One opcode; the result of the pickle at its end.
    fn step(&mut self) -> Result<Option<Ref>, String> {
        let opcode = self.take(1).map_err(|_| "it ends without a result")?[0];
        match opcode {
            0x80 => match self.byte()? {
                2..=5 => {}
                other => return Err(format!("protocol {other} is not read, only 2 to 5")),
            },
            // A frame is a hint about reading ahead.
            0x95 => _ = self.take(8)?,
            b'.' => {
                let root = self.pop()?;
                if !self.stack.is_empty() || !self.marks.is_empty() {
                    return Err("it ends with values left over".into());
                }
                if self.at != self.bytes.len() {
                    return Err("it ends before its bytes do".into());
                }
                return Ok(Some(root));
            }
            b'(' => {
                if self.marks.len() >= MAX_STACK {
                    return Err(format!("the marks pass {MAX_STACK}; no checkpoint has as many"));
                }
                self.marks.push(self.stack.len());
            }
            b'0' => _ = self.pop()?,
            b'1' => _ = self.pop_mark()?,
            b'2' => {
                let top = self.top()?;
                self.push(top)?;
            }
            b'N' => self.push_new(Node::None)?,
            0x88 => self.push_new(Node::Bool(true))?,
            0x89 => self.push_new(Node::Bool(false))?,
            b'J' => {
                let n = i32::from_le_bytes(self.array()?);
                self.push_new(Node::Int(n.into()))?;
            }
            b'K' => {
                let n = self.byte()?;
                self.push_new(Node::Int(n.into()))?;
            }
            b'M' => {
                let n = u16::from_le_bytes(self.array()?);
                self.push_new(Node::Int(n.into()))?;
            }
            0x8a => self.long(1)?,
            0x8b => self.long(4)?,
            b'G' => {
                let x = f64::from_be_bytes(self.array()?);
                self.push_new(Node::Float(x))?;
            }
            b'X' => self.text(4)?,
            0x8c => self.text(1)?,
            0x8d => self.text(8)?,
            b'B' => self.binary(4)?,
            b'C' => self.binary(1)?,
            0x8e | 0x96 => self.binary(8)?,
            b']' => self.push_new(Node::List(Vec::new()))?,
            b'}' => self.push_new(Node::Dict(Vec::new()))?,
            b')' => self.push_new(Node::Tuple(Vec::new()))?,
            0x8f => self.push_new(Node::Opaque("a set"))?,
            0x91 => {
                let items = self.pop_mark()?;
                self.charge(items.len())?;
                self.push_new(Node::Opaque("a set"))?;
            }
            b'l' => {
                let items = self.pop_mark()?;
                self.charge(items.len())?;
                self.push_new(Node::List(items))?;
            }
            b'd' => {
                let items = self.pop_mark()?;
                self.push_new(Node::Dict(Vec::new()))?;
                self.set_items(items)?;
            }
            b't' => {
                let items = self.pop_mark()?;
                self.tuple(items)?;
            }
            0x85..=0x87 => {
                let items = self.pop_many(usize::from(opcode - 0x84))?;
                self.tuple(items)?;
            }
            b'a' => {
                let items = self.pop_many(1)?;
                self.append(items)?;
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            b's' => {
                let items = self.pop_many(2)?;
                self.set_items(items)?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set_items(items)?;
            }
            b'q' => {
                let index = self.byte()?;
                self.remember(index.into())?;
            }
            b'r' => {
                let index = self.u32()?;
                self.remember(index)?;
            }
            0x94 => self.remember(self.memo.len() as u32)?, // below MAX_STACK
            b'h' => {
                let index = self.byte()?;
                self.recall(index.into())?;
            }
            b'j' => {
                let index = self.u32()?;
                self.recall(index)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Node::Text(module), Node::Text(name)) = (self.node(module), self.node(name))
                else {
                    return Err("a name is no text".into());
                };
                let (module, name) = (module.clone(), name.clone());
                self.global(&short(&module), &short(&name))?;
            }
            b'R' => self.reduce()?,
            // cls.__new__(cls, *args): no name that is known has more to it than its call.
            0x81 => self.reduce()?,
            // The same with arguments by name, which only names that are not known have.
            0x92 => {
                self.pop()?;
                self.reduce()?;
            }
            b'b' => self.build()?,
            b'Q' => self.persistent()?,
            other => return Err(format!("opcode {other:#04x} is not read")),
        }
        Ok(None)
    }
}

/// A name cut to what fits an error; no known one is longer.
fn short(name: &str) -> String {
    name.chars().take(80).collect()
}
