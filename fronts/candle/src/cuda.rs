//! A GPU: candle's context is the device's primary one, as ferroflash's is, so that addresses and streams are valid in both.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use candle::cuda::CudaStorageSlice;
use candle::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use candle::{CudaDevice, CudaStorage, DType, Result, Storage, bail};
use ferroflash::{Backend, Cuda, Operands, Plan, Problem};
use half::{bf16, f16};

use crate::place::{Address, Place};

thread_local! {
    /// Backends by GPU and stream. candle's stream is `CU_STREAM_PER_THREAD` unless it is asked for another, a handle that names
    /// another stream in each thread: so each thread has backends of its own.
    static BACKENDS: RefCell<HashMap<(usize, usize), Cuda>> = RefCell::default();
}

/// A GPU as candle holds it.
pub struct OnCuda {
    device: CudaDevice,
    stream: Arc<CudaStream>,
}

impl OnCuda {
    pub fn new(device: &CudaDevice) -> Self {
        Self {
            device: device.clone(),
            stream: device.cuda_stream(),
        }
    }

    fn of_slice<'a, T>(&'a self, slice: &'a CudaSlice<T>, offset: usize) -> Address<'a> {
        let (at, held) = slice.device_ptr(&self.stream);
        Address {
            at: at + (offset * size_of::<T>()) as u64,
            held: Some(held),
        }
    }

    fn of_slice_mut<'a, T>(&'a self, slice: &'a mut CudaSlice<T>) -> Address<'a> {
        let (at, held) = slice.device_ptr_mut(&self.stream);
        Address {
            at,
            held: Some(held),
        }
    }
}

impl Place for OnCuda {
    type Memory = CudaStorage;

    fn read<'a>(&'a self, memory: &'a CudaStorage, offset: usize) -> Result<Address<'a>> {
        Ok(match &memory.slice {
            CudaStorageSlice::F32(slice) => self.of_slice(slice, offset),
            CudaStorageSlice::F16(slice) => self.of_slice(slice, offset),
            CudaStorageSlice::BF16(slice) => self.of_slice(slice, offset),
            CudaStorageSlice::U32(slice) => self.of_slice(slice, offset),
            CudaStorageSlice::I32(slice) => self.of_slice(slice, offset),
            _ => bail!("a tensor is of a dtype that attention does not take"),
        })
    }

    fn write<'a>(&'a self, memory: &'a mut CudaStorage) -> Result<Address<'a>> {
        Ok(match &mut memory.slice {
            CudaStorageSlice::F32(slice) => self.of_slice_mut(slice),
            CudaStorageSlice::F16(slice) => self.of_slice_mut(slice),
            CudaStorageSlice::BF16(slice) => self.of_slice_mut(slice),
            _ => bail!("a result is of a dtype that attention does not give"),
        })
    }

    fn of(storage: &Storage) -> Option<&CudaStorage> {
        match storage {
            Storage::Cuda(memory) => Some(memory),
            _ => None,
        }
    }

    fn wrap(memory: CudaStorage) -> Storage {
        Storage::Cuda(memory)
    }

    fn allocate(&self, dtype: DType, count: usize) -> Result<CudaStorage> {
        let (device, count) = (&self.device, count.max(1));
        // SAFETY: kernels write every element before anybody reads one.
        unsafe {
            Ok(match dtype {
                DType::F32 => {
                    CudaStorage::wrap_cuda_slice(device.alloc::<f32>(count)?, device.clone())
                }
                DType::F16 => {
                    CudaStorage::wrap_cuda_slice(device.alloc::<f16>(count)?, device.clone())
                }
                DType::BF16 => {
                    CudaStorage::wrap_cuda_slice(device.alloc::<bf16>(count)?, device.clone())
                }
                _ => bail!("q: its dtype is {dtype:?}; it must be F32, F16 or BF16"),
            })
        }
    }

    unsafe fn launch(&self, problem: &Problem, operands: &Operands) -> Result<()> {
        let ordinal = self.stream.context().ordinal();
        let handle: *mut c_void = self.stream.cu_stream().cast();
        BACKENDS.with_borrow_mut(|backends| {
            let mut launched = || -> std::result::Result<(), ferroflash::Error> {
                let backend = match backends.entry((ordinal, handle.addr())) {
                    std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::hash_map::Entry::Vacant(new) => {
                        // SAFETY: a stream of candle's device, which is that of its primary context; candle's per-thread
                        // stream never ends, and one of its own lives as long as tensors of its device do.
                        let device =
                            unsafe { ferroflash::CudaDevice::with_stream(ordinal as u32, handle) }?;
                        new.insert(Cuda::on(device))
                    }
                };
                let plan = Plan::for_operands(problem, &backend.capabilities(), operands)?;
                // SAFETY: the caller's promise is this function's.
                unsafe { backend.launch(&plan, operands) }
            };
            launched().map_err(candle::Error::wrap)
        })
    }
}
