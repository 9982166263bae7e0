//! What `ao-sample` is told of an encoder, made into settings and requests.

use ao_core::config::{Family, ModelConfig};
use ao_core::rng::{Domain, Stream};
use ao_core::{Error, Result};

use super::{DiffusionSampler, Request, Settings};
use crate::decode::SampleArgs;
use crate::decode::args::Method;
use crate::decode::filter::Filter;
use crate::decode::template::Template;

impl SampleArgs {
    /// How an encoder's masks are taken away; `None` for a decoder.
    ///
    /// # Errors
    /// Flags that the family has no use for.
    pub(in crate::decode) fn diffusion(
        &self,
        config: &ModelConfig,
    ) -> Result<Option<DiffusionSampler>> {
        let arch = config.arch();
        let refuse = |flag: &str, why: &str| Err(Error::usage(format!("{flag}: {arch} {why}")));
        if config.family() != Family::Encoder {
            return match self.sampler {
                Some(_) => {
                    refuse("--sampler", "is a decoder and draws along --order; leave it out")
                }
                None => Ok(None),
            };
        }
        if self.speculative.is_some() {
            return refuse(
                "--speculative",
                "is an encoder, whose passes test no draft; leave it out",
            );
        }
        if self.rejection.is_some() {
            return refuse(
                "--rejection",
                "is an encoder, whose passes test no draft; leave it out",
            );
        }
        let sampler = self.sampler.unwrap_or(match self.order {
            Some(_) => DiffusionSampler::Ordered,
            None => DiffusionSampler::Tweedie,
        });
        if sampler != DiffusionSampler::Ordered && self.order.is_some() {
            return Err(Error::usage(format!(
                "--order: --sampler {} draws the order itself; leave one out",
                sampler.name()
            )));
        }
        if sampler == DiffusionSampler::FirstHitting && self.steps.is_some() {
            return Err(Error::usage(
                "--steps: --sampler first-hitting takes one pass a token; leave one out",
            ));
        }
        Ok(Some(sampler))
    }

    /// The settings of the sampler.
    pub(in crate::decode) fn settings(
        &self,
        (sampler, method): (DiffusionSampler, Method),
        filter: Filter,
        threads: usize,
        at_once: usize,
    ) -> Settings {
        Settings {
            sampler,
            adaptive: match method {
                Method::Adaptive(order) => Some(order),
                _ => None,
            },
            steps: self.steps.and_then(|s| usize::try_from(s).ok()),
            schedule: self.schedule,
            filter,
            candidates: self.top_k_candidates,
            threads,
            at_once,
        }
    }

    /// What sample `id` of an encoder starts from.
    pub(in crate::decode) fn masked_request(
        &self,
        id: u64,
        template: &Template,
        row: &[u32],
    ) -> Request {
        let mut stream = Stream::new(self.seed.seed, Domain::Sample, id);
        let (order, given) = template.arrange(row, self.prompt_order, &mut stream);
        Request { order, given, stream }
    }
}
