//! The mean of float32 values as numpy 2 sums them (`mean(dtype=np.float32)`, source: `pairwise_sum` of
//! `numpy/_core/src/umath/loops_utils.h.src`): last bits depend on the order of a sum, and answers carry them.

/// Up to here numpy sums in eight strands; beyond, it halves.
const BLOCK: usize = 128;

/// The mean of `at(0)` … `at(len - 1)`, `len` at least 1. Their distance in memory makes no difference to numpy.
pub(super) fn mean_f32(len: usize, at: impl Fn(usize) -> f32) -> f32 {
    (f64::from(pairwise_sum(0, len, &at)) / len as f64) as f32
}

fn pairwise_sum(from: usize, len: usize, at: &impl Fn(usize) -> f32) -> f32 {
    if len < 8 {
        return (from..from + len).map(at).fold(0.0, |sum, x| sum + x);
    }
    if len <= BLOCK {
        return eight_strands(from, len, at);
    }
    let half = len / 2 / 8 * 8;
    pairwise_sum(from, half, at) + pairwise_sum(from + half, len - half, at)
}

fn eight_strands(from: usize, len: usize, at: &impl Fn(usize) -> f32) -> f32 {
    let mut r: [f32; 8] = std::array::from_fn(|k| at(from + k));
    let whole = from + len / 8 * 8;
    for i in (from + 8..whole).step_by(8) {
        for (k, sum) in r.iter_mut().enumerate() {
            *sum += at(i + k);
        }
    }
    let sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    (whole..from + len).map(at).fold(sum, |sum, x| sum + x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded by `recipe/numpy/means.py`: lengths on both sides of every change in the order of summation.
    #[test]
    fn means_are_those_of_numpy_to_the_bit() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/numpy-means.json");
        let recorded: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / 16_777_216.0;
        let means = recorded["means"].as_array().unwrap();
        assert_eq!(means.len(), 304);
        for mean in means {
            let len = mean[0].as_u64().unwrap() as usize;
            assert_eq!(u64::from(mean_f32(len, value).to_bits()), mean[1], "{len} values");
        }
    }
}
