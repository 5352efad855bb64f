use std::ffi::c_int;

use ferroflash::{DType, Layout, Shape, TensorSpec};

use crate::c_api::data_type;
use crate::call::Array;
use crate::failure::Failure;

/// A dense array `[..., seq, heads, dim]`, whose leading axes are batch entries.
pub fn spec(name: &str, array: &Array<'_>) -> Result<TensorSpec, Failure> {
    let dtype = float(name, array)?;
    let (leading, [seq, heads, dim]) = split(name, array)?;
    let shape = Shape {
        batch: leading,
        heads,
        seq,
        dim,
    };
    Ok(TensorSpec::contiguous(dtype, shape, Layout::Bshd)?)
}

/// The dtype of an array of numbers that attention computes with.
pub fn float(name: &str, array: &Array<'_>) -> Result<DType, Failure> {
    match array.dtype {
        data_type::F32 => Ok(DType::F32),
        data_type::F16 => Ok(DType::F16),
        data_type::BF16 => Ok(DType::Bf16),
        other => {
            let wrong = format!("its dtype is XLA's {other}");
            Err(Failure::argument(
                name,
                wrong,
                "it must be f32, f16 or bf16",
            ))
        }
    }
}

/// Refuses an array that is not of this dtype and `[..., own]`, with as many leading elements as one of `leading` says; returns how
/// many.
pub fn check_rows<const N: usize>(
    name: &str,
    array: &Array<'_>,
    dtype: c_int,
    leading: &[usize],
    own: [usize; N],
) -> Result<usize, Failure> {
    let (found, last) = split(name, array)?;
    if array.dtype == dtype && leading.contains(&found) && last == own {
        return Ok(found);
    }
    let wrong = format!("it is XLA's {} {:?}", array.dtype, array.dims);
    let sizes = own.map(|size| size.to_string()).join(", ");
    let leading: Vec<_> = leading.iter().map(usize::to_string).collect();
    let leading = leading.join(" or ");
    let dtype = match dtype {
        data_type::F32 => "f32",
        data_type::S32 => "i32",
        _ => "u32",
    };
    let allowed = format!("it must be {dtype} [..., {sizes}], of {leading} in all");
    Err(Failure::argument(name, wrong, allowed))
}

/// The last `N` sizes, and the product of those before.
pub fn split<const N: usize>(
    name: &str,
    array: &Array<'_>,
) -> Result<(usize, [usize; N]), Failure> {
    let Some((leading, last)) = array.dims.split_last_chunk::<N>() else {
        let wrong = format!("it has {} axes", array.dims.len());
        return Err(Failure::argument(
            name,
            wrong,
            format!("it must have {N} or more"),
        ));
    };
    // XLA has no negative sizes; an array that is there has no more elements than an i64 counts, unless it has none.
    let size = |size: &i64| usize::try_from(*size).unwrap_or(0);
    let leading = leading.iter().map(size);
    Ok((
        leading.fold(1, usize::saturating_mul),
        last.each_ref().map(size),
    ))
}
