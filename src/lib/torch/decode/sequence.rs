//! A sample before, while and after it is drawn.

use ao_core::rng::Stream;

use super::distribution::Draw;

/// What one sample starts from.
#[derive(Debug, Clone)]
pub struct Request {
    /// The whole permutation, given positions first.
    pub order: Vec<u32>,
    /// Tokens of the first positions of `order`, which are given.
    pub given: Vec<u32>,
    /// The sample's own draws.
    pub stream: Stream,
}

/// A sequence in the making.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Positions in generation order: first those that have their token, then those to come.
    pub order: Vec<u32>,
    /// Tokens of the first positions of `order`.
    pub tokens: Vec<u32>,
    /// The sample's own draws.
    pub stream: Stream,
    /// What was drawn, in generation order.
    pub drawn: Vec<Draw>,
    /// The time of each reveal, where there is one.
    pub times: Vec<f64>,
    /// Passes that its tokens took.
    pub steps: usize,
    /// Passes that it took part in.
    pub network_calls: usize,
}

impl Sequence {
    /// Nothing drawn yet.
    pub fn new(request: Request) -> Sequence {
        let Request { order, given, stream } = request;
        Sequence {
            order,
            tokens: given,
            stream,
            drawn: Vec::new(),
            times: Vec::new(),
            steps: 0,
            network_calls: 0,
        }
    }

    /// Positions without a token, in the order in which they are to come.
    pub fn free(&self) -> &[u32] {
        &self.order[self.tokens.len()..]
    }

    /// The same, ascending.
    pub fn free_ascending(&self) -> Vec<u32> {
        let mut free = self.free().to_vec();
        free.sort_unstable();
        free
    }

    /// Lets the free positions `next` come first, in this order; the others keep theirs.
    pub fn put_next(&mut self, next: &[u32]) {
        let tail = &mut self.order[self.tokens.len()..];
        if tail.starts_with(next) {
            return;
        }
        let rest: Vec<u32> = tail.iter().copied().filter(|p| !next.contains(p)).collect();
        tail[..next.len()].copy_from_slice(next);
        tail[next.len()..].copy_from_slice(&rest);
    }

    /// Gives the next position its token.
    pub fn push(&mut self, draw: Draw, time: Option<f64>) {
        self.tokens.push(draw.token);
        self.drawn.push(draw);
        self.times.extend(time);
    }

    /// The text, `hidden` where a position has no token.
    pub fn text(&self, hidden: u32) -> Vec<u32> {
        let mut text = vec![hidden; self.order.len()];
        for (&position, &token) in self.order.iter().zip(&self.tokens) {
            text[position as usize] = token;
        }
        text
    }

    /// The sample, once every position has its token.
    pub fn finish(self) -> Sample {
        let text = self.text(0);
        let listed = self.drawn.iter().any(|d| !d.candidates.is_empty());
        Sample {
            tokens: text,
            order: Some(self.order),
            nll: self.drawn.iter().map(|d| d.nll).collect(),
            candidates: match listed {
                true => self.drawn.into_iter().map(|d| d.candidates).collect(),
                false => Vec::new(),
            },
            steps: self.steps,
            network_calls: self.network_calls,
            times: self.times,
        }
    }
}

/// A finished sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// Tokens in text order.
    pub tokens: Vec<u32>,
    /// Positions in the order of their steps, given ones first; `None` where the sequence grew, and
    /// positions moved.
    pub order: Option<Vec<u32>>,
    /// −ln of the unfiltered model's probability of each drawn token, nats, in generation order.
    pub nll: Vec<f64>,
    /// The likeliest tokens of each drawn position in generation order, with ln of their
    /// probability under the unfiltered model; empty unless asked for.
    pub candidates: Vec<Vec<(u32, f64)>>,
    /// Passes that its tokens took.
    pub steps: usize,
    /// Passes of the network that it took part in.
    pub network_calls: usize,
    /// The time t of each reveal, in generation order; empty where the order is given.
    pub times: Vec<f64>,
}
