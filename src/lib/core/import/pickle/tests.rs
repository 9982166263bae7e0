//! Pickles by hand, honest ones and hostile ones.

use super::*;
use crate::format::checkpoint::DType;

/// A pickle of protocol 2 with these parts and a STOP.
fn pickle(parts: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x02", &parts.concat()[..], b"."].concat()
}

fn read(parts: &[&[u8]]) -> Result<Pickle, String> {
    Pickle::read(&pickle(parts))
}

fn refusal(parts: &[&[u8]]) -> String {
    read(parts).unwrap_err()
}

const STORAGE: &[u8] =
    b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x06tQ";

/// A tensor on a storage of six floats.
fn tensor(offset: u8, shape: &[u8], stride: &[u8]) -> Vec<u8> {
    let tuple = |numbers: &[u8]| {
        let mut bytes = b"(".to_vec();
        numbers.iter().for_each(|&n| bytes.extend([b'K', n]));
        bytes.push(b't');
        bytes
    };
    let mut bytes = b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec();
    bytes.extend(STORAGE);
    bytes.extend([b'K', offset]);
    bytes.extend(tuple(shape));
    bytes.extend(tuple(stride));
    bytes.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    bytes
}

#[test]
fn values_of_every_kind_are_read() {
    let cases: [(&[u8], Node); 13] = [
        (b"N", Node::None),
        (b"\x88", Node::Bool(true)),
        (b"J\xfe\xff\xff\xff", Node::Int(-2)),
        (b"M\x00\x01", Node::Int(256)),
        (b"\x8a\x00", Node::Int(0)),
        (b"\x8a\x01\xff", Node::Int(-1)),
        (b"\x8a\x03\x00\x00\x01", Node::Int(65536)),
        (b"\x8a\x09\0\0\0\0\0\0\0\0\x01", Node::Opaque("an integer of more than 64 bits")),
        (b"G\x3f\xf8\0\0\0\0\0\0", Node::Float(1.5)),
        (b"X\x02\0\0\0\xc3\xa9", Node::Text("é".into())),
        (b"\x8c\x01x", Node::Text("x".into())),
        (b"C\x02\x00\xff", Node::Bytes([0, 0xff].into())),
        (b"ctorch\ndevice\nX\x03\0\0\0cpu\x85R", Node::Opaque("a device")),
    ];
    for (bytes, want) in cases {
        let got = read(&[bytes]).unwrap();
        assert_eq!(got.node(got.root()), &want, "{bytes:?}");
    }
}

#[test]
fn dictionaries_keep_their_order_and_the_last_value_of_a_key() {
    let dict = read(&[b"}(X\x01\0\0\0aK\x01X\x01\0\0\0bK\x02X\x01\0\0\0aK\x03u"]).unwrap();
    assert_eq!(dict.get(dict.root(), "a").and_then(|at| dict.count(at)), Some(3));
    assert_eq!(dict.get(dict.root(), "b").and_then(|at| dict.number(at)), Some(2.0));
    assert_eq!(dict.get(dict.root(), "c"), None);
    // OrderedDict, filled and then given attributes, as a state_dict is.
    let ordered = read(&[b"ccollections\nOrderedDict\n)RX\x01\0\0\0aK\x07s}b"]).unwrap();
    assert_eq!(ordered.get(ordered.root(), "a").and_then(|at| ordered.count(at)), Some(7));
    let listed = read(&[b"ccollections\nOrderedDict\n](X\x01\0\0\0aK\x07\x86e\x85R"]).unwrap();
    assert_eq!(listed.get(listed.root(), "a").and_then(|at| listed.count(at)), Some(7));
}

#[test]
fn the_memo_shares_values_and_protocol_4_names_are_known() {
    let list = read(&[b"](X\x01\0\0\0aq\x05h\x05j\x05\0\0\0e"]).unwrap();
    let Node::List(items) = list.node(list.root()) else { panic!("{list:?}") };
    assert_eq!(items.len(), 3);
    assert!(items.iter().all(|item| *item == items[0]));
    let named = b"\x95\0\0\0\0\0\0\0\0\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93)R";
    let dict = Pickle::read(&[b"\x80\x04", &named[..], b"."].concat()).unwrap();
    assert_eq!(dict.node(dict.root()), &Node::Dict(Vec::new()));
}

#[test]
fn tensors_are_views_of_storages() {
    let got = read(&[&tensor(1, &[2, 2], &[1, 2])]).unwrap();
    let tensor = got.tensor(got.root()).unwrap();
    assert_eq!((tensor.storage.dtype, tensor.storage.count), (DType::F32, 6));
    assert_eq!((&*tensor.storage.key, tensor.offset), ("0", 1));
    assert_eq!((&tensor.shape[..], &tensor.stride[..]), (&[2, 2][..], &[1, 2][..]));
}

#[test]
fn tensors_that_reach_past_their_storage_are_refused() {
    for (offset, shape, stride) in [
        (0, &[7][..], &[1][..]),
        (1, &[6], &[1]),
        (0, &[2, 3], &[4, 1]),
        (0, &[200, 200], &[0, 0]), // one element told 40,000 times
        (6, &[1], &[1]),
    ] {
        let text = refusal(&[&tensor(offset, shape, stride)]);
        assert!(text.contains("reaches past its 6 elements"), "{text}");
    }
    read(&[&tensor(6, &[0], &[1])]).unwrap(); // an empty one reaches nothing
    let text = refusal(&[&tensor(0, &[2, 3], &[1])]);
    assert!(text.contains("dimensions that do not fit"), "{text}");
    let text = refusal(&[&tensor(0, &[1; 17], &[1; 17])]);
    assert!(text.contains("over 16 dimensions"), "{text}");
}

#[test]
fn what_unknown_names_would_make_is_held_by_name_and_never_made() {
    for (bytes, name) in [
        (&b"cos\nsystem\nX\x02\0\0\0ls\x85R"[..], "os.system"),
        (b"cbuiltins\neval\nX\x01\0\0\x001\x85R", "builtins.eval"),
        (b"\x8c\x05posix\x8c\x06system\x93\x8c\x02ls\x85R", "posix.system"),
        (b"cargparse\nNamespace\n)\x81}X\x02\0\0\0lrK\x01sb", "argparse.Namespace"),
        (b"cpathlib\nPosixPath\n(X\x01\0\0\0atR", "pathlib.PosixPath"),
        (b"ca\nB\n)}\x92", "a.B"),
        (b"ccollections\ndefaultdict\n)RX\x01\0\0\0aK\x01s", "collections.defaultdict"),
        (b"ccollections\ndeque\n)RK\x01a", "collections.deque"),
        (b"ctorch._utils\n_rebuild_qtensor\n)R", "torch._utils._rebuild_qtensor"),
    ] {
        let got = read(&[bytes]).unwrap();
        assert_eq!(got.node(got.root()), &Node::Object(name.into()), "{name}");
        assert_eq!(got.unknown().collect::<Vec<_>>(), [(name, 1)]);
    }
}

#[test]
fn tensors_of_unknown_types_are_named_by_their_type() {
    let quantized = [b"ctorch._utils\n_rebuild_tensor_v2\n(", STORAGE, b"K\0)))tR"].concat();
    let at = quantized.windows(5).position(|w| w == b"Float").unwrap();
    let quantized = [&quantized[..at], b"QInt8", &quantized[at + 5..]].concat();
    let got = read(&[&quantized]).unwrap();
    assert_eq!(got.node(got.root()), &Node::Object("torch.QInt8Storage".into()));
    let eight = b"ctorch._utils\n_rebuild_tensor_v3\n(NK\0))\x89Nctorch\nfloat8_e4m3fn\ntR";
    let got = read(&[eight]).unwrap();
    assert_eq!(got.node(got.root()), &Node::Object("torch.float8_e4m3fn".into()));
}

#[test]
fn tensors_below_a_class_or_a_parameter_are_found() {
    let inner = tensor(0, &[2], &[1]);
    // (func, type, args, state): the call of func lies between its name and the last R.
    let name = b"ctorch._utils\n_rebuild_tensor_v2\n";
    let args = &inner[name.len()..inner.len() - 1];
    let of_class =
        [&b"ctorch._tensor\n_rebuild_from_type_v2\n("[..], name, b"cmine\nWeight\n", args, b"}tR"]
            .concat();
    let got = read(&[&of_class]).unwrap();
    assert_eq!(got.tensor(got.root()).unwrap().shape, [2]);
    let parameter =
        [&b"ctorch._utils\n_rebuild_parameter_with_state\n("[..], &inner, b"\x88N}tR"].concat();
    let got = read(&[&parameter]).unwrap();
    assert_eq!(got.tensor(got.root()).unwrap().shape, [2]);
}

#[test]
fn known_names_cannot_be_bent_to_other_uses() {
    for (bytes, want) in [
        (&b"ctorch\nFloatStorage\n)R"[..], "called like a function"),
        (b"K\x01)R", "an integer is called like a function"),
        (b"ccollections\nOrderedDict\nK\x01R", "no tuple"),
        (b"ccollections\nOrderedDict\nK\x01\x85R", "no list"),
        (b"ccollections\nOrderedDict\n}b", "a name is given attributes"),
        (b"ctorch._utils\n_rebuild_parameter\nK\x01\x85R", "no tensor"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R", "too few"),
        (b"K\x01Q", "where a storage belongs"),
        (b"(ios\nsystem\n", "opcode 0x69 is not read"),
        (b"\x82\x01", "opcode 0x82 is not read"),
    ] {
        let text = refusal(&[bytes]);
        assert!(text.contains(want), "{bytes:?}: {text}");
    }
}

#[test]
fn a_broken_program_is_one_sentence_with_its_byte() {
    for (bytes, want) in [
        (&b"R"[..], "at byte 2 of its pickle, the stack is empty"),
        (b"\x87", "the stack is empty"),
        (b"t", "a mark is missing"),
        (b"(K\x01a", "the stack is empty"), // appended to nothing above the mark
        (b"}(K\x01u", "a key has no value"),
        (b"K\x01K\x02", "values left over"),
        (b"h\x09", "memo 9 was never set"),
        (b"X\xff\xff\xff\xffx", "ends in the middle of a value"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "ends in the middle of a value"),
        (b"\x8b\xff\xff\xff\x7f", "ends in the middle of a value"),
        (b"X\x01\0\0\0\xff", "not UTF-8"),
        (b"cos", "does not end"),
        (b"\x80\x09", "protocol 9"),
    ] {
        let text = refusal(&[bytes]);
        assert!(text.contains(want), "{bytes:?}: {text}");
    }
    assert!(Pickle::read(b"\x80\x02N").unwrap_err().contains("ends without a result"));
    assert!(Pickle::read(b"\x80\x02N.N").unwrap_err().contains("ends before its bytes do"));
    assert!(Pickle::read(b"").unwrap_err().contains("ends without a result"));
}

#[test]
fn nesting_sharing_and_cycles_cost_no_more_than_their_bytes() {
    // A million nested tuples; a doubling of 64 generations; a list that holds itself.
    let deep = vec![0x85; 1_000_000];
    read(&[b"N", &deep]).unwrap();
    let mut double = b"](".to_vec();
    double.extend(b"K\x01q\x00");
    for _ in 0..64 {
        double.extend(b"h\x00h\x00\x86q\x00");
    }
    double.extend(b"e");
    read(&[&double]).unwrap();
    read(&[b"]q\x00h\x00a"]).unwrap();
}

#[test]
fn floods_end_at_a_limit() {
    let text = refusal(&[&vec![b')'; MAX_STACK + 1]]);
    assert!(text.contains("the stack passes"), "{text}");
    let text = refusal(&[&vec![b'('; MAX_STACK + 1]]);
    assert!(text.contains("the marks pass"), "{text}");
    let mut values = Vec::new();
    (0..=MAX_VALUES).for_each(|_| values.extend(b")0"));
    let text = refusal(&[&values]);
    assert!(text.contains("the values pass"), "{text}");
    let text = Pickle::read(&vec![b'N'; MAX_PICKLE + 1]).unwrap_err();
    assert!(text.contains("the pickle has"), "{text}");
    // One long tuple as the arguments of many calls.
    let mut call = b"ccollections\nOrderedDict\n(".to_vec();
    call.extend(vec![b'N'; 100_000]);
    call.extend(b"tR");
    assert!(refusal(&[&call]).contains("a call has 100000 arguments"));
    // One long list made into dictionaries again and again.
    let mut copies = b"](".to_vec();
    (0..300_000).for_each(|_| copies.extend(b"NN\x86"));
    copies.extend(b"eq\x000ccollections\nOrderedDict\nq\x010");
    (0..100_000).for_each(|_| copies.extend(b"h\x01h\x00\x85R0"));
    assert!(refusal(&[&copies]).contains("the values pass"));
}
