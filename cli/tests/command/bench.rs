//! `ferroflash bench`: what it times, prints and refuses.

use ferroflash_testing::cases::InputKind;
use ferroflash_tests::command::{ferroflash_in, run};
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::paths;
use serde_json::Value;

/// Keys and values of 3 sequences, of which a window sees 8 of a longer one, are what a call has to read.
#[test]
fn bench_times_caches() {
    let heads = "--heads 4 --heads-kv 2 --head-dim 16 --dtype bf16 --backend cpu";
    let report = |options: &str| -> Value {
        let outcome = run(&format!("bench {heads} {options} --json"));
        serde_json::from_str(outcome.succeeded()).expect("JSON")
    };
    let of_key = 2 * 2 * 16 * 2;
    let paged = report("--kv-lens 40,5:2 --page-size 16");
    assert_eq!(paged["kv_bytes"], 50 * of_key);
    assert_eq!(paged["page_size"], 16);
    // As the CPU queues no calls.
    assert_eq!(paged["caches"], 1);
    let rate = 50.0 * f64::from(of_key) / paged["ms_sustained"].as_f64().expect("a number") / 1e6;
    assert!((paged["kv_gbs"].as_f64().expect("a number") / rate - 1.0).abs() < 1e-9);
    // Three pages and one each, and one of nobody, and q, o and lse of a query each.
    let rows = 3 * (2 * 4 * 16 * 2 + 4 * 4);
    assert_eq!(paged["operand_bytes"], 6 * 16 * of_key + rows);
    let window = report("--batch 2 --kv-len 40 --seq-q 3 --window-left 5 --window-right 0");
    assert_eq!(window["kv_bytes"], 2 * 8 * of_key);
    assert!(window.get("page_size").is_none());
    let text = run(&format!("bench {heads} --batch 1 --kv-len 9 --page-size 4"));
    let line = "  K and V in pages of 4 keys, of 1 cache: ";
    assert!(text.succeeded().contains(line), "{}", text.stdout);
}

#[test]
fn bench_refuses_what_no_cache_has() {
    let heads = "--heads 4 --head-dim 16 --backend cpu";
    for (options, argument, rest) in [
        (
            "--batch 1 --seq-q 1 --seq-kv 8 --page-size 4",
            "--page-size",
            "only a cache has it; with --kv-len or --kv-lens, or leave it out",
        ),
        (
            "--batch 1 --kv-len 8 --pass bwd",
            "--pass",
            "a cache has no backward pass; fwd",
        ),
        (
            "--batch 1 --kv-len 8 --input large",
            "--input",
            "a cache is timed with N(0, 1) alone; random",
        ),
        (
            "--batch 1 --kv-len 8 --graph",
            "--graph",
            "only an NVIDIA GPU has it; --backend cuda, or leave it out",
        ),
    ] {
        let outcome = run(&format!("bench {heads} {options}"));
        assert_eq!(outcome.failed(2), (argument, rest));
    }
}

#[test]
fn bench_prints_one_line_of_json() {
    let shape = "--batch 1 --heads 4 --heads-kv 2 --seq-q 64 --seq-kv 128 --head-dim 32";
    let outcome = run(&format!(
        "bench {shape} --dtype bf16 --mask causal --pass fwd --json --backend cpu"
    ));
    let text = outcome.succeeded();
    assert_eq!(text.lines().count(), 1);
    let report: Value = serde_json::from_str(text).expect("JSON");
    let keys: Vec<_> = report.as_object().expect("an object").keys().collect();
    let mut expected = [
        "kernel",
        "heads_per_tile",
        "ms_sustained",
        "ms_burst",
        "host_us",
        "queued",
        "sustained_calls",
        "bursts",
        "tflops",
        "gbs",
        "operand_bytes",
        "workspace_bytes",
        "peak_bytes",
        "device",
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(report["kernel"], "fa_fwd_cpu_bf16_tiled");
    let number = |key: &str| report[key].as_f64().expect("a number");
    // Clock and power are left out, as no GPU is used.
    assert!(number("ms_burst") > 0.0 && number("host_us") > 0.0);
    assert!(number("sustained_calls") >= 1.0 && number("bursts") >= 1.0);
    assert_eq!(report["queued"], false);
    // Causal rows see 65 to 128 keys; two products of 32 dims on 4 heads.
    let flops = 4.0 * 2.0 * 64.0 * (65.0 + 128.0) / 2.0 * 64.0;
    let expected = flops / number("ms_sustained") / 1e9;
    assert!((number("tflops") / expected - 1.0).abs() < 1e-9);
}

/// q, o, their gradients, and k, v and theirs take 32 KiB each here, and lse 1 KiB. The sums of dq of 4 heads, lse, delta and
/// what is reserved are the workspace.
#[test]
fn bench_says_how_much_memory_a_backward_pass_takes() {
    let shape = "--batch 1 --heads 4 --heads-kv 2 --seq-q 64 --seq-kv 128 --head-dim 64";
    let bench = |options: &str| {
        let problem = format!("bench {shape} --dtype bf16 --pass bwd --backend sim {options}");
        run(&problem).succeeded().to_owned()
    };
    let bytes = |options: &str| {
        let report: Value = serde_json::from_str(&bench(options)).expect("JSON");
        ["operand_bytes", "workspace_bytes", "peak_bytes"]
            .map(|key| report[key].as_u64().expect("a number"))
    };
    let (operands, rows) = (8 * (32 << 10) + 1024, 32 + 2 * 1024);
    let sums = 4 * 64 * 64 * 4;
    let force = "--force mma";
    let added_up = [operands, rows + sums, operands + rows + sums];
    assert_eq!(bytes(&format!("--json {force}")), added_up);
    let repeating = bytes(&format!("--json {force} --deterministic"));
    assert_eq!(repeating, [operands, rows, operands + rows]);
    let text = bench(force);
    let line = "memory: 0.3 MB of operands and 0.1 MB of workspace, 0.3 MB at the peak";
    assert!(text.contains(line), "{text}");
}

#[test]
fn bench_names_its_inputs_unless_they_are_random() {
    let problem = "bench --batch 1 --heads 2 --seq-q 64 --seq-kv 64 --head-dim 32 --backend cpu";
    for kind in InputKind::ALL {
        let outcome = run(&format!("{problem} --dtype bf16 --json --input {kind}"));
        let report: Value = serde_json::from_str(outcome.succeeded()).expect("JSON");
        let named = (kind != InputKind::Random).then(|| kind.name().into());
        assert_eq!(report.get("input"), named.as_ref(), "{report}");
    }
    let text = run(&format!("{problem} --dtype bf16 --input sink-first"));
    assert!(text.succeeded().contains("\n  sink-first inputs\n"));
    // The kind of inputs shows in the number of instructions run.
    let report = "sim-report --batch 1 --heads 1 --seq-q 16 --seq-kv 512 --head-dim 32 --force mma";
    let instructions = |input: &str| {
        let outcome = run(&format!("{report} --dtype f16 --json --input {input}"));
        let reports: Value = serde_json::from_str(outcome.succeeded()).expect("JSON");
        reports[0]["thread_instructions"]
            .as_u64()
            .expect("a number")
    };
    assert!(instructions("growing-fast") > instructions("random"));

    let refused = run(&format!("{problem} --input large"));
    let (argument, rest) = refused.failed(2);
    assert_eq!(argument, "--input");
    assert!(rest.contains("f32") && rest.contains("planted"), "{rest}");
}

#[test]
fn bench_times_packed_sequences() {
    let heads = "--heads 2 --head-dim 32 --json --backend cpu";
    let tflops_and_ms = |lengths: &str| {
        let outcome = run(&format!("bench {lengths} {heads}"));
        let report: Value = serde_json::from_str(outcome.succeeded()).expect("JSON");
        let number = |key: &str| report[key].as_f64().expect("a number");
        number("tflops") * number("ms_sustained") * 1e9
    };
    // Per visible pair, four operations for each of 32 dims, on 2 heads; pairs are counted within each sequence.
    let flops = |pairs: usize| (pairs * 4 * 32 * 2) as f64;
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    let expected = flops(64 * 64 + 30 * 50);
    let found = tflops_and_ms("--varlen 64,0,30:50 --alibi");
    assert!(close(found, expected), "{found} {expected}");
    // As many rows in sequences of uneven lengths have more pairs than in equal ones.
    let uneven = tflops_and_ms("--batch 4 --seq-q 64 --seq-kv 64 --varlen-seed 1");
    assert!(uneven > flops(4 * 64 * 64), "{uneven}");
    assert!(uneven < flops(256 * 256), "{uneven}");
}

/// The stand-in for NVIDIA's driver launches nothing, so every result on it is wrong.
#[test]
fn bench_refuses_to_time_a_wrong_kernel() {
    let Some(driver) = paths::fake_driver() else {
        return not_run("bench with a wrong kernel: the fake driver is not packed");
    };
    let problem = "bench --backend cuda --batch 1 --heads 2 --seq-q 16 --seq-kv 16 --head-dim 32";
    let environment = [(cuda_loader::LIBRARY_VARIABLE, driver.as_os_str())];
    let outcome = ferroflash_in(problem.split(' '), &environment);
    let (argument, rest) = outcome.failed(1);
    assert_eq!(argument, "fa_fwd_mma_sm80_f32_hd64");
    assert!(rest.starts_with("its result is wrong"), "{rest}");
}

#[test]
fn bench_refuses_a_problem_without_work() {
    for (problem, argument, allowed) in [
        (
            "--batch 0 --seq-q 4 --seq-kv 4",
            "--batch",
            "there is nothing to compute; it must be 1 or more",
        ),
        (
            "--batch 2 --seq-q 0 --seq-kv 4 --varlen-seed 1",
            "--seq-q",
            "there is nothing to compute; it must be 1 or more",
        ),
        (
            "--varlen 0,0:7",
            "--varlen",
            "there is nothing to compute; one of the sequences must have 1 query or more",
        ),
    ] {
        for command in ["bench", "sim-report"] {
            let outcome = run(&format!("{command} {problem} --heads 1 --head-dim 8"));
            assert_eq!(outcome.failed(2), (argument, allowed));
        }
    }
}
