//! Where candle's memory lies, and what runs on it.

use candle::{CpuStorage, DType, Result, Storage, bail};
use ferroflash::{Backend, Cpu, Operands, Problem};
use half::{bf16, f16};

/// What is kept while an address is used: on a GPU, the order of streams.
#[cfg(feature = "cuda")]
pub type Held<'a> = Option<candle::cuda::cudarc::driver::SyncOnDrop<'a>>;
#[cfg(not(feature = "cuda"))]
pub type Held<'a> = Option<std::marker::PhantomData<&'a ()>>;

/// An address of a device's memory, and what orders its use.
pub struct Address<'a> {
    pub at: u64,
    #[allow(dead_code)] // it acts when it is dropped
    pub held: Held<'a>,
}

/// A kind of device: its memory in candle, and the backend that runs there.
pub trait Place {
    /// candle's memory of this kind.
    type Memory;

    /// Where element `offset` lies of memory that is read.
    fn read<'a>(&'a self, memory: &'a Self::Memory, offset: usize) -> Result<Address<'a>>;

    /// Where memory lies that is written.
    fn write<'a>(&'a self, memory: &'a mut Self::Memory) -> Result<Address<'a>>;

    /// Memory of this kind, if `storage` is.
    fn of(storage: &Storage) -> Option<&Self::Memory>;

    /// The inverse of [`of`](Self::of).
    fn wrap(memory: Self::Memory) -> Storage;

    /// New memory of `count` elements.
    fn allocate(&self, dtype: DType, count: usize) -> Result<Self::Memory>;

    /// Runs `problem`, in candle's stream.
    ///
    /// # Safety
    /// As for [`Backend::launch`].
    unsafe fn launch(&self, problem: &Problem, operands: &Operands) -> Result<()>;
}

/// The CPU.
pub struct OnCpu;

/// The address of a slice's element, or of where it would be.
fn address<T>(pointer: *const T, offset: usize) -> Address<'static> {
    let at = pointer.wrapping_add(offset).expose_provenance() as u64;
    Address { at, held: None }
}

impl Place for OnCpu {
    type Memory = CpuStorage;

    fn read<'a>(&'a self, memory: &'a CpuStorage, offset: usize) -> Result<Address<'a>> {
        Ok(match memory {
            CpuStorage::F32(values) => address(values.as_ptr(), offset),
            CpuStorage::F16(values) => address(values.as_ptr(), offset),
            CpuStorage::BF16(values) => address(values.as_ptr(), offset),
            CpuStorage::U32(values) => address(values.as_ptr(), offset),
            CpuStorage::I32(values) => address(values.as_ptr(), offset),
            _ => bail!("a tensor is of a dtype that attention does not take"),
        })
    }

    fn write<'a>(&'a self, memory: &'a mut CpuStorage) -> Result<Address<'a>> {
        Ok(match memory {
            CpuStorage::F32(values) => address(values.as_mut_ptr(), 0),
            CpuStorage::F16(values) => address(values.as_mut_ptr(), 0),
            CpuStorage::BF16(values) => address(values.as_mut_ptr(), 0),
            _ => bail!("a result is of a dtype that attention does not give"),
        })
    }

    fn of(storage: &Storage) -> Option<&CpuStorage> {
        match storage {
            Storage::Cpu(memory) => Some(memory),
            _ => None,
        }
    }

    fn wrap(memory: CpuStorage) -> Storage {
        Storage::Cpu(memory)
    }

    fn allocate(&self, dtype: DType, count: usize) -> Result<CpuStorage> {
        Ok(match dtype {
            DType::F32 => CpuStorage::F32(vec![0.0; count]),
            DType::F16 => CpuStorage::F16(vec![f16::ZERO; count]),
            DType::BF16 => CpuStorage::BF16(vec![bf16::ZERO; count]),
            _ => bail!("q: its dtype is {dtype:?}; it must be F32, F16 or BF16"),
        })
    }

    unsafe fn launch(&self, problem: &Problem, operands: &Operands) -> Result<()> {
        let mut backend = Cpu::new();
        let plan = backend.plan(problem).map_err(candle::Error::wrap)?;
        // SAFETY: the caller's promise is this function's.
        unsafe { backend.launch(&plan, operands) }.map_err(candle::Error::wrap)
    }
}
