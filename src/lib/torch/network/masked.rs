//! Masked copies of texts: what a network is shown, and which of its rows are asked for.

use ao_core::process::Masks;
use tch::{Device, Tensor};

use super::attention::Bidirectional;
use super::base::Network;
use super::rows::Rows;

/// The masks of a network that restores masked texts.
///
/// # Panics
/// When its family has none: a mistake in the list of families.
pub fn masks(network: &dyn Network) -> Masks {
    network.base().config.capabilities().masks.expect("a family by masks names its masks")
}

/// A text with masks in it, and the positions that are to be predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskedText {
    /// Token ids in text order, mask ids among them.
    pub tokens: Vec<u32>,
    /// Positions that are to be predicted; they are masked.
    pub asked: Vec<u32>,
    /// σ̄ of the copy, for networks that are conditioned on the time.
    pub sigma: f64,
}

impl MaskedText {
    /// `tokens` with the positions `hidden` masked, of which `asked` are to be predicted.
    pub fn new(mask: u32, tokens: &[u32], hidden: &[u32], asked: &[u32], sigma: f64) -> MaskedText {
        let mut masked = tokens.to_vec();
        hidden.iter().for_each(|&p| masked[p as usize] = mask);
        MaskedText { tokens: masked, asked: asked.to_vec(), sigma }
    }
}

/// The head's input for masked texts i64 (B, T) of `lengths` tokens at noise `sigma` (B): (B, T, C).
/// Rows behind a text are padding that nothing sees.
pub fn forward_masked(
    network: &dyn Network,
    tokens: Tensor,
    lengths: &[usize],
    sigma: &[f64],
    dropout: f64,
) -> Tensor {
    let device = tokens.device();
    let mut attention = Bidirectional::new(lengths, tokens.size()[1] as usize, device);
    let sigma = Tensor::from_slice(sigma).to_kind(network.base().kind()).to_device(device);
    network.forward(&Rows::of_texts(tokens, Some(sigma)), &mut attention, dropout)
}

/// The head's input at the asked positions of all copies, one copy after the other, (N, C), without
/// gradients.
///
/// On a CPU only copies of one length go through the network together: the shapes of its products,
/// and so their rounding, do not depend on the neighbours. Elsewhere copies are padded; nothing sees
/// the padding.
pub fn asked_rows(network: &dyn Network, copies: &[&MaskedText]) -> Tensor {
    let base = network.base();
    let (kind, device) = (base.kind(), base.device());
    let empty = || Tensor::zeros([0, base.config.n_embd() as i64], (kind, device));
    let on_cpu = device == Device::Cpu;
    let alike = |a: &&MaskedText, b: &&MaskedText| !on_cpu || a.tokens.len() == b.tokens.len();
    let parts: Vec<Tensor> = copies
        .chunk_by(alike)
        .filter(|part| part.iter().any(|copy| !copy.asked.is_empty()))
        .map(|part| tch::no_grad(|| rows_of(network, part, device)))
        .collect();
    if parts.is_empty() { empty() } else { Tensor::cat(&parts, 0) }
}

fn rows_of(network: &dyn Network, copies: &[&MaskedText], device: Device) -> Tensor {
    let length = copies.iter().map(|c| c.tokens.len()).max().unwrap_or(0);
    let mut ids = vec![0i64; copies.len() * length];
    let mut index = Vec::new();
    for (b, copy) in copies.iter().enumerate() {
        let row = &mut ids[b * length..];
        row.iter_mut().zip(&copy.tokens).for_each(|(id, &token)| *id = i64::from(token));
        index.extend(copy.asked.iter().map(|&p| (b * length) as i64 + i64::from(p)));
    }
    let ids = Tensor::from_slice(&ids).view([copies.len() as i64, length as i64]).to_device(device);
    let lengths: Vec<usize> = copies.iter().map(|c| c.tokens.len()).collect();
    let sigma: Vec<f64> = copies.iter().map(|c| c.sigma).collect();
    let hidden = forward_masked(network, ids, &lengths, &sigma, 0.0);
    let width = *hidden.size().last().unwrap_or(&0);
    hidden.reshape([-1, width]).index_select(0, &Tensor::from_slice(&index).to_device(device))
}
