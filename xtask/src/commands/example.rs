//! `cargo xtask example`

use std::fs;
use std::path::Path;

use anyhow::Context;
use safetensors::{Dtype, SafeTensors};
use xshell::{Shell, cmd};

use xtask::paths;

#[derive(clap::Args)]
pub struct Args {
    /// Where to run: auto, cuda, sim or cpu
    #[arg(long, default_value = "auto")]
    backend: String,
}

/// Largest difference from the model's own f32 output that is accepted. The model's output is itself 1.2e-6
/// away from the formula in f64 (examples/README.md), with values up to 2.3.
const TOLERANCE: f32 = 5e-6;

pub fn run(args: &Args) -> anyhow::Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    let output = paths::target().join("minilm-layer-output.safetensors");
    let backend = &args.backend;
    cmd!(
        sh,
        "cargo run --quiet --package ferroflash-cli -- attend examples/minilm-layer.safetensors --output {output} --backend {backend}"
    )
    .run()?;

    let ours = read_f32(&output, "o")?;
    let expected = read_f32(
        &paths::root().join("examples/minilm-layer-expected.safetensors"),
        "o",
    )?;
    anyhow::ensure!(
        ours.len() == expected.len(),
        "o has {} elements, the model's has {}",
        ours.len(),
        expected.len()
    );
    let worst = ours
        .iter()
        .zip(&expected)
        .map(|(ours, expected)| (ours - expected).abs())
        .fold(0.0, |worst: f32, error| {
            if error.is_nan() {
                f32::NAN
            } else {
                worst.max(error)
            }
        });
    println!(
        "{} elements of o; largest difference from the model's own output {worst:.2e}, accepted {TOLERANCE:.0e}",
        ours.len()
    );
    anyhow::ensure!(worst <= TOLERANCE, "o is not what the model computed");
    println!("example: ok");
    Ok(())
}

fn read_f32(path: &Path, name: &str) -> anyhow::Result<Vec<f32>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let file = SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?;
    let tensor = file
        .tensor(name)
        .with_context(|| path.display().to_string())?;
    anyhow::ensure!(
        tensor.dtype() == Dtype::F32,
        "{name} is {:?}, not F32",
        tensor.dtype()
    );
    Ok(bytemuck::allocation::pod_collect_to_vec(tensor.data()))
}
