//! A fuzzer without a library: it mutates valid files and gives them to a reader in this process.
//!
//! Inputs follow from a fixed seed, so that a failure names the input that brought it about. A panic,
//! a request for more memory than the bound, or a read that takes longer than the limit is a failure;
//! the input lies in a file that the failure names. A test program that uses this sets
//! [`Counting`] as its allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long one input may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
/// Seconds that all readers together take of all cores where `AO_FUZZ_SECONDS` does not say otherwise.
const SHORT_ROUND: u64 = 16;
/// The longest input.
const LONGEST: usize = 1 << 16;

/// One reader and what is given to it.
pub struct Reader {
    /// Its corpus is `testdata/fuzz/NAME`.
    pub name: &'static str,
    /// Under which name inputs lie in their folder.
    pub file: &'static str,
    /// The most memory that reading one input may take beside what was taken before, in MiB.
    pub bound_mib: usize,
    /// Words that mutations put into inputs.
    pub words: &'static [&'static [u8]],
    /// Reads the input at this path. What it refuses is no failure.
    pub read: fn(&Path),
}

/// Words of JSON that break careless readers.
pub const JSON: &[&[u8]] = &[
    b"NaN",
    b"-1",
    b"1e999",
    b"18446744073709551615",
    b"99999999999",
    b"null",
    b"true",
    b"\"\"",
    b"\\ud83d",
    b"[]",
    b"{}",
    b"[[[[[[[[[[[[[[[[",
    b"{\"a\":",
    b"\xff",
    b"\xed\xa0\x80",
    b"0.5",
];

/// Small and large numbers of several widths.
pub const NUMBERS: &[&[u8]] = &[
    b"\0",
    b"\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x01\0\0\0\0\0\0\0",
];

/// Counts the memory of each thread.
pub struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static BOUND: Cell<isize> = const { Cell::new(isize::MAX) };
}

fn count(change: isize) {
    // A thread that is ending has no cells any more, and is counted no more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

/// Whether so much more is above the bound by itself, so that the system is not even asked.
fn far_too_much(size: usize) -> bool {
    BOUND
        .try_with(|bound| bound.get() != isize::MAX && size as isize > 4 * bound.get())
        .unwrap_or(false)
}

// SAFETY: every call is handed on to the system's allocator with the arguments as they came, or
// answered with null, which a caller of an allocator must expect. Counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        if far_too_much(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: what is given back came from the system's allocator with this layout.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        if far_too_much(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }
}

/// SplitMix64.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }
}

/// One to eight changes of an input.
fn mutate(corpus: &[Vec<u8>], words: &[&[u8]], draws: &mut Draws) -> Vec<u8> {
    let mut bytes = corpus[draws.below(corpus.len())].clone();
    for _ in 0..1 + draws.below(8) {
        let at = draws.below(bytes.len() + 1);
        let end = at + draws.below((bytes.len() - at).min(64) + 1);
        match draws.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << draws.below(8),
            1 if at < bytes.len() => bytes[at] = draws.next() as u8,
            2 => drop(bytes.drain(at..end)),
            3 => bytes.truncate(at),
            4 => {
                let part = bytes[at..end].to_vec();
                let times = 1 + draws.below(4);
                bytes.splice(at..at, part.repeat(times));
            }
            5 => {
                let other = &corpus[draws.below(corpus.len())];
                let from = draws.below(other.len() + 1);
                let part =
                    other[from..from + draws.below((other.len() - from).min(512) + 1)].to_vec();
                bytes.splice(at..end, part);
            }
            6 if !words.is_empty() => {
                bytes.splice(at..end, words[draws.below(words.len())].iter().copied());
            }
            7 if !words.is_empty() => {
                let word = words[draws.below(words.len())];
                let to = (at + word.len()).min(bytes.len());
                bytes[at..to].copy_from_slice(&word[..to - at]);
            }
            _ => bytes.insert(at, draws.next() as u8),
        }
    }
    bytes.truncate(LONGEST);
    bytes
}

/// Gives mutated files to `reader` for its share of the time and says how many they were.
///
/// # Panics
/// When one of them is a failure.
pub fn run(reader: &Reader, readers: usize) {
    let seconds = std::env::var("AO_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    let share = Duration::from_secs(seconds.unwrap_or(SHORT_ROUND)) / readers as u32;
    let seed = std::env::var("AO_FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/fuzz").join(reader.name);
    let mut names: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    let corpus: Vec<Vec<u8>> = names.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!corpus.is_empty(), "{}: no corpus", folder.display());
    let memory = Path::new("/dev/shm"); // a folder in memory, where there is one
    let room = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let room = room.unwrap();
    let path = room.path().join(reader.file);
    let clock = watch(reader.name, &path);
    let start = Instant::now();
    let mut done = 0;
    // The valid files go first, as they are.
    while (done as usize) < corpus.len() || start.elapsed() < share {
        let mut draws = Draws(seed ^ (done << 20));
        let input = match corpus.get(done as usize) {
            Some(whole) => whole.clone(),
            None => mutate(&corpus, reader.words, &mut draws),
        };
        std::fs::write(&path, &input).unwrap();
        let bound = (reader.bound_mib as isize) << 20;
        let before = LIVE.with(Cell::get);
        PEAK.with(|peak| peak.set(before));
        BOUND.with(|b| b.set(bound));
        clock.store(since_start(), Ordering::Relaxed);
        let outcome = std::panic::catch_unwind(|| (reader.read)(&path));
        clock.store(0, Ordering::Relaxed);
        BOUND.with(|b| b.set(isize::MAX));
        let taken = PEAK.with(Cell::get) - before;
        let what = match outcome {
            Err(_) => "a panic".to_owned(),
            Ok(()) if taken > bound => format!("{} MiB of memory", taken >> 20),
            Ok(()) => {
                done += 1;
                continue;
            }
        };
        let kept = std::env::temp_dir().join(format!("fuzz-{}-{seed}-{done}", reader.name));
        std::fs::write(&kept, &input).unwrap();
        panic!(
            "{}: input {done} of seed {seed}: {what}; the input is {}",
            reader.name,
            kept.display()
        );
    }
    println!("{}: {done} inputs in {:.1} s", reader.name, start.elapsed().as_secs_f64());
}

fn since_start() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

/// A clock that ends the process when it was started too long ago; 0 stops it.
fn watch(name: &'static str, path: &Path) -> Arc<AtomicU64> {
    let clock = Arc::new(AtomicU64::new(0));
    let (seen, path) = (Arc::downgrade(&clock), path.to_owned());
    std::thread::spawn(move || {
        while let Some(clock) = seen.upgrade() {
            let begun = clock.load(Ordering::Relaxed);
            if begun > 0 && since_start() > begun + LIMIT.as_millis() as u64 {
                let kept = std::env::temp_dir().join(format!("fuzz-{name}-hang"));
                let _ = std::fs::copy(&path, &kept);
                eprintln!("{name}: an input took more than {LIMIT:?}; it is {}", kept.display());
                std::process::abort();
            }
            drop(clock);
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    clock
}
