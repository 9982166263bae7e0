//! Reads the order SPEC by recursive descent. An error names the character (from 1) at which no
//! reading goes on, and lists what may stand there.

use super::check_permutation;
use super::spec::{Inner, OrderSpec, Outer};
use crate::{Error, Result};

const SIMPLE: &[&str] = &["l2r", "r2l", "uniform", "fixed:", "fractal", "blocks:"];
const MIXED: &[&str] = &["l2r", "r2l", "uniform", "fixed:", "fractal", "blocks:", "mix:"];
const ALL: &[&str] = &["l2r", "r2l", "uniform", "fixed:", "fractal", "blocks:", "mix:", "ramp:"];

/// How far the weights of a mix may sum from 1.
const WEIGHT_TOLERANCE: f64 = 1e-9;

impl OrderSpec {
    /// Reads a SPEC.
    ///
    /// # Errors
    /// When it is malformed; the error names the character and lists what is allowed there.
    pub fn parse(text: &str) -> Result<OrderSpec> {
        let mut parser = Parser { text, at: 0 };
        let spec = parser.spec(ALL, None)?;
        if parser.at < text.len() {
            let more = match &spec {
                OrderSpec::Mix(_) => "+ or the end",
                OrderSpec::Blocks { .. } => ":inner=, :outer= or the end",
                _ => "the end",
            };
            return Err(parser.refuse(parser.at, more));
        }
        Ok(spec)
    }
}

impl std::str::FromStr for OrderSpec {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        OrderSpec::parse(text)
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// An error at byte `at`, told as a character counted from 1.
    fn refuse(&self, at: usize, allowed: &str) -> Error {
        let character = self.text[..at].chars().count() + 1;
        let found = match self.text[at..].chars().next() {
            Some(c) => format!("'{c}' cannot stand here"),
            None => "the text ends".into(),
        };
        Error::usage(format!(
            "order SPEC '{}', character {character}: {found}; allowed here: {allowed}",
            self.text
        ))
    }

    fn take(&mut self, literal: &str) -> bool {
        let found = self.rest().starts_with(literal);
        if found {
            self.at += literal.len();
        }
        found
    }

    fn expect(&mut self, literal: &str) -> Result<()> {
        if self.take(literal) { Ok(()) } else { Err(self.refuse(self.at, literal)) }
    }

    /// One of `words`; otherwise an error where the text leaves all of them.
    fn word(&mut self, words: &[&'static str], allowed: &str) -> Result<&'static str> {
        if let Some(word) = words.iter().find(|w| self.rest().starts_with(**w)) {
            self.at += word.len();
            return Ok(word);
        }
        let common =
            |word: &&str| word.bytes().zip(self.rest().bytes()).take_while(|(a, b)| a == b).count();
        let agreed = words.iter().map(common).max().unwrap_or(0);
        Err(self.refuse(self.at + agreed, allowed))
    }

    /// The characters in front that satisfy `test`.
    fn run(&mut self, test: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !test(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn number<T: std::str::FromStr>(&mut self, allowed: &str) -> Result<T> {
        let start = self.at;
        let digits = self.run(|c| c.is_ascii_digit());
        digits.parse().map_err(|_| self.refuse(start, allowed))
    }

    fn seed(&mut self) -> Result<u64> {
        self.number("a seed (a whole number below 2^64)")
    }

    /// A SPEC that begins with one of `words`; a path in it goes on to `stop` or the end.
    fn spec(&mut self, words: &[&'static str], stop: Option<&str>) -> Result<OrderSpec> {
        Ok(match self.word(words, &words.join(", "))? {
            "l2r" => OrderSpec::L2r,
            "r2l" => OrderSpec::R2l,
            "uniform" => OrderSpec::Uniform,
            "fractal" => OrderSpec::Fractal,
            "fixed:" => self.fixed(stop)?,
            "blocks:" => self.blocks()?,
            "mix:" => self.mix(stop)?,
            _ => self.ramp()?,
        })
    }

    fn fixed(&mut self, stop: Option<&str>) -> Result<OrderSpec> {
        if !self.take("@") {
            return self
                .number("a seed (a whole number below 2^64) or @ and a file")
                .map(OrderSpec::Fixed);
        }
        let rest = self.rest();
        let end = stop.and_then(|s| rest.find(s)).unwrap_or(rest.len());
        // Inside a mix that is itself inside a ramp, the ramp's arrow ends the path as well.
        let end = rest[..end].find("->").unwrap_or(end);
        if end == 0 {
            return Err(self.refuse(self.at, "the path of an .npy or .jsonl file"));
        }
        self.at += end;
        Ok(OrderSpec::FixedFile(rest[..end].to_owned()))
    }

    fn blocks(&mut self) -> Result<OrderSpec> {
        let start = self.at;
        let size: usize = self.number("a block length of at least 1")?;
        if size == 0 {
            return Err(self.refuse(start, "a block length of at least 1"));
        }
        let (mut inner, mut outer) = (None, None);
        while self.take(":") {
            let mut left: Vec<&'static str> = Vec::new();
            if inner.is_none() {
                left.push("inner=");
            }
            if outer.is_none() {
                left.push("outer=");
            }
            let allowed = if left.is_empty() { "no third option".into() } else { left.join(", ") };
            if self.word(&left, &allowed)? == "inner=" {
                inner = Some(self.inner(size)?);
            } else {
                outer = Some(self.outer()?);
            }
        }
        let inner = inner.unwrap_or(Inner::Uniform);
        Ok(OrderSpec::Blocks { size, inner, outer: outer.unwrap_or(Outer::Uniform) })
    }

    fn inner(&mut self, size: usize) -> Result<Inner> {
        let start = self.at;
        if self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            let text = self.run(|c| c.is_ascii_digit() || c == ',');
            let list: Option<Vec<u32>> = text.split(',').map(|n| n.parse().ok()).collect();
            let whole = list
                .filter(|list| list.len() == size && check_permutation(list, String::new).is_ok());
            return whole.map(Inner::List).ok_or_else(|| {
                let last = size - 1;
                self.refuse(start, &format!("a list that names each of 0 to {last} once"))
            });
        }
        let allowed = "l2r, uniform, fixed:, a list such as 0,2,3,1";
        Ok(match self.word(&["l2r", "uniform", "fixed:"], allowed)? {
            "l2r" => Inner::L2r,
            "uniform" => Inner::Uniform,
            _ => Inner::Fixed(self.seed()?),
        })
    }

    fn outer(&mut self) -> Result<Outer> {
        Ok(match self.word(&["l2r", "uniform", "fixed:"], "l2r, uniform, fixed:")? {
            "l2r" => Outer::L2r,
            "uniform" => Outer::Uniform,
            _ => Outer::Fixed(self.seed()?),
        })
    }

    fn mix(&mut self, stop: Option<&str>) -> Result<OrderSpec> {
        let start = self.at;
        let mut parts = Vec::new();
        loop {
            let at = self.at;
            let weight: f64 = self
                .run(|c| c.is_ascii_digit() || c == '.')
                .parse()
                .map_err(|_| self.refuse(at, "a weight such as 0.5"))?;
            self.expect("*")?;
            parts.push((weight, self.spec(SIMPLE, Some("+"))?));
            if !self.take("+") {
                break;
            }
        }
        let at_stop = stop.is_some_and(|s| self.rest().starts_with(s));
        if !(self.rest().is_empty() || at_stop) {
            let end = stop.unwrap_or("the end");
            return Err(self.refuse(self.at, &format!("+ or {end}")));
        }
        let sum: f64 = parts.iter().map(|(w, _)| w).sum();
        if (sum - 1.0).abs() > WEIGHT_TOLERANCE {
            return Err(self.refuse(start, &format!("weights that sum to 1 (these sum to {sum})")));
        }
        Ok(OrderSpec::Mix(parts))
    }

    fn ramp(&mut self) -> Result<OrderSpec> {
        let from: u64 = self.number("a row number")?;
        self.expect("..")?;
        let at = self.at;
        let to: u64 = self.number("a row number")?;
        if to <= from {
            return Err(self.refuse(at, &format!("a row after {from}")));
        }
        self.expect(":")?;
        let start = Box::new(self.spec(MIXED, Some("->"))?);
        self.expect("->")?;
        let end = Box::new(self.spec(MIXED, None)?);
        Ok(OrderSpec::Ramp { from, to, start, end })
    }
}
