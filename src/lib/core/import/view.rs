//! A tensor where it lies in a file: nothing is copied until it is read, piece by piece.

use crate::Result;
use crate::format::checkpoint::{DType, TensorView};

/// Bytes that are handed on at once.
const PIECE: usize = 1 << 20;

/// A tensor inside a file, its elements reached by strides. Its maker has checked that every
/// element lies within the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Type of the elements.
    pub dtype: DType,
    /// Lengths of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Elements from one index to the next, for each dimension.
    pub stride: Vec<usize>,
    /// Byte of the file at which the first element lies.
    pub start: usize,
}

impl View {
    /// A row-major tensor.
    pub fn row_major(dtype: DType, shape: Vec<usize>, start: usize) -> View {
        let stride = row_major_stride(&shape);
        View { dtype, shape, stride, start }
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The number of bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.count() * self.dtype.size()
    }

    /// A matrix with its two dimensions exchanged; another tensor as it is.
    pub fn transposed(mut self) -> View {
        if let ([_, _], [_, _]) = (&self.shape[..], &self.stride[..]) {
            self.shape.swap(0, 1);
            self.stride.swap(0, 1);
        }
        self
    }

    /// Hands the bytes of the elements to `sink`, in row-major order, in pieces of about 1 MiB.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn read(&self, file: &[u8], sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if self.count() == 0 {
            return Ok(());
        }
        let compact = row_major_stride(&self.shape);
        let dense = self.shape.iter().zip(self.stride.iter().zip(&compact));
        if dense.clone().all(|(&d, (s, c))| d == 1 || s == c) {
            let bytes = &file[self.start..self.start + self.bytes()];
            return bytes.chunks(PIECE).try_for_each(sink);
        }
        match self.dtype.size() {
            1 => self.gather::<1>(file, sink),
            2 => self.gather::<2>(file, sink),
            4 => self.gather::<4>(file, sink),
            _ => self.gather::<8>(file, sink),
        }
    }

    /// Reads matrices of the last two dimensions, in blocks of rows. Within a block the dimension
    /// whose elements lie closer together is walked first, as every far step misses the cache.
    fn gather<const N: usize>(
        &self,
        file: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let dims = self.shape.len();
        let dim = |back: usize| match dims.checked_sub(back) {
            Some(i) => (self.shape[i], self.stride[i]),
            None => (1, 0),
        };
        let ((rows, row_step), (columns, column_step)) = (dim(2), dim(1));
        let block = (PIECE / (columns * N)).clamp(1, rows);
        let mut buffer = vec![0; block * columns * N];
        let mut index = vec![0; dims.saturating_sub(2)];
        loop {
            let outer: usize = index.iter().zip(&self.stride).map(|(i, s)| i * s).sum();
            for first in (0..rows).step_by(block) {
                let here = block.min(rows - first);
                let mut copy = |row: usize, column: usize| {
                    let element = outer + (first + row) * row_step + column * column_step;
                    let (from, to) = (self.start + element * N, (row * columns + column) * N);
                    buffer[to..to + N].copy_from_slice(&file[from..from + N]);
                };
                if row_step < column_step {
                    (0..columns).for_each(|column| (0..here).for_each(|row| copy(row, column)));
                } else {
                    (0..here).for_each(|row| (0..columns).for_each(|column| copy(row, column)));
                }
                sink(&buffer[..here * columns * N])?;
            }
            // The next index of the outer dimensions, the last one fastest.
            let Some(i) = (0..index.len()).rev().find(|&i| index[i] + 1 < self.shape[i]) else {
                return Ok(());
            };
            index[i] += 1;
            index[i + 1..].fill(0);
        }
    }
}

/// Row-major elements as f32, put into `out` (cleared first). False if they are no floats.
pub fn floats(dtype: DType, bytes: &[u8], out: &mut Vec<f32>) -> bool {
    let view = TensorView { dtype, shape: Vec::new(), bytes };
    view.read_f32(0..view.element_count(), out)
}

/// Strides of a row-major tensor.
fn row_major_stride(shape: &[usize]) -> Vec<usize> {
    let mut stride = vec![1usize; shape.len()];
    for i in (1..shape.len()).rev() {
        // Lengths of 0 have no elements to reach.
        stride[i - 1] = stride[i].saturating_mul(shape[i].max(1));
    }
    stride
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(view: &View, file: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        view.read(file, &mut |bytes| {
            out.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        out
    }

    #[test]
    fn strides_are_followed_in_row_major_order() {
        let file: Vec<u8> = (0..60).collect();
        let matrix = View::row_major(DType::U8, vec![3, 4], 10);
        assert_eq!(read(&matrix, &file), (10..22).collect::<Vec<u8>>());
        let transposed = matrix.transposed();
        assert_eq!(transposed.shape, [4, 3]);
        assert_eq!(read(&transposed, &file), [10, 14, 18, 11, 15, 19, 12, 16, 20, 13, 17, 21]);
        let spaced = View { dtype: DType::I16, shape: vec![3], stride: vec![2], start: 4 };
        assert_eq!(read(&spaced, &file), [4, 5, 8, 9, 12, 13]);
        let cube =
            View { dtype: DType::U8, shape: vec![2, 2, 3], stride: vec![1, 30, 10], start: 0 };
        assert_eq!(read(&cube, &file), [0, 10, 20, 30, 40, 50, 1, 11, 21, 31, 41, 51]);
        let scalar = View::row_major(DType::U8, vec![], 7);
        assert_eq!(read(&scalar, &file), [7]);
        assert!(read(&View::row_major(DType::U8, vec![3, 0], 7), &file).is_empty());
    }

    #[test]
    fn blocks_of_rows_join_without_a_seam() {
        // Three blocks and a rest of a transposed matrix of more than 3 MiB.
        let (rows, columns) = (1000, 833);
        let file: Vec<u8> =
            (0..rows * columns).flat_map(|i: usize| (i as u32).to_le_bytes()).collect();
        let view = View::row_major(DType::U32, vec![rows, columns], 0).transposed();
        let got = read(&view, &file);
        let words = got.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
        for (i, word) in words.enumerate() {
            assert_eq!(word as usize, i % rows * columns + i / rows);
        }
    }
}
