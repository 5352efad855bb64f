//! Clock and power of a GPU under load, read through NVIDIA's management library (NVML), which is loaded at run time.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_POWER_INSTANT;
use nvml_wrapper::{Device, Nvml};

use super::statistics::{median, second_half};
use crate::say::say;

/// Clock and power of a GPU at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Clock of the multiprocessors, MHz.
    pub clock_mhz: f64,
    /// Power of the board, watts.
    pub watts: f64,
}

/// Reads one GPU's clock and power.
pub struct Gauge {
    nvml: Nvml,
    /// PCI address of the GPU. NVML may number GPUs otherwise than the driver does for this process
    /// (`CUDA_VISIBLE_DEVICES`).
    pci_bus_id: String,
}

/// Time from one reading to the next.
const INTERVAL: Duration = Duration::from_millis(40);

impl Gauge {
    /// The gauge of the GPU at this PCI address. `None` if there is no address, or if NVML cannot read the GPU, which
    /// is reported on standard error.
    pub fn of(pci_bus_id: Option<&str>) -> Option<Self> {
        let pci_bus_id = pci_bus_id?;
        let gauge = Self::open(pci_bus_id);
        let say = |error| say!("clock and power are left out: NVML: {error}");
        gauge.map_err(say).ok()
    }

    fn open(pci_bus_id: &str) -> Result<Self, NvmlError> {
        let gauge = Self {
            nvml: Nvml::init()?,
            pci_bus_id: pci_bus_id.to_owned(),
        };
        // The first reading takes longer than others, and shows whether the GPU can be read at all.
        Reading::of(&gauge.device()?)?;
        Ok(gauge)
    }

    fn device(&self) -> Result<Device<'_>, NvmlError> {
        self.nvml.device_by_pci_bus_id(self.pci_bus_id.as_str())
    }

    /// Runs `work` and reads meanwhile; returns the median of the second half of the readings, if there are any.
    pub fn during<T>(gauge: Option<Self>, work: impl FnOnce() -> T) -> (T, Option<Reading>) {
        let Some(gauge) = gauge else {
            return (work(), None);
        };
        thread::scope(|scope| {
            let (at_work, done) = mpsc::channel::<()>();
            let reader = scope.spawn(move || gauge.readings(&done));
            let result = work();
            drop(at_work);
            let readings = reader.join().unwrap_or_default();
            (result, settled(&readings))
        })
    }

    /// Readings until the other end of `done` is dropped.
    fn readings(&self, done: &mpsc::Receiver<()>) -> Vec<Reading> {
        let mut readings = Vec::new();
        let Ok(device) = self.device() else {
            return readings;
        };
        while done.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            readings.extend(Reading::of(&device));
        }
        readings
    }
}

impl Reading {
    fn of(device: &Device<'_>) -> Result<Self, NvmlError> {
        Ok(Self {
            clock_mhz: device.clock_info(Clock::SM)?.into(),
            watts: milliwatts(device)? / 1e3,
        })
    }
}

/// The GPU's power draw now, as `nvidia-smi`'s power.draw.instant; for GPUs without it, NVML's `power_usage`, which
/// some GPUs average over the last second.
fn milliwatts(device: &Device<'_>) -> Result<f64, NvmlError> {
    let field = FieldId(NVML_FI_DEV_POWER_INSTANT);
    let samples = device.field_values_for(&[field]).unwrap_or_default();
    let instant = samples.into_iter().flatten().next();
    match instant.map(|sample| sample.value) {
        Some(Ok(SampleValue::U32(milliwatts))) => Ok(milliwatts.into()),
        Some(Ok(SampleValue::U64(milliwatts))) => Ok(milliwatts as f64),
        _ => Ok(device.power_usage()?.into()),
    }
}

/// The medians of clock and of power over the second half of the readings.
fn settled(readings: &[Reading]) -> Option<Reading> {
    let late = second_half(readings);
    let of = |figure: fn(&Reading) -> f64| median(&late.iter().map(figure).collect::<Vec<_>>());
    (!late.is_empty()).then(|| Reading {
        clock_mhz: of(|reading| reading.clock_mhz),
        watts: of(|reading| reading.watts),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_of_the_second_half_count() {
        let reading = |(clock_mhz, watts)| Reading { clock_mhz, watts };
        let cool = [(1980.0, 300.0), (1900.0, 500.0), (1800.0, 690.0)].map(reading);
        let warm = [(1650.0, 699.0), (1635.0, 701.0), (1640.0, 697.0)].map(reading);
        let all = [cool, warm].concat();
        assert_eq!(settled(&all), Some(reading((1640.0, 699.0))));
        assert_eq!(settled(&all[..1]), Some(cool[0]));
        assert_eq!(settled(&[]), None);
    }

    #[test]
    fn work_is_done_without_an_instrument() {
        assert_eq!(Gauge::during(Gauge::of(None), || 7), (7, None));
    }
}
