//! What heads take, apart from where it comes from: for replays, which compare it with what others recorded and run
//! heads on that. Serving has no use for it, and reads states where they lie.

use std::iter;
use std::ops::Range;

use synod_kernels::Device;

use super::Heads;
use super::candidate::CandidateRows;
use super::span::SpanRows;
use crate::family::{Logits, Readout};
use crate::model::ModelError;
use crate::model::qwen3_5::forest::Read;

/// The hidden states that the head of one block takes, F32, row-major `[rows, hidden_size]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeadInputs {
    /// One row per option (abstain last) or per word.
    pub left: Vec<f32>,
    /// The query's row, or one row per label: the mean over its tokens.
    pub right: Vec<f32>,
}

impl<D: Device> Heads<D> {
    /// The inputs of every block in `reads`, in their order; `states` as for [`Heads::logits`].
    pub(in crate::model) fn inputs(
        &mut self,
        device: &D,
        states: &D::Matrix,
        reads: &[Read<'_>],
    ) -> Result<Vec<HeadInputs>, ModelError> {
        reads.iter().map(|read| self.block_inputs(device, states, read)).collect()
    }

    fn block_inputs(&mut self, device: &D, states: &D::Matrix, read: &Read<'_>) -> Result<HeadInputs, ModelError> {
        let (left, right) = match read.readout {
            Readout::Candidates { options, set_bias, .. } => {
                let rows = CandidateRows::new(read.first, options.len(), *set_bias);
                (rows.options.collect(), iter::once(rows.query..rows.query + 1).collect())
            }
            Readout::Spans { words, labels, .. } => {
                let rows = SpanRows::new(read.first, words, labels);
                (rows.words, rows.labels)
            }
        };
        let (mut inputs, scratch) = (HeadInputs::default(), &mut self.scratch);
        device.gather_rows(states, &left, &mut scratch.left.states)?;
        device.download(&scratch.left.states, &mut inputs.left)?;
        device.mean_rows(states, &right, &mut scratch.right.states)?;
        device.download(&scratch.right.states, &mut inputs.right)?;
        Ok(inputs)
    }

    /// The logits of blocks from inputs that were given: of `readout`, only the head, the counts and `set_bias` matter.
    ///
    /// # Errors
    /// [`ModelError::HeadInputs`] for inputs of another shape than `readout` calls for; else as [`Heads::logits`].
    pub(in crate::model) fn logits_of_inputs(
        &mut self,
        device: &D,
        readout: &Readout,
        inputs: &HeadInputs,
        hidden_size: usize,
    ) -> Result<Logits, ModelError> {
        let given = given_readout(readout);
        let (left, right) = match &given {
            Readout::Candidates { options, .. } => (options.len(), 1),
            Readout::Spans { words, labels, .. } => (words.len(), labels.len()),
        };
        for (rows, values) in [(left, &inputs.left), (right, &inputs.right)] {
            if values.len() != rows * hidden_size {
                return Err(ModelError::HeadInputs { expected: [rows, hidden_size], found: values.len() });
            }
        }
        if left * right == 0 {
            return Ok(Logits { values: Vec::new(), columns: right });
        }
        let mut states = device.matrix();
        let rows = [inputs.left.as_slice(), &inputs.right].concat();
        device.upload(&rows, left + right, hidden_size, &mut states)?;
        let logits = self.logits(device, &states, &[Read { tree: 0, block: 0, readout: &given, first: 0 }])?;
        Ok(logits.into_iter().next().expect("one block is read"))
    }
}

/// A readout whose states lie as [`HeadInputs`] does: a row per word, whichever share a token, and a row per label.
fn given_readout(readout: &Readout) -> Readout {
    match readout {
        Readout::Candidates { options, set_bias, .. } => {
            Readout::Candidates { options: vec![0; options.len()], query: 0, set_bias: *set_bias }
        }
        Readout::Spans { head, words, labels } => Readout::Spans {
            head: *head,
            words: (0..words.len() as u32).collect(),
            labels: labels.iter().map(|_| Range { start: 0, end: 1 }).collect(),
        },
    }
}
