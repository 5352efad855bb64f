//! Prints the instructions of PTX files that not all the threads which must reach them together are proven to reach:
//!
//! ```text
//! cargo run -p ptx-sim --example divergence -- FILE...
//! ```

use std::process::ExitCode;

use ptx_sim::Module;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut found = 0;
    for path in std::env::args().skip(1) {
        let module = Module::parse(&std::fs::read_to_string(&path)?)?;
        for kernel in module.kernels() {
            for divergence in kernel.divergences() {
                found += 1;
                println!("{path}:{}: {}", divergence.line, divergence.text);
                let (needs, branch) = (divergence.needs, divergence.branch_line);
                println!("    must be reached by a whole {needs:?}; line {branch} decides");
            }
        }
    }
    Ok(ExitCode::from(u8::from(found > 0)))
}
