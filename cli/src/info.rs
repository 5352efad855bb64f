//! `ferroflash info`: the devices present, and the kernels that can run on them.

use std::io::{self, Write};

use ferroflash::backend::cuda::{Cuda, CudaDevice};
use ferroflash::backend::sim::Sim;
use ferroflash::backend::{Device, DeviceInfo};
use ferroflash::plan::{GpuCapabilities, instance_unfit};
use ferroflash::{Backend, Cpu, Error, Gpu};
use kernels_gpu::instances::{INSTANCES, Instance};
use serde::Serialize;

use crate::failure::Failure;

#[derive(clap::Args)]
pub struct Args {
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let devices = devices();
    let mut out = io::stdout();
    if args.json {
        let report = Report::new(&devices);
        let line = serde_json::to_string(&report).expect("plain numbers and strings");
        writeln!(out, "{line}")?;
        return Ok(());
    }
    writeln!(out, "ferroflash {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out)?;
    writeln!(out, "| backend | device | runs |")?;
    writeln!(out, "|---|---|---|")?;
    for device in &devices {
        print_device(&mut out, device)?;
    }
    writeln!(
        out,
        "| cpu | {} | variant tiled: every problem |",
        Cpu::new().device_name()
    )?;
    writeln!(out)?;
    print_kernels(&mut out, &devices)?;
    Ok(())
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    version: &'static str,
    /// The CPU backend, which runs every problem.
    cpu: String,
    devices: Vec<DeviceReport<'a>>,
    kernels: Vec<KernelReport<'a>>,
}

/// The device of a backend that runs kernels, or why there is none.
#[derive(Serialize)]
struct DeviceReport<'a> {
    backend: &'static str,
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_capability: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

/// An embedded kernel.
#[derive(Serialize)]
struct KernelReport<'a> {
    name: &'a str,
    variant: &'static str,
    dtype: &'static str,
    /// Largest head_dim that it takes.
    head_dim: u32,
    /// For each of `devices`, in their order, why the kernel does not run on it; `None` if it does.
    unfit: Vec<Option<String>>,
}

impl<'a> Report<'a> {
    fn new(devices: &'a [Found]) -> Self {
        let kernel = |instance: &'static Instance| KernelReport {
            name: instance.name,
            variant: instance.family.name(),
            dtype: instance.dtype.name(),
            head_dim: instance.head_dim,
            unfit: devices.iter().map(|found| found.unfit(instance)).collect(),
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            cpu: Cpu::new().device_name(),
            devices: devices.iter().map(DeviceReport::new).collect(),
            kernels: INSTANCES.iter().map(kernel).collect(),
        }
    }
}

impl<'a> DeviceReport<'a> {
    fn new(found: &'a Found) -> Self {
        let info = found.device.as_ref().ok().map(|(info, _)| info);
        Self {
            backend: found.backend,
            name: info.map(|info| info.name.as_str()),
            compute_capability: info.map(|info| info.compute_capability),
            memory_bytes: info.and_then(|info| info.memory_bytes),
            driver: info.map(|info| info.driver.as_str()),
            missing: found.device.as_ref().err().map(missing),
        }
    }
}

/// Why there is no device.
fn missing(error: &Error) -> String {
    match error {
        Error::NoDevice { wrong, .. } => wrong.clone(),
        error => error.to_string(),
    }
}

/// A device, or why there is none.
struct Found {
    backend: &'static str,
    device: Result<(DeviceInfo, GpuCapabilities), Error>,
}

impl Found {
    /// Why `instance` does not run here.
    fn unfit(&self, instance: &Instance) -> Option<String> {
        match &self.device {
            Err(_) => Some("no device".to_owned()),
            Ok((_, gpu)) => instance_unfit(instance, gpu),
        }
    }
}

fn found<D: Device>(gpu: Result<Gpu<D>, Error>) -> Found {
    Found {
        backend: D::BACKEND_NAME,
        device: gpu.map(|gpu| (gpu.info().clone(), gpu.gpu_capabilities())),
    }
}

fn devices() -> Vec<Found> {
    let open = |ordinal| found(CudaDevice::new(ordinal).map(Cuda::on));
    let mut devices: Vec<_> = match CudaDevice::count() {
        Ok(count) => (0..count).map(open).collect(),
        Err(error) => vec![found::<CudaDevice>(Err(error))],
    };
    devices.push(found(Ok(Sim::new())));
    devices
}

fn print_device(out: &mut impl Write, found: &Found) -> io::Result<()> {
    let backend = found.backend;
    match &found.device {
        Ok((info, _)) => {
            let (major, minor) = info.compute_capability;
            let memory = info.memory_bytes.map_or(String::new(), |bytes| {
                format!(", {:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
            });
            writeln!(
                out,
                "| {backend} | {}, compute capability {major}.{minor}{memory} | {} |",
                info.name, info.driver
            )
        }
        Err(error) => writeln!(out, "| {backend} | none | {} |", missing(error)),
    }
}

fn print_kernels(out: &mut impl Write, devices: &[Found]) -> io::Result<()> {
    writeln!(
        out,
        "| embedded kernel | variant | dtype | head_dim | runs here on |"
    )?;
    writeln!(out, "|---|---|---|---|---|")?;
    for instance in INSTANCES {
        writeln!(
            out,
            "| {} | {} | {} | up to {} | {} |",
            instance.name,
            instance.family.name(),
            instance.dtype.name(),
            instance.head_dim,
            runs_on(instance, devices)
        )?;
    }
    Ok(())
}

fn runs_on(instance: &Instance, devices: &[Found]) -> String {
    let reasons = devices.iter().map(|found| {
        let backend = found.backend;
        match found.unfit(instance) {
            None => backend.to_owned(),
            Some(reason) => format!("not {backend}: {reason}"),
        }
    });
    reasons.collect::<Vec<_>>().join("; ")
}
