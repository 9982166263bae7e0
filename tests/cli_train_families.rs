//! `ao-train` with every family and objective, through the real binary: each learns, says what its
//! figures are, goes on to the same bits, and refuses what it cannot be trained with.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::CheckpointFile;
use ao_core::process::masking::Place;
use ao_core::process::{Masking, Objective};
use ao_core::report::{HeldOut, unigram_baseline};
use ao_core::rng::{Domain, Stream};
use ao_core::tokens::{Dataset, OpenOptions};
use ao_torch::device::Runtime;
use ao_torch::network::{Weights, ddit, forward_masked};
use ao_torch::tch::{Device, Kind, Tensor, no_grad};
use common::train::{checkpoint_bytes, curve, refuse, run, shards, steps, succeed, text, tool};
use serde_json::{Value, json};

const T: usize = 16;
const V: usize = 32;

/// A tiny model of a family.
fn model(arch: &str) -> Value {
    let mut config = json!({"arch": arch, "block_size": T, "vocab_size": V, "n_layer": 2,
                            "n_head": 2, "n_embd": 32});
    match arch {
        "gpt2" => config["activation"] = json!("gelu"),
        "ao-gpt" | "mdlm" | "sedd" => config["cond_dim"] = json!(16),
        _ => {}
    }
    config
}

fn with(mut config: Value, key: &str, value: Value) -> Value {
    config[key] = value;
    config
}

/// Texts that are one of four, each token of which is another in one of ten cases.
fn texts(seed: u64, count: usize) -> Vec<Vec<u32>> {
    let mut stream = Stream::new(1, Domain::Sample, 0);
    let phrases: Vec<Vec<u32>> =
        (0..4).map(|_| (0..T).map(|_| stream.below(V as u32)).collect()).collect();
    let mut stream = Stream::new(seed, Domain::Sample, 1);
    (0..count)
        .map(|_| {
            let phrase = &phrases[stream.below(4) as usize];
            let noisy = |&token: &u32| match stream.uniform() < 0.1 {
                true => stream.below(V as u32),
                false => token,
            };
            phrase.iter().map(noisy).collect()
        })
        .collect()
}

/// A folder with training and validation shards of such texts.
struct Corpus {
    _guard: tempfile::TempDir,
    dir: PathBuf,
    train: PathBuf,
    val: PathBuf,
}

fn corpus() -> Corpus {
    let guard = tempfile::tempdir().unwrap();
    let dir = guard.path().to_owned();
    let part = |name: &str, seed: u64, count: usize| {
        let folder = dir.join(name);
        std::fs::create_dir(&folder).unwrap();
        let texts = texts(seed, count);
        let rows: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        shards(&folder, &rows, V)
    };
    let (train, val) = (part("train", 2, 1000), part("val", 3, 128));
    Corpus { dir, train, val, _guard: guard }
}

impl Corpus {
    /// Writes a config and gives the call that trains it.
    fn call(&self, name: &str, config: &Value, flags: &[&str]) -> (PathBuf, Vec<String>) {
        let file = self.dir.join(format!("{name}.json"));
        std::fs::write(&file, config.to_string()).unwrap();
        let out = self.dir.join(name);
        let own = [
            "--model",
            text(&file),
            "--shards",
            text(&self.train),
            "--out",
            text(&out),
            "--ema",
            "none",
            "--eval-every",
            "0",
            "--device",
            "cpu",
            "--threads",
            "1",
            "--quiet",
        ];
        let call = own.iter().chain(flags).map(|s| s.to_string()).collect();
        (out, call)
    }
}

fn words(call: &[String]) -> Vec<&str> {
    call.iter().map(String::as_str).collect()
}

fn records(run: &Path, kind: &str) -> Vec<Value> {
    std::fs::read_to_string(run.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|record| record["type"] == kind)
        .collect()
}

/// The unigram baseline of shards, nats a token.
fn unigram(train: &Path, val: &Path) -> f64 {
    let open = |path| Arc::new(Dataset::open(path, &OpenOptions::default()).unwrap());
    let all = HeldOut { block_size: 1, blocks: None, given: 0, bytes: None };
    unigram_baseline(&open(train), &open(val), &all).unwrap().nll_nats_per_token
}

/// The stories of `testdata/toy` in 384 ids, a tenth of them held out.
fn stories() -> Corpus {
    let guard = tempfile::tempdir().unwrap();
    let (dir, root) = (guard.path().to_owned(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let (out, stories) = (dir.join("shards"), root.join("testdata/toy/stories.txt"));
    let flags = ["--train-tokenizer", "384", "--split", "val=0.1", "--quiet", "-o"];
    let call: Vec<&str> = flags.into_iter().chain([text(&out), text(&stories)]).collect();
    succeed(&tool("ao-tokenize"), &call);
    Corpus { _guard: guard, dir, train: out.join("train"), val: out.join("val") }
}

/// A model that learns something of the stories, eight tokens at a time, in some seconds.
fn small(arch: &str) -> Value {
    let sizes = [("block_size", 8), ("vocab_size", 384), ("n_layer", 1), ("n_head", 4)];
    let config = sizes.into_iter().fold(model(arch), |c, (key, n)| with(c, key, json!(n)));
    with(config, "n_embd", json!(64))
}

/// Trains it; the validation must end at least `margin` nats a token below the unigram baseline.
fn learns(corpus: &Corpus, name: &str, config: Value, flags: &str, margin: f64) {
    let val = text(&corpus.val);
    let usual = "--batch-size 32 --min-lr 5e-4 --warmup 20 --val-sequences 128 --val-shards";
    let flags: Vec<&str> = usual.split(' ').chain([val]).chain(flags.split(' ')).collect();
    let (out, call) = corpus.call(name, &config, &flags);
    succeed(&tool("ao-train"), &words(&call));
    let eval = records(&out, "eval").pop().unwrap();
    let (nll, baseline) =
        (eval["nll_nats_per_token"].as_f64().unwrap(), unigram(&corpus.train, &corpus.val));
    assert!(nll < baseline - margin, "{name}: {nll} nats a token, unigram {baseline}");
    assert!(eval["std_error"].as_f64().unwrap() < margin / 3.0, "{eval}");
}

#[test]
fn every_any_order_decoder_learns_any_order_beyond_the_unigram_baseline() {
    let corpus = stories();
    // From left to right to any order over the first half, which so short a training needs.
    let flags = "--steps 600 --lr 5e-3 --orders ramp:0..9600:l2r->uniform";
    for encoding in ["adaln", "input", "every-block", "per-block"] {
        let config = with(small("ao-gpt"), "position_encoding", json!(encoding));
        learns(&corpus, encoding, config, flags, 0.6);
    }
    for arch in ["sigma-gpt", "sigma-official"] {
        learns(&corpus, arch, small(arch), flags, 0.6);
    }
}

#[test]
fn decoders_learn_from_left_to_right_beyond_the_unigram_baseline() {
    let corpus = stories();
    learns(&corpus, "gelu", small("gpt2"), "--steps 200 --lr 5e-3", 1.5);
    let config = with(small("gpt2"), "activation", json!("gelu_tanh"));
    learns(&corpus, "gelu_tanh", config, "--steps 200 --lr 5e-3", 1.5);
    learns(&corpus, "l2r", small("ao-gpt"), "--objective l2r --steps 200 --lr 5e-3", 1.0);
}

#[test]
fn every_encoder_learns_beyond_the_unigram_baseline() {
    let corpus = stories();
    for arch in ["radd", "mdlm", "sedd"] {
        learns(&corpus, arch, small(arch), "--steps 1000 --lr 2e-3", 0.5);
    }
    // A mask inside the vocabulary, as BERT's tokenizer has it.
    let config = with(with(small("radd"), "vocab_size", json!(385)), "mask_id", json!(384));
    learns(&corpus, "inside", config, "--steps 1000 --lr 2e-3 --objective k-dce", 0.5);
}

#[test]
fn records_say_what_was_minimised_and_what_the_figures_are() {
    let corpus = corpus();
    let val = text(&corpus.val);
    let cases: [(&str, &[&str], &str, &str, &str); 9] = [
        ("ao-gpt", &[], "ao", "bound", "bound"),
        ("ao-gpt", &["--orders", "fixed:3"], "ao", "exact", "exact"),
        ("sigma-gpt", &["--objective", "l2r"], "l2r", "exact", "exact"),
        ("gpt2", &[], "l2r", "exact", "exact"),
        ("radd", &[], "lambda-dce", "bound", "bound"),
        ("radd", &["--objective", "k-dce"], "k-dce", "bound", "bound"),
        ("mdlm", &[], "t-dce", "surrogate", "bound"),
        ("mdlm", &["--objective", "lambda-dce"], "lambda-dce", "bound", "bound"),
        ("sedd", &[], "score-entropy", "surrogate", "bound"),
    ];
    for (i, (arch, flags, objective, estimate, of_eval)) in cases.into_iter().enumerate() {
        let usual = ["--steps", "2", "--val-shards", val, "--val-sequences", "9"];
        let flags: Vec<&str> = usual.iter().chain(flags).copied().collect();
        let (out, call) = corpus.call(&format!("{arch}-{i}"), &model(arch), &flags);
        succeed(&tool("ao-train"), &words(&call));
        let (run, step, eval) =
            (&records(&out, "run")[0], &records(&out, "step")[1], &records(&out, "eval")[0]);
        for (record, estimate) in [(run, estimate), (step, estimate), (eval, of_eval)] {
            assert_eq!(record["objective"], objective, "{record}");
            assert_eq!(record["estimate"], estimate, "{record}");
        }
        let encoder = ["radd", "mdlm", "sedd"].contains(&arch);
        assert_eq!(run["orders"].is_null(), encoder, "{run}");
        assert_eq!(eval["orders"].is_null(), encoder, "{eval}");
        let masks = eval["masks"].as_str().unwrap_or_default();
        let named = if arch == "sedd" { "score-entropy" } else { "k-dce" };
        let expected = if encoder { format!("{named}, 4 a sequence") } else { String::new() };
        assert_eq!(masks, expected, "{eval}");
        let ends = ["time_floor", "noise_eps"].map(|key| eval[key].as_f64());
        let told = if arch == "sedd" { Some(1e-3) } else { encoder.then_some(0.0) };
        assert_eq!(ends, [told; 2], "{eval}");
    }
}

#[test]
fn what_training_validates_is_what_ao_score_says_of_the_checkpoint() {
    let corpus = corpus();
    let val = text(&corpus.val);
    for arch in ["ao-gpt", "sigma-official", "gpt2", "radd", "mdlm", "sedd"] {
        let flags = "--steps 20 --lr 1e-2 --warmup 2 --val-sequences 128 --val-shards";
        let flags: Vec<&str> = flags.split(' ').chain([val]).collect();
        let (out, call) = corpus.call(arch, &model(arch), &flags);
        succeed(&tool("ao-train"), &words(&call));
        let scores = corpus.dir.join(format!("{arch}.jsonl"));
        let way: &[&str] = match arch {
            "radd" | "mdlm" | "sedd" => &["--mc", "4", "--elbo"],
            "gpt2" => &["--orders", "l2r"],
            _ => &["--orders", "mix:0.1*l2r+0.9*uniform"],
        };
        let mut score = vec!["--ckpt", text(&out), "--shards", val, "-o", text(&scores)];
        score.extend(["--threads", "1", "--seed", "0", "--quiet"].iter().chain(way));
        succeed(&tool("ao-score"), &score);
        let said = std::fs::read_to_string(&scores).unwrap();
        let summary: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        let eval = records(&out, "eval").pop().unwrap();
        for key in ["estimate", "sequences", "token_count"] {
            assert_eq!(summary[key], eval[key], "{arch}, {key}");
        }
        let of = |record: &Value, key: &str| record[key].as_f64().unwrap();
        for key in ["nll_nats_per_token", "std_error"] {
            let difference = of(&summary, key) - of(&eval, key);
            assert!(difference.abs() < 1e-5, "{arch}, {key}: {eval} and {summary}");
        }
    }
}

#[test]
fn validation_goes_along_several_orders_and_as_many_of_each_as_it_is_told() {
    let corpus = corpus();
    let val = text(&corpus.val);
    let flags = "--steps 3 --val-sequences 20 --val-orders uniform l2r --val-mc 3 --val-shards";
    let flags: Vec<&str> = flags.split(' ').chain([val]).collect();
    let (out, call) = corpus.call("ao-gpt", &model("ao-gpt"), &flags);
    succeed(&tool("ao-train"), &words(&call));
    let evals = records(&out, "eval");
    let named: Vec<&str> = evals.iter().map(|e| e["orders"].as_str().unwrap()).collect();
    assert_eq!(named, ["uniform", "l2r"]);
    for eval in evals {
        let scores = corpus.dir.join("scores.jsonl");
        let orders = eval["orders"].as_str().unwrap();
        let mut score = vec!["--ckpt", text(&out), "--shards", val, "-o", text(&scores)];
        score.extend(["--orders", orders, "--max-sequences", "20", "--force"]);
        // All rows of l2r are one order, which is taken once.
        score.extend(["--mc", "3"].iter().filter(|_| orders != "l2r"));
        succeed(&tool("ao-score"), &score);
        let said = std::fs::read_to_string(&scores).unwrap();
        let summary: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert_eq!(summary["estimate"], eval["estimate"]);
        for key in ["nll_nats_per_token", "std_error"] {
            let [ours, theirs] = [&eval, &summary].map(|record| record[key].as_f64().unwrap());
            assert!((ours - theirs).abs() < 1e-5, "{key}: {eval} and {summary}");
        }
    }
    let flags = ["--val-orders", "-", "--val-shards", val];
    let (_, call) = corpus.call("piped", &model("ao-gpt"), &flags);
    refuse(&words(&call), "--val-orders -: a pipe");
}

#[test]
fn an_encoder_goes_on_to_the_same_bits_and_masks_alike_however_a_step_is_cut() {
    let corpus = corpus();
    for arch in ["radd", "mdlm", "sedd"] {
        let flags = "--warmup 2 --lr 1e-2 --seed 7 --decay-steps 6 --save-every 100 --steps 6";
        let call = |name: &str, dropout: f64, more: &str| {
            let config = with(model(arch), "dropout", json!(dropout));
            let flags: Vec<&str> = flags.split(' ').chain(more.split(' ')).collect();
            let (out, call) = corpus.call(&format!("{arch}-{name}"), &config, &flags);
            succeed(&tool("ao-train"), &words(&call));
            out
        };
        let whole = call("whole", 0.1, "--batch-size 4 --accumulate 2");
        let parts = call("parts", 0.1, "--batch-size 4 --accumulate 2 --max-tokens 300");
        assert!(steps(&parts).len() < 5, "{arch}: it was not stopped");
        succeed(&tool("ao-train"), &["--resume", text(&parts), "--max-tokens", "1M"]);
        assert_eq!(curve(&whole), curve(&parts), "{arch}");
        assert_eq!(checkpoint_bytes(&whole), checkpoint_bytes(&parts), "{arch}");
        // Without dropout, whose masks follow the micro-batches, only rounding is left of a cut.
        let [one, two] = [("one", "--batch-size 8"), ("two", "--batch-size 2 --accumulate 4")]
            .map(|(name, cut)| curve(&call(name, 0.0, cut)));
        for (a, b) in one.iter().zip(&two) {
            let (a, b) = (a["loss_nats"].as_f64().unwrap(), b["loss_nats"].as_f64().unwrap());
            assert!((a / b - 1.0).abs() < 1e-3, "{arch}: {a} and {b}");
        }
    }
}

#[test]
fn what_a_family_is_not_trained_with_is_refused_and_what_it_takes_is_listed() {
    let corpus = corpus();
    let cases: [(&str, &[&str], &str); 9] = [
        ("gpt2", &["--objective", "ao"], "--objective ao: arch gpt2 takes l2r"),
        ("gpt2", &["--orders", "uniform"], "--orders uniform: gpt2 reads from left to right"),
        ("ao-gpt", &["--objective", "t-dce"], "arch ao-gpt takes ao, l2r"),
        ("ao-gpt", &["--objective", "l2r", "--orders", "uniform"], "--objective l2r"),
        ("radd", &["--objective", "score-entropy"], "takes lambda-dce, t-dce, k-dce"),
        ("mdlm", &["--objective", "ao"], "takes t-dce, lambda-dce, k-dce"),
        ("sedd", &["--objective", "k-dce"], "arch sedd takes score-entropy"),
        ("radd", &["--orders", "uniform"], "radd is trained on masks and has no orders"),
        ("radd", &["--objective", "dce"], "dce"),
    ];
    for (i, (arch, flags, words_of_refusal)) in cases.into_iter().enumerate() {
        let (out, call) = corpus.call(&format!("{arch}-{i}"), &model(arch), flags);
        refuse(&words(&call), words_of_refusal);
        assert!(!out.exists(), "{arch} {flags:?} left a run folder");
    }
    // The mask's own id in a text.
    let held = texts(2, 1)[0][0];
    let config = with(model("radd"), "mask_id", json!(held));
    let (out, call) = corpus.call("holds", &config, &[]);
    refuse(&words(&call), &format!("token 0 is id {held}, which is the model's mask_id"));
    assert!(!out.exists());
}

#[test]
fn every_recipe_is_taken_with_its_preset() {
    let corpus = corpus();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let presets = [
        ("ao-gpt-124m", "ao-gpt-124m", "ao", 524_288),
        ("ao-gpt-350m", "ao-gpt-350m", "ao", 524_288),
        ("sigma-gpt-124m", "sigma-gpt-124m", "ao", 524_288),
        ("sigma-official-124m", "sigma-official-124m", "ao", 491_520),
        ("gpt2-124m", "gpt2-124m", "l2r", 491_520),
        ("radd", "radd-small", "lambda-dce", 524_288),
        ("mdlm", "mdlm-small", "t-dce", 524_288),
        ("sedd", "sedd-small", "score-entropy", 524_288),
    ];
    let files = std::fs::read_dir(configs.join("recipes")).unwrap().count();
    assert_eq!(files, presets.len(), "a recipe that this test does not know");
    for (recipe, model, objective, tokens_per_step) in presets {
        let recipe = configs.join(format!("recipes/{recipe}.json"));
        let model = configs.join(format!("{model}.json"));
        let call = ["--config", text(&recipe), "--model", text(&model), "--shards"];
        let rest = [text(&corpus.train), "--dry-run", "--peak-tflops", "1", "--quiet"];
        let out = run(&tool("ao-train"), &[&call[..], &rest[..]].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let plan: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(plan["objective"], objective, "{plan}");
        assert_eq!(plan["tokens_per_step"], tokens_per_step, "{plan}");
    }
}

#[test]
fn a_loss_a_sequence_has_t_times_the_gradient_and_is_clipped_so() {
    // As SEDD and RADD clip: at 1 the norm of the gradient of the loss summed over a text.
    let corpus = corpus();
    for arch in ["radd", "sedd"] {
        let run = |name: &str, flags: &str| {
            let flags: Vec<&str> = "--steps 2 --batch-size 4 --warmup 0 --lr 1e-3"
                .split(' ')
                .chain(flags.split(' '))
                .collect();
            let name = format!("{arch}-{name}");
            let (out, call) = corpus.call(&name, &model(arch), &flags);
            succeed(&tool("ao-train"), &words(&call));
            let steps = records(&out, "step");
            let norms: Vec<f64> = steps.iter().map(|s| s["grad_norm"].as_f64().unwrap()).collect();
            let loss = steps[1]["loss_nats"].as_f64().unwrap();
            (norms, loss)
        };
        let (token, free) = run("token", "--loss-per token --grad-clip 0");
        let (sequence, _) = run("sequence", "--loss-per sequence --grad-clip 0");
        let ratio = sequence[0] / token[0];
        assert!((ratio / T as f64 - 1.0).abs() < 1e-4, "{arch}: {ratio}");
        // A clip of 1 on the sum is a clip of 1/T on the mean, which AdamW's ε tells from no clip.
        let (_, summed) = run("summed", "--loss-per sequence --grad-clip 0.001 --eps 1e-3");
        let mean = format!("--loss-per token --grad-clip {} --eps 1e-3", 0.001 / T as f64);
        let (_, mean) = run("mean", &mean);
        let epsilon =
            format!("--loss-per token --grad-clip {} --eps {}", 0.001 / T as f64, 1e-3 / T as f64);
        let (_, alike) = run("alike", &epsilon);
        assert!((summed - alike).abs() < 1e-5, "{arch}: {summed} {alike}");
        assert!(
            (summed - mean).abs() > 1e-5 && (summed - free).abs() > 1e-5,
            "{arch}: {summed} {mean} {free}"
        );
    }
}

/// RADD's λ-DCE by its formula, the gradients by autograd, clipped at 1 summed over each text as in
/// its published code, and AdamW's formula: losses and gradient norms of `steps` steps, and weights.
fn plain_steps(seed: u64, steps: u64, batch: u64, lr: f64) -> (Vec<[f64; 2]>, Weights) {
    let config = ModelConfig::from_json(&model("radd")).unwrap();
    let masks = config.capabilities().masks.unwrap();
    let masking = Masking::of(Objective::LambdaDce, &masks).unwrap();
    let real: Vec<i64> = (0..V as i64).filter(|&y| y != masks.id as i64).collect();
    let runtime = Runtime { device: Device::Cpu, compute: Kind::Double, threads: 1 };
    let texts = texts(2, 1000);
    let weights = Weights::init(&config, seed, Device::Cpu).to_kind(Kind::Double);
    let mut at = weights.flat().copy();
    let (mut first, mut second) = (at.zeros_like(), at.zeros_like());
    let mut records = Vec::new();
    for step in 0..steps {
        let own = weights.like(false);
        own.flat().shallow_clone().copy_(&at);
        let gradients = own.require_gradients(&[]);
        let network = ddit(&config, &own, &runtime);
        let mut loss = Tensor::zeros([], (Kind::Double, Device::Cpu));
        for index in step * batch..(step + 1) * batch {
            let text = &texts[index as usize];
            let place = Place { seed, index, first: step * batch, count: batch };
            let draw = masking.training_draw(place, T);
            let mut ids: Vec<i64> = text.iter().map(|&x| i64::from(x)).collect();
            draw.masked.iter().for_each(|&p| ids[p as usize] = masks.id as i64);
            let ids = Tensor::from_slice(&ids).unsqueeze(0);
            let hidden = forward_masked(network.as_ref(), ids, &[T], &[0.0], 0.0).squeeze_dim(0);
            let logits = hidden.matmul(&own.get("output_layer.linear.weight").tr())
                + own.get("output_layer.linear.bias");
            for &p in &draw.masked {
                let row = logits.get(i64::from(p)).index_select(0, &Tensor::from_slice(&real));
                let target = real.iter().position(|&y| y == i64::from(text[p as usize])).unwrap();
                loss -= row.log_softmax(-1, Kind::Double).get(target as i64) / draw.time;
            }
        }
        let loss = loss / batch as f64;
        loss.backward();
        network.base().add_token_gradients(&gradients);
        let norm = gradients.flat().norm().double_value(&[]);
        records.push([loss.double_value(&[]) / T as f64, norm]);
        no_grad(|| {
            let g = gradients.flat() * (1.0 / (norm + 1e-6)).min(1.0);
            first = &first * 0.9 + &g * 0.1;
            second = &second * 0.999 + &g * &g * 0.001;
            let n = step as i32 + 1;
            let corrected = (&second / (1.0 - 0.999f64.powi(n))).sqrt() + 1e-8;
            at = &at - &first / corrected * (lr / (1.0 - 0.9f64.powi(n)));
        });
    }
    weights.flat().shallow_clone().copy_(&at);
    (records, weights)
}

#[test]
fn radd_is_trained_as_plain_steps_with_the_same_masks_train_it() {
    let corpus = corpus();
    let flags = "--objective lambda-dce --loss-per sequence --grad-clip 1 --steps 6 --batch-size 4 \
                 --accumulate 2 --lr 3e-3 --min-lr 3e-3 --warmup 0 --weight-decay 0 --beta1 0.9 \
                 --beta2 0.999 --eps 1e-8 --seed 5 --no-shuffle";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let (out, call) = corpus.call("plain", &model("radd"), &flags);
    succeed(&tool("ao-train"), &words(&call));
    let (plain, weights) = plain_steps(5, 6, 8, 3e-3);
    let steps = records(&out, "step");
    assert_eq!(steps.len(), plain.len());
    assert!(plain.iter().all(|[_, norm]| *norm > 1.0), "every step is clipped: {plain:?}");
    for (step, [loss, norm]) in steps.iter().zip(&plain) {
        for (key, plain) in [("loss_nats", loss), ("grad_norm", norm)] {
            let ours = step[key].as_f64().unwrap();
            assert!((ours / plain - 1.0).abs() < 1e-4, "{key}: {ours}, plainly {plain}");
        }
    }
    let path = out.join("checkpoints/step-00000006/model.st");
    let file = CheckpointFile::open(&path).unwrap();
    let config = ModelConfig::from_json(&model("radd")).unwrap();
    let ours = Weights::read(&config, &file, &path).unwrap().to_kind(Kind::Double);
    let difference = (ours.flat() - weights.flat()).abs().max().double_value(&[]);
    assert!(difference < 1e-4, "weights differ by {difference}");
}
