use super::array::{Array, PairArray};
use crate::{DType, Error, HostTensor, Layout, TensorSpec};

/// A bias with an element a pair, or one for many: `[batch or 1, heads_q or 1, seq_q or 1, seq_kv]`, where axes of 1 hold for all,
/// of f32 or 16 bits whatever q's dtype. It is added to the score in nats, after softcap and ALiBi; lse includes it.
///
/// Of packed sequences, `batch` is their number, and rows are counted from each sequence's first, up to the longest's.
#[derive(Clone, Debug, PartialEq)]
pub struct BiasTensor(pub(crate) PairArray, pub(crate) DType);

impl BiasTensor {
    /// The bias in a tensor on the host, whose last axis is seq_kv.
    ///
    /// # Errors
    /// [`Error::Argument`] if a copy would be too large.
    pub fn new(tensor: &HostTensor) -> Result<Self, Error> {
        let spec = *tensor.spec();
        // Its elements in order, whatever their strides were.
        let dense = tensor.convert(spec.dtype, Layout::Bhsd)?;
        let shape = spec.axes().map(|(size, _)| size);
        let count = shape.iter().product();
        let values = Array::new(dense.bytes());
        let array = PairArray::contiguous("bias", values, count, shape)?;
        Ok(Self(array, spec.dtype))
    }

    /// A bias in the backend's memory, whose address is given with each launch
    /// ([`ModifierOperands::bias`](crate::ModifierOperands::bias)); the spec's last axis is seq_kv, and its strides may be any.
    pub fn on_device(spec: &TensorSpec) -> Self {
        let axes = spec.axes();
        let array = PairArray::new(
            Array::ON_DEVICE,
            axes.map(|(size, _)| size),
            axes.map(|(_, stride)| stride),
        );
        Self(array, spec.dtype)
    }

    /// Its shape, `[batch or 1, heads_q or 1, seq_q or 1, seq_kv]`.
    pub fn shape(&self) -> [usize; 4] {
        self.0.shape
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.1
    }

    /// The bias of query `pair[2]` and key `pair[3]`, of query head `pair[1]` of batch entry `pair[0]`.
    ///
    /// # Panics
    /// If only the device has it.
    pub fn get(&self, pair: [usize; 4]) -> f32 {
        let index = self.0.index(pair) as usize;
        let values = &self.0.values;
        match self.1 {
            DType::F32 => values.get::<f32>(index),
            DType::F16 => half::f16::from_bits(values.get(index)).to_f32(),
            DType::Bf16 => half::bf16::from_bits(values.get(index)).to_f32(),
            DType::E4m3 => kernels_gpu::e4m3::to_f32(values.get(index)),
        }
    }
}

/// Attention sinks: for each query head the score, in nats, of a key without a value that every query of the head sees. It takes
/// its share of the softmax and counts in lse (as in gpt-oss); scale, softcap and biases do not touch it. A row that sees no
/// other key has o = 0 and the sink for lse.
#[derive(Clone, Debug, PartialEq)]
pub struct Sinks {
    pub(crate) values: Array,
    heads: usize,
}

impl Sinks {
    /// One sink for each query head.
    ///
    /// # Errors
    /// [`Error::Argument`] on `sinks` if one is not finite.
    pub fn per_head(sinks: &[f32]) -> Result<Self, Error> {
        if let Some(index) = sinks.iter().position(|sink| !sink.is_finite()) {
            let wrong = format!("element {index} is {}", sinks[index]);
            return Err(Error::argument("sinks", wrong, "sinks must be finite"));
        }
        Ok(Self {
            values: Array::new(sinks),
            heads: sinks.len(),
        })
    }

    /// Sinks in the backend's memory, f32 `[heads_q]`, whose address is given with each launch
    /// ([`ModifierOperands::sinks`](crate::ModifierOperands::sinks)). Nobody checks them: one that is not finite gives NaN.
    pub fn on_device(heads: usize) -> Self {
        Self {
            values: Array::ON_DEVICE,
            heads,
        }
    }

    /// The sink of a query head.
    ///
    /// # Panics
    /// If there is none, or only the device has it.
    pub fn get(&self, head: usize) -> f32 {
        self.values.get(head)
    }

    pub(super) fn check(&self, heads: usize) -> Result<(), Error> {
        if self.heads == heads {
            return Ok(());
        }
        let wrong = format!("it has {} sinks", self.heads);
        Err(Error::argument(
            "sinks",
            wrong,
            format!("they must be {heads}, the heads_q of q"),
        ))
    }
}
