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
        let values = positions.saturating_sub(self.positions) * self.rotary.inv_freq.len();
        self.cos.reserve_exact(values);
        self.sin.reserve_exact(values);
        for position in self.positions..positions {
            for pair in 0..self.rotary.inv_freq.len() {
                let (cos, sin) = self.rotary.cos_sin(position, pair);
                self.cos.push(cos);
                self.sin.push(sin);
            }
        }
        self.positions = self.positions.max(positions);
    }

    /// Bytes that it keeps.
    pub(crate) fn bytes(&self) -> usize {
        (self.cos.capacity() + self.sin.capacity()) * size_of::<f32>()
    }

    /// Bytes that it keeps once it covers `positions` positions.
    pub(crate) fn bytes_for(rotary_dim: usize, positions: usize) -> usize {
        2 * positions * (rotary_dim / 2) * size_of::<f32>()
    }

    /// Cosines and sines of every pair's angle at a position that the table covers.
    pub(crate) fn cos_sin(&self, position: usize) -> (&[f32], &[f32]) {
        let pairs = self.rotary.inv_freq.len();
        (&self.cos[position * pairs..][..pairs], &self.sin[position * pairs..][..pairs])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The model's definition is `1.0 / base ** (arange(0, dim, 2).float() / dim)`, power and quotient in F32. At base
    /// 1e7 and position 16,383, one unit in a frequency's last place turns a pair further than an angle's own rounding.
    ///
    /// The power here is the exact one rounded once, which F64 gives (60-digit decimals confirm each, none is within 0.018
    /// units of a tie). `numpy`'s own F32 power says the same where it calls libm; its AVX-512 one is off by up to two
    /// units, hence no stand-in. From numpy 2.4:
    ///
    /// ```python
    /// for base in 1e7, 1e4:
    ///     for dim in 64, 8:
    ///         exponent = np.arange(0, dim, 2, dtype=np.int64).astype(np.float32) / np.float32(dim)
    ///         power = (np.float64(base) ** exponent.astype(np.float64)).astype(np.float32)
    ///         print([f"0x{bits:08x}" for bits in (np.float32(1) / power).view(np.uint32)])
    /// ```
    #[test]
    fn frequencies_have_the_definitions_bits() {
        for (theta, rotary_dim, expected) in [
            (1e7, 64, &BASE_1E7[..]),
            (1e7, 8, &[0x3f80_0000, 0x3c91_ad39, 0x39a5_cb60, 0x36bc_b0c1]),
            (1e4, 64, &BASE_1E4),
            (1e4, 8, &[0x3f80_0000, 0x3dcc_cccd, 0x3c23_d70a, 0x3a83_126f]),
        ] {
            let found: Vec<u32> = Rotary::new(rotary_dim, theta).inv_freq.iter().map(|value| value.to_bits()).collect();
            assert_eq!(found, expected, "base {theta}, {rotary_dim} dimensions");
        }
    }

    #[rustfmt::skip]
    const BASE_1E7: [u32; 32] = [
        0x3f80_0000, 0x3f1a_b32b, 0x3eba_f81b, 0x3e61_f835, 0x3e08_8d77, 0x3da5_0956, 0x3d47_763f, 0x3cf1_1177,
        0x3c91_ad39, 0x3c30_1052, 0x3bd4_ca15, 0x3b80_967d, 0x3b1b_690d, 0x3abb_d3ed, 0x3a63_01e2, 0x3a09_2e02,
        0x39a5_cb60, 0x3948_60c1, 0x38f2_2ce2, 0x3892_587e, 0x3830_df52, 0x37d5_c441, 0x3781_2dab, 0x371c_1fc4,
        0x36bc_b0c1, 0x3664_0cc6, 0x3609_cf4a, 0x35a6_8e4c, 0x3549_4c57, 0x34f3_499d, 0x3493_048e, 0x3431_af44,
    ];

    #[rustfmt::skip]
    const BASE_1E4: [u32; 32] = [
        0x3f80_0000, 0x3f3f_f911, 0x3f0f_f59a, 0x3ed7_e89b, 0x3ea1_e89b, 0x3e72_d423, 0x3e36_1887, 0x3e08_8d77,
        0x3dcc_cccd, 0x3d99_940d, 0x3d66_55c2, 0x3d2c_ba15, 0x3d01_86e3, 0x3cc2_434f, 0x3c91_ad39, 0x3c5a_7bf2,
        0x3c23_d70a, 0x3bf5_b9b0, 0x3bb8_449c, 0x3b8a_2e77, 0x3b4f_3e38, 0x3b1b_690d, 0x3ae9_1528, 0x3aae_c98e,
        0x3a83_126f, 0x3a44_948c, 0x3a13_6a16, 0x39dd_1725, 0x39a5_cb60, 0x3978_a815, 0x393a_7753, 0x390b_d472,
    ];
}
