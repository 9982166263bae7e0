//! `ao-score`: from shards and orders to records.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ao_core::cli::{Input, peak_memory_bytes};
use ao_core::orders::OrderSource;
use ao_core::process::Orders as Capability;
use ao_core::score::{
    self, Cost, Design, Estimate, GivenOrderings, SequenceRecord, Setting, Stopped,
};
use ao_core::{Error, Result};
use serde_json::{Map, Value};

use super::args::{Conditioned, Elbo, ScoreArgs, TargetBy};
use super::corpus::{Corpus, Shards};
use super::orders::Orders;
use super::output::{Emitter, Out};
use super::pending::{Open, order_noise};
use super::reference;
use super::set::{Cloze, Item, Set};
use crate::device::Runtime;
use crate::family::{self, EnsembleSettings, Model, ScoreSettings, Scorer, Work};
use crate::network::Loaded;

/// Orders that `--target-se` stops at where `--mc` names no other number.
const MOST_ORDERS: u32 = 64;

/// Does what `args` names and writes the records.
///
/// # Errors
/// Unusable input, an NLL that is not finite, or a sink that cannot be written.
pub fn run(args: ScoreArgs) -> Result<()> {
    let quiet = args.quiet.quiet;
    let say = |line: &str| {
        if !quiet {
            eprintln!("ao-score: {line}");
        }
    };
    if let [a, b] = args.compare.as_slice() {
        let comparison = score::compare(a, b, args.cluster)?;
        comparison.warnings.iter().for_each(|w| say(&format!("warning: {w}")));
        say(&comparison.to_line());
        let mut out = Out::Sink(args.output.open()?);
        out.put(&comparison)?;
        return out.finish();
    }
    if !args.merge.is_empty() {
        return score::merge(&args.merge, &args.output, args.cluster, |w| {
            say(&format!("warning: {w}"))
        });
    }
    if args.r#ref.is_some() {
        return reference::run(&args, say);
    }
    score_shards(&args, say)
}

/// How an evaluation goes on: what the flags came to.
struct Evaluation {
    /// Orders or draws a sequence K.
    mc: u64,
    /// Works a forward pass.
    batch_size: u64,
    per_token: bool,
    ensemble: u64,
    /// The file that is gone on with.
    resume: Option<PathBuf>,
    /// Add orders until the order noise is below this.
    orders_until: Option<f64>,
    /// Add sequences until the error is below this.
    sequences_until: Option<f64>,
}

impl Evaluation {
    fn of(args: &ScoreArgs) -> Evaluation {
        let orders_until = args.target_se.filter(|_| args.target_by == TargetBy::Orders);
        let mc = if orders_until.is_some() && args.mc == 1 { MOST_ORDERS } else { args.mc };
        Evaluation {
            mc: mc.into(),
            batch_size: args.batch_size.into(),
            per_token: args.per_token,
            ensemble: args.ensemble.into(),
            resume: args.resume.clone(),
            orders_until,
            sequences_until: args.target_se.filter(|_| args.target_by == TargetBy::Sequences),
        }
    }
}

fn score_settings(args: &ScoreArgs, how: &Evaluation) -> ScoreSettings {
    let wanted = args.ensemble > 1 || args.ensemble_curve || args.positions.is_some();
    ScoreSettings {
        orders: args.orders.clone(),
        bound: args.elbo.map(|elbo| elbo.objective()),
        published: args.elbo.is_some_and(Elbo::published),
        mc: how.mc,
        ensemble: wanted.then(|| EnsembleSettings {
            size: args.ensemble as usize,
            curve: args.ensemble_curve,
            positions: args.positions.map(|k| k as usize),
        }),
        spans: args.cloze.is_some(),
        masks: args.masks.clone(),
        per_token: args.per_token,
        batch_size: args.batch_size as usize,
        seed: args.seed.seed,
    }
}

fn score_shards(args: &ScoreArgs, say: impl Fn(&str)) -> Result<()> {
    // A target that is in the way is told before the model is read.
    let sink = if args.resume.is_none() { Some(args.output.open()?) } else { None };
    let runtime = Runtime::start(&args.compute)?;
    let loaded = Loaded::open(&args.checkpoint, &runtime)?;
    let corpus = Corpus::open(
        &Shards {
            path: args.shards.clone().unwrap_or_else(|| "-".into()),
            raw_u16: args.raw_u16,
            skip: args.skip,
            most: args.max_sequences,
            tokenizer: args.tokenizer.clone(),
            cluster: args.cluster,
        },
        &loaded,
    )?;
    let how = Evaluation::of(args);
    let cloze = cloze(args, &loaded)?;
    let settings = score_settings(args, &how);
    let started = Instant::now();
    let scorer = family::of(&loaded.config)?.scorer(Model::of(&loaded, &runtime), &settings)?;
    let spec = scorer.orders().unwrap_or("l2r");
    let source = OrderSource::open(spec, loaded.config.block_size(), args.seed.seed)?;
    if args.mc > 1 && source.is_one_order() && scorer.orders().is_some() {
        return Err(Error::usage(format!(
            "--mc {}: {spec} has one order for every row; leave --mc out",
            args.mc
        )));
    }
    source.require_rows(corpus.range().end.saturating_mul(how.mc))?;
    if how.orders_until.is_some() && source.is_pipe() {
        return Err(Error::usage(
            "--target-se: orders are added in rounds over all sequences, a pipe only moves \
             forward; give --orders a file or a SPEC",
        ));
    }
    let more = args.ensemble_orders.iter().chain(&args.masks).map(|path| Input::of_file(path));
    let more = std::iter::once(Ok(corpus.input.clone())).chain(more).collect::<Result<Vec<_>>>()?;
    let record = args.run_record(&runtime, &loaded, more)?;
    let mut run = record.to_json().as_object().cloned().unwrap_or_default();
    run.insert("orders".into(), scorer.draws().unwrap_or_else(|| source.describe()));
    if let Some((source, note)) = corpus.bytes_source() {
        run.insert("bytes_source".into(), source.into());
        note.iter().for_each(|note| say(note));
    }
    let (mut out, done) = open_output(&how, sink, &run)?;
    let Some(done) = done else {
        say("the file is complete already; nothing is left to do");
        return Ok(());
    };
    if done.is_none() {
        out.put(&run)?;
        out.flush()?;
    }
    let done = done.unwrap_or_default();

    let range = corpus.range();
    let orderings = match &args.ensemble_orders {
        Some(path) => Some(GivenOrderings::open(path, args.ensemble as usize)?),
        None => None,
    };
    let mut set = Set {
        orders: Orders::new(source, how.mc),
        given: scorer.given(),
        orderings,
        cloze,
        corpus: &corpus,
        left_out: 0,
    };
    let lengths = range.clone().map(|index| Ok((index, corpus.read(index)?.tokens.len())));
    set.orders.look_ahead(lengths)?;
    let left = (range.end - range.start).saturating_sub(done.len() as u64);
    let design = Design::of(&run["orders"], args.cluster);
    let until = how.sequences_until;
    let emitter = Emitter::new(out, design, &done, left, until, args.quiet.quiet);
    let mut job = Job { set, scorer, emitter, done, how };
    let stopped = match (job.how.orders_until, job.how.sequences_until) {
        (Some(target), _) => Some(job.until_orders_suffice(target)?),
        (None, until) => {
            job.all()?;
            until.map(|target_se| Stopped {
                target_se,
                adding: "sequences".into(),
                reached: job.emitter.reached,
            })
        }
    };
    if let Some(stopped) = &stopped
        && !stopped.reached
    {
        say(&format!(
            "warning: --target-se {} was not reached: no more {} to add",
            stopped.target_se, stopped.adding
        ));
    }
    job.finish(stopped, started)
}

/// What is held out, and what the model can be given of the rest.
fn cloze(args: &ScoreArgs, loaded: &Loaded) -> Result<Option<Cloze>> {
    let Some(spec) = args.cloze else { return Ok(None) };
    let reads_left = loaded.config.capabilities().orders == Capability::LeftToRight;
    if reads_left && args.conditioning == Some(Conditioned::Both) {
        return Err(Error::usage(format!(
            "--conditioning both: {} is given what stands before a token alone; say left",
            loaded.config.arch()
        )));
    }
    let left = reads_left || args.conditioning == Some(Conditioned::Left);
    Ok(Some(Cloze { spec, seed: args.seed.seed, left }))
}

/// The output, and what it holds already: `None` where it is complete, `Some(None)` where it is
/// new.
#[allow(clippy::type_complexity)]
fn open_output(
    how: &Evaluation,
    sink: Option<ao_core::cli::Sink>,
    run: &Map<String, Value>,
) -> Result<(Out, Option<Option<Vec<SequenceRecord>>>)> {
    let path = match (sink, &how.resume) {
        (Some(sink), _) => return Ok((Out::Sink(sink), Some(None))),
        (None, path) => path.as_deref().unwrap_or(Path::new("-")),
    };
    if path == Path::new("-") {
        return Err(Error::usage("--resume -: a stream cannot be gone on with; name a file"));
    }
    if how.orders_until.is_some() {
        return Err(Error::usage(
            "--resume: with --target-se no sequence is finished before the end; leave one out",
        ));
    }
    let resumed = score::resume(path, run)?;
    let out = Out::append(path, resumed.file);
    let done = if resumed.complete { None } else { Some((!resumed.empty).then_some(resumed.done)) };
    Ok((out, done))
}

/// One evaluation.
struct Job<'a> {
    set: Set<'a>,
    scorer: Box<dyn Scorer>,
    emitter: Emitter,
    /// Sequences that an earlier run has scored.
    done: Vec<SequenceRecord>,
    how: Evaluation,
}

impl Job<'_> {
    /// Scores every sequence along its K orders, in batches that hold the same rows whether or not
    /// the run was interrupted.
    fn all(&mut self) -> Result<()> {
        let batch_size = self.how.batch_size;
        let first = self.done.len() as u64 * self.how.mc / batch_size * batch_size;
        let (mut batch, mut open) = (Vec::new(), VecDeque::new());
        let (mut row, mut nth) = (0, 0);
        for index in self.set.corpus.range() {
            let Some(item) = self.set.item(index)? else { continue };
            let known = self.done.get(nth);
            if let Some(record) = known.filter(|r| r.index != index) {
                return Err(Error::input_at(
                    self.how.resume.as_deref().unwrap_or(Path::new("-")),
                    format!("holds sequence {} where {index} belongs", record.index),
                ));
            }
            let known = known.is_some();
            for k in 0..self.how.mc {
                if row >= first {
                    let work = self.set.work(nth, &item, k)?;
                    if k == 0 && !known {
                        open.push_back(self.open(nth, item.clone(), &work));
                    }
                    batch.push(work);
                }
                row += 1;
                if row % batch_size == 0 {
                    self.forward(&mut batch, &mut open)?;
                    if self.emitter.reached {
                        return Ok(());
                    }
                }
            }
            nth += 1;
        }
        self.forward(&mut batch, &mut open)
    }

    fn open(&self, nth: usize, item: Item, work: &Work) -> Open {
        let bytes = self.set.bytes(&item, work);
        Open::new(nth, item, bytes, self.estimate())
    }

    /// What the numbers are.
    fn estimate(&self) -> Estimate {
        self.scorer.estimate().unwrap_or_else(|| self.set.estimate())
    }

    /// Scores the batch and emits the sequences whose orders are all scored.
    fn forward(&mut self, batch: &mut Vec<Work>, open: &mut VecDeque<Open>) -> Result<()> {
        for scored in self.scorer.score(batch)? {
            // What an earlier run has written is scored again only to fill a batch.
            let Some(first) = open.front().map(|o| o.nth) else { continue };
            if let Some(at) = scored.nth.checked_sub(first) {
                open[at].add(scored, self.how.per_token);
            }
        }
        batch.clear();
        let mut records = Vec::new();
        while open.front().is_some_and(|o| o.sums.len() as u64 == self.how.mc) {
            records.extend(open.pop_front().map(|o| o.record(self.how.per_token)));
        }
        self.emitter.emit(records)
    }

    /// Rounds over all sequences, one more order each, until the order noise is below `target`.
    fn until_orders_suffice(&mut self, target: f64) -> Result<Stopped> {
        let most = self.how.mc;
        let mut open: Vec<Open> = Vec::new();
        let mut reached = false;
        for k in 0..most {
            let (mut batch, mut nth) = (Vec::new(), 0);
            self.set.left_out = 0;
            for index in self.set.corpus.range() {
                let Some(item) = self.set.item(index)? else { continue };
                let work = self.set.work(nth, &item, k)?;
                if k == 0 {
                    open.push(self.open(nth, item, &work));
                }
                batch.push(work);
                nth += 1;
                if batch.len() == self.how.batch_size as usize {
                    self.round(&mut batch, &mut open)?;
                }
            }
            self.round(&mut batch, &mut open)?;
            self.how.mc = k + 1;
            let error = order_noise(&open, self.emitter.totals.design());
            let noise = error.map_or(String::new(), |e| format!(", order noise {e:.6}"));
            self.emitter.tell(&format!("{} orders{noise}", k + 1));
            let exact = self.set.orders.estimate() == Estimate::Exact;
            reached = exact || error.is_some_and(|e| e <= target);
            if reached {
                break;
            }
        }
        let estimate = self.estimate();
        let per_token = self.how.per_token;
        let records = open.into_iter().map(|mut o| {
            o.estimate = estimate;
            o.record(per_token)
        });
        self.emitter.emit(records.collect())?;
        Ok(Stopped { target_se: target, adding: "orders".into(), reached })
    }

    fn round(&mut self, batch: &mut Vec<Work>, open: &mut [Open]) -> Result<()> {
        for scored in self.scorer.score(batch)? {
            let nth = scored.nth;
            open[nth].add(scored, self.how.per_token);
        }
        batch.clear();
        Ok(())
    }

    fn finish(self, stopped: Option<Stopped>, started: Instant) -> Result<()> {
        let sizes = self.scorer.curve_sizes();
        let setting = Setting {
            orders_per_sequence: self.how.mc,
            ensemble: self.how.ensemble,
            given_tokens: self.set.given as u64,
            curve: sizes.map(|list| list.into_iter().map(|m| m as u64).collect()),
            estimate: self.estimate(),
            orders: self.scorer.draws().unwrap_or_else(|| self.set.describe()),
            manner: self.scorer.manner(),
            conditioning: self.set.conditioning(),
            sequences_left_out: (self.set.left_out > 0).then_some(self.set.left_out),
            stopped,
        };
        let cost = Cost {
            seconds: started.elapsed().as_secs_f64(),
            peak_memory_bytes: peak_memory_bytes(),
            ..self.scorer.cost()
        };
        let summary = self.emitter.totals.summary(setting, cost);
        if summary.sequences == 0 {
            return Err(Error::usage("--shards: no sequence has a token that the model scores"));
        }
        self.emitter.finish(&summary)
    }
}
