//! Angles of the rotary embedding (spec: vela.md §7), in F32 as the model's definition computes them.

/// Rotation frequencies of a head's leading `rotary_dim` dimensions; dimension `i` turns with `i + rotary_dim / 2`.
pub(crate) struct Rotary {
    /// `theta^(−2i / rotary_dim)` of each pair.
    inv_freq: Vec<f32>,
}

impl Rotary {
    pub(crate) fn new(rotary_dim: usize, theta: f32) -> Self {
        let exponent = |pair: usize| (2 * pair) as f32 / rotary_dim as f32;
        Rotary { inv_freq: (0..rotary_dim / 2).map(|pair| 1.0 / theta.powf(exponent(pair))).collect() }
    }

    /// Cosine and sine of a pair's angle at a position.
    pub(crate) fn cos_sin(&self, position: usize, pair: usize) -> (f32, f32) {
        let angle = position as f32 * self.inv_freq[pair];
        (angle.cos(), angle.sin())
    }
}
