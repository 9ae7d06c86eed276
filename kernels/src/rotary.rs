//! Angles of the rotary embedding (spec: vela.md §7), in F32 as the model's definition computes them.

/// Rotation frequencies of a head's leading `rotary_dim` dimensions; dimension `i` turns with `i + rotary_dim / 2`.
#[derive(Clone, Debug, Default, PartialEq)]
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

/// Cosines and sines of the positions seen so far; none at first.
#[derive(Debug, Default)]
pub(crate) struct RotaryTable {
    rotary: Rotary,
    positions: usize,
    /// `[positions, rotary_dim / 2]` each.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RotaryTable {
    /// Makes this the table of `rotary`, for at least `positions` positions.
    pub(crate) fn cover(&mut self, rotary: Rotary, positions: usize) {
        if self.rotary != rotary {
            *self = RotaryTable { rotary, ..RotaryTable::default() };
        }
        for position in self.positions..positions {
            for pair in 0..self.rotary.inv_freq.len() {
                let (cos, sin) = self.rotary.cos_sin(position, pair);
                self.cos.push(cos);
                self.sin.push(sin);
            }
        }
        self.positions = self.positions.max(positions);
    }

    /// Cosines and sines of every pair's angle at a position that the table covers.
    pub(crate) fn cos_sin(&self, position: usize) -> (&[f32], &[f32]) {
        let pairs = self.rotary.inv_freq.len();
        (&self.cos[position * pairs..][..pairs], &self.sin[position * pairs..][..pairs])
    }
}
