//! Families that exist for this test alone, each in one place and one registration: a table of
//! bigrams along orders, a table of what is visible by masks, and a sequence that grows. The real
//! drivers train, score, sample and time them, and their distributions are known in closed form: so
//! this is also the sharpest test of the drivers.

mod common;

use std::path::Path;
use std::sync::Once;

use ao_core::family::{
    Architecture, Capabilities, Config, Init, ModelConfig, Parameter, Published, Sizes, Table,
    TokenCost, check_sizes,
};
use ao_core::format::checkpoint::CheckpointFile;
use ao_core::orders::OrderSource;
use ao_core::process::{LogLinear, Masks, Objective, Orders};
use ao_core::{Error, Result};
use ao_torch::decode::{Request, Sample, SampleSettings, Tally, Template};
use ao_torch::device::Runtime;
use ao_torch::family::by_mask::ByMask;
use ao_torch::family::by_order::ByOrder;
use ao_torch::family::{
    self, Family, Model, Sampler, ScoreSettings, Scorer, Training, TrainingSettings,
};
use ao_torch::network::attention::{Attention, CacheShape};
use ao_torch::network::{Base, HandNames, Head, Network, Rows, TokenTable, Weights};
use ao_torch::tch::{Kind, Tensor};
use clap::Parser;
use common::assert_distribution;
use common::scoring::write_shards;
use serde_json::{Map, Value, json};

// ---- The families -----------------------------------------------------------------------------

/// Sizes of all three.
#[derive(Debug, Clone)]
struct TableConfig {
    sizes: Sizes,
    masks: bool,
    growing: bool,
}

struct TableFamily {
    name: &'static str,
    masks: bool,
    growing: bool,
}

impl Architecture for TableFamily {
    fn name(&self) -> &'static str {
        self.name
    }

    fn read(&self, json: Map<String, Value>) -> std::result::Result<Box<dyn Config>, String> {
        let size = |key: &str| -> std::result::Result<usize, String> {
            let value = json.get(key).and_then(Value::as_u64);
            value.map(|n| n as usize).ok_or_else(|| format!("'{key}' is missing"))
        };
        let sizes = Sizes {
            block_size: size("block_size")?,
            vocab_size: size("vocab_size")?,
            n_layer: 1,
            n_head: 1,
            n_embd: size("n_embd")?,
            dropout: 0.0,
        };
        check_sizes(&sizes, &[])?;
        Ok(Box::new(TableConfig { sizes, masks: self.masks, growing: self.growing }))
    }
}

impl Config for TableConfig {
    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn capabilities(&self) -> Capabilities {
        let schedule = LogLinear { eps: 0.0 };
        let id = self.sizes.vocab_size;
        Capabilities {
            orders: Orders::Any,
            objectives: if self.masks {
                &[Objective::KDce, Objective::LambdaDce]
            } else {
                &[Objective::Ao, Objective::L2r]
            },
            predicts_first: true,
            masks: self.masks.then_some(Masks {
                id,
                schedule,
                time_conditioned: false,
                scores: None,
            }),
            growing: self.growing,
        }
    }

    fn parameters(&self) -> Vec<Parameter> {
        let (v, c) = (self.sizes.vocab_size, self.sizes.n_embd);
        let init = Init::Normal(0.7);
        let mut list = Table::default();
        list.add("tokens", &[v + 1, c], init);
        list.add("aims", &[self.sizes.block_size, c], init);
        list.add("head", &[v, c], init);
        list.add("bias", &[v], Init::Zeros);
        list.0
    }

    fn published(&self) -> Published {
        Published { tied: None, is_buffer: |_| false }
    }

    fn token_cost(&self) -> TokenCost {
        let head = (self.sizes.vocab_size * self.sizes.n_embd) as f64;
        TokenCost { blocks: 0.0, head, attention: 0.0 }
    }

    fn to_json(&self) -> Map<String, Value> {
        let s = &self.sizes;
        [("block_size", s.block_size), ("vocab_size", s.vocab_size), ("n_embd", s.n_embd)]
            .into_iter()
            .map(|(key, size)| (key.to_owned(), size.into()))
            .collect()
    }
}

/// The head's input: the row of what is seen and the row of the aim, added.
struct TableNetwork {
    base: Base,
    aims: Tensor,
    masks: bool,
}

fn table(config: &ModelConfig, weights: &Weights, runtime: &Runtime) -> Box<dyn Network> {
    let names = HandNames { token_table: "tokens", head_weight: "head", head_bias: "bias" };
    let compute = runtime.compute_of(weights);
    Box::new(TableNetwork {
        base: Base {
            config: config.clone(),
            tokens: TokenTable::new(weights.get("tokens")),
            head: Head::new(weights.get("head"), Some(weights.get("bias")), compute),
            compute,
            names,
        },
        aims: weights.get("aims"),
        masks: config.mask_id().is_some(),
    })
}

impl Network for TableNetwork {
    fn base(&self) -> &Base {
        &self.base
    }

    fn freeze(&mut self) {
        self.base.freeze();
    }

    fn cache_shape(&self) -> CacheShape {
        CacheShape { layers: 0, heads: 1, head_size: 1 }
    }

    fn forward(&self, rows: &Rows, _: &mut dyn Attention, _: f64) -> Tensor {
        let v = self.base.config.vocab_size() as i64;
        // [None] is the row behind the ids, as the mask is.
        let none = rows.tokens.lt(0);
        let tokens = &rows.tokens * none.logical_not() + none.to_kind(Kind::Int64) * v;
        let mut seen = self.base.tokens.rows(&tokens);
        if self.masks {
            let shown = rows.tokens.ne(v).to_kind(seen.kind()).unsqueeze(-1);
            let sum = (&seen * shown).sum_dim_intlist([1i64].as_slice(), true, seen.kind());
            seen = sum.expand_as(&seen);
        }
        seen + Tensor::embedding(&self.aims, &rows.aims, -1, false, false)
    }
}

/// A sequence that grows: its length is drawn first, 1 to T alike, and each token from the table's
/// row of [None]. It can only draw.
struct Growing;

impl Family for Growing {
    fn training(&self, c: &ModelConfig, _: &TrainingSettings) -> Result<Box<dyn Training>> {
        Err(Error::usage(format!("ao-train: {} cannot be trained", c.arch())))
    }

    fn scorer(&self, model: Model, _: &ScoreSettings) -> Result<Box<dyn Scorer>> {
        Err(Error::usage(format!("ao-score: {} has no score", model.config.arch())))
    }

    fn sampler(&self, model: Model, settings: &SampleSettings) -> Result<Box<dyn Sampler>> {
        let (block_size, vocab) = (model.config.block_size(), settings.filter.vocab_used);
        Ok(Box::new(GrowingSampler { block_size, vocab, tally: Tally::default() }))
    }
}

struct GrowingSampler {
    block_size: usize,
    vocab: usize,
    tally: Tally,
}

impl Sampler for GrowingSampler {
    fn orders(&self) -> Option<&str> {
        None
    }
    fn describe(&self, _: &OrderSource) -> Value {
        Value::Null
    }
    fn suit(&self, _: &mut Template, _: Option<u32>) -> Result<()> {
        Ok(())
    }
    fn draw(&mut self, requests: Vec<Request>) -> Result<Vec<Sample>> {
        let draw = |mut request: Request| {
            let length = request.stream.below(self.block_size as u32) + 1;
            let tokens = (0..length).map(|_| request.stream.below(self.vocab as u32)).collect();
            let nll = vec![(self.vocab as f64).ln(); length as usize];
            Sample { tokens, nll, steps: length as usize, ..Sample::default() }
        };
        Ok(requests.into_iter().map(draw).collect())
    }
    fn distribution(&self, _: usize, _: usize) -> &'static str {
        "exact"
    }
    fn name(&self) -> Option<&'static str> {
        None
    }
    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}

fn register() {
    static BIGRAMS: TableFamily = TableFamily { name: "bigrams", masks: false, growing: false };
    static VISIBLE: TableFamily = TableFamily { name: "visible", masks: true, growing: false };
    static GROWING: TableFamily = TableFamily { name: "growing", masks: false, growing: true };
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        family::register(&BIGRAMS, &ByOrder(table));
        family::register(&VISIBLE, &ByMask(table));
        family::register(&GROWING, &Growing);
    });
}

// ---- Their distributions, from the weights alone ----------------------------------------------

const T: usize = 3;
const V: usize = 4;
const C: usize = 6;

/// The tables of a checkpoint, f64.
struct Exact {
    tokens: Vec<f64>,
    aims: Vec<f64>,
    head: Vec<f64>,
    bias: Vec<f64>,
}

impl Exact {
    fn read(path: &Path) -> Exact {
        let file = CheckpointFile::open(path).unwrap();
        let of = |name: &str| -> Vec<f64> {
            file.to_f32(name).unwrap().into_iter().map(f64::from).collect()
        };
        Exact { tokens: of("tokens"), aims: of("aims"), head: of("head"), bias: of("bias") }
    }

    /// −ln p of each id at position `aim` where the rows of `seen` ids are added up.
    fn nll(&self, seen: &[usize], aim: usize) -> Vec<f64> {
        let hidden: Vec<f64> = (0..C)
            .map(|c| {
                let rows = seen.iter().map(|&id| self.tokens[id * C + c]);
                rows.sum::<f64>() + self.aims[aim * C + c]
            })
            .collect();
        let logits: Vec<f64> = (0..V)
            .map(|y| {
                let row = &self.head[y * C..(y + 1) * C];
                self.bias[y] + row.iter().zip(&hidden).map(|(a, b)| a * b).sum::<f64>()
            })
            .collect();
        let total = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
        logits.into_iter().map(|x| total - x).collect()
    }

    /// NLL of a text along an order: of each token given the one before it.
    fn bigrams(&self, text: &[u32], order: &[u32]) -> Vec<f64> {
        (0..order.len())
            .map(|k| {
                let before = k.checked_sub(1).map_or(V, |k| text[order[k] as usize] as usize);
                self.nll(&[before], order[k] as usize)[text[order[k] as usize] as usize]
            })
            .collect()
    }

    /// NLL of a text along an order: of each token given the sum of those before it.
    fn visible(&self, text: &[u32], order: &[u32]) -> Vec<f64> {
        (0..order.len())
            .map(|k| {
                let seen: Vec<usize> =
                    order[..k].iter().map(|&p| text[p as usize] as usize).collect();
                self.nll(&seen, order[k] as usize)[text[order[k] as usize] as usize]
            })
            .collect()
    }
}

fn texts() -> Vec<Vec<u32>> {
    (0..V.pow(T as u32) as u32).map(|n| vec![n / 16, n / 4 % 4, n % 4]).collect()
}

const ORDERS: [[u32; T]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

// ---- The drivers ------------------------------------------------------------------------------

#[derive(Parser)]
struct Train {
    #[command(flatten)]
    args: ao_torch::train::TrainArgs,
}

#[derive(Parser)]
struct Score {
    #[command(flatten)]
    args: ao_torch::score::ScoreArgs,
}

#[derive(Parser)]
struct Draw {
    #[command(flatten)]
    args: ao_torch::sample::SampleArgs,
}

#[derive(Parser)]
struct Bench {
    #[command(flatten)]
    args: ao_torch::bench::BenchArgs,
}

/// Runs a driver with `words` behind a program name.
macro_rules! drive {
    ($parser:ty, $run:path, $words:expr) => {{
        let mut words = vec!["program", "--quiet", "--threads", "1", "--device", "cpu"];
        words.extend_from_slice(&$words);
        $run(<$parser>::try_parse_from(words).unwrap().args)
    }};
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Trains `arch` on all texts for some steps; the run folder.
fn trained(dir: &Path, arch: &str) -> String {
    register();
    let config = json!({"arch": arch, "block_size": T, "vocab_size": V, "n_embd": C});
    std::fs::write(dir.join("model.json"), config.to_string()).unwrap();
    write_shards(dir, V, &texts());
    let [model, data, run] =
        ["model.json", "data", "run"].map(|name| dir.join(name).display().to_string());
    let words = [
        "--model",
        &model,
        "--shards",
        &data,
        "--val-shards",
        &data,
        "--out",
        &run,
        "--batch-size",
        "16",
        "--steps",
        "40",
        "--lr",
        "0.05",
        "--warmup",
        "1",
        "--ema",
        "none",
    ];
    drive!(Train, ao_torch::train::run, words).unwrap();
    run
}

fn weights_of(run: &str) -> Exact {
    Exact::read(&Path::new(run).join("checkpoints/step-00000040/model.st"))
}

/// The records of `ao-score` on all texts.
fn scored(dir: &Path, run: &str, words: &[&str]) -> Vec<Value> {
    let (data, out) = (dir.join("data").display().to_string(), dir.join("scores.jsonl"));
    let path = out.display().to_string();
    let own = ["--ckpt", run, "--shards", &data, "-o", &path, "--force"];
    drive!(Score, ao_torch::score::run, [&own[..], words].concat()).unwrap();
    lines(&out)
}

fn samples(dir: &Path, run: &str, words: &[&str]) -> Vec<Value> {
    let out = dir.join("samples.jsonl");
    let path = out.display().to_string();
    let own = ["--ckpt", run, "-o", &path, "--force", "--batch-size", "500"];
    drive!(Draw, ao_torch::sample::run, [&own[..], words].concat()).unwrap();
    lines(&out).into_iter().filter(|r| r["type"] == "sample").collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

fn counts(samples: &[Value]) -> Vec<f64> {
    let mut counts = vec![0.0; 64];
    for sample in samples {
        counts[ids(&sample["tokens"]).iter().fold(0, |code, &t| code * V + t as usize)] += 1.0;
    }
    counts
}

/// Holds scores along orders, training and samples of a family against its closed form.
fn check(arch: &str, nll: fn(&Exact, &[u32], &[u32]) -> Vec<f64>) {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), arch);
    let exact = weights_of(&run);

    // Training: the loss fell, and validation says what the closed form says of all texts.
    let metrics = lines(&Path::new(&run).join("metrics.jsonl"));
    let losses: Vec<f64> = metrics
        .iter()
        .filter(|r| r["type"] == "step")
        .map(|r| r["loss_nats"].as_f64().unwrap())
        .collect();
    assert_eq!(losses.len(), 40);
    assert!(losses[36..].iter().sum::<f64>() < losses[..4].iter().sum::<f64>() - 0.5, "{losses:?}");

    // Scores along every order, token by token.
    for order in ORDERS {
        let spec = format!("blocks:3:inner={}:outer=l2r", order.map(|p| p.to_string()).join(","));
        let found = scored(dir.path(), &run, &["--orders", &spec, "--per-token"]);
        let mut sum = 0.0;
        for (text, record) in texts().iter().zip(found.iter().filter(|r| r["type"] == "sequence")) {
            let expected = nll(&exact, text, &order);
            for (ours, expected) in
                record["token_nll_nats"].as_array().unwrap().iter().zip(&expected)
            {
                assert!((ours.as_f64().unwrap() - expected).abs() < 1e-5, "{text:?} {order:?}");
            }
            sum += (-expected.iter().sum::<f64>()).exp();
        }
        assert!((sum - 1.0).abs() < 1e-9, "the closed form is a distribution");
    }

    // Samples along an order, and by the model's own choice.
    let law = |order: &[u32]| -> Vec<f64> {
        texts().iter().map(|t| (-nll(&exact, t, order).iter().sum::<f64>()).exp()).collect()
    };
    let along = ["--n", "20000", "--order", "blocks:3:inner=2,0,1:outer=l2r"];
    assert_distribution(&counts(&samples(dir.path(), &run, &along)), &law(&[2, 0, 1]));
    for sample in samples(dir.path(), &run, &["--n", "50", "--order", "adaptive:margin"]) {
        let expected: f64 =
            nll(&exact, &ids(&sample["tokens"]), &ids(&sample["order"])).iter().sum();
        assert!((sample["logprob_nats"].as_f64().unwrap() + expected).abs() < 1e-5);
    }

    // Timed by the real benchmark.
    let out = dir.path().join("bench.jsonl");
    let path = out.display().to_string();
    let words = ["generate", "--ckpt", &run, "--batch-size", "2", "--repeats", "2", "-o", &path];
    drive!(Bench, ao_torch::bench::run, words).unwrap();
    let bench = lines(&out);
    let record = bench.iter().find(|r| r["type"] == "bench").unwrap();
    assert_eq!((&record["arch"], &record["tokens"]), (&json!(arch), &json!(2 * T)));
}

#[test]
fn a_table_of_bigrams_is_trained_scored_sampled_and_timed_by_the_real_drivers() {
    check("bigrams", Exact::bigrams);
}

#[test]
fn a_table_of_what_is_visible_is_trained_scored_sampled_and_timed_by_the_real_drivers() {
    check("visible", Exact::visible);
}

#[test]
fn the_ensemble_of_bigrams_is_the_mean_over_the_token_before() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), "bigrams");
    let exact = weights_of(&run);
    // Contexts of at most two tokens have two orderings at most: none is drawn.
    let found = scored(dir.path(), &run, &["--orders", "l2r", "--ensemble", "2", "--per-token"]);
    for (text, record) in texts().iter().zip(found.iter().filter(|r| r["type"] == "sequence")) {
        let of = |before: usize, aim: usize| exact.nll(&[before], aim)[text[aim] as usize];
        let mean = (-of(text[0] as usize, 2)).exp() + (-of(text[1] as usize, 2)).exp();
        let expected = [of(V, 0), of(text[0] as usize, 1), -(mean / 2.0).ln()];
        let ours = record["token_nll_nats"].as_array().unwrap();
        for (ours, expected) in ours.iter().zip(expected) {
            assert!((ours.as_f64().unwrap() - expected).abs() < 1e-5, "{text:?}");
        }
    }
}

#[test]
fn tested_drafts_of_bigrams_have_the_distribution_of_one_token_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), "bigrams");
    let exact = weights_of(&run);
    let law: Vec<f64> = texts()
        .iter()
        .map(|text| (-exact.bigrams(text, &[0, 1, 2]).iter().sum::<f64>()).exp())
        .collect();
    let words = ["--n", "20000", "--order", "l2r", "--speculative", "2"];
    assert_distribution(&counts(&samples(dir.path(), &run, &words)), &law);
}

#[test]
fn the_bound_by_masks_and_the_chain_over_all_orders_are_one_number() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), "visible");
    let exact = weights_of(&run);
    let mean = |text: &Vec<u32>| {
        ORDERS.iter().map(|o| exact.visible(text, o).iter().sum::<f64>()).sum::<f64>() / 6.0
    };
    let expected = texts().iter().map(mean).sum::<f64>() / (texts().len() * T) as f64;
    let summary = scored(dir.path(), &run, &["--elbo", "--mc", "300"]).pop().unwrap();
    let found = summary["nll_nats_per_token"].as_f64().unwrap();
    assert!((found - expected).abs() < 0.01, "{found}, exactly {expected}");
    assert_eq!(summary["estimate"], "bound");
}

#[test]
fn a_sequence_that_grows_is_drawn_and_recorded_without_an_order() {
    register();
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"arch": "growing", "block_size": T, "vocab_size": V, "n_embd": C});
    let config = ModelConfig::from_json(&config).unwrap();
    let weights = Weights::init(&config, 1, ao_torch::tch::Device::Cpu);
    let path = dir.path().join("m.st");
    let metadata =
        ao_core::format::checkpoint::Metadata { config: config.to_json(), ..Default::default() };
    weights.write(&path, &metadata.to_map(), true).unwrap();
    let found = samples(dir.path(), path.to_str().unwrap(), &["--n", "3000"]);
    let mut lengths = [0.0; T];
    for sample in &found {
        assert!(sample.get("order").is_none());
        lengths[ids(&sample["tokens"]).len() - 1] += 1.0;
    }
    assert!(lengths.iter().all(|n| (n - 1000.0f64).abs() < 4.0 * 26.0), "{lengths:?}");
    // What the family cannot do is said in one line.
    let data = dir.path().join("data").display().to_string();
    write_shards(dir.path(), V, &texts());
    let words = ["--ckpt", path.to_str().unwrap(), "--shards", &data];
    let error = drive!(Score, ao_torch::score::run, words).unwrap_err().to_string();
    assert!(error.contains("growing has no score") && !error.contains('\n'), "{error}");
}
