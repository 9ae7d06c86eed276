//! How much memory weights and operations take, for whoever must know before there is a device.
//!
//! Invariant: what is said here is what is allocated. Each piece of scratch memory says for itself how large it becomes
//! ([`CpuDevice::scratch_bytes`] is the same question to a device), and nothing takes spare capacity.

use super::attention::{self, AttentionScratch};
use super::embedding::DistinctRows;
use super::gated_delta::{self, GatedDeltaScratch};
use super::gemm::{self, Lhs, PanelColumns};
use super::{CpuDevice, Isa};
use crate::rotary::RotaryTable;
use crate::{AttentionShape, DType, GatedDeltaShape};

impl Isa {
    /// Bytes of a Linear weight `[outputs, inputs]` that is loaded for this instruction set: whole panels of outputs.
    pub fn weight_bytes(self, dtype: DType, outputs: usize, inputs: usize) -> usize {
        outputs.next_multiple_of(self.run(PanelColumns)) * inputs * dtype.bytes()
    }
}

/// What the operations of one device are asked for, at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuDemand {
    /// Tokens of a batch.
    pub tokens: usize,
    /// Sequences of a batch.
    pub sequences: usize,
    /// Tokens of a sequence and its parent.
    pub longest_tokens: usize,
    /// Rows and columns of the embedding table.
    pub vocab_size: usize,
    pub hidden_size: usize,
    /// Inputs of the widest Linear.
    pub linear_inputs: usize,
    pub gated_delta: Option<GatedDeltaShape>,
    pub attention: Option<AttentionShape>,
}

impl CpuDemand {
    /// Bytes that operations keep between calls, once they have been asked for as much.
    pub fn kept_bytes(&self, isa: Isa) -> usize {
        let embedding = DistinctRows::bytes_for(self.tokens, self.vocab_size, self.hidden_size);
        let gated_delta = self.gated_delta.map_or(0, |shape| GatedDeltaScratch::bytes_for(shape, self.tokens));
        let attention = self.attention.map_or(0, |shape| {
            AttentionScratch::bytes_for(shape, isa, self.tokens, self.sequences)
                + RotaryTable::bytes_for(shape.rotary_dim, self.longest_tokens)
        });
        embedding + Lhs::bytes_for(isa, self.tokens, self.linear_inputs) + gated_delta + attention
    }

    /// Bytes that the threads of a device have for the pieces of work that they do. The vectors that list
    /// panels, tiles and trees are left out: a few bytes a token.
    pub fn passing_bytes(&self, isa: Isa, threads: usize) -> usize {
        let gated_delta = self.gated_delta.map_or(0, |shape| gated_delta::piece_bytes(shape, isa));
        let attention = self.attention.map_or(0, |shape| attention::piece_bytes(shape, isa));
        let linear = gemm::task_elements(isa).iter().sum::<usize>() * size_of::<f32>();
        threads * (linear + gated_delta.max(attention))
    }
}

impl CpuDevice {
    /// Bytes that operations keep between calls so far.
    pub fn scratch_bytes(&self) -> usize {
        let scratch = self.scratch();
        scratch.embedding.bytes()
            + scratch.lhs.bytes()
            + scratch.gated_delta.bytes()
            + scratch.attention.bytes()
            + scratch.rotary.bytes()
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::tests::{Array, cpu_devices, packing, random, random_values, vector, weight};
    use crate::{Device, HostMatrix, KernelError, Packing, RowSource, States};

    const GATED_DELTA: GatedDeltaShape = GatedDeltaShape { key_heads: 2, value_heads: 4, key_dim: 24, value_dim: 40 };
    const ATTENTION: AttentionShape = AttentionShape {
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 40,
        rotary_dim: 8,
        rope_theta: 1e4,
        rms_norm_eps: 1e-6,
    };
    const HIDDEN: usize = 12;

    struct Rows;

    impl RowSource for Rows {
        fn rows(&self) -> usize {
            50
        }

        fn width(&self) -> usize {
            HIDDEN
        }

        fn read_rows(&self, _ids: &[u32], out: &mut [f32]) -> Result<(), KernelError> {
            out.fill(1.0);
            Ok(())
        }
    }

    /// Asks every operation that keeps memory for `packing`'s tokens.
    fn run(device: &CpuDevice, packing: &Packing, linear_inputs: usize) {
        let random = &mut random();
        let tokens = packing.tokens();
        let mut matrix = |columns| random_values(random, tokens, columns).upload(device);
        let mut out = HostMatrix::default();
        let table = device.load_embedding(Box::new(Rows)).unwrap();
        let ids: Vec<u32> = (0..tokens).map(|token| (token % 50) as u32).collect();
        device.embedding_gather(&table, &ids, &mut out).unwrap();
        let ones = Array { rows: 3, columns: linear_inputs, values: vec![1.0; 3 * linear_inputs] };
        device.linear(&weight(device, DType::F32, &ones), &matrix(linear_inputs), &mut out).unwrap();
        let (qkv, heads) = (matrix(GATED_DELTA.channels()), GATED_DELTA.value_heads);
        let (a, b, per_head) = (matrix(heads), matrix(heads), vector(device, &vec![0.5; heads]));
        device
            .gated_delta_rule(packing, States::default(), GATED_DELTA, &qkv, &a, &b, &per_head, &per_head, &mut out)
            .unwrap();
        let AttentionShape { num_attention_heads, num_key_value_heads, head_dim, .. } = ATTENTION;
        let (q_gate, norm) = (matrix(2 * num_attention_heads * head_dim), vector(device, &vec![0.0; head_dim]));
        let (k, v) = (matrix(num_key_value_heads * head_dim), matrix(num_key_value_heads * head_dim));
        device.gated_attention(packing, States::default(), ATTENTION, &q_gate, &k, &v, &norm, &norm, &mut out).unwrap();
    }

    fn demand(packing: &Packing, linear_inputs: usize) -> CpuDemand {
        CpuDemand {
            tokens: packing.tokens(),
            sequences: packing.sequences.len(),
            longest_tokens: packing.sequences.iter().map(|sequence| sequence.position + sequence.len).max().unwrap(),
            vocab_size: 50,
            hidden_size: HIDDEN,
            linear_inputs,
            gated_delta: Some(GATED_DELTA),
            attention: Some(ATTENTION),
        }
    }

    /// Whoever adds to the scratch memory, or lets it grow by doubling, must say so here: a member would be started where
    /// it has no room.
    #[test]
    fn scratch_memory_is_as_large_as_foretold() {
        for device in cpu_devices(2) {
            // One token more than whole panels of any width leaves the most of the last panel of every sequence empty.
            let largest = packing(&[(None, 65), (Some(0), 33), (Some(0), 1), (None, 1)]);
            let demand = demand(&largest, 48);
            run(&device, &packing(&[(None, 3)]), 48);
            let small = device.scratch_bytes();
            run(&device, &largest, 48);
            assert_eq!(device.scratch_bytes(), demand.kept_bytes(device.isa), "{}", device.isa());
            assert!(small < device.scratch_bytes());
            run(&device, &packing(&[(None, 20), (Some(0), 7)]), 30);
            assert_eq!(device.scratch_bytes(), demand.kept_bytes(device.isa), "a smaller batch keeps it");
        }
    }

    #[test]
    fn weights_are_as_large_as_foretold() {
        let random = &mut random();
        for device in cpu_devices(2) {
            for outputs in [1, 8, 31, 32, 33] {
                let inputs = random.random_range(1..70);
                let values = random_values(random, outputs, inputs);
                for dtype in [DType::F32, DType::Bf16] {
                    let expected = device.isa.weight_bytes(dtype, outputs, inputs);
                    assert_eq!(weight(&device, dtype, &values).bytes(), expected, "[{outputs}, {inputs}] {dtype:?}");
                }
            }
        }
    }

    /// Rows are packed for the matrix product so many at a time, whole tiles of them.
    #[test]
    fn a_long_batch_is_packed_piece_by_piece() {
        for device in cpu_devices(1) {
            let (mut x, mut out) = (device.matrix(), device.matrix());
            let ones = weight(&device, DType::F32, &Array::new(3, &[1.0; 6]));
            for tokens in [1, 5, 7, 1007, 1009, 3000] {
                device.upload(&vec![1.0; tokens * 3], tokens, 3, &mut x).unwrap();
                device.linear(&ones, &x, &mut out).unwrap();
                assert_eq!(device.scratch_bytes(), Lhs::bytes_for(device.isa, tokens, 3), "{tokens} rows");
            }
        }
    }
}
