//! `ferroflash attend` on files of its users: a real layer, layouts, dtypes, packed sequences, empty tensors.

use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;

use ferroflash_tests::command::{attend, ferroflash_in};
use ferroflash_tests::files::{self, Dtype, Tensor, f32s};
use ferroflash_tests::folder::packed_tensors;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::paths;
use tempfile::TempDir;

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
    real_layer("sim", "fa_fwd_mma_sm80_f32_hd64", &[]);
}

#[test]
fn a_real_layer_on_a_gpu() {
    if gpu_or_not_run("a real layer").is_some() {
        let driver = [(cuda_loader::LIBRARY_VARIABLE, OsStr::new("libcuda.so.1"))];
        let stderr = real_layer("auto", "fa_fwd_mma_sm80_f32_hd64", &driver);
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
