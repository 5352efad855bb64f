//! `ferroflash info`: what is here, and what can run on it.

use ferroflash::{Backend, Cpu};

use crate::failure::Failure;

#[derive(clap::Args)]
pub struct Args {}

pub fn run(_: &Args) -> Result<(), Failure> {
    println!("ferroflash {}", env!("CARGO_PKG_VERSION"));
    println!("cpu: {}", Cpu::new().device_name());
    Ok(())
}
