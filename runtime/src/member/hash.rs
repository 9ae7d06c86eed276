//! Files read once, front to back, and hashed on the way; several of them at a time.
//!
//! Invariant: a byte that leaves a [`HashedReader`] has gone into its digest, and none goes in that was not handed out.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{io, panic, thread};

use sha2::{Digest as _, Sha256};

use super::{Digest, MemberError};

/// Bytes that are read and hashed at a time: few enough to be in the cache still when they are hashed.
pub(super) const STEP_BYTES: usize = 1 << 20;

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

/// What the readers of one pass over several files share.
pub(super) struct Pass<'a> {
    /// The next file to read.
    next: AtomicUsize,
    /// Set when nobody will look at what else is read.
    is_abandoned: AtomicBool,
    progress: &'a dyn Progress,
}

impl<'a> Pass<'a> {
    pub(super) fn new(progress: &'a dyn Progress) -> Self {
        Self { next: AtomicUsize::new(0), is_abandoned: AtomicBool::new(false), progress }
    }

    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Relaxed)
    }
}

/// Why a reader ends before its file does.
pub(super) enum Stop {
    Failed(MemberError),
    /// Nobody listens any more.
    Abandoned,
}

impl From<MemberError> for Stop {
    fn from(error: MemberError) -> Self {
        Self::Failed(error)
    }
}

/// A file on its way through SHA-256.
pub(super) struct HashedReader<'a> {
    name: &'a str,
    file: &'a File,
    offset_bytes: u64,
    hasher: Sha256,
    pass: &'a Pass<'a>,
}

impl<'a> HashedReader<'a> {
    /// A reader of `file` from its start.
    pub(super) fn new(name: &'a str, file: &'a File, pass: &'a Pass<'a>) -> Self {
        Self::after(Sha256::new(), 0, name, file, pass)
    }

    /// A reader of `file` that goes on after its first `offset_bytes`, which `hasher` has been given.
    pub(super) fn after(hasher: Sha256, offset_bytes: u64, name: &'a str, file: &'a File, pass: &'a Pass<'a>) -> Self {
        pass.progress.advance(offset_bytes);
        Self { name, file, offset_bytes, hasher, pass }
    }

    /// Fills `bytes` with the next bytes of the file.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Stop> {
        for step in bytes.chunks_mut(STEP_BYTES) {
            if self.pass.is_abandoned.load(Ordering::Relaxed) {
                return Err(Stop::Abandoned);
            }
            let read = self.file.read_exact_at(step, self.offset_bytes);
            read.map_err(|source| MemberError::io(self.name, source))?;
            self.hasher.update(&*step);
            self.offset_bytes += step.len() as u64;
            self.pass.progress.advance(step.len() as u64);
        }
        Ok(())
    }

    /// Reads on to `size_bytes` and keeps nothing.
    pub(super) fn skip_to(&mut self, size_bytes: u64) -> Result<(), Stop> {
        let mut step = vec![0; STEP_BYTES.min((size_bytes - self.offset_bytes) as usize)];
        while self.offset_bytes < size_bytes {
            let length = step.len().min((size_bytes - self.offset_bytes) as usize);
            self.fill(&mut step[..length])?;
        }
        Ok(())
    }

    /// The digest of what was read.
    pub(super) fn digest(self) -> Digest {
        Digest::finish(self.hasher)
    }
}

/// Reads the first `count` files of a pass on as many threads as there are processors, the first ones first, each thread
/// with a reader that `reader` makes for it; on the caller's thread meanwhile `attend`, by which time no reader is made any
/// more. A thread ends at its first failure, the others go on; the results come in the order of the files, so that of
/// several defects the same one is reported each time.
///
/// # Errors
/// What `attend` returns; or [`MemberError::Thread`] for a thread that could not be started.
///
/// # Panics
/// If a reader or `attend` does.
pub(super) fn in_parallel<T: Send, R: FnMut(usize) -> Result<T, Stop> + Send, E: From<MemberError>>(
    builder: fn() -> thread::Builder,
    count: usize,
    pass: &Pass<'_>,
    reader: impl Fn() -> R,
    attend: impl FnOnce() -> Result<(), E>,
) -> Result<Vec<Result<T, MemberError>>, E> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(count);
    let mut results = thread::scope(|scope| {
        let threads = (0..threads)
            .map(|_| {
                let reader = reader();
                builder().spawn_scoped(scope, move || read_files(count, pass, reader))
            })
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| {
                // Some may have been started.
                pass.abandon();
                MemberError::Thread { source }
            })?;
        drop(reader);
        attend()?;
        let results =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|reason| panic::resume_unwind(reason)));
        Ok::<_, E>(results.flatten().collect::<Vec<_>>())
    })?;
    results.sort_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Takes one file after another until none is left, one fails, or nobody listens any more.
fn read_files<T>(
    count: usize,
    pass: &Pass<'_>,
    mut reader: impl FnMut(usize) -> Result<T, Stop>,
) -> Vec<(usize, Result<T, MemberError>)> {
    let mut results = Vec::new();
    loop {
        let index = pass.next.fetch_add(1, Ordering::Relaxed);
        if index >= count {
            return results;
        }
        match reader(index) {
            Ok(value) => results.push((index, Ok(value))),
            Err(Stop::Failed(error)) => {
                results.push((index, Err(error)));
                return results;
            }
            Err(Stop::Abandoned) => return results,
        }
    }
}
