use std::ffi::c_void;
use std::slice;

use dlpark::ffi::DLTensor;
use dlpark::python::consumer::exchange::ExchangeApi;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple, PyType};

/// torch's class of tensors, and what reads them at once.
struct Torch(Py<PyType>, Option<ExchangeApi>);

// SAFETY: the table behind the API is constant, and lives as long as the process.
unsafe impl Send for Torch {}
// SAFETY: as above; its functions are called with Python's lock held.
unsafe impl Sync for Torch {}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// What `read` makes of a tensor and the current stream of its device; `None` where this torch cannot give them at once.
fn view<T>(
    tensor: &Bound<'_, PyAny>,
    read: impl FnOnce(&DLTensor, *mut c_void) -> T,
) -> PyResult<Option<T>> {
    let py = tensor.py();
    let Torch(class, exchange) = TORCH.get_or_try_init(py, || {
        let class = py.import("torch")?.getattr("Tensor")?;
        let class = class.cast_into::<PyType>()?;
        let exchange = match tensor.is_instance(&class)? {
            true => ExchangeApi::from_object(tensor.as_borrowed())?,
            false => return Err(PyTypeError::new_err("not a torch.Tensor")),
        };
        Ok(Torch(class.unbind(), exchange))
    })?;
    // torch takes what it is given for a tensor.
    if !tensor.get_type().is(class) && !tensor.is_instance(class.bind(py))? {
        return Err(PyTypeError::new_err("not a torch.Tensor"));
    }
    let of = |exchange: &ExchangeApi| exchange.with_tensor_view_no_sync(tensor.as_borrowed(), read);
    exchange.as_ref().map(of).transpose()
}

/// Tensors, each of which may be none, read at once.
pub struct Tensors<const N: usize> {
    /// How they lie: of each its dtype, its device, its shape and its strides, or that it is none.
    pub signature: Vec<u8>,
    /// Where they lie.
    pub addresses: [Option<u64>; N],
    /// The current stream of their device, which is one; 0 of the CPU.
    pub stream: u64,
}

impl<const N: usize> Tensors<N> {
    /// `None` where torch is too old for it, or one of them is nothing that others than torch know.
    pub fn read(tensors: [Option<&Bound<'_, PyAny>>; N]) -> Option<Self> {
        let mut of = Self {
            signature: Vec::with_capacity(512),
            addresses: [None; N],
            stream: 0,
        };
        for (tensor, address) in tensors.into_iter().zip(&mut of.addresses) {
            if let Some((start, stream)) = describe(tensor, &mut of.signature)? {
                (*address, of.stream) = (Some(start), stream);
            }
        }
        Some(of)
    }
}

/// In a signature, what stands for a tensor that is not there: no tensor has so many axes.
const NONE: u8 = u8::MAX;

/// How tensors lie, without their addresses: a [`Tensors::signature`].
///
/// `None` as of [`Tensors::read`].
#[pyfunction]
pub fn signature<'py>(tensors: &Bound<'py, PyTuple>) -> Option<Bound<'py, PyBytes>> {
    let mut bytes = Vec::with_capacity(1024);
    for tensor in tensors.iter_borrowed() {
        describe(
            Some(&*tensor).filter(|tensor| !tensor.is_none()),
            &mut bytes,
        )?;
    }
    Some(PyBytes::new(tensors.py(), &bytes))
}

/// Adds how a tensor lies, or that it is none, to a signature; returns where one that is there lies, and the current stream of its
/// device. `None` as of [`Tensors::read`].
fn describe(
    tensor: Option<&Bound<'_, PyAny>>,
    signature: &mut Vec<u8>,
) -> Option<Option<(u64, u64)>> {
    let Some(tensor) = tensor else {
        signature.push(NONE);
        return Some(None);
    };
    let read = |tensor: &DLTensor, stream: *mut c_void| {
        sign(tensor, signature);
        (start(tensor), stream.expose_provenance() as u64)
    };
    view(tensor, read).ok()?.map(Some)
}

/// Begins with the rank, from which follows how many bytes there are.
fn sign(tensor: &DLTensor, bytes: &mut Vec<u8>) {
    let rank = usize::try_from(tensor.ndim).unwrap_or(0);
    bytes.extend([rank as u8, tensor.dtype.code.0, tensor.dtype.bits]);
    bytes.extend(tensor.device.device_type.0.to_ne_bytes());
    bytes.extend(tensor.device.device_id.to_ne_bytes());
    for numbers in [tensor.shape, tensor.strides] {
        if rank > 0 && !numbers.is_null() {
            // SAFETY: torch's array of a tensor of this rank, which the caller's reference keeps alive.
            let numbers = unsafe { slice::from_raw_parts(numbers, rank) };
            bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        }
    }
}

/// Where up to as many tensors lie, each of which may be `None`, as those behind the last are.
///
/// # Errors
/// Those of [`address`].
pub fn addresses<const N: usize>(tensors: &Bound<'_, PyTuple>) -> PyResult<[Option<u64>; N]> {
    let mut found = [None; N];
    for (place, tensor) in found.iter_mut().zip(tensors.iter_borrowed()) {
        if !tensor.is_none() {
            *place = Some(address(&tensor)?);
        }
    }
    Ok(found)
}

/// Where a tensor lies.
///
/// # Errors
/// It has no memory, or is no tensor.
pub fn address(tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
    match view(tensor, |tensor, _| start(tensor)) {
        Ok(Some(address)) => Ok(address),
        _ => tensor.call_method0("data_ptr")?.extract(),
    }
}

fn start(tensor: &DLTensor) -> u64 {
    tensor.data as u64 + tensor.byte_offset
}
