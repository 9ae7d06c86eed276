//! F32 memory that starts at a cache line, so that no vector straddles two.

use std::ops::Range;

/// Bytes of a cache line, and of the widest vector.
const LINE_BYTES: usize = 64;

/// A fixed number of F32 values from the start of a cache line on.
pub(crate) struct AlignedBuffer {
    values: Vec<f32>,
    aligned: Range<usize>,
}

impl AlignedBuffer {
    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        let values = vec![0.0; len + LINE_BYTES / size_of::<f32>()];
        // The values are never resized, hence never moved.
        let start = values.as_ptr().align_offset(LINE_BYTES);
        AlignedBuffer { values, aligned: start..start + len }
    }

    pub(crate) fn len(&self) -> usize {
        self.aligned.len()
    }

    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.aligned.clone()]
    }
}
