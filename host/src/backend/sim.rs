//! The shipped kernels on the CPU, in a PTX simulator that checks them while they run.

mod recording;
mod replaced;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use kernels_gpu::config::limits::SM90_SHARED_BYTES;
use kernels_gpu::dtype::DType;
use kernels_gpu::wgmma::tensor_map::{TensorMap, TensorMapSpec};
use ptx_sim::{
    Checks, LaunchConfig, MemoryError, Module, OutOfBoundsFill, Stream, Swizzle, TensorMapType,
};

use self::recording::Recording;
use super::device::{Counts, Device, DeviceInfo, Launch};
use super::pool;
use crate::memory::{FOREIGN_BUFFER, check_owned};
use crate::sealed::Sealed;
use crate::{Error, Gpu, Memory};

#[doc(hidden)]
pub use self::recording::FOLDER_VAR as COVERAGE_FOLDER_VAR;
#[doc(hidden)]
pub use self::replaced::{FILE_VAR as REPLACED_FILE_VAR, replaced_kernel};

/// Runs problems on a simulated Hopper GPU.
///
/// Slow, and exact about faults: an access out of bounds, a read of memory that nothing wrote or a
/// barrier that part of a warp reaches is an [`Error::Device`] that names the kernel, the PTX line, the
/// block and the thread. Blocks run on the threads that the CPU backend uses.
pub type Sim = Gpu<SimDevice>;

impl Sim {
    /// A simulated GPU of its own.
    pub fn new() -> Self {
        Self::on(SimDevice::new())
    }
}

impl Default for Sim {
    fn default() -> Self {
        Self::new()
    }
}

/// The simulated GPU that [`Sim`] runs on.
pub struct SimDevice {
    memory: Arc<ptx_sim::Memory>,
    stream: Stream<Arc<ptx_sim::Memory>>,
    /// Modules parsed before, by the name of their kernel.
    modules: HashMap<&'static str, Module>,
    /// Those that launches take turns at.
    schedules: Vec<u64>,
    launches: u64,
    checks: Checks,
    counts: Counts,
    /// Whether somebody takes counts or statistics: from the first call on there are any.
    is_counting: bool,
    /// Statistics of each launch, in order; `None` until the first call of [`take_statistics`](Self::take_statistics).
    statistics: Option<Vec<KernelStatistics>>,
    /// Warp instructions of all launches, by the names of their kernels, without those by which warps ask barriers in vain.
    executed: BTreeMap<&'static str, u64>,
    recording: Recording,
    info: DeviceInfo,
}

/// Statistics of one launch of a kernel.
#[derive(Clone, Debug)]
pub struct KernelStatistics {
    /// The kernel's entry.
    pub kernel: &'static str,
    /// Blocks it was launched with.
    pub grid: u32,
    /// Instructions, each counted once a warp, without those by which warps ask barriers in vain, as often as it takes.
    pub executed: u64,
    /// Counts of every PTX line.
    pub statistics: ptx_sim::Statistics,
    /// The kernel's instructions that ran.
    pub coverage: ptx_sim::Coverage,
}

/// An allocation in a simulated GPU's memory.
pub struct SimBuffer {
    memory: Arc<ptx_sim::Memory>,
    address: u64,
    size_bytes: usize,
}

impl Drop for SimBuffer {
    fn drop(&mut self) {
        let freed = self.memory.free(self.address);
        debug_assert!(freed.is_ok(), "a buffer is freed once");
    }
}

const DEVICE_NAME: &str = "simulated GPU";

/// Few, so that persistent kernels take several tiles a block on small problems too.
const MULTIPROCESSORS: u32 = 4;

impl SimDevice {
    /// A device with empty memory.
    pub fn new() -> Self {
        Self::with_schedule(0)
    }

    /// A device that interleaves warps in an order drawn from `seed`; 0 runs them in turn.
    pub fn with_schedule(seed: u64) -> Self {
        Self::with_schedules([seed])
    }

    /// A device whose launches take turns at schedules, as of [`with_schedule`](Self::with_schedule).
    ///
    /// # Panics
    /// If there are none.
    pub fn with_schedules(seeds: impl Into<Vec<u64>>) -> Self {
        let schedules = seeds.into();
        assert!(!schedules.is_empty(), "launches need a schedule");
        let memory = Arc::new(ptx_sim::Memory::new());
        Self {
            stream: Stream::new(Arc::clone(&memory)),
            memory,
            modules: HashMap::new(),
            schedules,
            launches: 0,
            checks: Checks::ALL,
            counts: Counts::default(),
            is_counting: false,
            statistics: None,
            executed: BTreeMap::new(),
            recording: Recording::new(),
            info: DeviceInfo {
                name: DEVICE_NAME.to_owned(),
                compute_capability: (9, 0),
                shared_bytes: SM90_SHARED_BYTES,
                multiprocessors: MULTIPROCESSORS,
                memory_bytes: None,
                driver: "ptx-sim".to_owned(),
                pci_bus_id: None,
            },
        }
    }
}

impl SimDevice {
    /// The same device with other checks; all are on by default.
    pub fn checks(self, checks: Checks) -> Self {
        Self { checks, ..self }
    }

    /// The same device with `count` multiprocessors, 4 by default. A persistent kernel is launched with no more blocks than these,
    /// so the fewer there are, the more tiles a block takes, one after the other.
    ///
    /// # Panics
    /// If `count` is less than 2: blocks of a cluster run on multiprocessors of their own, and a cluster of a shipped kernel has two.
    pub fn multiprocessors(mut self, count: u32) -> Self {
        assert!(count >= 2, "a cluster of two blocks needs as many");
        self.info.multiprocessors = count;
        self
    }
}

/// Bytes of a sector, the unit in which global memory is fetched.
const SECTOR_BYTES: u64 = 32;

impl SimDevice {
    /// The statistics of the launches since the last call, in order. From the first call on they are kept.
    pub fn take_statistics(&mut self) -> Vec<KernelStatistics> {
        self.is_counting = true;
        self.statistics.replace(Vec::new()).unwrap_or_default()
    }

    /// [`KernelStatistics::executed`] of all launches so far, by the names of their kernels.
    pub fn executed(&self) -> &BTreeMap<&'static str, u64> {
        &self.executed
    }

    /// The schedule of the next launch. However many launches a problem has, each of its kernels gets all schedules: steps of the golden
    /// ratio, or of any of its multiples, spread evenly.
    fn next_schedule(&mut self) -> u64 {
        let turn = self.launches.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.launches += 1;
        let count = self.schedules.len() as u128;
        self.schedules[((u128::from(turn) * count) >> 64) as usize]
    }

    /// The checks of a launch, without counts that nobody takes.
    fn checks_now(&self) -> Checks {
        Checks {
            statistics: self.checks.statistics && self.is_counting,
            coverage: self.checks.coverage && (self.is_counting || self.recording.is_on()),
            ..self.checks
        }
    }

    fn count(&mut self, launch: &Launch<'_>, report: ptx_sim::Report) {
        self.counts.warp_instructions += report.warp_instructions;
        let executed = report.warp_instructions - report.asked_in_vain;
        *self.executed.entry(launch.kernel.name).or_default() += executed;
        self.recording.add(launch.kernel.name, &report);
        let Some(statistics) = report.statistics else {
            return;
        };
        self.counts.global_bytes += statistics.sectors() * SECTOR_BYTES;
        self.counts.bank_conflicts += statistics.bank_conflicts();
        if let Some(kept) = &mut self.statistics {
            kept.push(KernelStatistics {
                kernel: launch.kernel.name,
                grid: launch.grid,
                executed,
                statistics,
                coverage: report.coverage.unwrap_or_default(),
            });
        }
    }
}

impl Default for SimDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice")
            .field("info", &self.info)
            .field("schedules", &self.schedules)
            .finish_non_exhaustive()
    }
}

fn failure(operation: impl Into<String>, error: impl fmt::Display) -> Error {
    Error::Device {
        device: DEVICE_NAME.to_owned(),
        operation: operation.into(),
        detail: error.to_string(),
    }
}

impl Sealed for SimDevice {}

// SAFETY: simulated addresses are numbers that only the simulator resolves, bounds-checked, in
// allocations that do not overlap; work is done before `launch` returns, so a drop never outruns it.
unsafe impl Memory for SimDevice {
    type Buffer = SimBuffer;
    type Mark = Instant;

    fn is_queued(&self) -> bool {
        false
    }

    fn alloc(&mut self, bytes: usize) -> Result<SimBuffer, Error> {
        let address = self
            .memory
            .alloc(bytes as u64)
            .map_err(|error| match error {
                MemoryError::TooLarge { limit, .. } => Error::OutOfMemory {
                    device: DEVICE_NAME.to_owned(),
                    requested_bytes: bytes as u64,
                    free: format!("one allocation holds at most {limit} bytes"),
                },
                MemoryError::OutOfMemory { .. } => Error::OutOfMemory {
                    device: DEVICE_NAME.to_owned(),
                    requested_bytes: bytes as u64,
                    free: "the host has less, and simulated memory takes 9 bytes for every 8"
                        .into(),
                },
                error => failure(format!("allocating {bytes} bytes"), error),
            })?;
        Ok(SimBuffer {
            memory: Arc::clone(&self.memory),
            address,
            size_bytes: bytes,
        })
    }

    fn size_bytes(&self, buffer: &SimBuffer) -> usize {
        buffer.size_bytes
    }

    /// `false` if another device allocated it: its addresses mean something else.
    fn owns(&self, buffer: &SimBuffer) -> bool {
        Arc::ptr_eq(&self.memory, &buffer.memory)
    }

    fn address(&self, buffer: &SimBuffer) -> u64 {
        assert!(self.owns(buffer), "{FOREIGN_BUFFER}");
        buffer.address
    }

    fn write(&mut self, buffer: &mut SimBuffer, bytes: &[u8]) -> Result<(), Error> {
        assert!(bytes.len() <= buffer.size_bytes, "write beyond the buffer");
        check_owned(self, buffer)?;
        let address = self.address(buffer);
        let written = self.memory.write(address, bytes);
        written.map_err(|error| failure("copying to the device", error))
    }

    fn read_at(
        &mut self,
        buffer: &SimBuffer,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let is_inside = offset <= buffer.size_bytes && bytes.len() <= buffer.size_bytes - offset;
        assert!(is_inside, "read beyond the buffer");
        check_owned(self, buffer)?;
        let address = self.address(buffer) + offset as u64;
        let read = self.memory.read(address, bytes);
        read.map_err(|error| failure("copying from the device", error))
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn mark(&mut self) -> Result<Instant, Error> {
        Ok(Instant::now())
    }

    fn elapsed_ms(&mut self, start: &Instant, stop: &Instant) -> Result<f64, Error> {
        Ok(stop.duration_since(*start).as_secs_f64() * 1e3)
    }
}

impl Device for SimDevice {
    const BACKEND_NAME: &'static str = "sim";
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    unsafe fn launch(&mut self, launch: &Launch<'_>) -> Result<(), Error> {
        let name = launch.kernel.name;
        if !self.modules.contains_key(name) {
            let text = replaced::text(name).unwrap_or_else(|| (launch.ptx)(launch.kernel));
            let module = Module::parse(text)
                .map_err(|error| failure(format!("loading kernel {name}"), error))?;
            self.modules.insert(name, module);
        }
        let config = LaunchConfig {
            shared_bytes: launch.kernel.shared_bytes,
            schedule_seed: self.next_schedule(),
            checks: self.checks_now(),
            ..LaunchConfig::new([launch.grid, 1, 1], [launch.kernel.threads, 1, 1])
        };
        let (module, stream) = (&self.modules[name], &mut self.stream);
        let &Launch {
            params,
            begins_early,
            ..
        } = launch;
        let run = || match begins_early {
            true => stream.launch_dependent(module, name, &config, params),
            false => stream.launch(module, name, &config, params),
        };
        match pool::install(run) {
            Ok(report) => {
                self.count(launch, report);
                Ok(())
            }
            Err(error) => Err(failure(format!("running kernel {name}"), error)),
        }
    }

    /// The simulator's own encoding, under the rules of the driver's.
    fn encode_tensor_map(&self, dtype: DType, spec: &TensorMapSpec) -> Result<TensorMap, Error> {
        let map = ptx_sim::TensorMap {
            ty: match dtype {
                DType::F32 => TensorMapType::F32,
                DType::F16 => TensorMapType::F16,
                DType::Bf16 => TensorMapType::Bf16,
                DType::E4m3 => unreachable!("no kernel reads a cache by tensor maps"),
            },
            address: spec.address,
            dims: spec.dims[..spec.rank].to_vec(),
            strides: spec.strides[..spec.rank - 1].to_vec(),
            box_dims: spec.box_dims[..spec.rank].to_vec(),
            swizzle: Swizzle::B128,
            fill: OutOfBoundsFill::Zeros,
        };
        let encoded = map
            .encode()
            .map_err(|error| failure("encoding a tensor map", error))?;
        Ok(bytemuck::cast(encoded))
    }

    fn take_counts(&mut self) -> Option<Counts> {
        self.is_counting = true;
        Some(std::mem::take(&mut self.counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_of_a_problem_gets_all_schedules() {
        for kernels in 1..=8 {
            let mut device = SimDevice::with_schedules([0, 1, 2]);
            let mut seen = vec![[0; 3]; kernels];
            for launch in 0..60 * kernels {
                seen[launch % kernels][device.next_schedule() as usize] += 1;
            }
            let is_spread = |of_kernel: &[i32; 3]| of_kernel.iter().all(|times| *times >= 12);
            assert!(seen.iter().all(is_spread), "{seen:?}");
        }
    }
}
