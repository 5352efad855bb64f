//! Prints how fast the simulator runs the shipped kernels on one core, with its checks off and on:
//!
//! ```text
//! cargo run -p ferroflash-tests --example sim_speed
//! ```

use std::time::Instant;

use ferroflash::backend::Device;
use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::{Backend, DType, Variant};
use ferroflash_testing::cases::{CaseSpec, Lengths};
use ferroflash_tests::specs::plain;
use kernels_gpu::instances::Family;
use ptx_sim::Checks;

/// The fastest of so many runs counts: others may use the machine.
const RUNS: usize = 5;
const WARP: f64 = 32.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let one_core = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    println!(
        "b 1, h 2, s 256, d 64 on one core: milliseconds, million thread instructions a second\n"
    );
    println!("{:<24} {:>16} {:>16}", "kernel", "checks off", "checks on");
    for (family, dtype) in [
        (Family::Simt, DType::F32),
        (Family::Mma, DType::Bf16),
        (Family::Wgmma, DType::Bf16),
    ] {
        let mut case = CaseSpec {
            heads_kv: 2,
            ..plain(dtype, Lengths::one(256, 256), 64)
        }
        .build()?;
        case.options.force = Variant::of_family(family);
        let mut name = String::new();
        let mut cells = Vec::new();
        for checks in [Checks::NONE, Checks::ALL] {
            let mut sim = Sim::on(SimDevice::new().checks(checks));
            name = sim.plan(&case.problem()?)?.kernel_name();
            // Parses the kernel.
            case.run(&mut sim)?;
            let mut best = f64::INFINITY;
            sim.memory().take_counts();
            for _ in 0..RUNS {
                let start = Instant::now();
                one_core.install(|| case.run(&mut sim))?;
                best = best.min(start.elapsed().as_secs_f64());
            }
            let counts = sim.memory().take_counts().ok_or("a simulator counts")?;
            let instructions = counts.warp_instructions as f64 * WARP / RUNS as f64;
            cells.push(format!(
                "{:.0} ({:.0})",
                best * 1e3,
                instructions / best / 1e6
            ));
        }
        println!("{name:<24} {:>16} {:>16}", cells[0], cells[1]);
    }
    Ok(())
}
