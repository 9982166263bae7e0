//! Flag groups that mean the same in every tool.

use serde::Serialize;

use crate::{Error, Result};

/// Refuses a call for the first of its faults: whether it is there, and the words for it.
///
/// # Errors
/// [`Error::Usage`] with these words.
pub fn refuse(faults: &[(bool, &str)]) -> Result<()> {
    match faults.iter().find(|(there, _)| *there) {
        Some((_, words)) => Err(Error::usage(*words)),
        None => Ok(()),
    }
}

/// Refuses the first flag that was given and that `task` does not listen to.
///
/// # Errors
/// [`Error::Usage`] that names the flag.
pub fn refuse_idle<'a>(
    task: &str,
    flags: impl IntoIterator<Item = &'a (&'a str, bool)>,
) -> Result<()> {
    match flags.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => {
            Err(Error::usage(format!("{flag}: {task} has no use for it; leave it out")))
        }
        None => Ok(()),
    }
}

/// `--seed`, the coordinate that every draw of a run depends on.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct Seed {
    /// Seed of every random draw. The same seed gives the same result
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// `--quiet`, which silences everything for people.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct Quiet {
    /// Print only errors on stderr
    #[arg(long, short)]
    pub quiet: bool,
}

/// Where tensors live and in which precision matrices are multiplied.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct Compute {
    /// Where to compute. auto picks the first GPU if there is one
    #[arg(long, value_name = "auto|cpu|cuda|cuda:N", default_value = "auto")]
    pub device: DeviceChoice,
    /// Precision of matrix products. Norms, softmax and sums stay in f32 or f64
    #[arg(long, value_name = "f32|bf16|f16", default_value = "f32")]
    pub dtype: DType,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub threads: Option<usize>,
}

/// The value of `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU where there is one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
}

impl std::str::FromStr for DeviceChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(DeviceChoice::Cuda)
                .ok_or_else(|| "allowed are auto, cpu, cuda and cuda:N".into()),
        }
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            DeviceChoice::Auto => write!(f, "auto"),
            DeviceChoice::Cpu => write!(f, "cpu"),
            DeviceChoice::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

impl Serialize for DeviceChoice {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// The value of `--dtype`: the precision of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit floats.
    F32,
    /// bfloat16: 8 bits of significand, the exponent range of f32.
    Bf16,
    /// IEEE half precision: 11 bits of significand, narrow range.
    F16,
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
        })
    }
}

fn parse_positive(text: &str) -> Result<usize, String> {
    match parse_count(text)? {
        0 => Err("need at least 1".into()),
        n => usize::try_from(n).map_err(|e| e.to_string()),
    }
}

/// Reads a count such as `1000`, `64k`, `1M` or `2G` (powers of 1000).
///
/// # Errors
/// When the text is not a whole number with at most one of these letters, or does not fit 64 bits.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.chars().last() {
        Some('k') => (&text[..text.len() - 1], 1_000),
        Some('M') => (&text[..text.len() - 1], 1_000_000),
        Some('G') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("'{text}' is not a count such as 1000, 64k, 1M or 2G"))?;
    number.checked_mul(factor).ok_or_else(|| format!("'{text}' does not fit 64 bits"))
}

impl Compute {
    /// The number of CPU threads to use.
    pub fn thread_count(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_take_one_letter_and_refuse_overflow() {
        assert_eq!(parse_count("64k"), Ok(64_000));
        assert_eq!(parse_count("2G"), Ok(2_000_000_000));
        assert!(parse_count("k").is_err());
        assert!(parse_count("1.5k").is_err());
        assert!(parse_count("99999999999G").is_err());
    }

    #[test]
    fn devices_parse_and_print_alike() {
        for text in ["auto", "cpu", "cuda:0", "cuda:3"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        assert!("gpu".parse::<DeviceChoice>().is_err());
    }
}
