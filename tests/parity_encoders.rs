//! Encoders against numbers of the published implementations (`testdata/golden`, f32, CPU).

mod common;

use ao_core::family::SeddConfig;
use ao_core::format::checkpoint::CheckpointFile;
use ao_core::process::Masks;
use ao_core::process::score_entropy::{Scores, reveal_probability};
use ao_torch::decode::analytic;
use ao_torch::network::{Head, MaskedText, Network, Weights, asked_rows, forward_masked, masks};
use ao_torch::tch::{Kind, Tensor, no_grad};
use common::{floats, golden, golden_network, integers, max_difference, values};

/// Stated for f32 by the oracle, a token.
const TOLERANCE: f64 = 2e-5;

struct Case {
    model: Box<dyn Network>,
    weights: Weights,
    masks: Masks,
    cases: CheckpointFile,
    tokens: Vec<u32>,
    masked: Vec<u32>,
    b: usize,
    t: usize,
}

impl Case {
    fn open(folder: &str) -> Case {
        let (model, weights) = golden_network(folder);
        let masks = masks(model.as_ref());
        let cases = CheckpointFile::open(&golden(folder).join("cases.safetensors")).unwrap();
        let (shape, tokens) = integers(&cases, "tokens");
        let masked = integers(&cases, "masked").1;
        Case { model, weights, masks, cases, tokens, masked, b: shape[0], t: shape[1] }
    }

    fn head(&self) -> &Head {
        &self.model.base().head
    }

    /// Real ids V.
    fn vocab_size(&self) -> usize {
        self.model.base().config.vocab_size()
    }

    /// How the logits of a SEDD stand to its log-scores.
    fn scores(&self) -> Scores {
        self.masks.scores.unwrap()
    }

    /// The head's input of a masked input, (B, T, C).
    fn hidden(&self, masked: &[u32], sigma: &[f64]) -> Tensor {
        let ids: Vec<i64> = masked.iter().map(|&t| i64::from(t)).collect();
        let ids = Tensor::from_slice(&ids).view([self.b as i64, self.t as i64]);
        let lengths = vec![self.t; self.b];
        no_grad(|| forward_masked(self.model.as_ref(), ids, &lengths, sigma, 0.0))
    }

    fn is_masked(&self, at: usize) -> bool {
        self.masked[at] as usize == self.masks.id
    }

    /// NLL of the true token of every masked position of `masked`, 0 elsewhere, (B·T).
    fn nll(&self, masked: &[u32]) -> Vec<f64> {
        let mask = self.masks.id as u32;
        let targets: Vec<i64> = masked
            .iter()
            .zip(&self.tokens)
            .map(|(&m, &t)| if m == mask { i64::from(t) } else { -1 })
            .collect();
        self.head().nll(&self.hidden(masked, &vec![0.0; self.b]), &targets)
    }

    /// The sums over each sequence.
    fn sums(&self, nll: &[f64]) -> Vec<f64> {
        nll.chunks(self.t).map(|n| n.iter().sum()).collect()
    }

    /// Exact chain NLL along the golden orders, (B·T) in generation order.
    fn chain(&self) -> Vec<f64> {
        let orders = integers(&self.cases, "orders").1;
        let mut out = vec![0.0; self.b * self.t];
        for step in 0..self.t {
            let mut masked = vec![self.masks.id as u32; self.b * self.t];
            for b in 0..self.b {
                for k in 0..step {
                    let at = b * self.t + orders[b * self.t + k] as usize;
                    masked[at] = self.tokens[at];
                }
            }
            let nll = self.nll(&masked);
            for b in 0..self.b {
                let at = b * self.t + orders[b * self.t + step] as usize;
                out[b * self.t + step] = nll[at];
            }
        }
        out
    }
}

fn close(name: &str, ours: &[f64], theirs: &[f64], tolerance: f64) {
    let difference = max_difference(ours, theirs);
    assert!(difference <= tolerance, "{name}: {difference}");
}

#[test]
fn radd_agrees() {
    let case = Case::open("radd");
    let v = case.vocab_size() as i64;
    let logits = case.head().logits(&case.hidden(&case.masked, &[0.0; 4]).view([-1, 32]));
    assert_eq!(logits.size()[1], v);
    let log_probs = values(&logits.log_softmax(-1, Kind::Double));
    close("log_probs", &log_probs, &floats(&case.cases, "log_probs").1, TOLERANCE);
    let sums = case.sums(&case.nll(&case.masked));
    let lambda = floats(&case.cases, "lambda_value").1;
    let ours: Vec<f64> = sums.iter().zip(&lambda).map(|(s, l)| s / l).collect();
    close("lambda_dce", &ours, &floats(&case.cases, "lambda_dce").1, 1e-4);
    let ours: Vec<f64> = sums
        .iter()
        .enumerate()
        .map(|(b, s)| {
            let k = (0..case.t).filter(|i| case.is_masked(b * case.t + i)).count();
            s * case.t as f64 / k as f64
        })
        .collect();
    close("k_dce", &ours, &floats(&case.cases, "k_dce").1, 1e-4);
    close("order_nll", &case.chain(), &floats(&case.cases, "order_nll").1, TOLERANCE);
}

#[test]
fn mdlm_agrees() {
    let case = Case::open("mdlm");
    let v = case.vocab_size();
    let logits = case.head().logits(&case.hidden(&case.masked, &[0.0; 4]).view([-1, 32]));
    let mut log_probs = values(&logits.log_softmax(-1, Kind::Double));
    // SUBS: what is not masked stays as it is.
    for at in (0..case.b * case.t).filter(|&at| !case.is_masked(at)) {
        log_probs[at * v..(at + 1) * v].fill(-1e6);
        log_probs[at * v + case.masked[at] as usize] = 0.0;
    }
    close("log_probs", &log_probs, &floats(&case.cases, "log_probs").1, TOLERANCE);
    let times = floats(&case.cases, "t").1;
    let sums = case.sums(&case.nll(&case.masked));
    let noise = case.masks.schedule;
    let ours: Vec<f64> = sums.iter().zip(&times).map(|(s, &t)| s * noise.weight(t)).collect();
    close("nelbo", &ours, &floats(&case.cases, "nelbo_weight_1_over_t").1, 1e-4);
    close("order_nll", &case.chain(), &floats(&case.cases, "order_nll").1, TOLERANCE);
}

#[test]
fn sedds_noise_and_log_scores_agree() {
    let case = Case::open("sedd");
    assert!(case.model.base().config.of::<SeddConfig>().is_some());
    assert!(case.scores().scaled_by_sigma);
    let noise = case.masks.schedule;
    let times = floats(&case.cases, "t").1;
    let relative = |name: &str, ours: Vec<f64>| {
        let theirs = floats(&case.cases, name).1;
        for (a, b) in ours.iter().zip(&theirs) {
            assert!((a / b - 1.0).abs() <= 2e-5, "{name}: {a} against {b}");
        }
    };
    relative("sigma", times.iter().map(|&t| noise.sigma(t)).collect());
    relative("dsigma", times.iter().map(|&t| noise.rate(t)).collect());
    let sigma: Vec<f64> = times.iter().map(|&t| noise.sigma(t)).collect();
    let hidden = case.hidden(&case.masked, &sigma).view([-1, 32]);
    // The published scores have a column for the mask, which the head leaves out.
    let of = |part: &str| case.weights.get(&format!("output_layer.linear.{part}"));
    let mut scores = values(&hidden.linear(&of("weight"), Some(&of("bias"))));
    let rows = case.vocab_size() + 1;
    for (at, row) in scores.chunks_mut(rows).enumerate() {
        let offset = case.scores().offset(sigma[at / case.t]);
        row.iter_mut().for_each(|x| *x -= offset);
        row[case.masked[at] as usize] = 0.0;
    }
    close("log_score", &scores, &floats(&case.cases, "log_score").1, TOLERANCE);
}

#[test]
fn sedds_score_entropy_agrees() {
    let case = Case::open("sedd");
    let noise = case.masks.schedule;
    let times = floats(&case.cases, "t").1;
    let sigma: Vec<f64> = times.iter().map(|&t| noise.sigma(t)).collect();
    let hidden = case.hidden(&case.masked, &sigma);
    let targets: Vec<i64> = (0..case.tokens.len())
        .map(|at| if case.is_masked(at) { i64::from(case.tokens[at]) } else { -1 })
        .collect();
    let shifts: Vec<f64> =
        (0..targets.len()).map(|at| case.scores().shift(sigma[at / case.t])).collect();
    let ours = case.head().score_entropy(&hidden, &targets, &shifts);
    let close = |name: &str, ours: &[f64]| {
        let theirs = floats(&case.cases, name).1;
        assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.iter().zip(&theirs) {
            assert!((a - b).abs() <= 2e-5 * b.abs(), "{name}: {a} against {b}");
        }
    };
    // The published figures are in units of 1, ours of a = 1/(e^σ − 1).
    let unit = |at: usize| 1.0 / sigma[at / case.t].exp_m1();
    let sites: Vec<f64> = ours.iter().enumerate().map(|(at, e)| e * unit(at)).collect();
    close("score_entropy", &sites);
    let sums = case.sums(&ours);
    let losses: Vec<f64> = sums.iter().zip(&times).map(|(s, &t)| s * noise.weight(t)).collect();
    close("dwdse_loss", &losses);
}

#[test]
fn sedds_analytic_step_agrees() {
    let case = Case::open("sedd");
    let (noise, rows) = (case.masks.schedule, case.vocab_size() + 1);
    let [now, next] = ["t", "t_next"].map(|name| floats(&case.cases, name).1);
    let theirs = floats(&case.cases, "analytic_probs").1;
    let mut most: f64 = 0.0;
    for b in 0..case.b {
        let at = b * case.t;
        let asked: Vec<u32> =
            (0..case.t as u32).filter(|&i| case.is_masked(at + i as usize)).collect();
        let sigma = noise.sigma(now[b]);
        let tokens = case.masked[at..at + case.t].to_vec();
        let text = MaskedText { tokens, asked: asked.clone(), sigma };
        let hidden = asked_rows(case.model.as_ref(), &[&text]);
        let logits: Vec<f32> = Vec::try_from(case.head().logits(&hidden).view([-1])).unwrap();
        for (row, i) in logits.chunks(rows - 1).zip(asked) {
            let sum = analytic::log_sum(row, &mut Vec::new()).unwrap();
            let scores = sum - case.scores().offset(sigma);
            let reveal = reveal_probability(scores, sigma - noise.sigma(next[b]));
            let start = (at + i as usize) * rows;
            for (logit, theirs) in row.iter().zip(&theirs[start..]) {
                let ours = reveal * (f64::from(*logit) - sum).exp();
                most = most.max((ours / theirs - 1.0).abs());
            }
            most = most.max(((1.0 - reveal) / theirs[start + rows - 1] - 1.0).abs());
        }
    }
    assert!(most <= 2e-5, "{most}");
}
