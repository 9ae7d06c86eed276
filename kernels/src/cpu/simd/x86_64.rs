//! AVX2 with FMA, and AVX-512 Foundation.

#[allow(clippy::wildcard_imports)] // Every intrinsic's name says where it is from.
use std::arch::x86_64::*;

use crate::cpu::simd::{Kernel, Simd};

/// Proof that this machine has AVX2 and FMA.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// Proof that this machine has AVX-512 Foundation (which includes AVX2 and FMA).
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Avx2(()))
    }

    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma")]
        fn enabled<K: Kernel>(token: Avx2, kernel: K) -> K::Output {
            kernel.run(token)
        }
        // SAFETY: `self` exists only where `detect` found avx2 and fma.
        unsafe { enabled(self, kernel) }
    }
}

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Avx512(()))
    }

    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f")]
        fn enabled<K: Kernel>(token: Avx512, kernel: K) -> K::Output {
            kernel.run(token)
        }
        // SAFETY: `self` exists only where `detect` found avx512f.
        unsafe { enabled(self, kernel) }
    }
}

/// Implements [`Simd`] for a token: the two instruction sets differ in the names of their intrinsics only.
macro_rules! implement_simd {
    (
        $token:ident: $features:literal, [$vector:ident; $lanes:literal], MR = $mr:literal, half = $half:ident via $load_half:ident,
        $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $mul_add:ident,
        $min:ident, $max:ident, $cast:ident, $widen:ident, $shift_left:ident, $to_int:ident, $add_int:ident,
        $splat_int:ident
    ) => {
        impl Simd for $token {
            type Vector = $vector;
            const LANES: usize = $lanes;
            const MR: usize = $mr;

            #[inline(always)]
            fn apart<K: Kernel>(self, kernel: K) -> K::Output {
                #[target_feature(enable = $features)]
                #[inline(never)]
                fn apart<K: Kernel>(token: $token, kernel: K) -> K::Output {
                    kernel.run(token)
                }
                // SAFETY: `self` proves the instruction set.
                unsafe { apart(self, kernel) }
            }

            #[inline(always)]
            fn splat(self, value: f32) -> $vector {
                // SAFETY: `self` proves the instruction set.
                unsafe { $splat(value) }
            }

            #[inline(always)]
            fn load(self, values: &[f32]) -> $vector {
                let values = &values[..$lanes];
                // SAFETY: `self` proves the instruction set; the slice above has all the lanes; loads may be unaligned.
                unsafe { $load(values.as_ptr()) }
            }

            #[inline(always)]
            fn store(self, vector: $vector, values: &mut [f32]) {
                let values = &mut values[..$lanes];
                // SAFETY: `self` proves the instruction set; the slice above has all the lanes; stores may be unaligned.
                unsafe { $store(values.as_mut_ptr(), vector) }
            }

            #[inline(always)]
            #[allow(clippy::cast_ptr_alignment)] // The load is an unaligned one.
            fn load_bf16(self, values: &[u16]) -> $vector {
                let values = &values[..$lanes];
                // SAFETY: `self` proves the instruction set; the slice above has all the lanes; loads may be unaligned.
                unsafe { $cast($shift_left::<16>($widen($load_half(values.as_ptr().cast::<$half>())))) }
            }

            #[inline(always)]
            fn add(self, x: $vector, y: $vector) -> $vector {
                // SAFETY: `self` proves the instruction set.
                unsafe { $add(x, y) }
            }

            #[inline(always)]
            fn sub(self, x: $vector, y: $vector) -> $vector {
                // SAFETY: `self` proves the instruction set.
                unsafe { $sub(x, y) }
            }

            #[inline(always)]
            fn mul(self, x: $vector, y: $vector) -> $vector {
                // SAFETY: `self` proves the instruction set.
                unsafe { $mul(x, y) }
            }

            #[inline(always)]
            fn div(self, x: $vector, y: $vector) -> $vector {
                // SAFETY: `self` proves the instruction set.
                unsafe { $div(x, y) }
            }

            #[inline(always)]
            fn mul_add(self, x: $vector, y: $vector, z: $vector) -> $vector {
                // SAFETY: `self` proves the instruction set.
                unsafe { $mul_add(x, y, z) }
            }

            #[inline(always)]
            fn min(self, x: $vector, y: $vector) -> $vector {
                // SAFETY: `self` proves the instruction set.
                unsafe { $min(x, y) }
            }

            #[inline(always)]
            fn max(self, x: $vector, y: $vector) -> $vector {
                // SAFETY: `self` proves the instruction set.
                unsafe { $max(x, y) }
            }

            #[inline(always)]
            fn power_of_two(self, x: $vector) -> $vector {
                // SAFETY: `self` proves the instruction set.
                unsafe { $cast($shift_left::<23>($add_int($to_int(x), $splat_int(127)))) }
            }
        }
    };
}

implement_simd!(
    Avx2: "avx2,fma", [__m256; 8], MR = 6, half = __m128i via _mm_loadu_si128,
    _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_div_ps,
    _mm256_fmadd_ps, _mm256_min_ps, _mm256_max_ps, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_slli_epi32,
    _mm256_cvtps_epi32, _mm256_add_epi32, _mm256_set1_epi32
);

implement_simd!(
    Avx512: "avx512f", [__m512; 16], MR = 14, half = __m256i via _mm256_loadu_si256,
    _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_sub_ps, _mm512_mul_ps, _mm512_div_ps,
    _mm512_fmadd_ps, _mm512_min_ps, _mm512_max_ps, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_slli_epi32,
    _mm512_cvtps_epi32, _mm512_add_epi32, _mm512_set1_epi32
);
