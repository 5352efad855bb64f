//! Requirements on a problem's operands and options.

use super::{CuSeqlens, DeviceLengths, ForwardOptions, MAX_HEAD_DIM, SEQ_LIMIT};
use crate::spec::TensorSpec;
use crate::{DType, Error};

/// Refuses `argument` unless its `what` equals that of another operand.
pub(super) fn check_equal<T: PartialEq + std::fmt::Display>(
    argument: &'static str,
    what: &str,
    found: T,
    expected: T,
    of: &str,
) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::argument(
        argument,
        format!("{what} is {found}"),
        format!("it must be {expected}, the {what} of {of}"),
    ))
}

pub(super) fn check_dims(q: &TensorSpec, k: &TensorSpec, v: &TensorSpec) -> Result<(), Error> {
    for (argument, what, dim) in [
        ("q", "head_dim", q.shape.dim),
        ("v", "head_dim_v", v.shape.dim),
    ] {
        if !(1..=MAX_HEAD_DIM).contains(&dim) {
            return Err(Error::argument(
                argument,
                format!("{what} is {dim}"),
                format!("it must be 1 to {MAX_HEAD_DIM}"),
            ));
        }
    }
    if q.dtype == DType::E4m3 {
        let allowed = "f32, f16 or bf16: e4m3 is for keys and values of a cache";
        return Err(Error::argument("q", "its dtype is e4m3", allowed));
    }
    check_equal("k", "head_dim", k.shape.dim, q.shape.dim, "q")?;
    for (argument, spec) in [("k", k), ("v", v)] {
        check_equal(argument, "dtype", spec.dtype.name(), q.dtype.name(), "q")?;
        check_equal(argument, "batch", spec.shape.batch, q.shape.batch, "q")?;
    }
    check_equal("v", "seq_kv", v.shape.seq, k.shape.seq, "k")?;
    check_equal("v", "heads_kv", v.shape.heads, k.shape.heads, "k")?;
    let (heads_q, heads_kv) = (q.shape.heads, k.shape.heads);
    if heads_kv == 0 {
        return Err(Error::argument(
            "k",
            "heads_kv is 0",
            "it must be 1 or more",
        ));
    }
    if heads_q == 0 || !heads_q.is_multiple_of(heads_kv) {
        return Err(Error::argument(
            "q",
            format!("heads_q is {heads_q}"),
            format!("it must be a positive multiple of heads_kv, which is {heads_kv}"),
        ));
    }
    Ok(())
}

pub(super) fn check_output(q: &TensorSpec, v: &TensorSpec, o: &TensorSpec) -> Result<(), Error> {
    check_outer_shape("o", o, q)?;
    check_equal("o", "head_dim_v", o.shape.dim, v.shape.dim, "v")?;
    check_apart("o", o)
}

/// Refuses `argument` unless its dtype and all axes but the last are q's.
pub(super) fn check_outer_shape(
    argument: &'static str,
    spec: &TensorSpec,
    q: &TensorSpec,
) -> Result<(), Error> {
    check_equal(argument, "dtype", spec.dtype.name(), q.dtype.name(), "q")?;
    check_equal(argument, "batch", spec.shape.batch, q.shape.batch, "q")?;
    check_equal(argument, "heads_q", spec.shape.heads, q.shape.heads, "q")?;
    check_equal(argument, "seq_q", spec.shape.seq, q.shape.seq, "q")
}

/// Refuses an output tensor of which two elements may share an address.
pub(super) fn check_apart(argument: &'static str, spec: &TensorSpec) -> Result<(), Error> {
    if spec.may_overlap() {
        return Err(Error::argument(
            argument,
            "its strides place several elements at one address",
            "they must keep all elements apart",
        ));
    }
    Ok(())
}

pub(super) fn check_sizes(argument: &'static str, spec: &TensorSpec) -> Result<(), Error> {
    let shape = spec.shape;
    for (what, size, limit) in [
        ("batch", shape.batch, u32::MAX as usize),
        ("heads", shape.heads, u32::MAX as usize),
        ("seq", shape.seq, SEQ_LIMIT - 1),
    ] {
        if size > limit {
            return Err(Error::argument(
                argument,
                format!("{what} is {size}"),
                format!("it must be at most {limit}"),
            ));
        }
    }
    Ok(())
}

/// Refuses operands whose shapes do not match `packed`.
pub(super) fn check_packing(
    packed: &CuSeqlens,
    q: &TensorSpec,
    k: &TensorSpec,
) -> Result<(), Error> {
    check_packed_queries(packed, q)?;
    check_sums("cu_seqlens_kv", packed.kv(), "k", k.shape.seq)
}

/// Refuses q if its rows are not those that `packed` says.
pub(super) fn check_packed_queries(packed: &CuSeqlens, q: &TensorSpec) -> Result<(), Error> {
    check_is_packed(q)?;
    check_sums("cu_seqlens_q", packed.q(), "q", q.shape.seq)
}

/// Refuses sums that do not end with the `rows` of `of`.
fn check_sums(
    argument: &'static str,
    sums: &[i32],
    of: &'static str,
    rows: usize,
) -> Result<(), Error> {
    let last = sums.len() - 1;
    let total = sums[last] as usize;
    if total == rows {
        return Ok(());
    }
    Err(Error::argument(
        argument,
        format!("its last element, number {last}, is {total}"),
        format!("it must be {rows}, the rows of {of}"),
    ))
}

/// Refuses operands whose shapes do not match `lengths`.
pub(super) fn check_device_lengths(lengths: &DeviceLengths, q: &TensorSpec) -> Result<(), Error> {
    if lengths.is_packed() {
        check_is_packed(q)?;
    }
    Ok(())
}

/// Refuses operands with more than one batch entry; k, v and o have q's batch.
fn check_is_packed(q: &TensorSpec) -> Result<(), Error> {
    if q.shape.batch == 1 {
        return Ok(());
    }
    Err(Error::argument(
        "q",
        format!("batch is {} beside cu_seqlens", q.shape.batch),
        "it must be 1: packed sequences follow each other along seq",
    ))
}

pub(super) fn check_options(options: &ForwardOptions) -> Result<(), Error> {
    if let Some(scale) = options.softmax_scale.filter(|scale| !scale.is_finite()) {
        return Err(Error::argument(
            "softmax_scale",
            format!("it is {scale}"),
            "it must be finite",
        ));
    }
    if let Some(softcap) = options
        .softcap
        .filter(|cap| !(cap.is_finite() && *cap > 0.0))
    {
        return Err(Error::argument(
            "softcap",
            format!("it is {softcap}"),
            "it must be finite and above 0",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::spec;
    use super::*;
    use crate::{AlibiSlopes, Problem};

    fn refused(edit: impl FnOnce(&mut [TensorSpec; 4], &mut ForwardOptions)) -> (String, String) {
        let mut specs = [spec(6, 5, 8), spec(3, 7, 8), spec(3, 7, 4), spec(6, 5, 4)];
        let mut options = ForwardOptions::new();
        edit(&mut specs, &mut options);
        let [q, k, v, o] = specs;
        match Problem::new(q, k, v, o, &options) {
            Err(Error::Argument {
                argument, wrong, ..
            }) => (argument.into_owned(), wrong),
            other => panic!("expected a refused argument, got {other:?}"),
        }
    }

    fn message(argument: &str, wrong: &str) -> (String, String) {
        (argument.to_owned(), wrong.to_owned())
    }

    #[test]
    fn every_mismatch_names_its_operand() {
        type Edit = fn(&mut [TensorSpec; 4]);
        let cases: [(Edit, &str, &str); 9] = [
            (|s| s[0].shape.dim = 257, "q", "head_dim is 257"),
            (|s| s[2].shape.dim = 0, "v", "head_dim_v is 0"),
            (|s| s[1].shape.dim = 9, "k", "head_dim is 9"),
            (|s| s[2].dtype = DType::F16, "v", "dtype is f16"),
            (|s| s[1].shape.batch = 1, "k", "batch is 1"),
            (|s| s[2].shape.seq = 6, "v", "seq_kv is 6"),
            (|s| s[2].shape.heads = 2, "v", "heads_kv is 2"),
            (|s| s[0].shape.heads = 5, "q", "heads_q is 5"),
            (|s| s[3].shape.seq = 6, "o", "seq_q is 6"),
        ];
        for (edit, argument, wrong) in cases {
            assert_eq!(refused(|s, _| edit(s)), message(argument, wrong));
        }
        assert_eq!(refused(|s, _| s[3].strides.seq = 0).0, "o");
        assert_eq!(refused(|s, _| s[0].strides.batch = i64::MIN).0, "q");
        assert_eq!(
            refused(|s, _| {
                s[1].shape.seq = SEQ_LIMIT;
                s[2].shape.seq = SEQ_LIMIT;
            }),
            message("k", &format!("seq is {SEQ_LIMIT}"))
        );
    }

    #[test]
    fn options_must_be_usable_numbers() {
        for scale in [f32::NAN, f32::INFINITY] {
            assert_eq!(
                refused(|_, o| o.softmax_scale = Some(scale)).0,
                "softmax_scale"
            );
        }
        for cap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(refused(|_, o| o.softcap = Some(cap)).0, "softcap");
        }
    }

    #[test]
    fn packed_operands_agree_with_their_lengths() {
        let lengths =
            |lengths: &[(usize, usize)]| CuSeqlens::from_lengths(lengths.iter().copied()).unwrap();
        let packed = |specs: &mut [TensorSpec; 4]| {
            for spec in specs {
                spec.shape.batch = 1;
            }
        };
        assert_eq!(
            refused(|_, o| o.lengths = lengths(&[(5, 7)]).into()),
            message("q", "batch is 2 beside cu_seqlens")
        );
        let refused = |at: &[(usize, usize)]| {
            refused(|s, o| {
                packed(s);
                o.lengths = lengths(at).into();
            })
        };
        assert_eq!(
            refused(&[(2, 4), (2, 3)]),
            message("cu_seqlens_q", "its last element, number 2, is 4")
        );
        assert_eq!(
            refused(&[(5, 8)]),
            message("cu_seqlens_kv", "its last element, number 1, is 8")
        );
        assert_eq!(refused(&[]).0, "cu_seqlens_q");
    }

    #[test]
    fn slopes_are_of_every_head() {
        assert_eq!(
            refused(|_, o| o.alibi = AlibiSlopes::geometric(3).ok()),
            message("alibi_slopes", "it has 3 slopes a batch entry")
        );
        assert_eq!(
            refused(|_, o| o.alibi = AlibiSlopes::per_batch(&[0.5; 18], 6).ok()),
            message("alibi_slopes", "it has slopes of 3 batch entries")
        );
        // As many batch entries as sequences, not as the operands' batch axis.
        assert_eq!(
            refused(|s, o| {
                for spec in s {
                    spec.shape.batch = 1;
                }
                o.lengths = CuSeqlens::from_lengths([(3, 3), (2, 4)]).unwrap().into();
                o.alibi = AlibiSlopes::per_batch(&[0.5; 6], 6).ok();
            }),
            message("alibi_slopes", "it has slopes of 1 batch entries")
        );
    }
}
