//! The embedding table, whose rows stay in their file and are read when a batch needs them.
//!
//! Invariant: a row that is handed out has the bytes that were hashed when the package was verified, whatever has
//! become of the file since: each is compared with a digest of its own. The file is read with `pread`, never mapped, so
//! that a truncated one is an error and not a signal.

use std::fs::File;
use std::os::unix::fs::FileExt;

use synod_kernels::{DType, KernelError, RowSource, widen};

use super::MemberError;
use super::shard::{Shard, StoredTensor};

const OP: &str = "embedding_gather";

/// The first 16 bytes of a row's BLAKE3.
pub(super) type RowDigest = [u8; 16];

/// The digest of a row's bytes.
pub(super) fn row_digest(row: &[u8]) -> RowDigest {
    let mut digest = RowDigest::default();
    digest.copy_from_slice(&blake3::hash(row).as_bytes()[..16]);
    digest
}

/// The rows of `backbone.embed_tokens.weight`, `[vocab, hidden]`, F32 or BF16, in a verified file.
pub struct EmbeddingRows {
    file_name: String,
    file: File,
    dtype: DType,
    /// Of row 0, from the start of the file.
    offset_bytes: u64,
    width: usize,
    /// One per row, taken in the pass that verified the file.
    digests: Vec<RowDigest>,
}

impl EmbeddingRows {
    /// The rows of `tensor`, of which `digests` were taken while `shard` was hashed.
    pub(super) fn new(shard: &Shard, tensor: &StoredTensor, digests: Vec<RowDigest>) -> Result<Self, MemberError> {
        Ok(Self {
            file_name: shard.name.clone(),
            file: shard.file.try_clone().map_err(|source| MemberError::io(&shard.name, source))?,
            dtype: tensor.dtype,
            offset_bytes: tensor.offset_bytes,
            width: tensor.shape[1],
            digests,
        })
    }

    /// Reads the bytes of row `id` into `row` and checks them.
    fn read_row(&self, id: u32, row: &mut [u8]) -> Result<(), KernelError> {
        let index = id as usize;
        let bound = self.digests.len();
        let digest = self.digests.get(index).ok_or(KernelError::Index { op: OP, what: "token id", index, bound })?;
        let rows = |message| KernelError::Rows { op: OP, message };
        self.file
            .read_exact_at(row, self.offset_bytes + (index * row.len()) as u64)
            .map_err(|error| rows(format!("{}: row {id}: {error}; load the member again", self.file_name)))?;
        if row_digest(row) != *digest {
            return Err(rows(format!(
                "{}: row {id}: expected the bytes that were verified, found others; restore the file and load the member again",
                self.file_name
            )));
        }
        Ok(())
    }
}

impl RowSource for EmbeddingRows {
    fn rows(&self) -> usize {
        self.digests.len()
    }

    fn width(&self) -> usize {
        self.width
    }

    fn read_rows(&self, ids: &[u32], out: &mut [f32]) -> Result<(), KernelError> {
        let (expected, found) = (ids.len() * self.width, out.len());
        if expected != found {
            return Err(KernelError::Shape { op: OP, what: "values of the rows", expected, found });
        }
        let mut row = vec![0; self.width * self.dtype.bytes()];
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(self.width)) {
            self.read_row(id, &mut row)?;
            widen(self.dtype, &row, out);
        }
        Ok(())
    }
}
