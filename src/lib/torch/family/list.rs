//! The list of families.

use std::sync::{PoisonError, RwLock};

use ao_core::family::{self, Architecture, ModelConfig};
use ao_core::{Error, Result};

use super::by_mask::ByMask;
use super::by_order::ByOrder;
use super::traits::Family;
use crate::network::{ao_gpt, ddit, gpt2, sigma_gpt};

/// The families, one line each: the `arch`, and its network.
static FAMILIES: [(&str, &dyn Family); 7] = [
    ("ao-gpt", &ByOrder(ao_gpt)),
    ("sigma-gpt", &ByOrder(sigma_gpt)),
    ("sigma-official", &ByOrder(sigma_gpt)),
    ("gpt2", &ByOrder(gpt2)),
    ("radd", &ByMask(ddit)),
    ("mdlm", &ByMask(ddit)),
    ("sedd", &ByMask(ddit)),
];

/// Families of other crates, and of tests.
static MORE: RwLock<Vec<(&'static str, &'static dyn Family)>> = RwLock::new(Vec::new());

/// The family of a model.
///
/// # Errors
/// When its `arch` has no network in this build.
pub fn of(config: &ModelConfig) -> Result<&'static dyn Family> {
    let more = MORE.read().unwrap_or_else(PoisonError::into_inner);
    let mut all = FAMILIES.iter().chain(more.iter());
    all.find(|(arch, _)| *arch == config.arch()).map(|(_, family)| *family).ok_or_else(|| {
        Error::usage(format!("arch {}: this build has no network for it", config.arch()))
    })
}

/// Adds a family of another crate, or of a test, to both lists.
pub fn register(architecture: &'static dyn Architecture, family: &'static dyn Family) {
    family::register(architecture);
    let mut more = MORE.write().unwrap_or_else(PoisonError::into_inner);
    more.retain(|(arch, _)| *arch != architecture.name());
    more.push((architecture.name(), family));
}
