//! `ferroflash info`: what is here, and what can run on it.

use std::io::{self, Write};

use ferroflash::backend::cuda::{Cuda, CudaDevice};
use ferroflash::backend::sim::Sim;
use ferroflash::backend::{Device, DeviceInfo};
use ferroflash::plan::{GpuCapabilities, instance_unfit};
use ferroflash::{Backend, Cpu, Error, Gpu};
use kernels_gpu::instances::{INSTANCES, Instance};

use crate::failure::Failure;

#[derive(clap::Args)]
pub struct Args {}

pub fn run(_: &Args) -> Result<(), Failure> {
    let mut out = io::stdout();
    writeln!(out, "ferroflash {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out)?;
    let devices = devices();
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

/// A device, or why there is none.
struct Found {
    backend: &'static str,
    device: Result<(DeviceInfo, GpuCapabilities), Error>,
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
        Err(Error::NoDevice { wrong, .. }) => writeln!(out, "| {backend} | none | {wrong} |"),
        Err(error) => writeln!(out, "| {backend} | none | {error} |"),
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
        match &found.device {
            Err(_) => format!("not {backend}: no device"),
            Ok((_, gpu)) => match instance_unfit(instance, gpu) {
                None => backend.to_owned(),
                Some(reason) => format!("not {backend}: {reason}"),
            },
        }
    });
    reasons.collect::<Vec<_>>().join("; ")
}
