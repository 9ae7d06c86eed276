//! Measures the matrix product of [`CpuDevice`] on every instruction set of this machine.
//!
//! `cargo run --release -p synod-kernels --example gemm_rate`

use std::time::{Duration, Instant};

use synod_kernels::cpu::{CpuDevice, Isa};
use synod_kernels::{DType, Device, HostTensor, KernelError};

/// `m, n, k` of the products: a prompt, then few rows, at the 0.8B member's shapes.
const SHAPES: [(usize, usize, usize); 8] = [
    (1024, 7168, 1024),
    (1024, 1024, 3584),
    (256, 7168, 1024),
    (64, 7168, 1024),
    (8, 7168, 1024),
    (4, 7168, 1024),
    (2, 7168, 1024),
    (1, 7168, 1024),
];

fn main() -> Result<(), KernelError> {
    let cores = CpuDevice::available_cores()?;
    for isa in Isa::available() {
        let device = CpuDevice::with_isa(&cores, isa)?;
        for dtype in [DType::Bf16, DType::F32] {
            for (m, n, k) in SHAPES {
                let rate = rate(&device, dtype, m, n, k)?;
                println!(
                    "{} {} m={m} n={n} k={k}: {rate:.1} GFLOP/s on {} cores",
                    device.isa(),
                    dtype.name(),
                    cores.len()
                );
            }
        }
    }
    Ok(())
}

/// GFLOP/s of the fastest of the products that fit into half a second.
fn rate(device: &CpuDevice, dtype: DType, m: usize, n: usize, k: usize) -> Result<f64, KernelError> {
    let bytes = vec![0x3c; n * k * dtype.bytes()];
    let weight = device.load_weight(HostTensor { dtype, shape: &[n, k], bytes: &bytes })?;
    let mut x = device.matrix();
    device.upload(&vec![0.5; m * k], m, k, &mut x)?;
    let mut out = device.matrix();
    let mut fastest = Duration::MAX;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        let start = Instant::now();
        device.linear(&weight, &x, &mut out)?;
        fastest = fastest.min(start.elapsed());
    }
    Ok(2.0 * (m * n * k) as f64 / fastest.as_secs_f64() / 1e9)
}
