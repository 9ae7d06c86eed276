//! Embedding rows, which come from a file.

use crate::KernelError;
use crate::cpu::pool::Pool;
use crate::host::{HostEmbedding, HostMatrix, set_len};

/// Rows that are read at a time, so that threads share the reading of a short batch too.
const READ_ROWS: usize = 16;

/// The rows of a batch's distinct token ids, kept between calls for their memory.
///
/// Reading a row costs a system call and a digest, copying it almost nothing: a token that a batch repeats, as prompts
/// around one template do, is read once.
#[derive(Default)]
pub(crate) struct DistinctRows {
    /// Ascending.
    ids: Vec<u32>,
    /// `[ids, hidden]`.
    rows: HostMatrix,
}

impl DistinctRows {
    /// Bytes that it keeps.
    pub(crate) fn bytes(&self) -> usize {
        self.ids.capacity() * size_of::<u32>() + self.rows.bytes()
    }

    /// The most bytes that it keeps once it has seen `tokens` tokens in one batch.
    pub(crate) fn bytes_for(tokens: usize, vocab_size: usize, width: usize) -> usize {
        tokens * size_of::<u32>() + tokens.min(vocab_size) * width * size_of::<f32>()
    }

    /// Reads the rows `ids`, all of them checked, into `out`, shaped `[ids, hidden]`.
    ///
    /// # Errors
    /// What the table says of the lowest ids that it could not read.
    pub(crate) fn gather(
        &mut self,
        pool: &Pool,
        table: &HostEmbedding,
        ids: &[u32],
        out: &mut HostMatrix,
    ) -> Result<(), KernelError> {
        let DistinctRows { ids: distinct, rows } = self;
        set_len(distinct, ids.len());
        distinct.copy_from_slice(ids);
        distinct.sort_unstable();
        distinct.dedup();
        let width = table.0.width();
        rows.reshape(distinct.len(), width);
        pool.try_for_each_chunk(rows.values_mut(), READ_ROWS * width, |chunk, values| {
            let ids = &distinct[chunk * READ_ROWS..][..values.len() / width];
            table.0.read_rows(ids, values)
        })?;
        out.reshape(ids.len(), width);
        pool.for_each_row(out, |row, out| {
            let read = distinct.binary_search(&ids[row]).expect("every id is among the distinct ones");
            out.copy_from_slice(rows.row(read));
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::cpu::pool::available_cores;
    use crate::{Device, RowSource, reference::Reference};

    /// Rows of which every element is the row's number; keeps the ids that were read and the threads that read them.
    #[derive(Default)]
    struct Watched {
        reads: Mutex<Vec<(u32, String)>>,
    }

    impl RowSource for &'static Watched {
        fn rows(&self) -> usize {
            1000
        }

        fn width(&self) -> usize {
            3
        }

        fn read_rows(&self, ids: &[u32], out: &mut [f32]) -> Result<(), KernelError> {
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            for (&id, row) in ids.iter().zip(out.chunks_exact_mut(3)) {
                row.fill(id as f32);
                self.reads.lock().unwrap().push((id, thread.clone()));
                if id >= 900 {
                    return Err(KernelError::Rows { op: "embedding_gather", message: format!("row {id}") });
                }
            }
            Ok(())
        }
    }

    fn gather(watched: &'static Watched, ids: &[u32]) -> Result<HostMatrix, KernelError> {
        let pool = Pool::new(&available_cores()?)?;
        let table = Reference.load_embedding(Box::new(watched))?;
        let mut out = HostMatrix::default();
        DistinctRows::default().gather(&pool, &table, ids, &mut out)?;
        Ok(out)
    }

    /// Reading is what costs, so a repeated token must not be read again, nor any on the thread that asked.
    #[test]
    fn each_token_is_read_once_by_a_thread_of_the_device() {
        let watched: &Watched = Box::leak(Box::default());
        let ids: Vec<u32> = (0..300).map(|token| token * token % 61 * 10).collect();
        let out = gather(watched, &ids).unwrap();
        assert_eq!(out.shape(), (300, 3));
        for (row, &id) in ids.iter().enumerate() {
            assert_eq!(out.row(row), [id as f32; 3], "row {row}");
        }
        let mut reads = watched.reads.lock().unwrap().clone();
        assert!(reads.iter().all(|(_, thread)| thread.starts_with("synod-cpu-")), "{reads:?}");
        reads.sort_unstable();
        let (read, _): (Vec<u32>, Vec<String>) = reads.into_iter().unzip();
        let mut distinct = ids;
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > READ_ROWS);
        assert_eq!(read, distinct);
    }

    #[test]
    fn the_lowest_row_that_cannot_be_read_is_reported() {
        let watched: &Watched = Box::leak(Box::default());
        let ids: Vec<u32> = (0..100).chain((900..1000).rev()).collect();
        let error = gather(watched, &ids).unwrap_err();
        assert_eq!(error.to_string(), "embedding_gather: row 900");
    }
}
