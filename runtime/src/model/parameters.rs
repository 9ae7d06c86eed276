//! A member's tensors between their files and the structures that own them.
//!
//! Files come in the order in which they were sharded, structures are built in the order of the layers: [`Parameters`]
//! takes tensors by name, each moved to the device as it comes so that no second copy of the model is ever in memory,
//! and gives them out by name. Invariant: what is inside has the name and the shape that the config calls for.

use std::collections::{BTreeMap, HashMap};

use synod_kernels::{Device, HostTensor, widen};

use super::ModelError;
use super::qwen3_5::config::{TensorKind, TensorSpec};

/// The tensors of a member, on a device, by full name.
pub(super) struct Parameters<D: Device> {
    /// What the config calls for and has not come yet.
    pending: BTreeMap<String, TensorSpec>,
    linear: HashMap<String, D::Weight>,
    vectors: HashMap<String, D::Vector>,
    scalars: HashMap<String, f32>,
}

impl<D: Device> Parameters<D> {
    /// Expects `specs`, under their full names. The embedding table is not among what comes: its rows stay in the
    /// file and reach the device by [`Device::load_embedding`].
    pub(super) fn expecting(specs: impl IntoIterator<Item = TensorSpec>) -> Self {
        let pending = specs
            .into_iter()
            .filter(|spec| spec.kind != TensorKind::Embedding)
            .map(|spec| (spec.name.clone(), spec))
            .collect();
        Self { pending, linear: HashMap::new(), vectors: HashMap::new(), scalars: HashMap::new() }
    }

    /// Takes one tensor of the files.
    ///
    /// # Errors
    /// A tensor that nothing calls for or that has come before, one of another shape, and what the device refuses.
    pub(super) fn accept(&mut self, device: &D, name: &str, tensor: HostTensor<'_>) -> Result<(), ModelError> {
        let Some(spec) = self.pending.remove(name) else {
            return Err(ModelError::UnexpectedTensor { name: name.to_owned() });
        };
        if !spec.accepts(tensor.shape) {
            let found = tensor.shape.to_vec();
            return Err(ModelError::TensorShape { name: spec.name, expected: spec.shape, found });
        }
        let refused = |source| ModelError::LoadTensor { name: name.to_owned(), source };
        match Storage::of(&spec) {
            Storage::Weight => {
                let weight = device.load_weight(tensor).map_err(refused)?;
                self.linear.insert(spec.name, weight);
            }
            Storage::Vector => {
                let vector = device.load_vector(tensor).map_err(refused)?;
                self.vectors.insert(spec.name, vector);
            }
            Storage::Scalar => {
                self.scalars.insert(spec.name, scalar_value(tensor));
            }
            Storage::None => {}
        }
        Ok(())
    }

    /// `Ok` when everything that the config calls for has come.
    ///
    /// # Errors
    /// The first missing tensor, by name.
    pub(super) fn check_complete(&self) -> Result<(), ModelError> {
        match self.pending.keys().next() {
            Some(name) => Err(ModelError::MissingTensor { name: name.clone() }),
            None => Ok(()),
        }
    }

    /// Gives out a Linear weight `[out, in]`.
    pub(super) fn linear(&mut self, name: &str) -> Result<D::Weight, ModelError> {
        take(&mut self.linear, name)
    }

    /// Gives out a parameter that an operation reads as a flat vector.
    pub(super) fn vector(&mut self, name: &str) -> Result<D::Vector, ModelError> {
        take(&mut self.vectors, name)
    }

    /// Gives out a single value.
    pub(super) fn scalar(&mut self, name: &str) -> Result<f32, ModelError> {
        take(&mut self.scalars, name)
    }
}

/// How a device holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// Packed for matrix products.
    Weight,
    /// A flat F32 vector.
    Vector,
    /// In host memory: it is added to logits that are already there.
    Scalar,
    /// Shipped and unused.
    None,
}

impl Storage {
    pub(super) fn of(spec: &TensorSpec) -> Self {
        // The last Linear of a head has one output: its weight is the row of factors that `pair_scores` takes.
        const SCORE_WEIGHTS: [&str; 3] = ["head.scalar.weight", "span2.v.weight", "span_broad.v.weight"];
        const UNUSED: [&str; 4] = ["span2.o.weight", "span2.o.bias", "span_broad.o.weight", "span_broad.o.bias"];
        match spec.kind {
            _ if UNUSED.contains(&spec.name.as_str()) => Storage::None,
            _ if SCORE_WEIGHTS.contains(&spec.name.as_str()) => Storage::Vector,
            TensorKind::Linear => Storage::Weight,
            TensorKind::Scalar => Storage::Scalar,
            _ => Storage::Vector,
        }
    }
}

/// The value of a tensor of one value, widened to F32.
fn scalar_value(tensor: HostTensor<'_>) -> f32 {
    let mut value = [0.0];
    widen(tensor.dtype, tensor.bytes, &mut value);
    value[0]
}

fn take<T>(tensors: &mut HashMap<String, T>, name: &str) -> Result<T, ModelError> {
    tensors.remove(name).ok_or_else(|| ModelError::MissingTensor { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use synod_kernels::DType;
    use synod_kernels::reference::Reference;

    use super::*;

    fn specs() -> Vec<TensorSpec> {
        vec![
            TensorSpec::new("backbone.embed_tokens.weight", &[7, 2], TensorKind::Embedding),
            TensorSpec::new("head.key.weight", &[3, 2], TensorKind::Linear),
            TensorSpec::new("head.scalar.weight", &[1, 3], TensorKind::Linear),
            TensorSpec::new("set_bias", &[], TensorKind::Scalar),
            TensorSpec::new("span2.o.weight", &[1, 2], TensorKind::Linear),
        ]
    }

    fn accept(parameters: &mut Parameters<Reference>, name: &str, shape: &[usize]) -> Result<(), ModelError> {
        let bytes = vec![0; shape.iter().product::<usize>() * DType::F32.bytes()];
        parameters.accept(&Reference, name, HostTensor { dtype: DType::F32, shape, bytes: &bytes })
    }

    fn complete() -> Parameters<Reference> {
        complete_but("")
    }

    fn complete_but(name: &str) -> Parameters<Reference> {
        let mut parameters = Parameters::expecting(specs());
        for spec in specs().into_iter().filter(|spec| spec.kind != TensorKind::Embedding && spec.name != name) {
            accept(&mut parameters, &spec.name, &spec.shape).unwrap();
        }
        parameters
    }

    #[test]
    fn tensors_come_out_as_what_reads_them() {
        let mut parameters = complete();
        parameters.check_complete().unwrap();
        parameters.linear("head.key.weight").unwrap();
        parameters.vector("head.scalar.weight").unwrap();
        parameters.scalar("set_bias").unwrap();
        assert!(parameters.linear("span2.o.weight").is_err(), "shipped and unused: not kept");
    }

    /// A tensor that is taken twice would leave its second owner without one.
    #[test]
    fn a_tensor_is_given_out_once() {
        let mut parameters = complete();
        parameters.linear("head.key.weight").unwrap();
        let error = parameters.linear("head.key.weight").err().unwrap();
        assert!(matches!(error, ModelError::MissingTensor { name } if name == "head.key.weight"));
    }

    /// Every one of these would otherwise compute something from weights that are not the member's.
    #[test]
    fn what_the_config_does_not_call_for_is_refused_by_name() {
        let mut parameters = Parameters::expecting(specs());
        let missing = parameters.check_complete().unwrap_err();
        assert!(matches!(missing, ModelError::MissingTensor { name } if name == "head.key.weight"));
        for name in ["head.extra.weight", "backbone.embed_tokens.weight"] {
            let unexpected = accept(&mut parameters, name, &[7, 2]).unwrap_err();
            assert!(matches!(unexpected, ModelError::UnexpectedTensor { name: found } if found == name));
        }
        let transposed = accept(&mut complete_but("head.key.weight"), "head.key.weight", &[2, 3]).unwrap_err();
        assert!(matches!(transposed, ModelError::TensorShape { expected, found, .. }
            if expected == [3, 2] && found == [2, 3]));
        let pair = accept(&mut complete_but("set_bias"), "set_bias", &[2]).unwrap_err();
        assert!(matches!(pair, ModelError::TensorShape { expected, found, .. } if expected.is_empty() && found == [2]));
        let twice = accept(&mut complete(), "set_bias", &[]).unwrap_err();
        assert!(matches!(twice, ModelError::UnexpectedTensor { name } if name == "set_bias"));
    }

    #[test]
    fn a_scalar_may_be_stored_with_a_dimension() {
        let mut parameters = complete_but("set_bias");
        accept(&mut parameters, "set_bias", &[1]).unwrap();
        parameters.scalar("set_bias").unwrap();
        let row = accept(&mut complete_but("span2.o.weight"), "span2.o.weight", &[2]).unwrap_err();
        assert!(matches!(row, ModelError::TensorShape { .. }), "what is a scalar by its kind only");
    }

    #[test]
    fn scalars_are_read_in_both_dtypes() {
        let value = |dtype, bytes: &[u8]| scalar_value(HostTensor { dtype, shape: &[], bytes });
        assert_eq!(value(DType::F32, &(-0.3_f32).to_le_bytes()).to_bits(), (-0.3_f32).to_bits());
        assert_eq!(value(DType::Bf16, &[0x20, 0xc0]).to_bits(), (-2.5_f32).to_bits());
    }
}
