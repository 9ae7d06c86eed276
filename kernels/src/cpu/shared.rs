//! One matrix written by many threads at once, each in a rectangle of its own.

use std::marker::PhantomData;
use std::ops::Range;

use crate::host::HostMatrix;

/// A matrix whose rectangles are handed out for writing.
pub(crate) struct SharedMatrix<'a> {
    values: *mut f32,
    rows: usize,
    columns: usize,
    matrix: PhantomData<&'a mut HostMatrix>,
}

// SAFETY: the pointer stands for an exclusive borrow of F32 values, and `part`'s contract keeps what threads get from
// it disjoint.
unsafe impl Send for SharedMatrix<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMatrix<'_> {}

impl<'a> SharedMatrix<'a> {
    pub(crate) fn new(matrix: &'a mut HostMatrix) -> Self {
        let (rows, columns) = matrix.shape();
        SharedMatrix { values: matrix.values_mut().as_mut_ptr(), rows, columns, matrix: PhantomData }
    }

    /// Some columns of a row.
    ///
    /// # Safety
    /// No two parts that are alive at the same time, on any thread, may overlap.
    #[allow(clippy::mut_from_ref)] // The contract above is what makes it exclusive.
    pub(crate) unsafe fn part(&self, row: usize, columns: Range<usize>) -> &mut [f32] {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.columns);
        // SAFETY: the assertion keeps the part inside the matrix, which `self` borrows exclusively for 'a; the caller
        // keeps parts disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.values.add(row * self.columns + columns.start), columns.len()) }
    }
}
