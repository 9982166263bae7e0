//! The names of Python's that a pickle may use, and what each one makes of its arguments.

use super::machine::Machine;
use super::value::{Node, Ref, Storage, Tensor};
use crate::format::checkpoint::DType;

/// A name that is known. None of them is looked up anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Global {
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `torch._utils._rebuild_tensor` and `_rebuild_tensor_v2`.
    RebuildTensor,
    /// `torch._utils._rebuild_tensor_v3`: a tensor of a type that has no storage of its own, such as
    /// `torch.float8_e4m3fn`, which is named and not read.
    RebuildOther,
    /// `torch._utils._rebuild_parameter` and its kin: its tensor.
    RebuildParameter,
    /// `torch._tensor._rebuild_from_type_v2`: the tensor below a class of its own.
    RebuildFromType,
    /// `torch.FloatStorage` and its kin: the type of a storage's elements.
    Storage(DType),
    /// `torch.Size`: its tuple.
    Size,
    /// Names whose results are of no use here: `torch.device`, `torch.float32`, NumPy's scalars.
    Opaque(&'static str),
}

impl Global {
    /// The name if it is known.
    pub(super) fn named(module: &str, name: &str) -> Option<Global> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Global::RebuildTensor,
            ("torch._utils", "_rebuild_tensor_v3") => Global::RebuildOther,
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                Global::RebuildParameter
            }
            ("torch._tensor", "_rebuild_from_type_v2") => Global::RebuildFromType,
            ("torch", "Size") => Global::Size,
            ("torch", "device") => Global::Opaque("a device"),
            (
                "torch",
                "float64" | "float32" | "float16" | "bfloat16" | "int64" | "int32" | "int16"
                | "int8" | "uint8" | "bool",
            ) => Global::Opaque("a type of elements"),
            // A scalar that a training loop left among its settings: (dtype, bytes).
            ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") | ("numpy", "dtype") => {
                Global::Opaque("a NumPy scalar")
            }
            ("_codecs", "encode") => Global::Opaque("bytes"),
            ("torch", storage) => Global::Storage(match storage.strip_suffix("Storage")? {
                "Double" => DType::F64,
                "Float" => DType::F32,
                "BFloat16" => DType::BF16,
                "Half" => DType::F16,
                "Long" => DType::I64,
                "Int" => DType::I32,
                "Short" => DType::I16,
                "Char" => DType::I8,
                "Byte" => DType::U8,
                "Bool" => DType::BOOL,
                _ => return None,
            }),
            _ => return None,
        })
    }

    /// What it makes of its arguments.
    pub(super) fn apply(self, machine: &mut Machine, args: &[Ref]) -> Result<Ref, String> {
        match self {
            Global::OrderedDict => ordered_dict(machine, args),
            Global::RebuildTensor => {
                // A storage of a type that is not known, such as those of quantized tensors.
                if let Some(Node::Object(name)) = args.first().map(|&at| machine.node(at)) {
                    return machine.add(Node::Object(name.clone()));
                }
                let tensor = tensor(machine, args)?;
                machine.add(Node::Tensor(Box::new(tensor)))
            }
            Global::RebuildOther => {
                let dtype = args.get(6).map(|&at| machine.node(at));
                let Some(Node::Unknown(name)) = dtype else {
                    return Err("a tensor of another type is rebuilt without its type".into());
                };
                machine.add(Node::Object(name.clone()))
            }
            Global::RebuildFromType => match args.first().map(|&at| machine.node(at)) {
                Some(Node::Global(Global::RebuildTensor)) => {
                    let Some(Node::Tuple(inner)) = args.get(2).map(|&at| machine.node(at)) else {
                        return Err("a tensor of a class is rebuilt without arguments".into());
                    };
                    let inner = inner.iter().copied().take(8).collect::<Vec<_>>();
                    Global::RebuildTensor.apply(machine, &inner)
                }
                _ => machine.add(Node::Opaque("a tensor of a class of its own")),
            },
            Global::RebuildParameter => match args.first().map(|&at| (at, machine.node(at))) {
                Some((at, Node::Tensor(_) | Node::Object(_))) => Ok(at),
                _ => Err("a parameter is rebuilt from something that is no tensor".into()),
            },
            Global::Size => match args {
                [at] if matches!(machine.node(*at), Node::Tuple(_) | Node::List(_)) => Ok(*at),
                _ => Err("torch.Size is given something that is no tuple".into()),
            },
            Global::Opaque(what) => machine.add(Node::Opaque(what)),
            Global::Storage(_) => Err("a type of storage is called like a function".into()),
        }
    }
}

/// `OrderedDict()`, or `OrderedDict([(key, value), …])` as old Pythons wrote it.
fn ordered_dict(machine: &mut Machine, args: &[Ref]) -> Result<Ref, String> {
    let mut pairs = Vec::new();
    match args {
        [] => {}
        [list] => {
            let Node::List(items) = machine.node(*list) else {
                return Err("an OrderedDict is made of something that is no list".into());
            };
            for &item in items {
                match machine.node(item) {
                    Node::Tuple(pair) | Node::List(pair) if pair.len() == 2 => {
                        pairs.push((pair[0], pair[1]));
                    }
                    _ => return Err("an OrderedDict is made of something that is no pair".into()),
                }
            }
        }
        _ => return Err("an OrderedDict is made of too many arguments".into()),
    }
    machine.charge(pairs.len())?;
    machine.add(Node::Dict(pairs))
}

/// `(storage, offset, size, stride, …)`; gradients and hooks behind them are of no use here.
fn tensor(machine: &Machine, args: &[Ref]) -> Result<Tensor, String> {
    let [storage, offset, shape, stride, ..] = args else {
        return Err("a tensor is rebuilt from too few arguments".into());
    };
    let Node::Storage(storage) = machine.node(*storage) else {
        return Err("a tensor is rebuilt from something that is no storage".into());
    };
    let storage: Storage = (**storage).clone();
    let offset = machine.size(*offset)?;
    let (shape, stride) = (machine.sizes(*shape)?, machine.sizes(*stride)?);
    let bad = |what: &str| {
        let key = &storage.key;
        Err(format!("a tensor of shape {shape:?} and strides {stride:?} on data/{key} {what}"))
    };
    if shape.len() != stride.len() {
        return bad("has dimensions that do not fit");
    }
    let Some(count) = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) else {
        return bad("is larger than the address space");
    };
    let last = shape
        .iter()
        .zip(&stride)
        .try_fold(offset, |last, (&d, &s)| last.checked_add(d.saturating_sub(1).checked_mul(s)?));
    // More elements than the storage has would be one element told many times over.
    let inside = last.is_some_and(|last| last < storage.count) && count <= storage.count;
    if count > 0 && !inside {
        return bad(&format!("reaches past its {} elements; the file is damaged", storage.count));
    }
    Ok(Tensor { storage, offset, shape, stride })
}
