//! What an address may be.

use crate::Error;

/// Bytes of a slope, a length, or an element of lse.
pub(super) const WORD_BYTES: u64 = 4;

/// Returns an error if `address` is none, or not a multiple of `align` bytes.
pub(super) fn check_address(argument: &'static str, address: u64, align: u64) -> Result<(), Error> {
    let wrong = match address {
        0 => "its address is null".to_owned(),
        _ if !address.is_multiple_of(align) => {
            format!("address {address:#x} is not a multiple of {align}")
        }
        _ => return Ok(()),
    };
    let allowed = format!("the address of live memory, a multiple of {align}");
    Err(Error::argument(argument, wrong, allowed))
}
