//! The command on good input.

use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use ferroflash_testing::cases::InputKind;
use ferroflash_tests::command::{Outcome, attend, ferroflash, ferroflash_in};
use ferroflash_tests::files::{self, Dtype, Tensor, f32s};
use ferroflash_tests::folder::packed_tensors;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::paths;
use serde_json::Value;
use tempfile::TempDir;

/// The words of `text`, as arguments.
fn run(text: &str) -> Outcome {
    ferroflash(text.split_whitespace())
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(
        0.0,
        |worst, x| if x > worst || x.is_nan() { x } else { worst },
    )
}

/// Without a driver, the command says which backend it uses instead.
#[test]
fn a_real_layer_gives_the_models_own_output() {
    let stderr = real_layer("auto", "fa_fwd_cpu_f32_tiled", &[]);
    let expected = stderr.starts_with("backend cpu: ") && stderr.contains("no NVIDIA driver");
    assert!(expected, "{stderr}");
}

#[test]
fn a_real_layer_in_the_simulator() {
    real_layer("sim", "fa_fwd_simt_sm80_f32_hd64", &[]);
}

#[test]
fn a_real_layer_on_a_gpu() {
    if gpu_or_not_run("a real layer").is_some() {
        let driver = [(cuda_loader::LIBRARY_VARIABLE, OsStr::new("libcuda.so.1"))];
        let stderr = real_layer("auto", "fa_fwd_simt_sm80_f32_hd64", &driver);
        assert!(stderr.starts_with("backend cuda: "), "{stderr}");
    }
}

/// Runs the real example and compares; returns standard error.
fn real_layer(backend: &str, kernel: &str, environment: &[(&str, &OsStr)]) -> String {
    let dir = TempDir::new().expect("a temporary folder");
    let output = dir.path().join("out.safetensors");
    let input = paths::data("examples/minilm-layer.safetensors");
    let arguments = [
        OsStr::new("attend"),
        input.as_os_str(),
        OsStr::new("--output"),
        output.as_os_str(),
        OsStr::new("--backend"),
        OsStr::new(backend),
    ];
    let outcome = ferroflash_in(arguments, environment);
    outcome.succeeded();
    assert!(outcome.stderr.contains(kernel), "{}", outcome.stderr);
    let o = files::read(&output, "o");
    let expected = files::read(
        &paths::data("examples/minilm-layer-expected.safetensors"),
        "o",
    );
    assert_eq!(o.shape, expected.shape);
    // The model's own error is 1.2e-6 (examples/README.md).
    assert!(largest_difference(&f32s(&o), &f32s(&expected)) < 5e-6);
    let [batch, seq, heads, _] = o.shape[..] else {
        panic!("o has rank {}", o.shape.len());
    };
    assert_eq!(files::read(&output, "lse").shape, [batch, heads, seq]);
    let mode = fs::metadata(&output)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o400, 0o400);
    assert_ne!(
        mode & 0o777,
        0o600,
        "the usual permissions, not those of a temporary file"
    );
    outcome.stderr
}

/// q, k and v in two layouts give the same o and lse.
#[test]
fn layouts_agree() {
    let dir = TempDir::new().expect("a temporary folder");
    let shapes = [
        ("q", [2, 5, 4, 8]),
        ("k", [2, 9, 2, 8]),
        ("v", [2, 9, 2, 3]),
    ];
    let bshd = shapes.map(|(name, shape)| Tensor::new(name, Dtype::F32, &shape));
    let bhsd = bshd.each_ref().map(swap_middle);
    let file = |name: &str| dir.path().join(name);
    files::write(&file("bshd"), &bshd);
    files::write(&file("bhsd"), &bhsd);
    let options = ["--mask", "causal", "--window-left", "3", "--softcap", "5"];
    attend(&file("bshd"), &file("out-bshd"), &options).succeeded();
    let options = [options.as_slice(), &["--layout", "bhsd"]].concat();
    attend(&file("bhsd"), &file("out-bhsd"), &options).succeeded();

    let o = files::read(&file("out-bshd"), "o");
    assert_eq!(o.shape, [2, 5, 4, 3]);
    assert_eq!(
        swap_middle(&o).bytes,
        files::read(&file("out-bhsd"), "o").bytes
    );
    let lse = |name| files::read(&file(name), "lse");
    assert_eq!(lse("out-bshd").shape, [2, 4, 5]);
    assert_eq!(lse("out-bshd").bytes, lse("out-bhsd").bytes);
}

/// The tensor with its middle axes exchanged.
fn swap_middle(tensor: &Tensor) -> Tensor {
    let [a, b, c, d] = tensor.shape[..] else {
        panic!("rank {}", tensor.shape.len());
    };
    let row_bytes = d * tensor.dtype.bitsize() / 8;
    let row = |x: usize, y: usize, z: usize| {
        &tensor.bytes[((x * b + y) * c + z) * row_bytes..][..row_bytes]
    };
    let rows = (0..a).flat_map(|x| (0..c).flat_map(move |z| (0..b).map(move |y| (x, y, z))));
    Tensor {
        shape: vec![a, c, b, d],
        bytes: rows.flat_map(|(x, y, z)| row(x, y, z).to_vec()).collect(),
        ..tensor.clone()
    }
}

#[test]
fn o_has_the_dtype_of_q() {
    let dir = TempDir::new().expect("a temporary folder");
    let file = |name: &str| dir.path().join(name);
    let tensors = |dtype| ["q", "k", "v"].map(|name| Tensor::new(name, dtype, &[1, 6, 2, 16]));
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        files::write(&file("in"), &tensors(dtype));
        for arguments in [
            &[][..],
            &["--dtype", "f32"],
            &["--dtype", "f16"],
            &["--dtype", "bf16"],
        ] {
            attend(&file("in"), &file("out"), arguments).succeeded();
            assert_eq!(files::read(&file("out"), "o").dtype, dtype);
            assert_eq!(files::read(&file("out"), "lse").dtype, Dtype::F32);
        }
    }
    // --dtype computes from rounded inputs.
    files::write(&file("in"), &tensors(Dtype::F32));
    attend(&file("in"), &file("exact"), &[]).succeeded();
    attend(&file("in"), &file("rounded"), &["--dtype", "bf16"]).succeeded();
    let o = |name| f32s(&files::read(&file(name), "o"));
    let difference = largest_difference(&o("exact"), &o("rounded"));
    assert!(difference > 1e-5 && difference < 2e-2, "{difference}");
}

#[test]
fn empty_tensors() {
    let dir = TempDir::new().expect("a temporary folder");
    let file = |name: &str| dir.path().join(name);
    for (seq_q, seq_kv, batch) in [(3, 0, 2), (0, 3, 2), (3, 3, 0)] {
        let tensors = [
            Tensor::new("q", Dtype::F32, &[batch, seq_q, 2, 8]),
            Tensor::new("k", Dtype::F32, &[batch, seq_kv, 2, 8]),
            Tensor::new("v", Dtype::F32, &[batch, seq_kv, 2, 8]),
        ];
        files::write(&file("in"), &tensors);
        attend(&file("in"), &file("out"), &[]).succeeded();
        let o = files::read(&file("out"), "o");
        assert_eq!(o.shape, [batch, seq_q, 2, 8]);
        assert!(f32s(&o).iter().all(|&value| value == 0.0));
        let lse = f32s(&files::read(&file("out"), "lse"));
        assert_eq!(lse, vec![f32::NEG_INFINITY; batch * 2 * seq_q]);
    }
}

/// The rows `range` of the first axis.
fn rows(tensor: &Tensor, range: Range<usize>) -> Tensor {
    let row_bytes = tensor.bytes.len() / tensor.shape[0].max(1);
    let mut shape = vec![1, range.len()];
    shape.extend(&tensor.shape[1..]);
    Tensor {
        shape,
        bytes: tensor.bytes[range.start * row_bytes..range.end * row_bytes].to_vec(),
        ..tensor.clone()
    }
}

/// Packed sequences give what each of them gives alone, with the slopes of its batch entry.
#[test]
fn packed_sequences_are_independent() {
    let dir = TempDir::new().expect("a temporary folder");
    let file = |name: &str| dir.path().join(name);
    let slopes = [0.5, 0.25, 2.0, -1.0, 0.125, 0.0, 1.0, 0.75];
    let mut packed = packed_tensors();
    packed.push(Tensor::of_f32s("alibi_slopes", &slopes, &[2, 4]));
    files::write(&file("in"), &packed);
    let options = ["--mask", "causal", "--softcap", "3", "--alibi"];
    attend(&file("in"), &file("out"), &options).succeeded();
    let (o, lse) = (
        files::read(&file("out"), "o"),
        files::read(&file("out"), "lse"),
    );
    assert_eq!(
        (o.shape.as_slice(), lse.shape.as_slice()),
        ([5, 4, 8].as_slice(), [4, 5].as_slice())
    );

    for (index, (q_rows, kv_rows)) in [(0..2, 0..3), (2..5, 3..7)].into_iter().enumerate() {
        let alone = [
            rows(&packed[0], q_rows.clone()),
            rows(&packed[1], kv_rows.clone()),
            rows(&packed[2], kv_rows),
            Tensor::of_f32s("alibi_slopes", &slopes[index * 4..][..4], &[4]),
        ];
        files::write(&file("one"), &alone);
        attend(&file("one"), &file("one-out"), &options).succeeded();
        assert_eq!(
            files::read(&file("one-out"), "o").bytes,
            rows(&o, q_rows.clone()).bytes
        );
        let one_lse = f32s(&files::read(&file("one-out"), "lse"));
        let of_head = |lse: &[f32], head: usize| lse[head * 5..][q_rows.clone()].to_vec();
        let expected: Vec<f32> = (0..4).flat_map(|head| of_head(&f32s(&lse), head)).collect();
        assert_eq!(one_lse, expected);
    }
    // Without the slopes, the result differs.
    packed.pop();
    files::write(&file("in"), &packed);
    attend(&file("in"), &file("plain"), &options[..4]).succeeded();
    assert_ne!(files::read(&file("plain"), "lse").bytes, lse.bytes);
}

/// In the other layout a packed tensor is [heads, total, dim].
#[test]
fn packed_layouts_agree() {
    let dir = TempDir::new().expect("a temporary folder");
    let file = |name: &str| dir.path().join(name);
    let packed = packed_tensors();
    let swapped: Vec<_> = packed
        .iter()
        .map(|tensor| match tensor.shape.len() {
            3 => without_batch(swap_middle(&rows_of_all(tensor))),
            _ => tensor.clone(),
        })
        .collect();
    files::write(&file("thd"), &packed);
    files::write(&file("htd"), &swapped);
    attend(&file("thd"), &file("out-thd"), &[]).succeeded();
    attend(&file("htd"), &file("out-htd"), &["--layout", "bhsd"]).succeeded();
    let o = files::read(&file("out-htd"), "o");
    assert_eq!(o.shape, [4, 5, 8]);
    let back = without_batch(swap_middle(&rows_of_all(&o)));
    assert_eq!(back.bytes, files::read(&file("out-thd"), "o").bytes);
}

fn rows_of_all(tensor: &Tensor) -> Tensor {
    rows(tensor, 0..tensor.shape[0])
}

fn without_batch(mut tensor: Tensor) -> Tensor {
    tensor.shape.remove(0);
    tensor
}

/// No sequence, and sequences without rows.
#[test]
fn packed_and_empty() {
    let dir = TempDir::new().expect("a temporary folder");
    let file = |name: &str| dir.path().join(name);
    for (q, kv) in [
        (&[0][..], &[0][..]),
        (&[0, 0, 0], &[0, 3, 3]),
        (&[0, 2, 2], &[0, 0, 3]),
    ] {
        let total = |sums: &[i32]| sums[sums.len() - 1] as usize;
        let tensors = [
            Tensor::new("q", Dtype::F32, &[total(q), 2, 8]),
            Tensor::new("k", Dtype::F32, &[total(kv), 2, 8]),
            Tensor::new("v", Dtype::F32, &[total(kv), 2, 8]),
            Tensor::of_i32s("cu_seqlens_q", q),
            Tensor::of_i32s("cu_seqlens_kv", kv),
        ];
        files::write(&file("in"), &tensors);
        attend(&file("in"), &file("out"), &[]).succeeded();
        let o = files::read(&file("out"), "o");
        assert_eq!(o.shape, [total(q), 2, 8]);
        assert!(f32s(&o).iter().all(|&value| value == 0.0));
        let lse = f32s(&files::read(&file("out"), "lse"));
        assert_eq!(lse, vec![f32::NEG_INFINITY; 2 * total(q)]);
    }
}

#[test]
fn an_output_is_replaced_and_may_be_the_input() {
    let dir = TempDir::new().expect("a temporary folder");
    let path = dir.path().join("both");
    let tensors = ["q", "k", "v"].map(|name| Tensor::new(name, Dtype::F32, &[1, 6, 2, 16]));
    files::write(&path, &tensors);
    attend(&path, &path, &[]).succeeded();
    assert_eq!(files::read(&path, "o").shape, [1, 6, 2, 16]);
    assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1);
}

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
    for (backend, kernel) in [("cpu", "fa_decode_cpu_"), ("sim", "fa_decode_mma_sm80_")] {
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
    assert_eq!(argument, "fa_fwd_simt_sm80_f32_hd64");
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
