//! Compiles the kernels of `kernels-insight` and embeds their PTX.

use std::path::Path;
use std::process::ExitCode;

/// Sources of the kernels outside their own crate.
const OTHERS: [&str; 4] = [
    "../kernels-gpu",
    "../cuda/cuda_std",
    "../cuda/cuda_std_macros",
    "../Cargo.toml",
];

fn main() -> ExitCode {
    let archs = kernels_gpu::instances::Arch::ALL.map(|arch| arch.name());
    match cuda_builder::build_script::embed(Path::new("kernels"), &OTHERS, archs) {
        Ok(table) => {
            println!(
                "cargo::rustc-env=FERROFLASH_INSIGHT_MODULES={}",
                table.display()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            cuda_builder::build_script::report(&error);
            ExitCode::FAILURE
        }
    }
}
