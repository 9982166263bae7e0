//! `ao-import` and files that are damaged, hostile, or of another model: one line, exit 2, no
//! output, no panic.

mod common;
#[path = "common/pt.rs"]
mod pt;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ao_core::family::ModelConfig;
use ao_core::import::{OpenOptions, Source, WeightsKind};
use common::golden;
use pt::{Builder, V, dict, zip};
use serde_json::json;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
    /// What the tool says of a file; it must be one line, exit 2, and leave nothing behind.
    fn refusal_of(&self, bytes: impl AsRef<[u8]>, args: &[&str]) -> String {
        let source = self.write("in.pt", bytes);
        self.refusal(&source, args)
    }
    fn refusal(&self, source: &Path, args: &[&str]) -> String {
        let out = self.0.path().join("out.st");
        let result = Command::new(env!("CARGO_BIN_EXE_ao-import"))
            .arg(source)
            .arg("-o")
            .arg(&out)
            .args(args)
            .output()
            .unwrap();
        let text = String::from_utf8(result.stderr).unwrap();
        assert_eq!(result.status.code(), Some(2), "{text}");
        let lines = text.lines().filter(|line| line.starts_with("ao-import: ")).count();
        assert_eq!((lines, text.contains("internal error")), (1, false), "{text}");
        let left: Vec<_> = fs::read_dir(self.0.path()).unwrap().flatten().collect();
        assert!(left.iter().all(|e| !e.file_name().to_string_lossy().contains("out.st")));
        text
    }
}

/// A nanoGPT of one block, and the settings that it is saved with.
struct Nano {
    builder: Builder,
    model: Vec<(String, V)>,
    args: Vec<(String, V)>,
    more: Vec<(String, V)>,
}

impl Nano {
    fn new() -> Nano {
        let config = json!({"arch": "gpt2", "block_size": 4, "vocab_size": 6, "n_layer": 1,
                            "n_head": 2, "n_embd": 4, "activation": "gelu"});
        let table = ModelConfig::from_json(&config).unwrap().parameters();
        let mut builder = Builder::default();
        let model = table
            .iter()
            .map(|p| (p.name.clone(), builder.tensor(&p.shape, &vec![0.25; p.count()])))
            .collect();
        let args = [("n_layer", 1), ("n_head", 2), ("n_embd", 4), ("block_size", 4)];
        let args = args.map(|(key, n)| (key.to_owned(), V::Int(n))).to_vec();
        Nano { builder, model, args, more: Vec::new() }
    }
    fn place(&self, name: &str) -> usize {
        self.model.iter().position(|(own, _)| own == name).unwrap()
    }
    fn root(&self) -> V {
        let pairs = [
            ("model".to_owned(), V::Dict(self.model.clone())),
            ("model_args".to_owned(), V::Dict(self.args.clone())),
        ];
        V::Dict(pairs.into_iter().chain(self.more.clone()).collect())
    }
    fn entries(&self) -> Vec<(String, Vec<u8>)> {
        self.builder.entries(&self.root())
    }
    fn file(&self) -> Vec<u8> {
        self.builder.file(&self.root())
    }
    /// The file with its pickle replaced.
    fn with_pickle(&self, pickle: Vec<u8>) -> Vec<u8> {
        let mut entries = self.entries();
        entries[0].1 = pickle;
        zip(&entries, 0)
    }
}

#[test]
fn the_file_that_the_others_are_bent_from_is_a_good_one() {
    let folder = Folder::new();
    let source = Source::open(&folder.write("in.pt", Nano::new().file()), &OpenOptions::default());
    let source = source.unwrap();
    assert_eq!(source.config().arch(), "gpt2");
    for name in source.names() {
        assert!(source.read_f32(name).unwrap().iter().all(|&x| x == 0.25));
    }
}

/// A pickled call of `code`, which is no tensor.
fn raw(code: &[u8]) -> V {
    V::Raw(code.into())
}

#[test]
fn what_a_pickle_wants_to_run_is_passed_over_by_name_and_never_run() {
    let folder = Folder::new();
    let mark = folder.0.path().join("ran");
    let command = format!("touch {}", mark.display());
    let mut call = b"cos\nsystem\nX".to_vec();
    call.extend((command.len() as u32).to_le_bytes());
    call.extend(command.bytes());
    call.extend(b"\x85R");
    let mut nano = Nano::new();
    let namespace = b"cargparse\nNamespace\n)\x81}(X\x02\0\0\0lrG\x3f\xf0\0\0\0\0\0\0ub";
    let path = b"cpathlib\nPosixPath\n(X\x01\0\0\0/X\x04\0\0\0datatR";
    for (key, code) in [
        ("optimizer", &call[..]),
        ("args", namespace),
        ("out", path),
        ("second", path),
        ("config", b"comegaconf.dictconfig\nDictConfig\n)\x81}X\x08\0\0\0_contentNsb"),
        ("random", b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01tb"),
    ] {
        nano.more.push((key.into(), raw(code)));
    }
    let source = folder.write("in.pt", nano.file());
    let (out, plain) = (folder.0.path().join("out.st"), folder.0.path().join("plain.st"));
    let run = |source: &Path, out: &Path| {
        let program = env!("CARGO_BIN_EXE_ao-import");
        Command::new(program).arg(source).arg("-o").arg(out).output().unwrap()
    };
    let result = run(&source, &out);
    let text = String::from_utf8(result.stderr).unwrap();
    assert!(result.status.success(), "{text}");
    let line = "passed over, as it is no tensor, nothing of it run: argparse.Namespace, \
                numpy.core.multiarray._reconstruct, omegaconf.dictconfig.DictConfig, os.system, \
                pathlib.PosixPath (2)";
    assert!(text.lines().any(|l| l == line), "{text}");
    assert!(!mark.exists(), "it was run");
    assert!(run(&folder.write("plain.pt", Nano::new().file()), &plain).status.success());
    let (got, want) = (fs::read(out).unwrap(), fs::read(plain).unwrap());
    let data = |bytes: &[u8]| {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + length..].to_vec()
    };
    assert_eq!(data(&got), data(&want));
}

#[test]
fn weights_that_depend_on_an_unknown_name_are_refused_by_it() {
    let folder = Folder::new();
    let wpe = "transformer.wpe.weight";
    for (code, name) in [
        (&b"cbuiltins\neval\nX\x01\0\0\x001\x85R"[..], "builtins.eval"),
        (b"\x8c\x08builtins\x8c\x04exec\x93)R", "builtins.exec"),
        (b"c__main__\nGPTConfig\n)\x81", "__main__.GPTConfig"),
        (
            b"ctorch._utils\n_rebuild_tensor_v3\n(NK\0))\x89Nctorch\nfloat8_e5m2\ntR",
            "torch.float8_e5m2",
        ),
    ] {
        let mut nano = Nano::new();
        let at = nano.place(wpe);
        nano.model[at].1 = raw(code);
        let text = folder.refusal_of(nano.file(), &[]);
        let want = format!("holds an object of '{name}' under '{wpe}', and no tensor");
        assert!(text.contains(&want), "{text}");
        let mut nano = Nano::new();
        nano.more.push(("model".into(), raw(code))); // the last of two keys counts
        let text = folder.refusal_of(nano.file(), &[]);
        assert!(text.contains(&format!("the model is an object of '{name}'")), "{text}");
    }
}

#[test]
fn files_without_tensors_and_what_lies_in_a_files_place_are_told() {
    let folder = Folder::new();
    let empty = dict([("model", dict([("epoch", V::Int(3))]))]);
    let text = folder.refusal_of(Builder::default().file(&empty), &[]);
    assert!(text.contains("holds no tensors, but an integer under 'epoch'"), "{text}");
    let mut bare = 2u64.to_le_bytes().to_vec();
    bare.extend(b"{}");
    let text = folder.refusal_of(bare, &[]);
    assert!(text.contains("holds no tensors; give a model's file"), "{text}");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 548118077\n";
    let text = folder.refusal_of(pointer, &[]);
    assert!(text.contains("is a pointer of git-lfs"), "{text}");
    for page in ["<!DOCTYPE html>\n<html>404", "<html>not found</html>", "\n <!doctype HTML>"] {
        let text = folder.refusal_of(page, &[]);
        assert!(text.contains("is a web page, not a file of weights"), "{text}");
    }
    let header = r#"{"w":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}"#;
    let mut eight = (header.len() as u64).to_le_bytes().to_vec();
    eight.extend(header.bytes().chain([0, 0]));
    let text = folder.refusal_of(eight, &[]);
    assert!(text.contains("tensor 'w': holds F8_E4M3, which is not read"), "{text}");
}

#[test]
fn bombs_end_in_a_line() {
    let folder = Folder::new();
    let nano = Nano::new();
    let pickle = |body: &[u8]| [b"\x80\x02", body, b"."].concat();
    let flood = vec![b')'; 3 << 20];
    let mut doubling = b"]q\x00".to_vec();
    (0..100_000).for_each(|_| doubling.extend(b"h\x00h\x00\x86q\x000"));
    for (body, want) in [
        (&flood[..], "the stack passes"),
        (&doubling, "no dictionary of tensors"),
        (&[&b"N"[..], &vec![0x85; 2 << 20][..]].concat(), "the values pass"),
        (&[&b"N"[..], &vec![0x85; 1 << 19][..]].concat(), "holds a tuple"),
        (&vec![b'('; 3 << 20], "the marks pass"),
        (b"X\xff\xff\xff\xffa", "ends in the middle of a value"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "ends in the middle of a value"),
        (&vec![b'N'; 33 << 20], "the pickle has 34603011 bytes"),
    ] {
        let text = folder.refusal_of(nano.with_pickle(pickle(body)), &[]);
        assert!(text.contains(want), "{want}: {text}");
    }
}

#[test]
fn archives_that_are_packed_cut_or_crossed_are_refused() {
    let folder = Folder::new();
    let nano = Nano::new();
    let file = nano.file();
    assert!(folder.refusal_of(zip(&nano.entries(), 8), &[]).contains("is compressed (method 8)"));
    for cut in [4, 30, 1000, file.len() - 100, file.len() - 1] {
        let text = folder.refusal_of(&file[..cut], &[]);
        assert!(text.contains("cut short"), "{text}");
    }
    let mut entries = nano.entries();
    entries.push(entries[3].clone());
    assert!(folder.refusal_of(zip(&entries, 0), &[]).contains("stands there twice"));
    let mut second = nano.entries();
    second.push(("other/data.pkl".into(), Vec::new()));
    assert!(folder.refusal_of(zip(&second, 0), &[]).contains("more than one data.pkl"));
    let mut none = nano.entries();
    none.remove(0);
    assert!(folder.refusal_of(zip(&none, 0), &[]).contains("without data.pkl"));
    let mut script = nano.entries();
    script.push(("ckpt/constants.pkl".into(), Vec::new()));
    assert!(folder.refusal_of(zip(&script, 0), &[]).contains("TorchScript"));
    let mut big = nano.entries();
    big[1].1 = b"big".to_vec();
    assert!(folder.refusal_of(zip(&big, 0), &[]).contains("big-endian"));
    let mut lost = nano.entries();
    lost.remove(3);
    let text = folder.refusal_of(zip(&lost, 0), &[]);
    assert!(text.contains("tensor 'transformer.wte.weight': its storage data/0 is not"), "{text}");
    let mut short = nano.entries();
    short[3].1.truncate(90);
    let text = folder.refusal_of(zip(&short, 0), &[]);
    assert!(text.contains("data/0 has 90 bytes, too few for 24 elements of F32"), "{text}");
    let mut flipped = file.clone();
    let at = file.windows(4).position(|w| w == 0.25f32.to_le_bytes()).unwrap();
    flipped[at] ^= 1;
    let text = folder.refusal_of(&flipped, &[]);
    assert!(text.contains("tensor 'transformer.wte.weight': its checksum differs"), "{text}");
    // What is no archive at all.
    let legacy = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    assert!(folder.refusal_of(legacy, &[]).contains("before PyTorch 1.6"));
    assert!(folder.refusal_of(b"\x80\x04N.", &[]).contains("bare pickle"));
    assert!(folder.refusal_of(b"", &[]).contains("0 bytes are no safetensors file"));
    assert!(folder.refusal_of(b"no safetensors at all", &[]).contains("not a safetensors file"));
    let text = folder.refusal(&folder.0.path().join("gone.pt"), &[]);
    assert!(text.contains("gone.pt: no such file"), "{text}");
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let folder = Folder::new();
    let wpe = "transformer.wpe.weight";
    let change = |change: &dyn Fn(&mut Nano)| {
        let mut nano = Nano::new();
        change(&mut nano);
        folder.refusal_of(nano.file(), &[])
    };
    let set = |nano: &mut Nano, name: &str, tensor: V| {
        let at = nano.place(name);
        nano.model[at].1 = tensor;
    };
    let text = change(&|nano| {
        let tensor = nano.builder.tensor(&[4, 5], &[0.0; 20]);
        set(nano, wpe, tensor);
    });
    assert!(text.contains("'transformer.wpe.weight' has shape [4, 5], its config needs [4, 4]"));
    let text = change(&|nano| {
        let at = nano.place("transformer.ln_f.bias");
        nano.model.remove(at);
    });
    assert!(text.contains("tensor 'transformer.ln_f.bias' of gpt2 is missing"), "{text}");
    let text = change(&|nano| {
        let tensor = nano.builder.tensor(&[2], &[0.0; 2]);
        nano.model.push(("transformer.extra.weight".into(), tensor));
    });
    assert!(text.contains("tensor 'transformer.extra.weight' is not one of gpt2's"), "{text}");
    let text = change(&|nano| {
        let mut second = nano.model[0].clone();
        second.0.insert_str(0, "module.");
        nano.model.push(second);
    });
    assert!(text.contains("tensor 'transformer.wte.weight' stands there twice"), "{text}");
    let text = change(&|nano| {
        let tensor = nano.builder.on("Long", vec![0; 128], 16, 0, &[4, 4], &[4, 1]);
        set(nano, wpe, tensor);
    });
    assert!(text.contains("holds I64; weights are floating-point"), "{text}");
    let text = change(&|nano| {
        let tensor = nano.builder.on("Float", vec![0; 64], 16, 4, &[4, 4], &[4, 1]);
        set(nano, wpe, tensor);
    });
    assert!(text.contains("reaches past its 16 elements"), "{text}");
    let text = change(&|nano| {
        let tensor = nano.builder.on("Float", vec![0; 4], 1, 0, &[4, 4], &[0, 0]);
        set(nano, wpe, tensor);
    });
    assert!(text.contains("reaches past its 1 elements"), "{text}");
    let text = change(&|nano| {
        let head = nano.builder.tensor(&[6, 4], &[0.5; 24]);
        nano.model.push(("lm_head.weight".into(), head));
    });
    assert!(text.contains("'lm_head.weight' differs from 'transformer.wte.weight'"), "{text}");
    let text = change(&|nano| nano.model[1].1 = V::Int(1));
    assert!(text.contains("holds an integer under 'transformer.wpe.weight', and no"), "{text}");
    let text = change(&|nano| nano.args.push(("rope".into(), V::Bool(true))));
    assert!(text.contains("setting 'rope' is not known"), "{text}");
    let text = change(&|nano| nano.args[0].1 = V::Int(2));
    assert!(text.contains("'transformer.h.1.attn.c_attn.bias' and 11 more of gpt2 is missing"));
    let text = change(&|nano| nano.args[2].1 = V::Int(1 << 30));
    assert!(text.contains("its config: n_embd 1073741824: must be 1 to"), "{text}");
    let text = change(&|nano| nano.args[1].1 = V::Int(3));
    assert!(text.contains("its config: n_head 3: does not divide n_embd 4"), "{text}");
}

#[test]
fn one_storage_told_as_a_whole_model_is_refused() {
    let folder = Folder::new();
    let mut builder = Builder::default();
    let config = json!({"arch": "gpt2", "block_size": 4, "vocab_size": 6, "n_layer": 40,
                        "n_head": 1, "n_embd": 16, "activation": "gelu"});
    let table = ModelConfig::from_json(&config).unwrap().parameters();
    let largest = table.iter().map(|p| p.count()).max().unwrap();
    let V::Tensor { kind, key, count, offset, .. } =
        builder.tensor(&[largest], &vec![0.0; largest])
    else {
        unreachable!()
    };
    let model = table.iter().map(|p| {
        let (shape, stride) = (p.shape.clone(), pt::row_major(&p.shape));
        (p.name.clone(), V::Tensor { kind, key: key.clone(), count, offset, shape, stride })
    });
    let root =
        dict([("model", V::Dict(model.collect())), ("model_args", dict([("n_head", V::Int(1))]))]);
    let text = folder.refusal_of(builder.file(&root), &[]);
    assert!(text.contains("its tensors name"), "{text}");
}

#[test]
fn files_of_another_architecture_are_told_by_their_names() {
    let folder = Folder::new();
    let config = json!({"arch": "ao-gpt", "block_size": 4, "vocab_size": 6, "n_layer": 1,
                        "n_head": 2, "n_embd": 4});
    let config = folder.write("ao.json", config.to_string());
    let as_ao = ["--model-config", config.to_str().unwrap()];
    let text = folder.refusal_of(Nano::new().file(), &as_ao);
    assert!(
        text.contains("of ao-gpt is missing; its tensors are named like those of gpt2"),
        "{text}"
    );
    let mut builder = Builder::default();
    let tensor = builder.tensor(&[2], &[0.0; 2]);
    let other = V::Dict(vec![("encoder.layer.0.weight".into(), tensor.clone())]);
    let text = folder.refusal_of(builder.file(&other), &[]);
    assert!(text.contains("'encoder.layer.0.weight', …) are of no architecture"), "{text}");
    let radd = V::Dict(vec![("blocks.0.attn_qkv.weight".into(), tensor)]);
    let text = folder.refusal_of(builder.file(&radd), &[]);
    assert!(text.contains("carries no model config; give --model-config"), "{text}");
    let text = folder.refusal_of(builder.file(&V::List(vec![])), &[]);
    assert!(text.contains("holds a list, and no dictionary of tensors"), "{text}");
    let text = folder.refusal_of(builder.file(&V::Dict(vec![])), &[]);
    assert!(text.contains("holds no tensors; save the model's state_dict"), "{text}");
}

#[test]
fn averages_that_cannot_be_named_safely_are_refused_by_their_place() {
    let folder = Folder::new();
    let average = |list: Vec<V>| {
        let decay = ("decay", V::Float(0.99));
        dict([decay, ("num_updates", V::None), ("shadow_params", V::List(list))])
    };
    let with = |change: &dyn Fn(&mut Nano, &mut Vec<V>)| {
        let mut nano = Nano::new();
        let mut list: Vec<V> = nano.model.iter().map(|(_, tensor)| tensor.clone()).collect();
        change(&mut nano, &mut list);
        nano.more.push(("ema_model".into(), average(list)));
        nano
    };
    let good = folder.write("good.pt", with(&|_, _| ()).file());
    let options = OpenOptions { weights: Some(WeightsKind::Ema), ..OpenOptions::default() };
    let source = Source::open(&good, &options).unwrap();
    assert_eq!(
        (source.metadata().ema_decay, source.metadata().ema_warmup),
        (Some(0.99), Some(false))
    );

    let text = folder.refusal_of(with(&|_, list| list.truncate(3)).file(), &[]);
    assert!(text.contains("moving average has 3 tensors, a model of its config 16"), "{text}");
    let text = folder.refusal_of(with(&|_, list| list.swap(4, 6)).file(), &[]);
    assert!(text.contains("tensor 4 of its moving average has shape [4, 4]"), "{text}");
    // Two norms of the same shape, defined in another order: only the names can tell.
    let swapped = with(&|nano, list| {
        nano.model.swap(2, 3);
        list.swap(2, 3);
    });
    let text = folder.refusal_of(swapped.file(), &[]);
    assert!(text.contains("its parameter 2 is 'transformer.h.0.ln_1.bias'"), "{text}");
    assert!(text.contains("take --weights raw"), "{text}");
    let raw = OpenOptions { weights: Some(WeightsKind::Raw), ..OpenOptions::default() };
    Source::open(&folder.write("swapped.pt", swapped.file()), &raw).unwrap();
}

#[test]
fn a_weight_that_is_not_finite_is_exit_1() {
    let folder = Folder::new();
    let mut nano = Nano::new();
    let at = nano.place("transformer.wpe.weight");
    let mut numbers = [0.0; 16];
    numbers[9] = f32::NAN;
    nano.model[at].1 = nano.builder.tensor(&[4, 4], &numbers);
    let source = folder.write("in.pt", nano.file());
    let out = folder.0.path().join("out.st");
    let result = Command::new(env!("CARGO_BIN_EXE_ao-import"))
        .args([&source, Path::new("-o"), &out])
        .output()
        .unwrap();
    let text = String::from_utf8(result.stderr).unwrap();
    assert_eq!(result.status.code(), Some(1), "{text}");
    assert!(text.contains("tensor 'transformer.wpe.weight': element 9 is NaN"), "{text}");
    assert!(!out.exists());
}

/// Opens a file and reads all of it; whether that went well.
fn read_all(path: &Path) -> Result<(), ao_core::Error> {
    let source = Source::open(path, &OpenOptions::default())?;
    source.names().try_for_each(|name| source.read_f32(name).map(drop))
}

#[test]
fn a_published_file_cut_or_flipped_anywhere_never_panics() {
    let folder = Folder::new();
    let bytes = fs::read(golden("sigma-gpt").join("ckpt.pt")).unwrap();
    let whole = folder.write("whole.pt", &bytes);
    read_all(&whole).unwrap();
    // A flip in a tensor or in the pickle is told by its checksum.
    let file = fs::OpenOptions::new().write(true).open(&whole).unwrap();
    for at in [1_000, 50_000, 100_000] {
        file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
        let text = read_all(&whole).unwrap_err().to_string();
        assert!(text.contains("checksum differs"), "{at}: {text}");
        file.write_all_at(&bytes[at..=at], at as u64).unwrap();
    }
    // With the pickle's taken off (0: not computed), so that every flip reaches its reader.
    let entry = b"ckpt/data.pkl";
    let place = bytes.windows(entry.len()).rposition(|w| w == entry).unwrap();
    let mut bytes = bytes;
    bytes[place - 30..place - 26].fill(0);
    let path = folder.write("ckpt.pt", &bytes);
    read_all(&path).unwrap();
    for length in (0..bytes.len()).step_by(1009) {
        let cut = folder.write("cut.pt", &bytes[..length]);
        let error = read_all(&cut).expect_err("a cut file was read");
        assert_eq!(error.exit_code(), 2, "{length}: {error}");
    }
    // Every byte of the pickle and of the directory, and a sample of the weights.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let end = bytes.len();
    let places = (0..5_000).chain((5_000..end - 3_000).step_by(499)).chain(end - 3_000..end);
    let (mut refused, mut count) = (0, 0);
    for at in places {
        let flipped = bytes[at] ^ 1 << (at % 8);
        file.write_all_at(&[flipped], at as u64).unwrap();
        if let Err(error) = read_all(&path) {
            refused += 1;
            let text = error.to_string();
            assert!(matches!(error.exit_code(), 1 | 2) && text.lines().count() == 1, "{text}");
        }
        file.write_all_at(&bytes[at..=at], at as u64).unwrap();
        count += 1;
    }
    read_all(&path).unwrap();
    // Many flips change nothing that is read: times, versions, unused names.
    assert!(refused * 2 > count, "{refused} of {count}");
}
