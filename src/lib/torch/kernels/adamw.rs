//! AdamW over flat buffers, with clipping and the exponential moving averages in the same pass.
//!
//! The update is PyTorch's (decoupled weight decay, bias-corrected moments):
//! p ← p·(1 − lr·wd); m ← β₁m + (1−β₁)g; v ← β₂v + (1−β₂)g²;
//! p ← p − lr/(1−β₁ᵗ) · m / (√v/√(1−β₂ᵗ) + ε). Elementwise, so the number of threads changes nothing.

use super::pool;

/// The scalars of one step.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of the elements before `decayed`.
    pub weight_decay: f64,
    /// Number of elements, from the start, that decay.
    pub decayed: usize,
    /// Optimizer steps done, this one included (1 at the first).
    pub count: u64,
    /// Factor on the gradient: clipping, and 1 where it does not bind.
    pub gradient_scale: f64,
}

/// The flat buffers that a step changes; all of one length.
pub struct Buffers<'a> {
    /// Parameters.
    pub parameters: &'a mut [f32],
    /// Gradients; zero afterwards.
    pub gradients: &'a mut [f32],
    /// First moments.
    pub first: &'a mut [f32],
    /// Second moments.
    pub second: &'a mut [f32],
    /// Moving averages of the parameters, each with the decay of this update.
    pub averages: Vec<(&'a mut [f32], f64)>,
}

impl<'a> Buffers<'a> {
    fn split_at(self, mid: usize) -> (Buffers<'a>, Buffers<'a>) {
        let (p0, p1) = self.parameters.split_at_mut(mid);
        let (g0, g1) = self.gradients.split_at_mut(mid);
        let (m0, m1) = self.first.split_at_mut(mid);
        let (v0, v1) = self.second.split_at_mut(mid);
        let (a0, a1) = self
            .averages
            .into_iter()
            .map(|(a, d)| {
                let (x, y) = a.split_at_mut(mid);
                ((x, d), (y, d))
            })
            .unzip();
        (
            Buffers { parameters: p0, gradients: g0, first: m0, second: v0, averages: a0 },
            Buffers { parameters: p1, gradients: g1, first: m1, second: v1, averages: a1 },
        )
    }
}

/// Elements that stay in the nearest cache while their averages are updated.
const BLOCK: usize = 4096;

/// One update of everything.
pub fn step(buffers: Buffers, step: Step) {
    let length = buffers.parameters.len();
    let piece = pool::piece(length, 1);
    let (mut pieces, mut rest) = (Vec::new(), buffers);
    for start in (0..length).step_by(piece) {
        let (mine, others) = rest.split_at(piece.min(length - start));
        pieces.push((start, mine));
        rest = others;
    }
    pool::each(pieces, &|(mut at, mut mine): (usize, Buffers)| {
        let mut start = 0;
        while start < mine.parameters.len() {
            let mut end = (start + BLOCK).min(mine.parameters.len());
            // A block lies on one side of the line between decayed and not.
            if at < step.decayed && step.decayed < at + (end - start) {
                end = start + (step.decayed - at);
            }
            let decay = if at < step.decayed { step.weight_decay } else { 0.0 };
            block(&mut mine, start..end, &step, decay);
            at += end - start;
            start = end;
        }
    });
}

fn block(buffers: &mut Buffers, range: std::ops::Range<usize>, step: &Step, decay: f64) {
    let p = &mut buffers.parameters[range.clone()];
    update(
        p,
        &mut buffers.gradients[range.clone()],
        &mut buffers.first[range.clone()],
        &mut buffers.second[range.clone()],
        step,
        decay,
    );
    for (average, keep) in &mut buffers.averages {
        let weight = (1.0 - *keep) as f32;
        for (a, &p) in average[range.clone()].iter_mut().zip(p.iter()) {
            *a += weight * (p - *a);
        }
    }
}

fn update(p: &mut [f32], g: &mut [f32], m: &mut [f32], v: &mut [f32], step: &Step, decay: f64) {
    let count = i32::try_from(step.count).unwrap_or(i32::MAX);
    let correction1 = 1.0 - step.beta1.powi(count);
    let correction2 = (1.0 - step.beta2.powi(count)).sqrt();
    let keep = (1.0 - step.lr * decay) as f32;
    let size = (step.lr / correction1) as f32;
    let (scale, eps) = (step.gradient_scale as f32, step.eps as f32);
    let (new1, beta2, new2) =
        ((1.0 - step.beta1) as f32, step.beta2 as f32, (1.0 - step.beta2) as f32);
    let root = correction2 as f32;
    for (((p, g), m), v) in p.iter_mut().zip(g.iter_mut()).zip(m.iter_mut()).zip(v.iter_mut()) {
        let gradient = *g * scale;
        *g = 0.0;
        *m += new1 * (gradient - *m);
        *v = beta2 * *v + new2 * gradient * gradient;
        *p = *p * keep - size * *m / (v.sqrt() / root + eps);
    }
}

/// Sum of squares in f64, in an order that does not depend on the number of threads.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    const CHUNK: usize = 1 << 16;
    let mut sums = vec![0f64; values.len().div_ceil(CHUNK)];
    let pieces = sums.iter_mut().zip(values.chunks(CHUNK)).collect();
    pool::each(pieces, &|(sum, chunk): (&mut f64, &[f32])| *sum = squares(chunk));
    sums.iter().sum()
}

fn squares(values: &[f32]) -> f64 {
    let mut lanes = [0f64; 16];
    let chunks = values.chunks_exact(16);
    let rest: f64 = chunks.remainder().iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(x) * f64::from(x);
        }
    }
    lanes.iter().sum::<f64>() + rest
}
