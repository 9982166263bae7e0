//! Ensembled scoring against the published procedure, on one model and machine.
//!
//!     cargo bench --bench ensemble -- [--threads N] [--length T] [--size M] [--sequences S]
//!
//! The published procedure (AO-GPT's ensemble evaluation) makes a full pass over the sequence for
//! each position and ordering and keeps one row of it. It is run here through this toolkit's own
//! full forward, on a sample of the positions, which all cost the same; the time is scaled to all.

use std::time::Instant;

use ao_core::family::ModelConfig;
use ao_core::rng::{Domain, Stream};
use ao_core::score::orderings::orderings;
use ao_torch::device::Runtime;
use ao_torch::family::{self, EnsembleSettings, Model, ScoreSettings, Work};
use ao_torch::network::Weights;
use ao_torch::tch::{self, Device, Kind};

/// Positions that the published procedure is timed on.
const SAMPLED: usize = 4;

fn option(name: &str, default: usize) -> usize {
    let words: Vec<String> = std::env::args().collect();
    let at = words.iter().position(|w| w == name);
    at.and_then(|i| words.get(i + 1)?.parse().ok()).unwrap_or(default)
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = option("--threads", cores);
    let (length, size) = (option("--length", 128), option("--size", 8));
    let count = option("--sequences", 8);
    tch::set_num_threads(threads as i32);
    let path = std::path::Path::new("configs/ao-gpt-bench.json");
    let config = ModelConfig::load(path).expect("configs/ao-gpt-bench.json is a model config");
    assert!(length <= config.block_size(), "the block holds {} tokens", config.block_size());
    let weights = Weights::init(&config, 1, Device::Cpu);
    let family = family::of(&config).expect("AO-GPT is in the list of families");

    for compute in [Kind::Float, Kind::BFloat16] {
        let runtime = Runtime { device: Device::Cpu, compute, threads };
        let model = Model { config: &config, weights: &weights, runtime: &runtime };
        let scorer = |ensemble: Option<EnsembleSettings>| {
            let settings = ScoreSettings { ensemble, mc: 1, seed: 1, ..ScoreSettings::default() };
            family.scorer(model, &settings).expect("AO-GPT is scored along orders")
        };
        let works: Vec<Work> = (0..count)
            .map(|nth| {
                let mut stream = Stream::new(1, Domain::Sample, nth as u64);
                let tokens: Vec<u32> = (0..length).map(|_| stream.below(50_257)).collect();
                let mut order: Vec<u32> = (0..length as u32).collect();
                stream.shuffle(&mut order);
                Work::whole(nth as u64, nth as u64, &tokens, order)
            })
            .collect();

        let published = |positions: usize| {
            let mut scorer = scorer(None);
            for work in &works {
                let mut lines = orderings(1, work.row, size, length);
                for sample in 0..positions {
                    let step = (2 * sample + 1) * length / (2 * positions);
                    let full: Vec<Work> = lines
                        .iter_mut()
                        .map(|line| {
                            let context = line.of(step).iter().map(|&s| work.order[s as usize]);
                            let order = context.chain(work.order[step..].iter().copied());
                            Work { order: order.collect(), ..work.clone() }
                        })
                        .collect();
                    let scored = scorer.score(&full).expect("orders fit their tokens");
                    assert!(scored.iter().all(|s| s.nll.len() == length));
                }
            }
            scorer.cost().rows_forwarded
        };
        published(1);
        let started = Instant::now();
        let rows = published(SAMPLED) * length as u64 / SAMPLED as u64;
        let theirs = started.elapsed().as_secs_f64() * length as f64 / SAMPLED as f64;

        let ensemble = EnsembleSettings { size, curve: false, positions: None };
        let mut scorer = scorer(Some(ensemble));
        let started = Instant::now();
        scorer.score(&works).expect("the model is finite");
        let ours = started.elapsed().as_secs_f64();
        println!(
            "ensemble, {compute:?}, {threads} threads, {count} x {length} tokens, M {size}: \
             {ours:.1} s, {} rows; a full pass for each position and ordering: {theirs:.1} s \
             ({SAMPLED} of {length} positions timed), {rows} rows; {:.1} times faster",
            scorer.cost().rows_forwarded,
            theirs / ours
        );
    }
}
