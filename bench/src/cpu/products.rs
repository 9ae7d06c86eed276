//! Matrix products at the 0.8B member's shapes.

use std::time::{Duration, Instant};

use anyhow::Result;
use synod_kernels::cpu::CpuDevice;
use synod_kernels::{DType, Device, HostTensor};

/// Name, outputs and inputs of the Linear layers.
const LAYERS: [(&str, usize, usize); 6] = [
    ("in_proj_qkv", 6144, 1024),
    ("in_proj_z", 2048, 1024),
    ("q_proj", 4096, 1024),
    ("out_proj", 1024, 2048),
    ("gate_proj, up_proj", 3584, 1024),
    ("down_proj", 1024, 3584),
];

/// Rows of the left operand: long prompts, then a few tokens.
const ROWS: [usize; 6] = [2048, 1024, 256, 64, 16, 1];

/// The least time that a product is measured for.
const SPAN: Duration = Duration::from_millis(200);

/// Prints GFLOP/s of every layer's product by rows, with the weights in BF16, and the share of `peak`.
pub(super) fn measure(device: &CpuDevice, peak: f64) -> Result<()> {
    println!("\nGFLOP/s of the product with BF16 weights in F32 arithmetic, by rows (and % of the peak)");
    print!("{:20} {:>12}", "layer", "[out, in]");
    for rows in ROWS {
        print!(" {rows:>12}");
    }
    println!();
    for (name, outputs, inputs) in LAYERS {
        print!("{name:20} {:>12}", format!("{outputs}, {inputs}"));
        for rows in ROWS {
            let rate = rate(device, rows, outputs, inputs)?;
            print!(" {:>12}", format!("{:.1} ({:.0})", rate / 1e9, 100.0 * rate / peak));
        }
        println!();
    }
    Ok(())
}

/// Operations per second of the fastest of the products that fit into [`SPAN`].
fn rate(device: &CpuDevice, rows: usize, outputs: usize, inputs: usize) -> Result<f64> {
    let bytes = [0x80, 0x3c].repeat(outputs * inputs);
    let weight = device.load_weight(HostTensor { dtype: DType::Bf16, shape: &[outputs, inputs], bytes: &bytes })?;
    let mut x = device.matrix();
    device.upload(&vec![0.5; rows * inputs], rows, inputs, &mut x)?;
    let mut out = device.matrix();
    let mut fastest = Duration::MAX;
    let start = Instant::now();
    while start.elapsed() < SPAN {
        let start = Instant::now();
        device.linear(&weight, &x, &mut out)?;
        fastest = fastest.min(start.elapsed());
    }
    Ok(2.0 * (rows * outputs * inputs) as f64 / fastest.as_secs_f64())
}
