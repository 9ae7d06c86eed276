//! The threads of one device: one per core of its placement, pinned there.
//!
//! Invariant: a thread runs on its own core only, so that two placements on one machine never share a core unless the
//! deployment says so. How work is split never changes a result: each piece writes elements of its own.

use rayon::prelude::*;

use crate::KernelError;
use crate::host::HostMatrix;

/// Words of a processor mask; the kernel takes up to 8,192 processors today.
const MASK_WORDS: usize = 8192 / WORD_BITS;
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

type Mask = [libc::c_ulong; MASK_WORDS];

/// Rows that a thread takes at least, so that splitting costs less than the rows.
const MIN_ROWS: usize = 4;

/// A pool of pinned threads.
pub(crate) struct Pool {
    threads: rayon::ThreadPool,
}

impl Pool {
    /// Starts one thread per core and pins it there.
    pub(crate) fn new(cores: &[usize]) -> Result<Self, KernelError> {
        if cores.is_empty() {
            return Err(failure("a placement needs at least one core".into()));
        }
        let available = available_cores()?;
        if let Some(core) = cores.iter().find(|core| !available.contains(core)) {
            let available = ranges(&available);
            return Err(failure(format!("core {core} is not among those this process may use: {available}")));
        }
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(cores.len())
            .thread_name(|thread| format!("synod-cpu-{thread}"))
            .build()
            .map_err(|error| failure(format!("threads could not be started: {error}")))?;
        threads.broadcast(|context| pin(cores[context.index()])).into_iter().collect::<Result<(), _>>()?;
        Ok(Pool { threads })
    }

    /// Number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// Runs `work` on the pool's threads; parallel iterators inside it stay on them.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.threads.install(work)
    }

    /// Calls `work` on every thread at once; the results in the order of the threads' cores.
    pub(crate) fn on_every_thread<R: Send>(&self, work: impl Fn() -> R + Sync) -> Vec<R> {
        self.threads.broadcast(|_| work())
    }

    /// Calls `work` for every item, each a piece large enough to be worth a steal.
    pub(crate) fn for_each(&self, items: usize, work: impl Fn(usize) + Send + Sync) {
        self.run(|| (0..items).into_par_iter().with_max_len(1).for_each(work));
    }

    /// Calls `work(row, elements)` for every row of a matrix.
    pub(crate) fn for_each_row(&self, x: &mut HostMatrix, work: impl Fn(usize, &mut [f32]) + Send + Sync) {
        let (_, columns) = x.shape();
        self.for_each_chunk(x.values_mut(), columns, MIN_ROWS, work);
    }

    /// Calls `work(index, chunk)` for every chunk of `length` values; a thread takes at least `grain` of them.
    pub(crate) fn for_each_chunk<T: Send>(
        &self,
        values: &mut [T],
        length: usize,
        grain: usize,
        work: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        if values.is_empty() {
            return;
        }
        self.run(|| {
            let chunks = values.par_chunks_mut(length).enumerate().with_min_len(grain);
            chunks.for_each(|(index, chunk)| work(index, chunk));
        });
    }

    /// As [`Pool::for_each_chunk`], for work that can fail.
    ///
    /// # Errors
    /// That of the first chunk that failed, whichever thread was faster.
    pub(crate) fn try_for_each_chunk<T: Send>(
        &self,
        values: &mut [T],
        length: usize,
        work: impl Fn(usize, &mut [T]) -> Result<(), KernelError> + Send + Sync,
    ) -> Result<(), KernelError> {
        if values.is_empty() {
            return Ok(());
        }
        let chunks = values.par_chunks_mut(length).enumerate().with_max_len(1);
        let results: Vec<_> = self.run(|| chunks.map(|(index, chunk)| work(index, chunk)).collect());
        results.into_iter().collect()
    }

    /// Calls `work(row, left, right)` for every row of two matrices of one shape.
    pub(crate) fn for_each_row_pair(
        &self,
        left: &mut HostMatrix,
        right: &mut HostMatrix,
        work: impl Fn(usize, &mut [f32], &mut [f32]) + Send + Sync,
    ) {
        let (_, columns) = left.shape();
        if left.values().is_empty() {
            return;
        }
        self.run(|| {
            let left = left.values_mut().par_chunks_mut(columns);
            let rows = left.zip(right.values_mut().par_chunks_mut(columns)).enumerate().with_min_len(MIN_ROWS);
            rows.for_each(|(row, (left, right))| work(row, left, right));
        });
    }
}

/// The cores that this process may use, in ascending order.
pub(crate) fn available_cores() -> Result<Vec<usize>, KernelError> {
    let mut mask: Mask = [0; MASK_WORDS];
    // SAFETY: `mask` is writable memory of the size given, and a `cpu_set_t` is plain bits in words of `c_ulong`.
    let status = unsafe { libc::sched_getaffinity(0, size_of::<Mask>(), mask.as_mut_ptr().cast()) };
    if status != 0 {
        return Err(failure(format!("sched_getaffinity: {}", std::io::Error::last_os_error())));
    }
    let is_set = |core: &usize| mask[core / WORD_BITS] >> (core % WORD_BITS) & 1 == 1;
    Ok((0..MASK_WORDS * WORD_BITS).filter(is_set).collect())
}

/// Ascending numbers as ranges, `0-3, 8`: a server has hundreds of cores, and the message is one line.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|&number, &next| number + 1 == next);
    let ranges = runs.map(|run| match run {
        [only] => only.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    ranges.collect::<Vec<_>>().join(", ")
}

/// Confines the calling thread to one core, which [`available_cores`] named (hence inside the mask).
fn pin(core: usize) -> Result<(), KernelError> {
    let mut mask: Mask = [0; MASK_WORDS];
    mask[core / WORD_BITS] = 1 << (core % WORD_BITS);
    // SAFETY: `mask` is readable memory of the size given, in the layout of a `cpu_set_t`.
    let status = unsafe { libc::sched_setaffinity(0, size_of::<Mask>(), mask.as_ptr().cast()) };
    if status == 0 {
        return Ok(());
    }
    Err(failure(format!("sched_setaffinity to core {core}: {}", std::io::Error::last_os_error())))
}

fn failure(message: String) -> KernelError {
    KernelError::Resource { op: "cpu threads", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_named_in_ranges() {
        for (cores, expected) in [
            (&[][..], ""),
            (&[5], "5"),
            (&[0, 1], "0-1"),
            (&[0, 1, 2, 3, 8], "0-3, 8"),
            (&[1, 3, 64, 65, 66], "1, 3, 64-66"),
        ] {
            assert_eq!(ranges(cores), expected);
        }
    }

    /// A message must be the same each time: the thread that fails first does not decide.
    #[test]
    fn the_first_chunk_that_fails_is_reported() {
        let pool = Pool::new(&available_cores().unwrap()).unwrap();
        let mut values = [0; 64];
        let result = pool.try_for_each_chunk(&mut values, 2, |chunk, values| {
            values.fill(chunk);
            if chunk < 7 { Ok(()) } else { Err(failure(format!("chunk {chunk}"))) }
        });
        assert_eq!(result.unwrap_err().to_string(), "cpu threads: chunk 7");
        assert_eq!((values[12], values[13]), (6, 6), "what did not fail is done");
    }
}
