//! Matrices and parameters in host memory, which both host devices (the reference and the CPU) compute on.

use half::bf16;

use crate::checks::StateSizes;
use crate::{DType, HostTensor, KernelError, RowSource, States, checks, huge};

/// A row-major F32 matrix `[rows, columns]` in host memory.
#[derive(Debug, Default)]
pub struct HostMatrix {
    rows: usize,
    columns: usize,
    /// `rows * columns` elements; what a smaller shape leaves of the storage stays allocated for the next larger one.
    values: Vec<f32>,
}

impl HostMatrix {
    /// Gives the matrix a shape. Its elements are unspecified until the operation writes every one of them.
    pub(crate) fn reshape(&mut self, rows: usize, columns: usize) {
        self.rows = rows;
        self.columns = columns;
        set_len(&mut self.values, checks::product(&[rows, columns]));
    }

    /// Bytes that it keeps.
    pub(crate) fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<f32>()
    }

    /// `(rows, columns)`.
    pub(crate) fn shape(&self) -> checks::Shape {
        (self.rows, self.columns)
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.columns..][..self.columns]
    }

    /// All elements, row-major.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    /// All elements, row-major.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

/// What one operation keeps of a prefix, in host memory. What its values are is the device's own affair.
#[derive(Debug)]
pub struct HostState {
    /// Tokens of the prefix.
    pub(crate) tokens: usize,
    pub(crate) values: HostMatrix,
}

impl HostState {
    /// Room for values of a shape.
    pub(crate) fn new(tokens: usize, (rows, columns): checks::Shape) -> Self {
        let mut values = HostMatrix::default();
        values.reshape(rows, columns);
        Self { tokens, values }
    }

    /// Bytes of values of a shape.
    pub(crate) fn bytes_for((rows, columns): checks::Shape) -> usize {
        checks::product(&[rows, columns, size_of::<f32>()])
    }
}

impl States<'_, HostState> {
    /// What a check needs to know of them.
    pub(crate) fn sizes(&self) -> StateSizes {
        let size = |state: &HostState| (state.tokens, state.values.shape());
        StateSizes {
            kept: self.kept.iter().map(|state| size(state)).collect(),
            new: self.new.iter().map(|state| size(state)).collect(),
        }
    }
}

/// Gives memory that is used again and again a length, and takes no more than that from the system: how much a batch
/// needs is known before it runs. What the memory holds is unspecified.
pub(crate) fn set_len<T: Clone + Default>(values: &mut Vec<T>, len: usize) {
    if len > values.capacity() {
        // The old values go first: nobody needs them, and there need not be room for both.
        *values = Vec::new();
        *values = vec![T::default(); len];
        huge::advise(values);
    } else {
        values.resize(len, T::default());
    }
}

/// An F32 parameter in host memory, flattened row-major.
#[derive(Debug)]
pub struct HostVector(pub(crate) Vec<f32>);

/// An embedding table whose rows stay in their file.
pub struct HostEmbedding(pub(crate) Box<dyn RowSource>);

impl HostEmbedding {
    /// Refuses token ids that the table does not have.
    pub(crate) fn check(&self, ids: &[u32]) -> Result<(), KernelError> {
        checks::indices("embedding_gather", "token id", ids, self.0.rows())
    }
}

impl HostTensor<'_> {
    /// Refuses bytes that are not the shape's and the dtype's.
    pub(crate) fn check(&self, op: &'static str) -> Result<(), KernelError> {
        let expected = checks::product(self.shape).saturating_mul(self.dtype.bytes());
        checks::dimension(op, "bytes of the tensor", expected, self.bytes.len())
    }

    /// `[out, in]` of a Linear weight whose bytes are checked.
    pub(crate) fn linear_shape(&self, op: &'static str) -> Result<checks::Shape, KernelError> {
        self.check(op)?;
        checks::dimension(op, "dimensions of the weight", 2, self.shape.len())?;
        Ok((self.shape[0], self.shape[1]))
    }

    /// Every element widened to F32, row-major.
    pub(crate) fn widened(&self, op: &'static str) -> Result<Vec<f32>, KernelError> {
        self.check(op)?;
        let mut values = vec![0.0; checks::product(self.shape)];
        widen(self.dtype, self.bytes, &mut values);
        Ok(values)
    }
}

/// Writes the elements of little-endian `bytes`, widened to F32, into `out`; exactly, since BF16 is the upper half of an
/// F32.
///
/// # Panics
/// If `bytes` has not as many elements as `out`.
pub fn widen(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * dtype.bytes(), "bytes of the elements to widen");
    match dtype {
        DType::F32 => widen_each(bytes, out, f32::from_le_bytes),
        DType::Bf16 => widen_each(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
    }
}

fn widen_each<const BYTES: usize>(bytes: &[u8], out: &mut [f32], from_bytes: impl Fn([u8; BYTES]) -> f32) {
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = from_bytes(bytes);
    }
}
