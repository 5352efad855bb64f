//! Compiles the kernels and embeds their PTX.

use std::path::Path;
use std::process::ExitCode;

/// Sources of the kernels outside their own crate.
const OTHERS: [&str; 4] = [
    "../../kernels-gpu",
    "../../cuda/cuda_std",
    "../../cuda/cuda_std_macros",
    "../../Cargo.toml",
];

fn main() -> ExitCode {
    match cuda_builder::build_script::embed(Path::new("kernels"), &OTHERS, ["sm_80", "sm_90a"]) {
        Ok(table) => {
            println!("cargo::rustc-env=SCORE_MOD_PTX={}", table.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            cuda_builder::build_script::report(&error);
            ExitCode::FAILURE
        }
    }
}
