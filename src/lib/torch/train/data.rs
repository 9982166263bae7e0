//! Texts ahead of the step: a thread reads blocks.
//!
//! Training sequence n of the run (counted over all steps) is block `EpochShuffle(seed, epoch)` of
//! its folder, or block n mod count in file order without shuffling. Its order or its masks belong to
//! the process, and are a function of n too. So one number is the position in the data, and a resumed
//! run reads the same data as an uninterrupted one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use ao_core::rng::{Domain, Stream};
use ao_core::tokens::{Blocks, Dataset, EpochShuffle, OpenOptions};
use ao_core::{Error, Result};
use crossbeam_channel::Receiver;

/// Number of steps that are read ahead.
const AHEAD: usize = 4;

/// One optimizer step's data.
pub struct StepData {
    /// The texts of each micro-batch.
    pub micro: Vec<Vec<Vec<u32>>>,
}

/// One folder of `--shards` and its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardArg {
    /// The folder or shard.
    pub path: PathBuf,
    /// Its weight in the mixture.
    pub weight: f64,
}

/// Reads `A` or `A:0.7,B:0.3`.
///
/// # Errors
/// When a weight is missing among several, is not a positive number, or they do not sum to 1.
pub fn parse_shards(text: &str) -> Result<Vec<ShardArg>, String> {
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() == 1
        && !Path::new(text).exists()
        && let Some((path, weight)) = text.rsplit_once(':')
        && weight.parse::<f64>().is_ok_and(|w| w == 1.0)
    {
        return Ok(vec![ShardArg { path: path.into(), weight: 1.0 }]);
    }
    if parts.len() == 1 {
        return Ok(vec![ShardArg { path: text.into(), weight: 1.0 }]);
    }
    let mut shards = Vec::new();
    for part in parts {
        let Some((path, weight)) = part.rsplit_once(':') else {
            return Err(format!("'{part}' has no weight; write A:0.7,B:0.3"));
        };
        match weight.parse::<f64>() {
            Ok(weight) if weight > 0.0 && weight <= 1.0 => {
                shards.push(ShardArg { path: path.into(), weight });
            }
            _ => return Err(format!("weight '{weight}' of '{path}' must be above 0, at most 1")),
        }
    }
    let sum: f64 = shards.iter().map(|s| s.weight).sum();
    if (sum - 1.0).abs() > 1e-9 {
        return Err(format!("the weights sum to {sum}, not to 1"));
    }
    Ok(shards)
}

/// One open folder, and the number of sequences taken from it so far.
struct Folder {
    blocks: Blocks,
    weight: f64,
    taken: u64,
    shuffle: Option<EpochShuffle>,
    epoch: u64,
}

/// The endless stream of training sequences.
pub struct Sequences {
    folders: Vec<Folder>,
    seed: u64,
    shuffled: bool,
    next: u64,
}

impl Sequences {
    /// Opens the folders, cut into blocks of `block_size`.
    ///
    /// # Errors
    /// Folders that cannot be read, are empty, or do not share one tokenizer.
    pub fn open(
        shards: &[ShardArg],
        block_size: usize,
        seed: u64,
        shuffled: bool,
    ) -> Result<Sequences> {
        let mut folders = Vec::new();
        for shard in shards {
            let dataset = Arc::new(Dataset::open(&shard.path, &OpenOptions::default())?);
            let blocks = dataset.blocks(block_size)?;
            if blocks.is_empty() {
                return Err(Error::input_at(&shard.path, "has no tokens to train on"));
            }
            folders.push(Folder {
                blocks,
                weight: shard.weight,
                taken: 0,
                shuffle: None,
                epoch: u64::MAX,
            });
        }
        let first = folders[0].blocks.dataset().manifest().tokenizer_hash();
        for (folder, shard) in folders.iter().zip(shards) {
            if folder.blocks.dataset().manifest().tokenizer_hash() != first {
                return Err(Error::input_at(
                    &shard.path,
                    "has another tokenizer than the first folder; tokenize both with one",
                ));
            }
        }
        Ok(Sequences { folders, seed, shuffled, next: 0 })
    }

    /// Real ids of the vocabulary, the largest of all folders.
    pub fn vocab_size(&self) -> usize {
        self.folders.iter().map(|f| f.blocks.dataset().vocab_size()).max().unwrap_or(0)
    }

    /// The folders' datasets.
    pub fn datasets(&self) -> impl Iterator<Item = &Arc<Dataset>> {
        self.folders.iter().map(|f| f.blocks.dataset())
    }

    /// Skips `count` sequences.
    pub fn skip(&mut self, count: u64) {
        if self.folders.len() == 1 {
            self.folders[0].taken = count;
        } else {
            for index in 0..count {
                let folder = self.folder_of(index);
                self.folders[folder].taken += 1;
            }
        }
        self.next = count;
    }

    fn folder_of(&self, index: u64) -> usize {
        if self.folders.len() == 1 {
            return 0;
        }
        let mut u = Stream::new(self.seed, Domain::Mixture, index).uniform();
        for (i, folder) in self.folders.iter().enumerate() {
            u -= folder.weight;
            if u < 0.0 {
                return i;
            }
        }
        self.folders.len() - 1
    }

    /// The next sequence.
    fn take(&mut self, tokens: &mut Vec<u32>) -> Result<()> {
        let index = self.next;
        let at = self.folder_of(index);
        let (seed, shuffled) = (self.seed.wrapping_add(at as u64), self.shuffled);
        let folder = &mut self.folders[at];
        let count = folder.blocks.len();
        let (epoch, place) = (folder.taken / count, folder.taken % count);
        let block = if shuffled {
            if folder.epoch != epoch || folder.shuffle.is_none() {
                folder.shuffle = Some(EpochShuffle::new(seed, epoch, count));
                folder.epoch = epoch;
            }
            folder.shuffle.as_ref().map_or(place, |s| s.at(place))
        } else {
            place
        };
        folder.blocks.read(block, tokens)?;
        folder.taken += 1;
        self.next += 1;
        Ok(())
    }

    /// The data of the next step: `accumulate` micro-batches of `batch_size` sequences.
    fn step(&mut self, batch_size: usize, accumulate: usize) -> Result<StepData> {
        let mut micro = vec![vec![Vec::new(); batch_size]; accumulate];
        micro.iter_mut().flatten().try_for_each(|tokens| self.take(tokens))?;
        Ok(StepData { micro })
    }
}

/// The thread that reads ahead.
pub struct Loader {
    receiver: Option<Receiver<Result<StepData>>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts reading `steps` steps from where `sequences` stands.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        mut sequences: Sequences,
        steps: u64,
        batch_size: usize,
        accumulate: usize,
    ) -> Result<Loader> {
        let (sender, receiver) = crossbeam_channel::bounded(AHEAD);
        let thread = std::thread::Builder::new()
            .name("loader".into())
            .spawn(move || {
                for _ in 0..steps {
                    let data = sequences.step(batch_size, accumulate);
                    let failed = data.is_err();
                    // A send fails when the run has stopped. Nothing is left to do.
                    if sender.send(data).is_err() || failed {
                        return;
                    }
                }
            })
            .map_err(|e| Error::Device(format!("cannot start the loader thread: {e}")))?;
        Ok(Loader { receiver: Some(receiver), thread: Some(thread) })
    }

    /// The next step's data.
    ///
    /// # Errors
    /// The error that reading met, with its place.
    pub fn next(&self) -> Result<StepData> {
        match self.receiver.as_ref().map(|r| r.recv()) {
            Some(Ok(data)) => data,
            _ => Err(Error::Device("the loader thread ended early".into())),
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.receiver = None; // wakes a loader that waits to send
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixtures_need_weights_that_sum_to_one() {
        assert_eq!(parse_shards("data/train").unwrap()[0].weight, 1.0);
        let two = parse_shards("a:0.7,b:0.3").unwrap();
        assert_eq!((two[0].weight, two[1].path.to_str()), (0.7, Some("b")));
        assert!(parse_shards("a:0.7,b:0.4").unwrap_err().contains("sum"));
        assert!(parse_shards("a,b").unwrap_err().contains("no weight"));
        assert!(parse_shards("a:2,b:-1").unwrap_err().contains("above 0"));
    }
}
