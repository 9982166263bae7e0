//! `ao-import` through the real binary: what it reads, what it writes.

mod common;
#[path = "common/pt.rs"]
mod pt;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::{CheckpointFile, CheckpointWriter, DType, Kind};
use common::golden;
use pt::{Builder, V, dict};
use serde_json::{Value, json};

fn import(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ao-import"))
        .args(args)
        .env_remove("HF_HUB_CACHE")
        .env("HF_HOME", "/nonexistent")
        .output()
        .unwrap()
}

/// Runs the tool and opens what it wrote.
fn imported(source: &Path, args: &[&str], target: &Path) -> CheckpointFile {
    let (source, out) = (source.to_str().unwrap(), target.to_str().unwrap());
    let result = import(&[&[source, "-o", out, "--force"], args].concat());
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    let folder = target.is_dir();
    CheckpointFile::open(&if folder { target.join("model.st") } else { target.into() }).unwrap()
}

fn refusal(args: &[&str]) -> String {
    let out = import(args);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(out.stdout.is_empty());
    text
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    /// Writes a file, with its folder.
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

/// Every tensor of `got` has the bytes of the one of the same name in `want`.
fn assert_same_tensors(got: &CheckpointFile, want: &CheckpointFile) {
    assert!(got.names().count() > 20);
    for name in got.names() {
        let (a, b) = (got.tensor(name).unwrap(), want.tensor(name).unwrap());
        assert_eq!((a.dtype, &a.shape), (b.dtype, &b.shape), "{name}");
        assert!(a.bytes == b.bytes, "{name} differs");
    }
}

#[test]
fn ao_gpts_files_give_both_their_weights_under_their_names() {
    let folder = Folder::new();
    for family in ["ao-gpt", "ao-gpt-short"] {
        let source = golden(family).join("ckpt.pt");
        let raw = imported(&source, &["--weights=raw"], &folder.path("raw.st"));
        let ema = imported(&source, &["--weights=ema"], &folder.path("ema.st"));
        let file = |name: &str| CheckpointFile::open(&golden(family).join(name)).unwrap();
        let (want_raw, want_ema) = (file("ckpt_raw_model.safetensors"), file("model.safetensors"));
        assert_same_tensors(&raw, &want_raw);
        assert_same_tensors(&ema, &want_ema);
        assert_eq!(raw.names().count(), want_raw.names().count());
        assert_ne!(raw.to_f32("lm_head.weight").unwrap(), ema.to_f32("lm_head.weight").unwrap());

        let (config, _) = common::golden_config(family);
        let meta = ema.ao_metadata().unwrap().unwrap();
        assert_eq!(ModelConfig::from_json(&meta.config).unwrap(), config);
        assert_eq!((meta.kind, meta.ema_decay, meta.step), (Kind::Ema, Some(0.9999), 1234));
        assert_eq!((meta.ema_warmup, meta.n_vocab_used), (Some(true), None));
        assert!(meta.created_by.starts_with("ao-import "));
        let record: Value = serde_json::from_str(&ema.metadata()["import_source"]).unwrap();
        assert_eq!(record["inputs"][0]["path"], source.to_str().unwrap());
        assert_eq!(record["inputs"][0]["xxh3"].as_str().unwrap().len(), 16);
        let meta = raw.ao_metadata().unwrap().unwrap();
        assert_eq!((meta.kind, meta.ema_decay), (Kind::Model, None));
        // The average is what is taken where nothing is said.
        assert_same_tensors(&imported(&source, &[], &folder.path("any.st")), &want_ema);
    }
}

#[test]
fn a_sigma_gpt_is_told_by_its_tensors_and_has_no_average() {
    let folder = Folder::new();
    let source = golden("sigma-gpt").join("ckpt.pt");
    let got = imported(&source, &[], &folder.path("out.st"));
    let want = CheckpointFile::open(&golden("sigma-gpt").join("model.safetensors")).unwrap();
    assert_same_tensors(&got, &want);
    let meta = got.ao_metadata().unwrap().unwrap();
    assert_eq!((&meta.config["arch"], meta.step), (&json!("sigma-gpt"), 7));
    assert!(got.tensor("lm_head.weight").is_none(), "the head is the token table");
    let source = source.to_str().unwrap();
    let text = refusal(&[source, "--weights=ema", "-o", folder.path("no.st").to_str().unwrap()]);
    assert!(text.contains("ckpt.pt: has no EMA weights"), "{text}");
    assert!(!folder.path("no.st").exists());
}

/// The config of the small nanoGPT that tests build.
fn nano_config() -> Value {
    json!({"arch": "gpt2", "block_size": 4, "vocab_size": 6, "n_layer": 1, "n_head": 2,
           "n_embd": 4, "activation": "gelu", "bias": true})
}

/// Numbers of parameter `i`, exact in bf16 and f16.
fn numbers(i: usize, count: usize) -> Vec<f32> {
    (0..count).map(|k| (i % 8) as f32 + k as f32 / 16.0).map(|x| x % 8.0).collect()
}

/// The parameters of the small nanoGPT in the order of the module, and its tied head.
fn nano(builder: &mut Builder) -> Vec<(String, V)> {
    let table = ModelConfig::from_json(&nano_config()).unwrap().parameters();
    let mut named: Vec<_> = table
        .iter()
        .enumerate()
        .map(|(i, p)| (p.name.clone(), builder.tensor(&p.shape, &numbers(i, p.count()))))
        .collect();
    named.push(("lm_head.weight".into(), named[0].1.clone()));
    named
}

fn nano_args() -> V {
    dict([
        ("n_layer", V::Int(1)),
        ("n_head", V::Int(2)),
        ("n_embd", V::Int(4)),
        ("block_size", V::Int(4)),
        ("bias", V::Bool(true)),
        ("vocab_size", V::None),
        ("dropout", V::Float(0.25)),
    ])
}

#[test]
fn a_nano_gpt_is_read_whatever_its_types_strides_and_prefixes() {
    let folder = Folder::new();
    let mut builder = Builder::default();
    let mut model = nano(&mut builder);
    let place = |name: &str, model: &[(String, V)]| model.iter().position(|m| m.0 == name).unwrap();
    // A matrix that lies transposed, in the middle of a longer storage of bf16.
    let c_fc = place("transformer.h.0.mlp.c_fc.weight", &model);
    let values = numbers(c_fc, 64);
    let mut bytes = vec![0xff; 6];
    for column in 0..4 {
        bytes.extend((0..16).flat_map(|row| half(values[row * 4 + column])));
    }
    bytes.extend([0xff; 8]);
    model[c_fc].1 = builder.on("BFloat16", bytes, 71, 3, &[16, 4], &[1, 16]);
    // A vector with gaps, in f64.
    let bias = place("transformer.ln_f.bias", &model);
    let bytes = numbers(bias, 4).into_iter().flat_map(|x| [f64::from(x), f64::NAN]);
    let bytes: Vec<u8> = bytes.flat_map(f64::to_le_bytes).collect();
    model[bias].1 = builder.on("Double", bytes, 8, 0, &[4], &[2]);
    // nanoGPT's mask, and the prefixes of torch.compile and data parallelism.
    let mask = builder.on("Byte", vec![1; 16], 16, 0, &[1, 1, 4, 4], &[16, 16, 4, 1]);
    model.push(("transformer.h.0.attn.bias".into(), mask));
    for (name, _) in &mut model {
        name.insert_str(0, "_orig_mod.module.");
    }
    let root = dict([
        ("model", V::Dict(model)),
        ("optimizer", V::None),
        ("model_args", nano_args()),
        ("iter_num", V::Int(5)),
        ("best_val_loss", builder.tensor(&[], &[3.5])),
    ]);
    let source = folder.write("ckpt.pt", builder.file(&root));
    let got = imported(&source, &[], &folder.path("out.st"));
    let meta = got.ao_metadata().unwrap().unwrap();
    let mut config = nano_config();
    config["dropout"] = json!(0.25);
    let config = ModelConfig::from_json(&config).unwrap();
    assert_eq!((meta.config, meta.step), (config.to_json(), 5));
    for (i, parameter) in config.parameters().into_iter().enumerate() {
        let want = numbers(i, parameter.count());
        assert_eq!(got.to_f32(&parameter.name).unwrap(), want, "{}", parameter.name);
    }
    let dtype = |name: &str| got.tensor(name).unwrap().dtype;
    assert_eq!(dtype("transformer.h.0.mlp.c_fc.weight"), DType::BF16);
    assert_eq!(dtype("transformer.ln_f.bias"), DType::F64);
    assert_eq!(dtype("transformer.wte.weight"), DType::F32);
}

#[test]
fn names_are_found_behind_the_wrappers_of_trainers() {
    let folder = Folder::new();
    for (front, inside) in [
        ("_forward_module.", "."),
        ("_forward_module._orig_mod.", "."),
        ("module.module.", "."),
        ("network.", "._checkpoint_wrapped_module."),
        ("model.net.", "._orig_mod."),
        ("_fsdp_wrapped_module.", "._fsdp_wrapped_module._checkpoint_wrapped_module."),
    ] {
        let mut builder = Builder::default();
        let mut model = nano(&mut builder);
        for (name, _) in &mut model {
            *name = format!("{front}{}", name.replace("h.0.", &format!("h.0{inside}")));
        }
        model.push(("_extra_state".into(), V::None)); // no tensor, and none that is needed
        let root = dict([("state_dict", V::Dict(model)), ("model_args", nano_args())]);
        let source = folder.write("ckpt.pt", builder.file(&root));
        let got = imported(&source, &[], &folder.path("out.st"));
        let name = "transformer.h.0.attn.c_attn.weight";
        let table = ModelConfig::from_json(&nano_config()).unwrap().parameters();
        let place = table.iter().position(|p| p.name == name).unwrap();
        assert_eq!(got.to_f32(name).unwrap(), numbers(place, 48), "{front} {inside}");
    }
}

#[test]
fn the_dictionary_of_an_averaged_model_is_an_average() {
    let folder = Folder::new();
    let mut builder = Builder::default();
    let mut model = nano(&mut builder);
    model.iter_mut().for_each(|(name, _)| name.insert_str(0, "module."));
    let counter = builder.on("Long", 9i64.to_le_bytes().to_vec(), 1, 0, &[], &[]);
    model.insert(0, ("n_averaged".into(), counter));
    let root = dict([("model", V::Dict(model)), ("model_args", nano_args())]);
    let source = folder.write("ckpt.pt", builder.file(&root));
    let got = imported(&source, &[], &folder.path("out.st"));
    assert_eq!(got.ao_metadata().unwrap().unwrap().kind, Kind::Ema);
    assert_eq!(got.to_f32("transformer.wpe.weight").unwrap(), numbers(1, 16));
    let text = refusal(&[source.to_str().unwrap(), "--weights=raw", "-o", "x.st"]);
    assert!(text.contains("holds an average, no raw weights"), "{text}");
}

/// bf16 of a number that it holds exactly.
fn half(x: f32) -> [u8; 2] {
    let bytes = x.to_le_bytes();
    assert_eq!(bytes[..2], [0, 0]);
    [bytes[2], bytes[3]]
}

#[test]
fn a_bare_state_dict_needs_a_config_and_a_named_average_is_taken_by_name() {
    let folder = Folder::new();
    let mut builder = Builder::default();
    let model = nano(&mut builder);
    let bare = folder.write("bare.pt", builder.file(&V::Dict(model.clone())));
    let out = folder.path("out.st");
    let text = refusal(&[bare.to_str().unwrap(), "-o", out.to_str().unwrap()]);
    assert!(text.contains("number of heads; give --model-config"), "{text}");
    let config = folder.write("config-own.json", nano_config().to_string());
    let with_config = ["--model-config", config.to_str().unwrap()];
    let got = imported(&bare, &with_config, &out);
    assert_eq!(got.to_f32("transformer.wpe.weight").unwrap(), numbers(1, 16));

    let mut shadow = builder.clone();
    let named = model.iter().rev().map(|(name, tensor)| match tensor {
        V::Tensor { shape, .. } => {
            let count = shape.iter().product();
            (name.clone(), shadow.tensor(shape, &vec![7.0; count]))
        }
        _ => unreachable!(),
    });
    let named = V::Dict(named.collect());
    let root = dict([("model", V::Dict(model)), ("ema", named), ("model_args", nano_args())]);
    let both = folder.write("both.pt", shadow.file(&root));
    let got = imported(&both, &["--weights=ema"], &out);
    assert_eq!(got.to_f32("transformer.wpe.weight").unwrap(), [7.0; 16]);
    let got = imported(&both, &["--weights=raw"], &out);
    assert_eq!(got.to_f32("transformer.wpe.weight").unwrap(), numbers(1, 16));
}

/// GPT-2's names whose matrices Hugging Face stores transposed.
fn is_turned(name: &str) -> bool {
    [".c_attn.weight", ".c_proj.weight", ".c_fc.weight"].iter().any(|end| name.ends_with(end))
}

#[test]
fn a_hugging_face_gpt2_comes_in_turned_and_goes_out_the_same() {
    let folder = Folder::new();
    let got = imported(&golden("gpt2-hf"), &[], &folder.path("gpt2.st"));
    let want = CheckpointFile::open(&golden("gpt2-hf/model.safetensors")).unwrap();
    assert_eq!(got.names().count(), want.names().count());
    for name in got.names() {
        let (have, source) = (got.to_f32(name).unwrap(), want.to_f32(name).unwrap());
        let (shape, from) = (got.tensor(name).unwrap().shape, want.tensor(name).unwrap().shape);
        if !is_turned(name) {
            assert_eq!((shape, have), (from, source), "{name}");
            continue;
        }
        let (rows, columns) = (from[0], from[1]);
        assert_eq!(shape, [columns, rows], "{name}");
        for (i, x) in have.iter().enumerate() {
            assert_eq!(*x, source[i % rows * columns + i / rows], "{name} {i}");
        }
    }
    let meta = got.ao_metadata().unwrap().unwrap();
    let want_config = json!({"arch": "gpt2", "block_size": 24, "vocab_size": 80, "n_layer": 2,
        "n_head": 4, "n_embd": 32, "activation": "gelu_tanh", "dropout": 0.0, "bias": true});
    assert_eq!(meta.config, want_config);

    let out = folder.path("hf");
    let (file, out_text) = (folder.path("gpt2.st"), out.to_str().unwrap());
    let export = ["--export=hf", file.to_str().unwrap(), "-o", out_text];
    assert!(import(&export).status.success());
    let again = CheckpointFile::open(&out.join("model.safetensors")).unwrap();
    assert_same_tensors(&again, &want);
    assert_eq!(again.names().count(), want.names().count());
    assert_eq!(again.metadata(), want.metadata());
    let config = |folder: &Path| -> Value {
        serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
    };
    let (ours, theirs) = (config(&out), config(&golden("gpt2-hf")));
    for key in [
        "model_type",
        "architectures",
        "activation_function",
        "n_positions",
        "n_embd",
        "n_head",
        "n_layer",
        "vocab_size",
        "layer_norm_epsilon",
        "tie_word_embeddings",
    ] {
        assert_eq!(ours[key], theirs[key], "{key}");
    }
    assert!(refusal(&export).contains("exists already; give --force"));
    assert!(import(&[&export[..], &["--force"]].concat()).status.success());
    // What was exported is read again.
    let again = imported(&out, &[], &folder.path("again.st"));
    assert_same_tensors(&again, &got);
    fs::write(out.join("notes.txt"), "mine").unwrap();
    let text = refusal(&[&export[..], &["--force"]].concat());
    assert!(text.contains("holds 'notes.txt', which no import wrote"), "{text}");
}

#[test]
fn what_no_class_of_hugging_face_computes_is_not_exported() {
    let folder = Folder::new();
    let source = golden("ao-gpt").join("ckpt.pt");
    let out = folder.path("hf");
    let text = refusal(&["--export=hf", source.to_str().unwrap(), "-o", out.to_str().unwrap()]);
    assert!(text.contains("has a class for gpt2 alone"), "{text}");
    assert!(!out.exists());
}

#[test]
fn a_model_without_biases_is_exported_with_biases_of_zero() {
    let folder = Folder::new();
    let mut config = nano_config();
    config["bias"] = json!(false);
    config["n_layer"] = json!(2);
    let table = ModelConfig::from_json(&config).unwrap().parameters();
    let entries: Vec<_> =
        table.iter().map(|p| (p.name.clone(), DType::F32, p.shape.clone())).collect();
    let path = folder.path("plain.safetensors");
    let mut writer = CheckpointWriter::create(&path, false, &Default::default(), &entries).unwrap();
    for (i, p) in table.iter().enumerate() {
        writer.put_f32(&numbers(i, p.count())).unwrap();
    }
    writer.finish().unwrap();
    let own = folder.write("own.json", config.to_string());
    let (out, path) = (folder.path("hf"), path.to_str().unwrap().to_owned());
    let args = [&path, "--export=hf", "--model-config", own.to_str().unwrap()];
    let result = import(&[&args[..], &["-o", out.to_str().unwrap()]].concat());
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    let got = CheckpointFile::open(&out.join("model.safetensors")).unwrap();
    let biases: Vec<&str> = got.names().filter(|name| name.ends_with(".bias")).collect();
    assert_eq!(biases.len(), 2 * 6 + 1);
    for name in biases {
        assert!(got.to_f32(name).unwrap().iter().all(|&x| x == 0.0), "{name}");
        let weight = name.replace(".bias", ".weight");
        assert_eq!(
            got.tensor(name).unwrap().shape[0],
            *got.tensor(&weight).unwrap().shape.last().unwrap()
        );
    }
}

#[test]
fn shards_bare_names_and_pickled_weights_are_one_and_the_same_gpt2() {
    let folder = Folder::new();
    let want = imported(&golden("gpt2-hf"), &[], &folder.path("want.st"));
    let source = CheckpointFile::open(&golden("gpt2-hf/model.safetensors")).unwrap();
    let config = fs::read(golden("gpt2-hf/config.json")).unwrap();
    let names: Vec<&str> = source.names().collect();

    // Two shards and their index.
    folder.write("sharded/config.json", &config);
    let mut map = serde_json::Map::new();
    for (i, part) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", i + 1);
        let entries: Vec<_> = part
            .iter()
            .map(|&name| (name.to_owned(), DType::F32, source.tensor(name).unwrap().shape))
            .collect();
        let path = folder.path("sharded").join(&file);
        let mut writer =
            CheckpointWriter::create(&path, false, &Default::default(), &entries).unwrap();
        for &name in part {
            writer.put(source.tensor(name).unwrap().bytes).unwrap();
            map.insert(name.into(), file.clone().into());
        }
        writer.finish().unwrap();
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    folder.write("sharded/model.safetensors.index.json", index.to_string());
    assert_same_tensors(&imported(&folder.path("sharded"), &[], &folder.path("a.st")), &want);

    // The hub's own form: no prefix, masks among the weights, a pickle.
    let mut builder = Builder::default();
    let mut model = Vec::new();
    for &name in &names {
        let numbers = source.to_f32(name).unwrap();
        let tensor = builder.tensor(&source.tensor(name).unwrap().shape, &numbers);
        model.push((name.strip_prefix("transformer.").unwrap().to_owned(), tensor));
    }
    for i in 0..2 {
        let mask = builder.tensor(&[1, 1, 24, 24], &[1.0; 576]);
        model.push((format!("h.{i}.attn.bias"), mask));
        model.push((format!("h.{i}.attn.masked_bias"), builder.tensor(&[], &[-1e4])));
    }
    folder.write("pickled/config.json", &config);
    folder.write("pickled/pytorch_model.bin", builder.file(&V::Dict(model)));
    assert_same_tensors(&imported(&folder.path("pickled"), &[], &folder.path("b.st")), &want);

    let out = folder.path("no.st");
    let refused =
        |name: &str| refusal(&[folder.path(name).to_str().unwrap(), "-o", out.to_str().unwrap()]);
    fs::remove_file(folder.path("sharded/model-00002-of-00002.safetensors")).unwrap();
    assert!(refused("sharded").contains("model-00002-of-00002.safetensors: no such file"));
    let index = json!({"weight_map": {"x": "../../etc/passwd"}});
    folder.write("sharded/model.safetensors.index.json", index.to_string());
    assert!(refused("sharded").contains("no file of this folder"));
    // The same matrices under a config of this toolkit would be read as if they were turned.
    let alone =
        folder.write("alone/x.safetensors", fs::read(golden("gpt2-hf/model.safetensors")).unwrap());
    let meta = want.ao_metadata().unwrap().unwrap();
    let own = folder.write("own.json", meta.config.to_string());
    let args = [alone.to_str().unwrap(), "--model-config", own.to_str().unwrap()];
    let text = refusal(&[&args[..], &["-o", out.to_str().unwrap()]].concat());
    assert!(
        text.contains("has shape [32, 96], its config needs [96, 32]; a file in Hugging"),
        "{text}"
    );
    fs::remove_file(folder.path("pickled/pytorch_model.bin")).unwrap();
    assert!(refused("pickled").contains("has no weights: none of model.safetensors"));
}

#[test]
fn a_safetensors_header_that_begins_like_a_pickle_is_told_apart() {
    let folder = Folder::new();
    let source = CheckpointFile::open(&golden("gpt2-hf/model.safetensors")).unwrap();
    let entries: Vec<_> = source
        .names()
        .map(|name| (name.to_owned(), DType::F32, source.tensor(name).unwrap().shape))
        .collect();
    folder.write("a/config.json", fs::read(golden("gpt2-hf/config.json")).unwrap());
    let path = folder.path("a/model.safetensors");
    for length in 0..256 {
        let metadata = [("note".to_owned(), "x".repeat(length))].into();
        let mut writer = CheckpointWriter::create(&path, true, &metadata, &entries).unwrap();
        source.names().for_each(|name| writer.put(source.tensor(name).unwrap().bytes).unwrap());
        writer.finish().unwrap();
        if fs::read(&path).unwrap()[0] == 0x80 {
            let got = imported(&folder.path("a"), &[], &folder.path("out.st"));
            assert_eq!(got.names().count(), 28);
            return;
        }
    }
    panic!("no header of such a length");
}

/// The published form of a golden encoder's config.
fn published(family: &str) -> Value {
    let model = json!({"name": "tiny", "hidden_size": 32, "cond_dim": 16, "length": 16,
                       "n_blocks": 2, "n_heads": 4, "dropout": 0.1});
    let mut sedd = json!({"ngpus": 8, "tokens": 60, "model": model,
                          "noise": {"type": "loglinear", "sigma_min": 1e-4, "sigma_max": 20}});
    match family {
        "mdlm" => json!({"model_type": "mdlm", "architectures": ["MDLM"], "vocab_size": 62,
            "model_length": 16, "hidden_dim": 32, "cond_dim": 16, "n_blocks": 2, "n_heads": 4,
            "dropout": 0.1, "time_conditioning": false, "return_dict": false}),
        "radd" => {
            sedd["model"]["type"] = json!("ddit_wot");
            sedd
        }
        _ => {
            sedd["model"]["type"] = json!("ddit");
            sedd["model"]["scale_by_sigma"] = json!(true);
            sedd["graph"] = json!({"type": "absorb"});
            sedd
        }
    }
}

#[test]
fn sedd_radd_and_mdlm_are_read_in_their_published_words() {
    let folder = Folder::new();
    for family in ["sedd", "radd", "mdlm"] {
        let source = CheckpointFile::open(&golden(family).join("model.safetensors")).unwrap();
        // MDLM's class wraps its network.
        let prefix = if family == "mdlm" { "backbone." } else { "" };
        let entries: Vec<_> = source
            .names()
            .map(|name| {
                let view = source.tensor(name).unwrap();
                (format!("{prefix}{name}"), view.dtype, view.shape)
            })
            .collect();
        fs::create_dir(folder.path(family)).unwrap();
        let path = folder.path(family).join("model.safetensors");
        let mut writer =
            CheckpointWriter::create(&path, false, &Default::default(), &entries).unwrap();
        source.names().for_each(|name| writer.put(source.tensor(name).unwrap().bytes).unwrap());
        writer.finish().unwrap();
        folder.write(&format!("{family}/config.json"), published(family).to_string());

        let got = imported(&folder.path(family), &[], &folder.path("out.st"));
        assert_same_tensors(&got, &source);
        assert_eq!(got.names().count() + 1, source.names().count(), "all but inv_freq");
        let golden: Value =
            serde_json::from_slice(&fs::read(golden(family).join("config.json")).unwrap()).unwrap();
        let config = got.ao_metadata().unwrap().unwrap().config;
        for (key, value) in config.as_object().unwrap() {
            let want = match key.as_str() {
                "dropout" => &json!(0.1),
                "noise_eps" => &json!(1e-3),
                _ => &golden[key],
            };
            assert_eq!(value, want, "{family} {key}");
        }
    }
    let mut uniform = published("sedd");
    uniform["graph"]["type"] = json!("uniform");
    folder.write("sedd/config.json", uniform.to_string());
    let out = folder.path("no.st");
    let text = refusal(&[folder.path("sedd").to_str().unwrap(), "-o", out.to_str().unwrap()]);
    assert!(text.contains("graph: 'type' is \"uniform\"; only \"absorb\" is read"), "{text}");
}

#[test]
fn names_are_looked_for_in_the_hubs_cache() {
    let folder = Folder::new();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let model = folder.path("hub/models--openai-community--gpt2-tiny");
    fs::create_dir_all(model.join("snapshots").join(commit)).unwrap();
    fs::create_dir_all(model.join("refs")).unwrap();
    fs::write(model.join("refs/main"), commit).unwrap();
    for file in ["config.json", "model.safetensors"] {
        let to = model.join("snapshots").join(commit).join(file);
        std::os::unix::fs::symlink(golden("gpt2-hf").join(file), to).unwrap();
    }
    let run = |source: &str, home: &Path| {
        let out = folder.path("out.st");
        let _ = fs::remove_file(&out);
        Command::new(env!("CARGO_BIN_EXE_ao-import"))
            .args([source, "-o", out.to_str().unwrap()])
            .env_remove("HF_HUB_CACHE")
            .env_remove("HUGGINGFACE_HUB_CACHE")
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", home)
            .current_dir(folder.0.path())
            .output()
            .unwrap()
    };
    let at_revision = format!("hf:openai-community/gpt2-tiny@{commit}");
    let file = "hf:openai-community/gpt2-tiny/model.safetensors";
    for name in ["gpt2-tiny", "hf:openai-community/gpt2-tiny", &at_revision, file] {
        let out = run(name, folder.0.path());
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        let got = CheckpointFile::open(&folder.path("out.st")).unwrap();
        assert_eq!(got.names().count(), 28);
    }
    let said = |name: &str, home: &Path| {
        let out = run(name, home);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        text
    };
    let text = said("gpt2-tiny", &folder.path("elsewhere"));
    for part in ["no folder 'gpt2-tiny'", "models--openai-community--gpt2-tiny", "elsewhere/hub"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(said("hf:a/b@other", folder.0.path()).contains("models--a--b in"));
    assert!(said("hf:../b", folder.0.path()).contains("is no repository"));
    assert!(said("gone.pt", folder.0.path()).contains("gone.pt: no such file"));
    // A local folder of that name comes first.
    fs::create_dir(folder.path("gpt2-tiny")).unwrap();
    assert!(said("gpt2-tiny", folder.0.path()).contains("gpt2-tiny: has no weights"));
    // A snapshot that was only begun.
    fs::remove_file(model.join("snapshots").join(commit).join("model.safetensors")).unwrap();
    assert!(said("hf:openai-community/gpt2-tiny", folder.0.path()).contains("has no weights"));
}

#[test]
fn a_folder_takes_the_weights_and_the_tokenizer() {
    let folder = Folder::new();
    let mut builder = Builder::default();
    let config = json!({"arch": "gpt2", "block_size": 2, "vocab_size": 50304, "n_layer": 1,
                        "n_head": 1, "n_embd": 1, "activation": "gelu", "bias": false});
    let table = ModelConfig::from_json(&config).unwrap().parameters();
    let model =
        table.iter().map(|p| (p.name.clone(), builder.tensor(&p.shape, &vec![0.5; p.count()])));
    let root =
        dict([("model", V::Dict(model.collect())), ("model_args", dict([("n_head", V::Int(1))]))]);
    let source = folder.write("ckpt.pt", builder.file(&root));
    let got = imported(&source, &[], &folder.path("file.st"));
    let meta = got.ao_metadata().unwrap().unwrap();
    assert_eq!((meta.n_vocab_used, meta.tokenizer), (Some(50257), None));

    let target = folder.path("model");
    fs::create_dir(&target).unwrap();
    let got = imported(&source, &["--tokenizer=gpt2"], &target);
    let meta = got.ao_metadata().unwrap().unwrap();
    assert_eq!(meta.n_vocab_used, Some(50257));
    let hash = meta.tokenizer.expect("a hash");
    let tokenizer = ao_core::tokens::Tokenizer::load(target.to_str().unwrap()).unwrap();
    assert_eq!((tokenizer.hash(), tokenizer.eos_id()), (hash.clone(), Some(50256)));

    // A tokenizer beside the source goes along; a folder that was imported is a source too.
    let again = folder.path("again/");
    let got = imported(&target, &[], &again);
    assert_eq!(got.ao_metadata().unwrap().unwrap().tokenizer, Some(hash));
    assert!(again.join("tokenizer.json").is_file());
    let exported = folder.path("hf");
    let args = ["--export=hf", again.to_str().unwrap(), "-o", exported.to_str().unwrap()];
    assert!(import(&args).status.success());
    let config: Value =
        serde_json::from_slice(&fs::read(exported.join("config.json")).unwrap()).unwrap();
    assert_eq!((&config["eos_token_id"], &config["vocab_size"]), (&json!(50256), &json!(50304)));
    assert!(exported.join("tokenizer.json").is_file());

    let small = golden("gpt2-hf");
    let args = [small.to_str().unwrap(), "--tokenizer=gpt2", "-o", "no.st"];
    assert!(refusal(&args).contains("has 50257 ids, the model's vocabulary 80"));
}

#[test]
fn wrong_calls_are_one_line_and_exit_2() {
    let folder = Folder::new();
    let source = golden("gpt2-hf");
    let source = source.to_str().unwrap();
    assert!(refusal(&[source]).contains("not provided: --output <FILE>"));
    assert!(refusal(&[source, "-o", "-"]).contains("-o -: a checkpoint is no stream"));
    assert!(refusal(&[source, "--weights=best", "-o", "x.st"]).contains("allowed are raw and ema"));
    assert!(refusal(&["-o", "x.st"]).contains("SOURCE"));
    let text = refusal(&[source, "--weights=ema", "-o", "x.st"]);
    assert!(text.contains("has no EMA weights"), "{text}");
    let there = folder.write("there.st", "mine");
    let text = refusal(&[source, "-o", there.to_str().unwrap()]);
    assert!(text.contains("exists already; give --force"), "{text}");
    assert_eq!(fs::read(&there).unwrap(), b"mine");
    let text = refusal(&[source, "--export=hf", "-o", there.to_str().unwrap()]);
    assert!(text.contains("is a file; name a folder"), "{text}");
    let other = folder.write("bert/config.json", r#"{"model_type": "bert"}"#);
    folder.write("bert/model.safetensors", fs::read(golden("gpt2-hf/model.safetensors")).unwrap());
    let other = other.parent().unwrap().to_str().unwrap();
    assert!(refusal(&[other, "-o", "x.st"]).contains("model_type 'bert' is not read"));
}
