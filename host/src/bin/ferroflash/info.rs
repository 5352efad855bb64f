//! `ferroflash info`: what is here, and what can run on it.

use ferroflash::backend::DeviceInfo;
use ferroflash::backend::cuda::{Cuda, CudaDevice};
use ferroflash::variant::instance_unfit;
use ferroflash::{Backend, Cpu, Error};
use kernels_gpu::instances::{INSTANCES, Instance};

use crate::failure::Failure;

#[derive(clap::Args)]
pub struct Args {}

pub fn run(_: &Args) -> Result<(), Failure> {
    println!("ferroflash {}", env!("CARGO_PKG_VERSION"));
    println!();
    let devices = devices();
    println!("| backend | device | runs |");
    println!("|---|---|---|");
    for device in &devices {
        print_device(device);
    }
    println!(
        "| cpu | {} | variant tiled: every problem |",
        Cpu::new().device_name()
    );
    println!();
    print_kernels(&devices);
    Ok(())
}

/// A device, or why there is none.
struct Found {
    backend: &'static str,
    device: Result<DeviceInfo, Error>,
}

fn devices() -> Vec<Found> {
    let cuda = |device| Found {
        backend: "cuda",
        device,
    };
    let open = |ordinal| Ok(Cuda::on(CudaDevice::new(ordinal)?).info().clone());
    match CudaDevice::count() {
        Ok(count) => (0..count).map(|ordinal| cuda(open(ordinal))).collect(),
        Err(error) => vec![cuda(Err(error))],
    }
}

fn print_device(found: &Found) {
    match &found.device {
        Ok(info) => {
            let (major, minor) = info.compute_capability;
            let memory = info.memory_bytes.map_or(String::new(), |bytes| {
                format!(", {:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
            });
            println!(
                "| {} | {}, compute capability {major}.{minor}{memory} | {} |",
                found.backend, info.name, info.driver
            );
        }
        Err(Error::NoDevice { wrong, .. }) => println!("| {} | none | {wrong} |", found.backend),
        Err(error) => println!("| {} | none | {error} |", found.backend),
    }
}

fn print_kernels(devices: &[Found]) {
    println!("| embedded kernel | variant | dtype | head_dim | runs here on |");
    println!("|---|---|---|---|---|");
    for instance in INSTANCES {
        println!(
            "| {} | {} | {} | up to {} | {} |",
            instance.name,
            instance.family.name(),
            instance.dtype.name(),
            instance.head_dim,
            runs_on(instance, devices)
        );
    }
}

fn runs_on(instance: &Instance, devices: &[Found]) -> String {
    let reasons = devices.iter().map(|found| {
        let backend = found.backend;
        match &found.device {
            Err(_) => format!("not {backend}: no device"),
            Ok(info) => {
                match instance_unfit(instance, info.compute_capability, info.shared_bytes) {
                    None => backend.to_owned(),
                    Some(reason) => format!("not {backend}: {reason}"),
                }
            }
        }
    });
    reasons.collect::<Vec<_>>().join(", ")
}
