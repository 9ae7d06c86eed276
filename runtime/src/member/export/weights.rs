//! The one pass over a package's weights that exports them.

use std::collections::BTreeMap;
use std::thread;

use synod_kernels::{DType, widen};

use super::write::{OutputFile, Target};
use crate::member::MemberError;
use crate::member::bundle::{BACKBONE_PREFIX, MODEL_FOLDER, MODEL_PREFIX};
use crate::member::hash::{HashedReader, Pass, Progress, STEP_BYTES, Stop, in_parallel};
use crate::member::manifest::{Content, FileEntry, TensorEntry};
use crate::member::package::Package;
use crate::member::shard::{self, HeaderEntry, Shard, StoredTensor};

/// A weight file that was written.
pub(super) struct WeightFile {
    /// In its bundle.
    pub(super) name: String,
    pub(super) entry: FileEntry,
    /// Under their names in the file.
    pub(super) tensors: BTreeMap<String, TensorEntry>,
}

/// What the pass leaves.
pub(super) struct Weights {
    /// Per target, the files of its backbone.
    pub(super) files: Vec<Vec<WeightFile>>,
    /// F32 little-endian values of the heads' tensors, by name; empty if no heads are wanted.
    pub(super) heads: BTreeMap<String, Vec<u8>>,
}

/// What one file of the package becomes.
#[derive(Default)]
struct Exported {
    files: Vec<WeightFile>,
    heads: BTreeMap<String, Vec<u8>>,
}

impl Weights {
    /// Reads and verifies every weight file of `package` and writes its backbone into every target, if `contents` say so.
    pub(super) fn export(
        builder: fn() -> thread::Builder,
        package: &Package,
        contents: &[Content],
        targets: &[Target],
        progress: &dyn Progress,
    ) -> Result<Self, MemberError> {
        let shards = &package.files.shards;
        progress.start(shards.iter().map(|shard| shard.size_bytes).sum());
        let pass = &Pass::new(progress);
        let names = if contents.contains(&Content::Model) { output_names(shards) } else { BTreeMap::new() };
        let wants_heads = contents.contains(&Content::Heads);
        let reader = || {
            let names = &names;
            move |index: usize| {
                let shard: &Shard = &shards[index];
                let writers = match names.get(shard.name.as_str()) {
                    Some(name) => {
                        targets.iter().map(|target| Writer::new(target, name, shard)).collect::<Result<_, _>>()?
                    }
                    None => Vec::new(),
                };
                ShardExport { shard, file: shard.data(pass), writers, wants_heads }.run(&package.files.remedy)
            }
        };
        let results = in_parallel::<_, _, MemberError>(builder, shards.len(), pass, reader, || Ok(()))?;
        let mut weights = Self { files: targets.iter().map(|_| Vec::new()).collect(), heads: BTreeMap::new() };
        for result in results {
            let exported = result?;
            for (files, file) in weights.files.iter_mut().zip(exported.files) {
                files.push(file);
            }
            weights.heads.extend(exported.heads);
        }
        Ok(weights)
    }
}

/// How the files that hold some of the backbone are called in a bundle, by their names in the package.
fn output_names(shards: &[Shard]) -> BTreeMap<&str, String> {
    let mut names: Vec<_> = shards.iter().filter(|shard| shard.tensors.iter().any(is_backbone)).collect();
    names.sort_by_key(|shard| &shard.name);
    let count = names.len();
    let numbered = names.into_iter().zip(1..);
    numbered
        .map(|(shard, number)| {
            (shard.name.as_str(), format!("{MODEL_FOLDER}model-{number:05}-of-{count:05}.safetensors"))
        })
        .collect()
}

fn is_backbone(tensor: &StoredTensor) -> bool {
    tensor.name.starts_with(BACKBONE_PREFIX)
}

/// Goes over one weight file once, in order.
struct ShardExport<'a> {
    shard: &'a Shard,
    file: HashedReader<'a>,
    /// One per target, or none.
    writers: Vec<Writer>,
    wants_heads: bool,
}

impl ShardExport<'_> {
    fn run(mut self, remedy: &str) -> Result<Exported, Stop> {
        let mut exported = Exported::default();
        let mut step = vec![0; STEP_BYTES];
        for tensor in &self.shard.tensors {
            if self.wants_heads && !is_backbone(tensor) {
                let mut bytes = vec![0; tensor.size_bytes];
                self.file.fill(&mut bytes)?;
                exported.heads.insert(tensor.name.clone(), widened(tensor.dtype, &bytes));
                continue;
            }
            let mut left_bytes = tensor.size_bytes;
            while left_bytes > 0 {
                let length = left_bytes.min(STEP_BYTES);
                let piece = &mut step[..length];
                self.file.fill(piece)?;
                if is_backbone(tensor) {
                    self.writers.iter_mut().try_for_each(|writer| writer.write(tensor.dtype, piece))?;
                }
                left_bytes -= length;
            }
        }
        MemberError::check_digest(&self.shard.name, self.shard.digest, self.file.digest(), remedy)?;
        exported.files = self.writers.into_iter().map(Writer::finish).collect::<Result<_, _>>()?;
        Ok(exported)
    }
}

/// Values as F32, little-endian.
fn widened(dtype: DType, bytes: &[u8]) -> Vec<u8> {
    let mut values = vec![0.0; bytes.len() / dtype.bytes()];
    widen(dtype, bytes, &mut values);
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Writes the backbone tensors of one file into one bundle.
struct Writer {
    output: OutputFile,
    tensors: BTreeMap<String, TensorEntry>,
    rounds: bool,
    rounded: Vec<u8>,
}

impl Writer {
    /// Begins the file `name` of `target` with the header of what is to come from `shard`.
    fn new(target: &Target, name: &str, shard: &Shard) -> Result<Self, MemberError> {
        let stored = |tensor: &StoredTensor| {
            let name = tensor.name.replacen(BACKBONE_PREFIX, MODEL_PREFIX, 1);
            (name, target.dtype(tensor.dtype), tensor.shape.clone())
        };
        let tensors: Vec<_> = shard.tensors.iter().filter(|tensor| is_backbone(tensor)).map(stored).collect();
        let header =
            shard::header(tensors.iter().map(|(name, dtype, shape)| HeaderEntry { name, dtype: *dtype, shape }));
        let mut output = OutputFile::create(target, name)?;
        output.write(&header)?;
        let entry = |(name, dtype, shape): (String, DType, Vec<usize>)| {
            (name, TensorEntry { dtype: dtype.name().to_owned(), shape })
        };
        let tensors = tensors.into_iter().map(entry).collect();
        Ok(Self { output, tensors, rounds: target.rounds(), rounded: Vec::new() })
    }

    /// Appends the next values of the file.
    fn write(&mut self, dtype: DType, bytes: &[u8]) -> Result<(), MemberError> {
        if self.rounds && dtype == DType::F32 {
            self.rounded.clear();
            let values = bytes.as_chunks().0.iter().map(|bytes| half::bf16::from_f32(f32::from_le_bytes(*bytes)));
            self.rounded.extend(values.flat_map(half::bf16::to_le_bytes));
            self.output.write(&self.rounded)
        } else {
            self.output.write(bytes)
        }
    }

    fn finish(self) -> Result<WeightFile, MemberError> {
        let (name, entry) = self.output.finish()?;
        Ok(WeightFile { name, entry, tensors: self.tensors })
    }
}
