//! The command on good input.

use std::ffi::OsStr;
use std::process::Command;
use std::process::Stdio;

use ferroflash_tests::command::{ferroflash, run};
use ferroflash_tests::files::{self, Dtype, Tensor};
use ferroflash_tests::paths;
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn verify_prints_a_table_and_the_worst_ratio() {
    let outcome = run("verify --cases 5 --seed 3 --backend cpu");
    let text = outcome.succeeded();
    assert_eq!(text.matches("| ok |").count(), 5, "{text}");
    assert!(
        text.contains("worst error over allowed error: o "),
        "{text}"
    );
    assert!(text.ends_with("5 of 5 runs within the bound\n"), "{text}");
    assert_eq!(run("verify --cases 5 --seed 3 --backend cpu").stdout, text);
    assert_ne!(run("verify --cases 5 --seed 4 --backend cpu").stdout, text);
}

/// Every drawn cache, on the CPU and by the kernels.
#[test]
fn verify_tries_caches_on_every_backend() {
    for (backend, kernel) in [("cpu", "fa_decode_cpu_"), ("sim", "fa_decode_mma_sm")] {
        let command = format!("verify --cache --cases 4 --seed 5 --backend {backend}");
        let outcome = run(&command);
        let text = outcome.succeeded();
        assert_eq!(text.matches("| ok |").count(), 4, "{text}");
        assert_eq!(text.matches(kernel).count(), 4, "{text}");
        assert!(text.ends_with("4 of 4 runs within the bound\n"), "{text}");
    }
    let outcome = run("verify --cache --pass bwd --backend cpu");
    assert_eq!(
        outcome.failed(2),
        ("--pass", "a cache has no backward pass; fwd")
    );
}

#[test]
fn info_lists_what_is_here() {
    let outcome = run("info");
    let text = outcome.succeeded();
    assert!(text.contains("| cuda | none | no NVIDIA driver"), "{text}");
    assert!(text.contains("| cpu |"), "{text}");
    assert!(
        text.contains("| fa_fwd_simt_sm80_f32_hd64 | simt | f32 | up to 64 |"),
        "{text}"
    );
}

#[test]
fn info_in_json_holds_what_it_prints() {
    let text = run("info --json");
    let text = text.succeeded();
    assert_eq!(text.lines().count(), 1);
    let report: Value = serde_json::from_str(text).expect("JSON");
    let devices = report["devices"].as_array().expect("a list");
    let backends: Vec<_> = devices.iter().map(|device| &device["backend"]).collect();
    assert_eq!(backends, ["cuda", "sim"]);
    assert!(devices[0]["name"].is_null());
    let missing = devices[0]["missing"].as_str().expect("it is said");
    assert!(missing.starts_with("no NVIDIA driver"), "{missing}");
    let kernels = report["kernels"].as_array().expect("a list");
    let kernel = kernels
        .iter()
        .find(|kernel| kernel["name"] == "fa_fwd_simt_sm80_f32_hd64")
        .expect("it is embedded");
    assert_eq!(kernel["head_dim"], 64);
    // There is no device for CUDA; in the simulator the kernel runs.
    assert_eq!(kernel["unfit"][0], "no device");
    assert!(kernel["unfit"][1].is_null());
    assert_eq!(
        run("info").succeeded().matches("| fa_").count(),
        kernels.len()
    );
}

#[test]
fn threads_can_be_chosen() {
    let problem =
        "bench --batch 1 --heads 1 --seq-q 8 --seq-kv 8 --head-dim 8 --backend cpu --json";
    for (arguments, device) in [
        (format!("--threads 1 {problem}"), "CPU, 1 thread"),
        (format!("{problem} --threads 3"), "CPU, 3 threads"),
    ] {
        let outcome = run(&arguments);
        let report: Value = serde_json::from_str(outcome.succeeded()).expect("JSON");
        assert_eq!(report["device"], device);
    }
    for (threads, wrong) in [("0", "`0` is not valid"), ("100000", "it is 100000")] {
        let outcome = run(&format!("info --threads {threads}"));
        let (argument, rest) = outcome.failed(2);
        assert_eq!(argument, "--threads");
        assert!(rest.starts_with(wrong), "{rest}");
    }
    let report = run("sim-report --batch 1 --heads 1 --seq-q 8 --seq-kv 8 --head-dim 8");
    assert!(report.succeeded().contains(", 1 block\n"), "{report:?}");
}

#[test]
fn o_is_short_for_output() {
    let dir = TempDir::new().expect("a temporary folder");
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    let tensors = ["q", "k", "v"].map(|name| Tensor::new(name, Dtype::F32, &[1, 3, 2, 8]));
    files::write(&input, &tensors);
    let paths = ["attend", "-o"].map(OsStr::new);
    let paths = paths
        .into_iter()
        .chain([output.as_os_str(), input.as_os_str()]);
    ferroflash(paths).succeeded();
    assert_eq!(files::read(&output, "o").shape, [1, 3, 2, 8]);
}

/// The input need not be seekable.
#[test]
fn an_input_may_be_a_pipe() {
    let dir = TempDir::new().expect("a temporary folder");
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    let tensors = ["q", "k", "v"].map(|name| Tensor::new(name, Dtype::F32, &[1, 3, 2, 8]));
    files::write(&input, &tensors);
    let status = Command::new("sh")
        .args([
            "-c",
            "cat \"$1\" | \"$2\" attend /dev/stdin -o \"$3\"",
            "sh",
        ])
        .arg(&input)
        .arg(paths::binary())
        .arg(&output)
        .stderr(Stdio::null())
        .status();
    assert!(status.expect("a shell runs").success());
    assert_eq!(files::read(&output, "o").shape, [1, 3, 2, 8]);
}

#[test]
fn shells_complete_its_arguments() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(&format!("completions {shell}"));
        let script = script.succeeded();
        assert!(script.contains("softmax-scale") && script.contains("varlen-seed"));
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [
        "--help",
        "attend --help",
        "help",
        "help layout mma",
        "--version",
    ] {
        let outcome = run(arguments);
        assert!(!outcome.succeeded().is_empty());
        assert_eq!(outcome.stderr, "");
    }
}

/// Standard output is closed early, as by `ferroflash verify | head`.
#[test]
fn a_reader_that_goes_away_is_no_crash() {
    for arguments in ["info", "verify --cases 200 --backend cpu", "attend --help"] {
        let mut child = Command::new(paths::binary())
            .args(arguments.split(' '))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !stderr.contains("panicked") && !stderr.contains("error"),
            "{stderr}"
        );
    }
}
