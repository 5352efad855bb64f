//! NVIDIA's PTX assembler, and reading its report.

use std::path::Path;
use std::process::Command;

use crate::manifest::Resources;
use crate::{Error, run};

/// Assembles `ptx` for `arch` and returns ptxas's report. The machine code goes to `cubin`.
pub fn assemble(ptxas: &Path, ptx: &Path, arch: &str, cubin: &Path) -> Result<Resources, Error> {
    let mut command = Command::new(ptxas);
    command.args(["--verbose", &format!("--gpu-name={arch}")]);
    let output = run::output(command.arg(ptx).arg("--output-file").arg(cubin))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let program = format!("ptxas on {}", ptx.display());
        return Err(Error::Failed {
            program,
            status: output.status.to_string(),
            output: text,
        });
    }
    parse_report(&text, arch)
        .ok_or_else(|| Error::Ptx(format!("cannot read ptxas's report:\n{text}")))
}

/// Reads the verbose report about a module with one kernel.
fn parse_report(report: &str, arch: &str) -> Option<Resources> {
    let before = |what: &str| -> Option<u32> {
        let (head, _) = report.split_once(what)?;
        head.split(|c: char| !c.is_ascii_digit())
            .rfind(|word| !word.is_empty())?
            .parse()
            .ok()
    };
    let notes = report
        .lines()
        .filter(|line| line.contains("warning") || line.contains("error") || line.contains("(C"))
        .map(|line| line.trim().to_owned())
        .collect();
    Some(Resources {
        arch: arch.to_owned(),
        registers: before(" registers")?,
        static_shared_bytes: before(" bytes smem").unwrap_or(0),
        stack_bytes: before(" bytes stack frame")?,
        spill_store_bytes: before(" bytes spill stores")?,
        spill_load_bytes: before(" bytes spill loads")?,
        notes,
        main_loops: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_report() {
        let report = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'k' for 'sm_90'\n\
            ptxas info    : Function properties for k\n    \
            40 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n\
            ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized\n\
            ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem\n";
        let resources = parse_report(report, "sm_90").unwrap();
        assert_eq!(resources.registers, 168);
        assert_eq!(resources.static_shared_bytes, 1024);
        assert_eq!(resources.stack_bytes, 40);
        assert_eq!(resources.spill_store_bytes, 12);
        assert_eq!(resources.spill_load_bytes, 16);
        assert_eq!(resources.notes.len(), 1);
        assert_eq!(parse_report("nothing", "sm_90"), None);
    }
}
