//! Rows of a stream as bytes: made by several threads, handed on in order, memory flat.

use crossbeam_channel::{Receiver, bounded};
use serde::Serialize;

use super::OrderStream;
use crate::format::npy;
use crate::{Error, Result};

/// About how many bytes are made at once by a thread.
const CHUNK_BYTES: usize = 1 << 17;

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RowFormat {
    /// NumPy's binary format, `<u2` or `<u4`.
    Npy,
    /// One JSON array a line.
    Jsonl,
}

/// Writes rows `skip..skip+count` of a stream.
pub struct RowWriter<'a> {
    /// The rows.
    pub stream: &'a OrderStream,
    /// The first row.
    pub skip: u64,
    /// How many; `None` goes on until the sink refuses, which only JSON lines can.
    pub count: Option<u64>,
    /// Bytes of a row.
    pub format: RowFormat,
    /// Threads that make rows; the result does not depend on it.
    pub threads: usize,
}

impl RowWriter<'_> {
    /// Hands header and rows to `put` as (bytes, rows in them), in order.
    ///
    /// # Errors
    /// When an `.npy` stream has no count, the rows would pass index 2^64, or `put` fails.
    pub fn write(&self, mut put: impl FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
        let end = self.skip.checked_add(self.count.unwrap_or(0)).ok_or_else(|| {
            Error::usage("--skip and --count together pass 2^64 rows; choose smaller ones")
        })?;
        let end = match (self.count, self.format) {
            (Some(count), RowFormat::Npy) => {
                put(&npy::header(count, self.stream.block_size()), 0)?;
                end
            }
            (Some(_), RowFormat::Jsonl) => end,
            (None, RowFormat::Jsonl) => u64::MAX,
            (None, RowFormat::Npy) => {
                return Err(Error::usage("--count is needed: an .npy header holds it"));
            }
        };
        let chunk_rows = (CHUNK_BYTES / (2 * self.stream.block_size())).max(1) as u64;
        let chunk = |number: u64| {
            let start = number.checked_mul(chunk_rows)?.checked_add(self.skip)?;
            (start < end).then(|| (start, end.min(start.saturating_add(chunk_rows))))
        };
        if self.threads <= 1 {
            let (mut row, mut bytes) = (Vec::new(), Vec::new());
            for (start, stop) in (0..).map_while(chunk) {
                self.encode(start, stop, &mut row, &mut bytes);
                put(&bytes, stop - start)?;
            }
            return Ok(());
        }
        let workers = self.threads as u64;
        std::thread::scope(|scope| {
            let lanes: Vec<Receiver<(Vec<u8>, u64)>> = (0..workers)
                .map(|lane| {
                    let (sender, receiver) = bounded(2);
                    scope.spawn(move || {
                        let mut row = Vec::new();
                        for (start, stop) in (0..).map_while(|k| chunk(k * workers + lane)) {
                            let mut bytes = Vec::with_capacity(CHUNK_BYTES);
                            self.encode(start, stop, &mut row, &mut bytes);
                            if sender.send((bytes, stop - start)).is_err() {
                                return; // the sink has failed or gone
                            }
                        }
                    });
                    receiver
                })
                .collect();
            // Lanes take chunks in turn, so the first that has no more is the end of all.
            for lane in lanes.iter().cycle() {
                match lane.recv() {
                    Ok((bytes, rows)) => put(&bytes, rows)?,
                    Err(_) => break,
                }
            }
            Ok(())
        })
    }

    fn encode(&self, start: u64, stop: u64, row: &mut Vec<u32>, bytes: &mut Vec<u8>) {
        let size = npy::entry_size(self.stream.block_size());
        bytes.clear();
        for index in start..stop {
            self.stream.row(index, row);
            match self.format {
                RowFormat::Npy => npy::put_row(row, size, bytes),
                RowFormat::Jsonl => put_json(row, bytes),
            }
        }
    }
}

/// Appends `[3,1,0,2]` and a newline.
fn put_json(row: &[u32], out: &mut Vec<u8>) {
    out.push(b'[');
    for (k, &position) in row.iter().enumerate() {
        if k > 0 {
            out.push(b',');
        }
        let mut digits = [0; 10];
        let mut at = digits.len();
        let mut rest = position;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        out.extend_from_slice(&digits[at..]);
    }
    out.extend_from_slice(b"]\n");
}

#[cfg(test)]
mod tests {
    use super::super::OrderSpec;
    use super::*;

    #[test]
    fn the_bytes_do_not_depend_on_the_number_of_threads() {
        let stream = OrderStream::new(OrderSpec::Uniform, 300, 5).unwrap();
        for format in [RowFormat::Npy, RowFormat::Jsonl] {
            let bytes = |threads| {
                let mut all = Vec::new();
                let mut rows = 0;
                let writer =
                    RowWriter { stream: &stream, skip: 17, count: Some(2000), format, threads };
                writer
                    .write(|part, n| {
                        all.extend_from_slice(part);
                        rows += n;
                        Ok(())
                    })
                    .unwrap();
                assert_eq!(rows, 2000);
                all
            };
            assert_eq!(bytes(1), bytes(3));
        }
    }

    #[test]
    fn a_sink_that_fails_ends_all_threads() {
        let stream = OrderStream::new(OrderSpec::L2r, 10, 0).unwrap();
        let (skip, count, format) = (0, None, RowFormat::Jsonl);
        let writer = RowWriter { stream: &stream, skip, count, format, threads: 2 };
        let mut left = 5;
        let error = writer.write(|_, _| {
            left -= 1;
            if left == 0 { Err(Error::BrokenPipe) } else { Ok(()) }
        });
        assert!(matches!(error, Err(Error::BrokenPipe)));
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        let mut out = Vec::new();
        put_json(&[0, 9, 10, 4_294_967_295], &mut out);
        assert_eq!(out, b"[0,9,10,4294967295]\n");
    }
}
