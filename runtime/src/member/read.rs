//! The one pass over a member's weights that serves them: read, hash, hand on.

use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use synod_kernels::HostTensor;

use super::hash::{HashedReader, Pass, Progress, STEP_BYTES, Stop, in_parallel};
use super::rows::{RowDigest, row_digest};
use super::shard::{EMBEDDING, Shard, StoredTensor};
use super::{EmbeddingRows, MemberError, MemberFiles};

/// A tensor on its way from the thread that read it to the visitor; the buffer goes back the same way.
struct Delivery<'a> {
    tensor: &'a StoredTensor,
    bytes: Vec<u8>,
    give_back: Sender<Vec<u8>>,
}

impl MemberFiles {
    /// Reads every weight file once, verifies it, and shows `visit` every tensor but the embedding under its full name
    /// (`backbone.layers.0…`, `head.…`, `set_bias`, `span2.…`, `span_broad.…`). The embedding's rows stay in the file.
    ///
    /// Files are read in parallel, so tensors of different files come in no fixed order; those of one file come in the
    /// order of their bytes. One tensor per file is in memory at a time. What `visit` sees are the bytes that are
    /// hashed, but they are trusted only once this has returned `Ok`: drop what was made of them if it does not.
    ///
    /// # Errors
    /// The visitor's first error, at which reading stops; else [`MemberError::Digest`] for a file whose content is not
    /// what was pinned, anchored or listed, [`MemberError::Io`], or [`MemberError::Thread`] before anything is shown.
    ///
    /// # Panics
    /// If `visit` or `progress` does.
    pub fn read_tensors<E: From<MemberError>>(
        &self,
        progress: &dyn Progress,
        visit: &mut dyn FnMut(&str, HostTensor<'_>) -> Result<(), E>,
    ) -> Result<EmbeddingRows, E> {
        self.read_tensors_on(thread::Builder::new, progress, visit)
    }

    /// [`MemberFiles::read_tensors`] on threads that `builder` starts.
    fn read_tensors_on<E: From<MemberError>>(
        &self,
        builder: fn() -> thread::Builder,
        progress: &dyn Progress,
        visit: &mut dyn FnMut(&str, HostTensor<'_>) -> Result<(), E>,
    ) -> Result<EmbeddingRows, E> {
        progress.start(self.shards.iter().map(|shard| shard.size_bytes).sum());
        let pass = &Pass::new(progress);
        let (deliver, deliveries) = bounded(0);
        let reader = move || {
            let deliver = deliver.clone();
            move |index: usize| ShardReader::new(&self.shards[index], pass).read(&self.remedy, &deliver)
        };
        let count = self.shards.len();
        let results = in_parallel(builder, count, pass, reader, || visit_all(deliveries, visit, pass))?;
        let mut embedding = None;
        for result in results {
            embedding = result?.or(embedding);
        }
        Ok(embedding.expect("open has found the embedding in the shards, and all of them were read"))
    }
}

/// Shows every delivery to `visit` and gives its buffer back. At `visit`'s first error the pass is abandoned.
fn visit_all<E>(
    deliveries: Receiver<Delivery<'_>>,
    visit: &mut dyn FnMut(&str, HostTensor<'_>) -> Result<(), E>,
    pass: &Pass<'_>,
) -> Result<(), E> {
    for Delivery { tensor, bytes, give_back } in deliveries {
        // A reader that waits here learns it from its channel, one that is in the middle of a tensor from the pass.
        visit(&tensor.name, HostTensor { dtype: tensor.dtype, shape: &tensor.shape, bytes: &bytes })
            .inspect_err(|_| pass.abandon())?;
        // Its reader waits for it, unless it has panicked.
        let _ = give_back.send(bytes);
    }
    Ok(())
}

/// Goes over one weight file once, in order.
struct ShardReader<'a> {
    shard: &'a Shard,
    file: HashedReader<'a>,
    buffer: Vec<u8>,
}

impl<'a> ShardReader<'a> {
    fn new(shard: &'a Shard, pass: &'a Pass<'a>) -> Self {
        Self { shard, file: shard.data(pass), buffer: Vec::new() }
    }

    fn read(mut self, remedy: &str, deliver: &Sender<Delivery<'a>>) -> Result<Option<EmbeddingRows>, Stop> {
        let mut embedding = None;
        for tensor in &self.shard.tensors {
            if tensor.name == EMBEDDING {
                embedding = Some(self.embedding(tensor)?);
            } else {
                self.tensor(tensor, deliver)?;
            }
        }
        MemberError::check_digest(&self.shard.name, self.shard.digest, self.file.digest(), remedy)?;
        Ok(embedding)
    }

    /// Reads a tensor, hands it over, and waits until it was seen.
    fn tensor(&mut self, tensor: &'a StoredTensor, deliver: &Sender<Delivery<'a>>) -> Result<(), Stop> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.resize(tensor.size_bytes, 0);
        self.file.fill(&mut bytes)?;
        // A channel per tensor: should the visitor fail, its end is dropped and nobody waits for ever.
        let (give_back, given_back) = bounded(1);
        deliver.send(Delivery { tensor, bytes, give_back }).map_err(|_| Stop::Abandoned)?;
        self.buffer = given_back.recv().map_err(|_| Stop::Abandoned)?;
        Ok(())
    }

    /// Reads the embedding for its digests alone, the file's and each row's.
    fn embedding(&mut self, tensor: &StoredTensor) -> Result<EmbeddingRows, Stop> {
        let row_bytes = tensor.size_bytes / tensor.shape[0];
        let mut digests: Vec<RowDigest> = Vec::with_capacity(tensor.shape[0]);
        let mut rows = vec![0; (STEP_BYTES / row_bytes).max(1) * row_bytes];
        let mut left_bytes = tensor.size_bytes;
        while left_bytes > 0 {
            let length = left_bytes.min(rows.len());
            let rows = &mut rows[..length];
            self.file.fill(rows)?;
            digests.extend(rows.chunks_exact(row_bytes).map(row_digest));
            left_bytes -= rows.len();
        }
        Ok(EmbeddingRows::new(self.shard, tensor, digests)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::member::tests::fixture;

    #[derive(Default)]
    struct Count(AtomicU64);

    impl Progress for Count {
        fn start(&self, _total_bytes: u64) {}
        fn advance(&self, bytes: u64) {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The embedding is handed to nobody, so its reader never learns from a channel that the visitor has gone: a
    /// gigabyte would be read and hashed for nothing.
    #[test]
    fn a_reader_of_an_abandoned_pass_reads_no_further() {
        let package = fixture("tiny-08b");
        let holds_embedding = |shard: &&Shard| shard.tensors.iter().any(|tensor| tensor.name == EMBEDDING);
        let shard = package.shards.iter().find(holds_embedding).unwrap();
        let count = Count::default();
        let pass = Pass::new(&count);
        let mut reader = ShardReader::new(shard, &pass);
        let embedding = shard.tensors.iter().find(|tensor| tensor.name == EMBEDDING).unwrap();
        pass.abandon();
        assert!(matches!(reader.embedding(embedding), Err(Stop::Abandoned)));
        assert!(matches!(reader.read("", &bounded(0).0), Err(Stop::Abandoned)));
        assert_eq!(count.0.load(Ordering::Relaxed), shard.header_bytes);
    }

    #[test]
    fn a_visitors_error_abandons_the_pass() {
        let package = fixture("tiny-08b");
        let tensor = &package.shards[0].tensors[0];
        for refuses in [false, true] {
            let pass = Pass::new(&());
            let (deliver, deliveries) = bounded(1);
            let delivery = Delivery { tensor, bytes: vec![0; tensor.size_bytes], give_back: bounded(1).0 };
            assert!(deliver.send(delivery).is_ok());
            drop(deliver);
            let result = visit_all(deliveries, &mut |_, _| if refuses { Err(()) } else { Ok(()) }, &pass);
            assert_eq!(result.is_err(), refuses);
            assert_eq!(pass.is_abandoned(), refuses);
        }
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_an_error() {
        // No machine has the address space for such a stack.
        let builder = || thread::Builder::new().stack_size(1 << 60);
        let result = fixture("tiny-4b").read_tensors_on(builder, &(), &mut |_, _| panic!("nothing can have been read"));
        let error: MemberError = result.err().unwrap();
        assert!(error.to_string().starts_with("weight files: expected a thread to read them with, found none: "));
        assert!(matches!(error, MemberError::Thread { .. }));
    }
}
