//! The elements of CPU tensors as slices, whose type says the tensor's kind.

use std::ops::Deref;

use half::bf16;
use tch::{Device, Kind, Tensor};

/// An element type that a tensor kind has.
pub(crate) trait Stored: Copy + 'static {
    /// The kind of its tensors.
    const KIND: Kind;
}

impl Stored for f32 {
    const KIND: Kind = Kind::Float;
}

impl Stored for bf16 {
    const KIND: Kind = Kind::BFloat16;
}

/// Whether a tensor's memory is a slice of `T`.
fn holds<T: Stored>(tensor: &Tensor) -> bool {
    tensor.kind() == T::KIND && tensor.device() == Device::Cpu && tensor.is_contiguous()
}

/// The elements of a contiguous CPU tensor of the kind of `T`; `None` of any other. libtorch lets
/// another handle of the same memory write to it: callers keep such handles still.
pub(crate) fn slice<T: Stored>(tensor: &Tensor) -> Option<&[T]> {
    if !holds::<T>(tensor) {
        return None;
    }
    if tensor.numel() == 0 {
        return Some(&[]); // it may have no memory at all
    }
    // SAFETY: contiguous, on the CPU and of this kind; the borrow keeps the memory.
    Some(unsafe { std::slice::from_raw_parts(tensor.data_ptr() as *const T, tensor.numel()) })
}

/// As [`slice`], to write.
///
/// # Safety
/// Nothing else may use the memory, which other handles may share, meanwhile.
pub(crate) unsafe fn slice_mut<T: Stored>(tensor: &mut Tensor) -> Option<&mut [T]> {
    if !holds::<T>(tensor) {
        return None;
    }
    if tensor.numel() == 0 {
        return Some(&mut []);
    }
    // SAFETY: as in `slice`; it is this borrow's alone by the caller's word.
    Some(unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr() as *mut T, tensor.numel()) })
}

/// The elements of a tensor that is kept with them, for threads to read.
pub(crate) struct TensorSlice<T> {
    data: *const T,
    length: usize,
    _keep: Tensor,
}

// SAFETY: the memory is only read; the kept tensor is not used, and may be freed by any thread.
unsafe impl<T: Sync> Sync for TensorSlice<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for TensorSlice<T> {}

impl<T: Stored> TensorSlice<T> {
    /// The elements of a tensor, whose memory nothing may write while they live; of a copy where its
    /// kind, device or layout is another.
    pub fn new(tensor: &Tensor) -> TensorSlice<T> {
        let tensor = tensor.detach().to_device(Device::Cpu).to_kind(T::KIND).contiguous();
        let elements = slice::<T>(&tensor).unwrap_or_default();
        TensorSlice { data: elements.as_ptr(), length: elements.len(), _keep: tensor }
    }
}

impl<T> Deref for TensorSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the elements of the kept tensor, as `slice` found them.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_contiguous_tensors_of_its_kind_are_a_slice() {
        let tensor = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]).view([2, 2]);
        assert_eq!(slice::<f32>(&tensor), Some(&[1f32, 2.0, 3.0, 4.0][..]));
        assert!(slice::<bf16>(&tensor).is_none());
        assert!(slice::<f32>(&tensor.tr()).is_none());
        assert!(slice::<f32>(&tensor.to_kind(Kind::Double)).is_none());
        assert_eq!(*TensorSlice::<f32>::new(&tensor.tr()), [1f32, 3.0, 2.0, 4.0]);
        let halves = TensorSlice::<bf16>::new(&tensor);
        assert_eq!(halves[3], bf16::from_f32(4.0));
    }
}
