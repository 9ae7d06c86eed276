//! A synthetic member's files, streamed.
//!
//! Values are made by a few threads in pieces, and written and hashed in order by the caller's. A safetensors header
//! needs only names and shapes, so each file is written front to back once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::num::NonZero;
use std::path::Path;
use std::{io, thread};

use crossbeam_channel::bounded;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::shape::SynthPackage;
use super::values::SynthTensor;
use super::{SynthError, SynthReport};
use crate::member::shard::{self, HeaderEntry};
use crate::member::staging::Staging;
use crate::member::{Anchor, Digest, Progress};

/// Values made at a time; two such pieces per thread wait at most.
const PIECE_VALUES: u64 = 1 << 20;
/// More threads than this only wait for the disk and for SHA-256.
const MAX_THREADS: usize = 8;

/// Files that every synthetic member shares with the fixture member `tiny-08b`.
const SHARED_FILES: [(&str, &[u8]); 3] = [
    ("calibration.json", include_bytes!("../../../assets/synth/calibration.json")),
    ("tokenizer.json", include_bytes!("../../../assets/synth/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../../assets/synth/tokenizer_config.json")),
];

/// Writes `package` into the folder `out`.
pub(super) fn write_package(
    package: &SynthPackage,
    out: &Path,
    progress: &dyn Progress,
) -> Result<SynthReport, SynthError> {
    let staging = Staging::beside(out)?;
    let report = write_files(package, staging.path(), progress).map_err(|source| staging.failed(source))?;
    staging.finish()?;
    Ok(report)
}

fn write_files(package: &SynthPackage, folder: &Path, progress: &dyn Progress) -> io::Result<SynthReport> {
    let synth = |spec| SynthTensor::new(&package.config, package.seed, &spec);
    let tensors: Vec<_> = package.config.inventory().into_iter().map(synth).collect();
    let broad: Vec<_> = package.config.broad_inventory().into_iter().map(synth).collect();
    let parameters = tensors.iter().chain(&broad).map(|tensor| tensor.elements).sum();
    progress.start(tensors.iter().chain(&broad).map(SynthTensor::size_bytes).sum());

    let (index, shards) = shard(tensors, package.shape.shards());
    let mut writer = PackageWriter { folder, digests: BTreeMap::new() };
    for (name, tensors) in shards {
        writer.write_tensors(&name, tensors, progress)?;
    }
    writer.write_tensors("broad_head.safetensors", broad, progress)?;
    writer.write_json("model.safetensors.index.json", &index)?;
    writer.write_json("config.json", &package.config_json)?;
    for (name, bytes) in SHARED_FILES {
        writer.write(name, bytes)?;
    }
    let model_name = package.config.model_name.clone();
    let files: Map<_, _> =
        writer.digests.iter().map(|(name, digest)| (name.clone(), json!(digest.to_string()))).collect();
    let manifest = json!({ "format_version": 1, "model_name": model_name, "files_sha256": files });
    let anchor = Anchor(writer.write_json("MODEL_MANIFEST.json", &manifest)?);
    Ok(SynthReport { model_name, anchor, parameters })
}

/// Cuts `tensors`, in their order, into `count` files of about equal size; returns their index beside them.
pub(super) fn shard(tensors: Vec<SynthTensor>, count: usize) -> (Value, Vec<(String, Vec<SynthTensor>)>) {
    let total_bytes: u64 = tensors.iter().map(SynthTensor::size_bytes).sum();
    let mut shards: Vec<_> =
        (1..=count).map(|number| (format!("model-{number:05}-of-{count:05}.safetensors"), Vec::new())).collect();
    let mut weight_map = Map::new();
    let mut done_bytes = 0;
    for tensor in tensors {
        let (name, shard) = &mut shards[((done_bytes * count as u64 / total_bytes) as usize).min(count - 1)];
        weight_map.insert(tensor.name.clone(), json!(name));
        done_bytes += tensor.size_bytes();
        shard.push(tensor);
    }
    (json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map }), shards)
}

/// The header of a safetensors file of `tensors`, in the order of their bytes.
pub(super) fn header(tensors: &[SynthTensor]) -> Vec<u8> {
    shard::header(tensors.iter().map(|SynthTensor { name, dtype, shape, .. }| HeaderEntry {
        name,
        dtype: *dtype,
        shape,
    }))
}

/// Writes files of one package and keeps their digests.
struct PackageWriter<'a> {
    folder: &'a Path,
    digests: BTreeMap<String, Digest>,
}

impl PackageWriter<'_> {
    fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<Digest> {
        fs::write(self.folder.join(name), bytes)?;
        let digest = Digest::of(bytes);
        self.digests.insert(name.to_owned(), digest);
        Ok(digest)
    }

    fn write_json(&mut self, name: &str, value: &Value) -> io::Result<Digest> {
        self.write(name, format!("{value:#}\n").as_bytes())
    }

    /// Writes a weight file.
    fn write_tensors(&mut self, name: &str, mut tensors: Vec<SynthTensor>, progress: &dyn Progress) -> io::Result<()> {
        tensors.sort_by(SynthTensor::file_order);
        let mut file = File::create(self.folder.join(name))?;
        let header = header(&tensors);
        file.write_all(&header)?;
        let mut hasher = Sha256::new_with_prefix(&header);
        stream(&tensors, &mut |bytes| {
            hasher.update(bytes);
            file.write_all(bytes)?;
            progress.advance(bytes.len() as u64);
            Ok(())
        })?;
        self.digests.insert(name.to_owned(), Digest::finish(hasher));
        Ok(())
    }
}

/// Shows `sink` the bytes of all `tensors` in order. Several threads make them, piece by piece in turn.
pub(super) fn stream(tensors: &[SynthTensor], sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    stream_on(thread::Builder::new, tensors, sink)
}

/// [`stream`] on threads that `builder` starts.
pub(super) fn stream_on(
    builder: fn() -> thread::Builder,
    tensors: &[SynthTensor],
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    thread::scope(|scope| {
        let lanes = (0..threads)
            .map(|thread| {
                let (send, lane) = bounded(1);
                builder().spawn_scoped(scope, move || {
                    for (tensor, first, count) in pieces(tensors).skip(thread).step_by(threads) {
                        let mut bytes = vec![0; count * tensor.dtype.bytes()];
                        tensor.fill(first, &mut bytes);
                        if send.send(bytes).is_err() {
                            return; // the sink has failed, or another thread was not to be had
                        }
                    }
                })?;
                Ok(lane)
            })
            .collect::<io::Result<Vec<_>>>()?;
        for (_, lane) in pieces(tensors).zip(lanes.iter().cycle()) {
            sink(&lane.recv().expect("a thread makes all of its pieces unless its lane is dropped"))?;
        }
        Ok(())
    })
}

/// Every tensor cut into pieces: the tensor, its first value and their number.
fn pieces(tensors: &[SynthTensor]) -> impl Iterator<Item = (&SynthTensor, u64, usize)> {
    tensors.iter().flat_map(|tensor| {
        (0..tensor.elements)
            .step_by(PIECE_VALUES as usize)
            .map(move |first| (tensor, first, PIECE_VALUES.min(tensor.elements - first) as usize))
    })
}
