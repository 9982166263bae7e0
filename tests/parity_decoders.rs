//! Decoders against numbers of the published implementations (`testdata/golden`, f32, CPU).

mod common;

use ao_core::format::checkpoint::CheckpointFile;
use common::{
    floats, golden, golden_config, golden_network, integers, logits, max_difference, nll, values,
};

/// Stated for f32 by the oracle; two independent builds agreed to 3e-6.
const TOLERANCE: f64 = 2e-5;

fn check(folder: &str) {
    let (_, figures) = golden_config(folder);
    let (model, _) = golden_network(folder);
    let cases = CheckpointFile::open(&golden(folder).join("cases.safetensors")).unwrap();
    let (shape, tokens) = integers(&cases, "tokens");
    let (_, orders) = integers(&cases, "orders");
    let rows = |values: &[u32]| values.chunks(shape[1]).map(<[u32]>::to_vec).collect::<Vec<_>>();
    let (tokens, orders) = (rows(&tokens), rows(&orders));
    let tokens: Vec<&[u32]> = tokens.iter().map(Vec::as_slice).collect();
    let orders: Vec<&[u32]> = orders.iter().map(Vec::as_slice).collect();

    let logits = values(&logits(model.as_ref(), &tokens, &orders));
    let difference = max_difference(&logits, &floats(&cases, "logits").1);
    assert!(difference <= TOLERANCE, "{folder}: logits differ by {difference}");

    let nll = nll(model.as_ref(), &tokens, &orders);
    let difference = max_difference(&nll, &floats(&cases, "nll").1);
    assert!(difference <= TOLERANCE, "{folder}: NLL differs by {difference}");
    let mean = nll.iter().sum::<f64>() / nll.len() as f64;
    assert!((mean - figures["mean_nll"].as_f64().unwrap()).abs() <= TOLERANCE);
}

#[test]
fn logits_and_nll_are_those_of_the_published_code() {
    check("ao-gpt");
}

#[test]
fn a_sequence_shorter_than_the_block_and_a_model_without_bias_agree_too() {
    check("ao-gpt-short");
}

#[test]
fn sigma_gpt_as_ao_gpts_authors_built_it_agrees() {
    check("sigma-gpt");
}
