//! The one pass over a package's weights: read, hash, hand on.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{io, panic, thread};

use crossbeam_channel::{Receiver, Sender, bounded};
use sha2::{Digest as _, Sha256};
use synod_kernels::HostTensor;

use super::rows::{RowDigest, row_digest};
use super::shard::{Shard, StoredTensor};
use super::{Digest, EmbeddingRows, MemberError, MemberFiles};

/// Bytes that are read and hashed at a time: few enough to be in the cache still when they are hashed.
const STEP_BYTES: usize = 1 << 20;
const EMBEDDING: &str = "backbone.embed_tokens.weight";

/// How far a long work on files has come. Called from several threads.
pub trait Progress: Sync {
    /// The work begins; it will go over `total_bytes`.
    fn start(&self, total_bytes: u64);
    /// `bytes` more are done.
    fn advance(&self, bytes: u64);
}

/// Silence.
impl Progress for () {
    fn start(&self, _total_bytes: u64) {}
    fn advance(&self, _bytes: u64) {}
}

/// What the readers of one pass share.
struct Pass<'a> {
    /// The next shard to read.
    next: AtomicUsize,
    /// Set when nobody will look at what else is read.
    is_abandoned: AtomicBool,
    progress: &'a dyn Progress,
}

impl<'a> Pass<'a> {
    fn new(progress: &'a dyn Progress) -> Self {
        Self { next: AtomicUsize::new(0), is_abandoned: AtomicBool::new(false), progress }
    }

    fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

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
        let readers = thread::available_parallelism().map_or(1, usize::from).min(self.shards.len());
        let pass = &Pass::new(progress);
        let mut results = thread::scope(|scope| {
            let (deliver, deliveries) = bounded(0);
            let readers = (0..readers)
                .map(|_| {
                    let deliver = deliver.clone();
                    builder().spawn_scoped(scope, move || self.read_shards(pass, &deliver))
                })
                .collect::<io::Result<Vec<_>>>()
                .map_err(|source| {
                    // Some may have been started.
                    pass.abandon();
                    MemberError::Thread { source }
                })?;
            drop(deliver);
            visit_all(deliveries, visit, pass)?;
            Ok::<_, E>(
                readers
                    .into_iter()
                    .flat_map(|reader| reader.join().unwrap_or_else(|reason| panic::resume_unwind(reason)))
                    .collect::<Vec<_>>(),
            )
        })?;
        // In the order of the files, so that of several defects the same one is reported each time.
        results.sort_by_key(|(index, _)| *index);
        let mut embedding = None;
        for (_, result) in results {
            embedding = result?.or(embedding);
        }
        Ok(embedding.expect("open has found the embedding in the shards, and all of them were read"))
    }

    /// Takes one shard after another until none is left, one fails, or nobody listens any more.
    fn read_shards<'a>(
        &'a self,
        pass: &'a Pass<'a>,
        deliver: &Sender<Delivery<'a>>,
    ) -> Vec<(usize, Result<Option<EmbeddingRows>, MemberError>)> {
        let mut results = Vec::new();
        loop {
            let index = pass.next.fetch_add(1, Ordering::Relaxed);
            let Some(shard) = self.shards.get(index) else { return results };
            match ShardReader::new(shard, pass).read(&self.origin, deliver) {
                Ok(embedding) => results.push((index, Ok(embedding))),
                Err(Stop::Failed(error)) => {
                    results.push((index, Err(error)));
                    return results;
                }
                Err(Stop::Abandoned) => return results,
            }
        }
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

/// Why a reader ends before its file does.
enum Stop {
    Failed(MemberError),
    /// Nobody listens any more.
    Abandoned,
}

impl From<MemberError> for Stop {
    fn from(error: MemberError) -> Self {
        Self::Failed(error)
    }
}

/// Goes over one weight file once, in order.
struct ShardReader<'a> {
    shard: &'a Shard,
    hasher: Sha256,
    buffer: Vec<u8>,
    pass: &'a Pass<'a>,
}

impl<'a> ShardReader<'a> {
    fn new(shard: &'a Shard, pass: &'a Pass<'a>) -> Self {
        pass.progress.advance(shard.header.len() as u64);
        // Not read again: what was parsed is what is hashed.
        Self { shard, hasher: Sha256::new_with_prefix(&shard.header), buffer: Vec::new(), pass }
    }

    fn read(mut self, origin: &str, deliver: &Sender<Delivery<'a>>) -> Result<Option<EmbeddingRows>, Stop> {
        let mut embedding = None;
        for tensor in &self.shard.tensors {
            if tensor.name == EMBEDDING {
                embedding = Some(self.embedding(tensor)?);
            } else {
                self.tensor(tensor, deliver)?;
            }
        }
        let found = Digest::finish(self.hasher);
        MemberError::check_digest(&self.shard.name, self.shard.digest, found, origin)?;
        Ok(embedding)
    }

    /// Reads a tensor, hands it over, and waits until it was seen.
    fn tensor(&mut self, tensor: &'a StoredTensor, deliver: &Sender<Delivery<'a>>) -> Result<(), Stop> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.resize(tensor.size_bytes, 0);
        let mut offset_bytes = tensor.offset_bytes;
        for step in bytes.chunks_mut(STEP_BYTES) {
            self.step(offset_bytes, step)?;
            offset_bytes += step.len() as u64;
        }
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
        let mut done_bytes = 0;
        while done_bytes < tensor.size_bytes {
            let length = rows.len().min(tensor.size_bytes - done_bytes);
            let rows = &mut rows[..length];
            self.step(tensor.offset_bytes + done_bytes as u64, rows)?;
            digests.extend(rows.chunks_exact(row_bytes).map(row_digest));
            done_bytes += length;
        }
        Ok(EmbeddingRows::new(self.shard, tensor, digests)?)
    }

    /// Reads the next bytes of the file and hashes them, unless the pass is abandoned.
    fn step(&mut self, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Stop> {
        if self.pass.is_abandoned.load(Ordering::Relaxed) {
            return Err(Stop::Abandoned);
        }
        let read = self.shard.file.read_exact_at(bytes, offset_bytes);
        read.map_err(|source| MemberError::io(&self.shard.name, source))?;
        self.hasher.update(&*bytes);
        self.pass.progress.advance(bytes.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

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
        assert_eq!(count.0.load(Ordering::Relaxed), shard.header.len() as u64);
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
            assert_eq!(pass.is_abandoned.into_inner(), refuses);
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
