//! What the environment asks of simulated GPUs: to record what they execute, and to run other PTX. Each in a process of its own, since
//! a process reads it once.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use ferroflash::backend::sim::{COVERAGE_FOLDER_VAR, REPLACED_FILE_VAR};
use ferroflash::{Backend, DType, Sim, Variant};
use ferroflash_testing::cases::Lengths;
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::specs::plain;
use ptx_sim::Coverage;
use tempfile::TempDir;

const KERNEL: &str = "fa_fwd_simt_sm80_f32_hd64";

/// Runs one launch of the kernel.
#[test]
#[ignore = "run by the tests below, in processes of its own"]
fn child() {
    let mut sim = Sim::new();
    let mut case = plain(DType::F32, Lengths::one(5, 7), 64).build().unwrap();
    case.options.force = Some(Variant::Simt);
    let plan = sim.plan(&case.problem().unwrap()).unwrap();
    assert_eq!(plan.kernel_name(), KERNEL);
    let (o, lse) = case.run(&mut sim).unwrap();
    assert!(case.check(&o, &lse, Rows::All).unwrap().passed());
}

fn run_child(variable: &str, value: &Path) -> Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command
        .args(["--exact", "hooks::child", "--ignored"])
        .env_remove(COVERAGE_FOLDER_VAR)
        .env_remove(REPLACED_FILE_VAR)
        .env(variable, value);
    command.output().unwrap()
}

#[test]
fn sim_records_what_it_executes() {
    let folder = TempDir::new().unwrap();
    assert!(
        run_child(COVERAGE_FOLDER_VAR, folder.path())
            .status
            .success()
    );
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(files.len(), 1);
    let text = fs::read_to_string(files[0].as_ref().unwrap().path()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(Path::new(lines[0]), std::env::current_exe().unwrap());
    assert_eq!((lines[1], lines.len()), ("hooks::child", 3));
    let fields: Vec<_> = lines[2].split(' ').collect();
    assert_eq!(fields[0], KERNEL);
    assert!(fields[1].parse::<u64>().unwrap() > 0);
    let coverage: Coverage = fields[2].parse().unwrap();
    let executed = (0..coverage.len()).filter(|&i| coverage.is_executed(i));
    assert!(executed.count() > 100);
}

#[test]
fn sim_runs_replaced_ptx() {
    let folder = TempDir::new().unwrap();
    let own = ferroflash_ptx::ptx(KERNEL).unwrap();
    let replaced = |name: &str, text: &str| {
        let file = folder.path().join(format!("{name}.ptx"));
        fs::write(&file, text).unwrap();
        run_child(REPLACED_FILE_VAR, &file).status.success()
    };
    assert!(replaced(KERNEL, own));
    // A maximum that is a minimum.
    let broken = own.replacen("max.f32", "min.f32", 1);
    assert_ne!(broken, own);
    assert!(!replaced(KERNEL, &broken));
    assert!(!replaced(KERNEL, "not PTX"));
    // Another kernel's text is not this one's.
    assert!(replaced("fa_fwd_simt_sm80_f32_hd128", &broken));
    let missing = folder.path().join("missing.ptx");
    assert!(!run_child(REPLACED_FILE_VAR, &missing).status.success());
}
