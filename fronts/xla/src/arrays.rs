use std::ffi::c_int;

use ferroflash::{AlibiSlopes, BackwardOptions, BiasTensor, Documents, ForwardOptions, Layout};
use ferroflash::{DType, GradientOperands, MaskTensor, ModifierOperands, Operands, TensorSpec};

use crate::c_api::data_type;
use crate::call::{Array, Named};
use crate::failure::Failure;
use crate::shapes::{check_rows, float, split};

/// The arrays that a call may have behind its tensors, in their order.
pub const ARRAYS: [&str; 6] = [
    "mask",
    "bias",
    "alibi_slopes",
    "doc_q",
    "doc_k",
    "dropout_state",
];

/// The gradients that a backward pass may have behind dq, dk and dv, in their order.
pub const GRADIENTS: [&str; 2] = ["d_bias", "d_alibi_slopes"];

/// The sizes that arrays are measured by.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub batch: usize,
    pub heads_q: usize,
    pub seq_q: usize,
    pub seq_k: usize,
}

impl Sizes {
    pub fn of(q: &TensorSpec, k: &TensorSpec) -> Self {
        Self {
            batch: q.shape.batch,
            heads_q: q.shape.heads,
            seq_q: q.shape.seq,
            seq_k: k.shape.seq,
        }
    }

    fn pairs(&self) -> [usize; 4] {
        [self.batch, self.heads_q, self.seq_q, self.seq_k]
    }
}

/// What a call has of [`ARRAYS`] and [`GRADIENTS`], without the addresses: all that a plan depends on.
///
/// An array without elements is left out where there are no pairs: it may lie nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Arrays {
    mask: Option<Pairs>,
    bias: Option<(DType, Pairs)>,
    /// Whether each batch entry has its own, as of documents.
    alibi_slopes: Option<bool>,
    documents: Option<bool>,
    d_bias: bool,
    d_alibi_slopes: bool,
}

impl Arrays {
    /// Those among `arguments`, which `results` may hold gradients of. Refuses what is not of the shape and dtype that it must be.
    pub fn of(arguments: &Named<'_>, results: &Named<'_>, sizes: Sizes) -> Result<Self, Failure> {
        let mut found = Self::default();
        if let Some(mask) = arguments.get("mask") {
            if mask.dtype != data_type::PRED {
                let wrong = format!("its dtype is XLA's {}", mask.dtype);
                return Err(Failure::argument("mask", wrong, "it must be bool"));
            }
            found.mask = Pairs::of("mask", &mask, sizes)?;
        }
        if let Some(bias) = arguments.get("bias") {
            let dtype = float("bias", &bias)?;
            found.bias = Pairs::of("bias", &bias, sizes)?.map(|pairs| (dtype, pairs));
        }
        if let Some(slopes) = arguments.get("alibi_slopes") {
            found.alibi_slopes = rows(
                "alibi_slopes",
                &slopes,
                data_type::F32,
                sizes.heads_q,
                sizes,
            )?;
        }
        found.documents = documents(arguments, sizes)?;
        if let Some(state) = arguments.get("dropout_state") {
            check_rows("dropout_state", &state, data_type::U32, &[1], [4])?;
        }
        found.d_bias = found.asks_for_bias(results)?;
        found.d_alibi_slopes = found.asks_for_slopes(results, sizes)?;
        Ok(found)
    }

    /// Whether a gradient by the bias is to be written. Refuses one that is not of the bias's shape with all keys.
    fn asks_for_bias(&self, results: &Named<'_>) -> Result<bool, Failure> {
        let Some(d_bias) = results.get("d_bias") else {
            return Ok(false);
        };
        if let Some((_, pairs)) = &self.bias {
            let [batch, own @ ..] = pairs.shape;
            check_rows("d_bias", &d_bias, data_type::F32, &[batch], own)?;
        }
        Ok(has_elements(&d_bias))
    }

    /// Whether a gradient by slopes is to be written. Refuses one that is not of their shape.
    fn asks_for_slopes(&self, results: &Named<'_>, sizes: Sizes) -> Result<bool, Failure> {
        let Some(d_slopes) = results.get("d_alibi_slopes") else {
            return Ok(false);
        };
        if let Some(is_batched) = self.alibi_slopes {
            let batch = if is_batched { sizes.batch } else { 1 };
            let own = [sizes.heads_q];
            check_rows("d_alibi_slopes", &d_slopes, data_type::F32, &[batch], own)?;
        }
        Ok(has_elements(&d_slopes))
    }

    /// `options` with these.
    pub fn forward(&self, mut options: ForwardOptions, heads_q: usize) -> ForwardOptions {
        let slopes = self.alibi_slopes;
        options.alibi = slopes.map(|is_batched| AlibiSlopes::on_device(heads_q, is_batched));
        let of = &mut options.modifiers;
        let mask = self.mask.as_ref();
        of.mask = mask.map(|pairs| MaskTensor::on_device(pairs.shape, pairs.strides));
        let bias = self.bias.as_ref();
        of.bias = bias.map(|(dtype, pairs)| BiasTensor::on_device(&pairs.spec(*dtype)));
        of.documents = self.documents.map(Documents::on_device);
        options
    }

    /// `options` with the gradients by these that are asked for.
    pub fn backward(&self, options: BackwardOptions) -> BackwardOptions {
        options
            .bias_gradient(self.d_bias)
            .alibi_gradient(self.d_alibi_slopes)
    }
}

/// `operands` with the addresses of arrays; those that a problem has not are not read.
pub fn operands(operands: Operands, arguments: &Named<'_>) -> Operands {
    let address = |name| arguments.get(name).map(|array| array.address);
    let mut of = ModifierOperands::NONE;
    of.mask = address("mask");
    of.bias = address("bias");
    of.documents = address("doc_q").zip(address("doc_k")).map(<[u64; 2]>::from);
    of.dropout_state = address("dropout_state");
    operands.alibi_slopes(address("alibi_slopes")).modifiers(of)
}

/// `operands` with the addresses of gradients by arrays.
pub fn gradients(operands: GradientOperands, results: &Named<'_>) -> GradientOperands {
    let address = |name| results.get(name).map(|array| array.address);
    operands
        .d_bias(address("d_bias"))
        .d_alibi_slopes(address("d_alibi_slopes"))
}

/// An array over pairs, dense, `[batch or 1, heads_q or 1, seq_q or 1, seq_k]`: one element for all keys is seq_k at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pairs {
    shape: [usize; 4],
    strides: [i64; 4],
}

impl Pairs {
    /// That of an array `[..., heads_q or 1, seq_q or 1, seq_k or 1]` whose leading axes are one batch entry or all; `None` if
    /// there are no pairs, and no elements.
    fn of(name: &str, array: &Array<'_>, sizes: Sizes) -> Result<Option<Self>, Failure> {
        let (batch, [heads, rows, keys]) = split(name, array)?;
        let mut shape = [batch, heads, rows, keys];
        let pairs = sizes.pairs();
        if shape.contains(&0) && pairs.contains(&0) {
            return Ok(None);
        }
        let size = |size: usize| size as i64;
        let mut strides = [size(heads * rows * keys), size(rows * keys), size(keys), 1];
        if keys == 1 {
            (shape[3], strides[3]) = (pairs[3], 0);
        }
        Ok(Some(Self { shape, strides }))
    }

    fn spec(&self, dtype: DType) -> TensorSpec {
        TensorSpec {
            dtype,
            shape: Layout::Bhsd.shape(self.shape),
            strides: Layout::Bhsd.strides(self.strides),
        }
    }
}

/// Whether each batch entry has ids of its own; `None` if there are none, or nothing that they are of.
fn documents(arguments: &Named<'_>, sizes: Sizes) -> Result<Option<bool>, Failure> {
    let (of_queries, of_keys) = match (arguments.get("doc_q"), arguments.get("doc_k")) {
        (None, None) => return Ok(None),
        (Some(of_queries), Some(of_keys)) => (of_queries, of_keys),
        (None, _) => return Err(alone("doc_q", "doc_k")),
        (_, None) => return Err(alone("doc_k", "doc_q")),
    };
    let of_queries = rows("doc_q", &of_queries, data_type::S32, sizes.seq_q, sizes)?;
    let of_keys = rows("doc_k", &of_keys, data_type::S32, sizes.seq_k, sizes)?;
    let Some((of_queries, of_keys)) = of_queries.zip(of_keys) else {
        return Ok(None);
    };
    if of_queries != of_keys {
        let wrong = format!("each batch entry has its own: {of_keys}");
        return Err(Failure::argument(
            "doc_k",
            wrong,
            format!("it must be {of_queries}, as of doc_q"),
        ));
    }
    Ok(Some(of_queries))
}

fn has_elements(array: &Array<'_>) -> bool {
    array.dims.iter().all(|&size| size > 0)
}

fn alone(missing: &str, given: &str) -> Failure {
    Failure::argument(
        missing,
        "it is not there",
        format!("it must be where {given} is"),
    )
}

/// Whether an array of `length` numbers has as many for each batch entry; `None` if it has no elements.
fn rows(
    name: &str,
    array: &Array<'_>,
    dtype: c_int,
    length: usize,
    sizes: Sizes,
) -> Result<Option<bool>, Failure> {
    let entries = check_rows(name, array, dtype, &[1, sizes.batch], [length])?;
    Ok((entries * length > 0).then_some(entries != 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        batch: 2,
        heads_q: 4,
        seq_q: 3,
        seq_k: 5,
    };

    /// Of arrays by name, dtype and dims, with these results, all at the address 64.
    fn read(arguments: &[Given], results: &[Given], sizes: Sizes) -> Result<Arrays, String> {
        let refused = |failure| match failure {
            Failure::Ours(_, message) => message,
            Failure::Xlas(_) => panic!("XLA is not asked"),
        };
        Arrays::of(&named(arguments), &named(results), sizes).map_err(refused)
    }

    type Given = (&'static str, c_int, &'static [i64]);

    fn named(given: &[Given]) -> Named<'static> {
        let array = |&(name, dtype, dims): &Given| {
            let address = 64;
            #[rustfmt::skip] // as they are named
            let array = Array { dtype, address, dims };
            (name, array)
        };
        Named(given.iter().map(array).collect())
    }

    fn message(read: Result<Arrays, String>) -> String {
        read.expect_err("it is refused")
    }

    #[test]
    fn axes_of_one_have_no_stride() {
        let mask = ("mask", data_type::PRED, &[1, 1, 1, 5][..]);
        let bias = ("bias", data_type::F16, &[2, 1, 3, 1][..]);
        let arrays = read(&[mask, bias], &[], SIZES).unwrap();
        let options = arrays.forward(ForwardOptions::new(), 4);
        let expected = MaskTensor::on_device([1, 1, 1, 5], [0, 0, 0, 1]);
        assert_eq!(options.modifiers.mask, Some(expected));
        let spec = TensorSpec {
            dtype: DType::F16,
            shape: Layout::Bhsd.shape([2, 1, 3, 5]),
            strides: Layout::Bhsd.strides([3, 0, 1, 0]),
        };
        let expected = BiasTensor::on_device(&spec);
        assert_eq!(options.modifiers.bias, Some(expected));
    }

    #[test]
    fn leading_axes_are_one_entry_or_all() {
        let rows = |dims| ("alibi_slopes", data_type::F32, dims);
        let of = |dims| read(&[rows(dims)], &[], SIZES).map(|arrays| arrays.alibi_slopes);
        assert_eq!(of(&[4]), Ok(Some(false)));
        assert_eq!(of(&[1, 1, 4]), Ok(Some(false)));
        assert_eq!(of(&[2, 4]), Ok(Some(true)));
        assert_eq!(of(&[2, 1, 4]), Ok(Some(true)));
        let wrong =
            "alibi_slopes: it is XLA's 11 [3, 4]; it must be f32 [..., 4], of 1 or 2 in all";
        assert_eq!(of(&[3, 4]), Err(wrong.to_owned()));
    }

    #[test]
    fn documents_are_of_queries_and_of_keys() {
        let ids = |of_queries, of_keys| {
            let of_queries = ("doc_q", data_type::S32, of_queries);
            let arguments = [of_queries, ("doc_k", data_type::S32, of_keys)];
            read(&arguments, &[], SIZES)
        };
        assert_eq!(ids(&[3], &[5]).unwrap().documents, Some(false));
        assert_eq!(ids(&[2, 3], &[2, 5]).unwrap().documents, Some(true));
        assert!(message(ids(&[2, 3], &[5])).starts_with("doc_k: each batch entry"));
        assert!(message(ids(&[3], &[3])).starts_with("doc_k: it is XLA's 4 [3]"));
        let alone = read(&[("doc_k", data_type::S32, &[5])], &[], SIZES);
        assert!(message(alone).starts_with("doc_q: it is not there"));
    }

    #[test]
    fn without_pairs_arrays_may_lie_nowhere() {
        let none = Sizes { seq_q: 0, ..SIZES };
        let mask = ("mask", data_type::PRED, &[2, 4, 0, 5][..]);
        let ids = ("doc_q", data_type::S32, &[0][..]);
        let arguments = [mask, ids, ("doc_k", data_type::S32, &[5])];
        assert_eq!(read(&arguments, &[], none), Ok(Arrays::default()));
        // What has elements stays, for its gradient is 0 where it is asked for.
        let bias = ("bias", data_type::F32, &[4, 1, 5][..]);
        let arrays = read(&[bias], &[("d_bias", data_type::F32, &[4, 1, 5])], none).unwrap();
        assert!(arrays.bias.is_some() && arrays.d_bias);
        let empty = ("bias", data_type::F32, &[4, 0, 1][..]);
        let gradient = ("d_bias", data_type::F32, &[4, 0, 5][..]);
        assert_eq!(read(&[empty], &[gradient], none), Ok(Arrays::default()));
        // Pairs without elements are the library's to refuse.
        assert!(read(&[mask], &[], SIZES).unwrap().mask.is_some());
    }

    #[test]
    fn gradients_are_of_their_arrays_shapes() {
        let bias = ("bias", data_type::BF16, &[4, 1, 1][..]);
        let slopes = ("alibi_slopes", data_type::F32, &[2, 4][..]);
        let of = |d_bias, d_slopes| {
            let d_bias = ("d_bias", data_type::F32, d_bias);
            let results = [d_bias, ("d_alibi_slopes", data_type::F32, d_slopes)];
            read(&[bias, slopes], &results, SIZES)
        };
        let asked = of(&[4, 1, 5], &[2, 4]).unwrap();
        assert!(asked.d_bias && asked.d_alibi_slopes);
        assert!(message(of(&[4, 1, 1], &[2, 4])).starts_with("d_bias: it is XLA's 11 [4, 1, 1]"));
        assert!(message(of(&[4, 1, 5], &[4])).starts_with("d_alibi_slopes: it is"));
        let half = read(&[bias], &[("d_bias", data_type::F16, &[4, 1, 5])], SIZES);
        assert!(message(half).starts_with("d_bias: it is XLA's 10"));
    }

    #[test]
    fn addresses_go_to_their_operands() {
        let names = ["bias", "doc_k", "doc_q", "alibi_slopes", "dropout_state"];
        let arrays = names.into_iter().zip(1..).map(|(name, address)| {
            let (dtype, dims) = (0, &[][..]);
            #[rustfmt::skip] // as they are named
            let array = Array { dtype, address, dims };
            (name, array)
        });
        let found = operands(Operands::default(), &Named(arrays.collect()));
        let of = found.modifiers;
        assert_eq!(
            (of.mask, of.bias, of.documents),
            (None, Some(1), Some([3, 2]))
        );
        assert_eq!((found.alibi_slopes, of.dropout_state), (Some(4), Some(5)));
    }
}
