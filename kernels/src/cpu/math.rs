//! Elementary functions and reductions on vectors.
//!
//! [`exp`] is within 2 ULP of the exact value; the functions made of it within a few. A reduction's order depends on the
//! number of elements and of lanes alone.

use crate::cpu::simd::{Simd, parts};

/// `e^x`, within 2 ULP (1 on ULP-rounded results below the smallest normal number).
///
/// `x = n·ln 2 + r` with `|r| ≤ ln 2 / 2`; `e^r` by its Taylor polynomial of degree 7 (remainder below 2^−27), scaled by
/// `2^n` in two factors, so that results fade into subnormal numbers and overflow to infinity as they should.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    // ln 2 in two parts; the upper one has so few bits that its product with n is exact.
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];

    // Beyond these bounds the result is 0 or infinite. The operands' order lets a NaN through.
    let x = simd.min(simd.splat(89.0), simd.max(simd.splat(-104.0), x));
    let n = round(simd, simd.mul(x, simd.splat(std::f32::consts::LOG2_E)));
    let r = simd.mul_add(n, simd.splat(-LN_2_HIGH), x);
    let r = simd.mul_add(n, simd.splat(-LN_2_LOW), r);

    let mut polynomial = simd.splat(1.0 / 5040.0);
    for coefficient in COEFFICIENTS {
        polynomial = simd.mul_add(polynomial, r, simd.splat(coefficient));
    }
    let exp_r = simd.mul_add(polynomial, r, simd.splat(1.0));

    let half = round(simd, simd.mul(n, simd.splat(0.5)));
    let scaled = simd.mul(exp_r, simd.power_of_two(half));
    simd.mul(scaled, simd.power_of_two(simd.sub(n, half)))
}

/// The nearest whole number of values below 2^22 in magnitude.
#[inline(always)]
fn round<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    // At this magnitude a unit in the last place is 1, so the sum itself rounds.
    let magic = simd.splat(1.5 * (1 << 23) as f32);
    simd.sub(simd.add(x, magic), magic)
}

/// `1 / (1 + e^−x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    let one = simd.splat(1.0);
    let exp = exp(simd, simd.sub(simd.splat(0.0), x));
    simd.div(one, simd.add(one, exp))
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    simd.mul(x, sigmoid(simd, x))
}

/// The sum of products `Σ x[i] · y[i]`: of each lane in order, then of the lanes.
#[inline(always)]
pub(crate) fn dot<S: Simd>(simd: S, x: &[f32], y: &[f32]) -> f32 {
    let mut sum = simd.splat(0.0);
    for part in parts::<S>(x.len()) {
        sum = simd.mul_add(simd.load_part(x, part, 0.0), simd.load_part(y, part, 0.0), sum);
    }
    simd.sum(sum)
}

/// `rsqrt(mean(x²) + eps)`.
#[inline(always)]
pub(crate) fn rms_scale<S: Simd>(simd: S, x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(simd, x, x) / x.len() as f32 + eps).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::cpu::simd::Kernel;

    /// One function of each value, through whole and partial vectors.
    struct Apply<'a>(&'a mut [f32], Function);

    #[derive(Clone, Copy)]
    enum Function {
        Exp,
        Sigmoid,
        Silu,
    }

    impl Kernel for Apply<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            for part in parts::<S>(self.0.len()) {
                let x = simd.load_part(self.0, part, 0.0);
                let value = match self.1 {
                    Function::Exp => exp(simd, x),
                    Function::Sigmoid => sigmoid(simd, x),
                    Function::Silu => silu(simd, x),
                };
                simd.store_part(value, self.0, part);
            }
        }
    }

    fn apply(isa: Isa, function: Function, inputs: &[f32]) -> Vec<f32> {
        let mut values = inputs.to_vec();
        isa.run(Apply(&mut values, function));
        values
    }

    /// Distance from the exact value in units of the last place of its rounding.
    fn ulps(found: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        let unit = f64::from(rounded.next_up()) - f64::from(rounded);
        (f64::from(found) - exact).abs() / unit
    }

    /// Every 1,009th F32 whose exponential is finite and not zero, of both signs.
    fn grid() -> Vec<f32> {
        let below = |bound: f32| (0..bound.to_bits()).step_by(1009).map(f32::from_bits);
        below(88.72).chain(below(103.9).map(|x| -x)).collect()
    }

    #[test]
    fn exp_is_within_two_ulps() {
        let inputs = grid();
        for isa in Isa::available() {
            for (x, found) in inputs.iter().zip(apply(isa, Function::Exp, &inputs)) {
                let distance = ulps(found, f64::from(*x).exp());
                assert!(distance <= 2.0, "{}: exp({x}) = {found}: {distance} ULP", isa.name());
            }
        }
    }

    /// Normal results only: a subnormal unit is as large as the value.
    #[test]
    fn sigmoid_and_silu_are_within_four_ulps() {
        let inputs: Vec<f32> = grid().into_iter().filter(|x| (-80.0..80.0).contains(x) && x.abs() > 1e-30).collect();
        for isa in Isa::available() {
            let (sigmoids, silus) = (apply(isa, Function::Sigmoid, &inputs), apply(isa, Function::Silu, &inputs));
            for ((x, sigmoid), silu) in inputs.iter().zip(sigmoids).zip(silus) {
                let exact = 1.0 / (1.0 + (-f64::from(*x)).exp());
                assert!(ulps(sigmoid, exact) <= 4.0, "{}: sigmoid({x}) = {sigmoid}", isa.name());
                assert!(ulps(silu, f64::from(*x) * exact) <= 4.0, "{}: silu({x}) = {silu}", isa.name());
            }
        }
    }

    /// A state that is not a number must reach the answer's check, not become a probability.
    #[test]
    fn limits_and_not_a_number_pass_through() {
        let inputs = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 89.5, -150.0];
        for isa in Isa::available() {
            let found = apply(isa, Function::Exp, &inputs);
            assert_eq!((found[0], found[1], found[3], found[4]), (f32::INFINITY, 0.0, f32::INFINITY, 0.0));
            assert!(found[2].is_nan(), "{}", isa.name());
            let found = apply(isa, Function::Sigmoid, &inputs);
            assert_eq!((found[0], found[1], found[3], found[4]), (1.0, 0.0, 1.0, 0.0));
            assert!(found[2].is_nan(), "{}", isa.name());
        }
    }
}
