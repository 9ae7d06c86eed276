//! Every operation on every device: hand-derived values, agreement with the definition, independence of company and
//! threads, and refusal of operands that do not fit.

#![allow(clippy::single_range_in_vec_init)] // One group of rows is what such a list says.

mod agreement;
mod cases;
mod definition;
mod independence;
mod kept;
mod refusals;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::cpu::{CpuDevice, Isa};
use crate::{DType, Device, HostTensor, Packing, Parent, Sequence};

/// A matrix in the tests' own hands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) values: Vec<f32>,
}

impl Array {
    /// A row-major matrix with `columns` columns.
    pub(crate) fn new(columns: usize, values: &[f32]) -> Self {
        Array { rows: values.len() / columns, columns, values: values.to_vec() }
    }

    /// Some of its rows.
    pub(crate) fn slice(&self, rows: std::ops::Range<usize>) -> Self {
        let values = self.values[rows.start * self.columns..rows.end * self.columns].to_vec();
        Array { rows: rows.len(), columns: self.columns, values }
    }

    /// Some of its rows, in any order.
    pub(crate) fn select(&self, rows: &[usize]) -> Self {
        let values = rows.iter().flat_map(|&row| self.slice(row..row + 1).values).collect();
        Array { rows: rows.len(), columns: self.columns, values }
    }

    pub(crate) fn bits(&self) -> Vec<u32> {
        self.values.iter().map(|value| value.to_bits()).collect()
    }

    pub(crate) fn upload<D: Device>(&self, device: &D) -> D::Matrix {
        let mut matrix = device.matrix();
        device.upload(&self.values, self.rows, self.columns, &mut matrix).unwrap();
        matrix
    }

    pub(crate) fn download<D: Device>(device: &D, matrix: &D::Matrix) -> Self {
        let (rows, columns) = device.shape(matrix);
        let mut values = Vec::new();
        device.download(matrix, &mut values).unwrap();
        assert_eq!(values.len(), rows * columns);
        Array { rows, columns, values }
    }
}

pub(crate) fn vector<D: Device>(device: &D, values: &[f32]) -> D::Vector {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    device.load_vector(HostTensor { dtype: DType::F32, shape: &[values.len()], bytes: &bytes }).unwrap()
}

/// A weight `[out, in]` of the dtype given; BF16 cuts the lower half of each value off.
pub(crate) fn weight<D: Device>(device: &D, dtype: DType, weight: &Array) -> D::Weight {
    let skipped = 4 - dtype.bytes();
    let bytes: Vec<u8> = weight.values.iter().flat_map(|value| value.to_le_bytes().into_iter().skip(skipped)).collect();
    let shape = [weight.rows, weight.columns];
    device.load_weight(HostTensor { dtype, shape: &shape, bytes: &bytes }).unwrap()
}

/// Consecutive sequences, each `(parent, tokens)`.
pub(crate) fn packing(sequences: &[(Option<usize>, usize)]) -> Packing {
    let mut packing = Packing::default();
    for &(parent, len) in sequences {
        let position = parent.map_or(0, |parent| packing.sequences[parent].len);
        let parent = parent.map(Parent::Sequence);
        packing.sequences.push(Sequence { start: packing.tokens(), len, parent, position });
    }
    packing
}

/// A generator whose seed is printed, and can be given again as `SYNOD_TEST_SEED`.
pub(crate) fn random() -> StdRng {
    let seed = std::env::var("SYNOD_TEST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("SYNOD_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Uniform in −1..1.
pub(crate) fn random_values(random: &mut StdRng, rows: usize, columns: usize) -> Array {
    Array { rows, columns, values: (0..rows * columns).map(|_| random.random_range(-1.0..1.0)).collect() }
}

/// One device per instruction set of this machine, with as many threads as asked for; where there are fewer cores,
/// threads share one, so that work is split as on more.
pub(crate) fn cpu_devices(threads: usize) -> Vec<CpuDevice> {
    let cores: Vec<usize> = CpuDevice::available_cores().unwrap().into_iter().cycle().take(threads).collect();
    Isa::available().into_iter().map(|isa| CpuDevice::with_isa(&cores, isa).unwrap()).collect()
}

/// Asserts that shapes are equal and every value is within `tolerance · max(1, |expected|)`.
#[track_caller]
pub(crate) fn assert_close(found: &Array, expected: &Array, tolerance: f32, what: &str) {
    assert_eq!((found.rows, found.columns), (expected.rows, expected.columns), "{what}: shape");
    for (index, (&found, &expected)) in found.values.iter().zip(&expected.values).enumerate() {
        let allowed = tolerance * expected.abs().max(1.0);
        assert!((found - expected).abs() <= allowed, "{what}: element {index}: {found} for {expected}");
    }
}

/// Threads that run at the same time are tested where the machine has two cores: there a run that may use only one fails
/// instead of passing on less.
#[test]
#[cfg(target_os = "linux")]
fn threads_are_tested_on_cores_of_their_own() {
    let processors = std::fs::read_to_string("/proc/stat").unwrap();
    let is_processor = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
    let processors = processors.lines().filter(is_processor).count();
    let available = CpuDevice::available_cores().unwrap().len();
    assert!(available >= processors.min(2), "run the tests on two of this machine's {processors} cores, not on one");
    if processors < 2 {
        println!("not tested here: threads on cores of their own");
    }
}

/// What the processor says it has is what detection must find; a kernel that goes untested is named.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_instruction_set_of_this_machine_is_tested() {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let has = |flag: &str| flags.split_whitespace().any(|found| found == flag);
    let tested: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    for (name, expected) in [("avx2+fma", has("avx2") && has("fma")), ("avx512f", has("avx512f"))] {
        assert_eq!(tested.contains(&name), expected, "{name}");
        if !expected {
            println!("not tested here: {name}");
        }
    }
}
