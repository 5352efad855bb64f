use ferroflash::{DeviceLengths, Error, Lengths, Mask, Precision};

/// Keys from `left` before to `right` after a query's position, which is counted from the first key if `from_top_left`, else back
/// from the last.
pub fn visible(left: Option<u32>, right: Option<u32>, from_top_left: bool) -> Mask {
    let mask = Mask::within(left, right);
    match from_top_left {
        true => mask.from_top_left(),
        false => mask,
    }
}

/// Whether each product of f32 and each sum is rounded to f32, or the bound alone is kept.
pub fn precision(is_ieee: bool) -> Precision {
    match is_ieee {
        true => Precision::Ieee,
        false => Precision::Bounded,
    }
}

/// Lengths that the device alone knows: of packed sequences, `[batch, longest_q, longest_kv]`, and of keys that are used.
///
/// # Errors
/// Those of [`DeviceLengths::cu_seqlens`].
pub fn lengths(packed: Option<[usize; 3]>, has_seqused_kv: bool) -> Result<Lengths, Error> {
    let packed = packed.map(|[batch, q, kv]| DeviceLengths::cu_seqlens(batch, q, kv));
    Ok(match (packed.transpose()?, has_seqused_kv) {
        (None, false) => Lengths::Dense,
        (None, true) => DeviceLengths::seqused_kv().into(),
        (Some(packed), false) => packed.into(),
        (Some(packed), true) => packed.and_seqused_kv().into(),
    })
}
