//! The table of parameters that a config implies: names, shapes and initial distributions, in the
//! order of the published module, so that tools without tensors can count, check, average and import
//! weights.

/// The distribution that a parameter is drawn from before training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Normal with mean 0 and this standard deviation, cut at three of them.
    TruncatedNormal(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform between minus and plus this bound.
    Uniform(f64),
    /// All zero.
    Zeros,
    /// All one.
    Ones,
}

/// One parameter of a model: a tensor by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// The reference implementation's name, `transformer.h.0.attn.c_attn.weight`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Initial distribution.
    pub init: Init,
}

impl Parameter {
    /// Number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether weight decay applies: tensors of two and more dimensions, embeddings included
    /// (AO-GPT's and nanoGPT's optimizer groups).
    pub fn decays(&self) -> bool {
        self.shape.len() >= 2
    }
}

/// A table of parameters while it is written down.
#[derive(Default)]
pub struct Table(pub Vec<Parameter>);

impl Table {
    /// Adds one parameter.
    pub fn add(&mut self, name: &str, shape: &[usize], init: Init) {
        self.0.push(Parameter { name: name.into(), shape: shape.to_vec(), init });
    }

    /// A linear layer: weight (out, in) by `init`, then the bias, if any, at zero.
    pub fn linear(&mut self, name: &str, out: usize, inp: usize, init: Init, bias: bool) {
        self.add(&format!("{name}.weight"), &[out, inp], init);
        if bias {
            self.add(&format!("{name}.bias"), &[out], Init::Zeros);
        }
    }

    /// A LayerNorm: weight at one, then the bias, if any, at zero.
    pub fn norm(&mut self, name: &str, width: usize, bias: bool) {
        self.add(&format!("{name}.weight"), &[width], Init::Ones);
        if bias {
            self.add(&format!("{name}.bias"), &[width], Init::Zeros);
        }
    }
}
