//! Every bad input is refused by one line that names it, with its exit code, and leaves no file.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferroflash_tests::command::{Outcome, ferroflash, ferroflash_in, outcome};
use ferroflash_tests::files::{self, Dtype, Tensor};
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::paths;
use tempfile::TempDir;

/// A folder with one input file.
struct Folder {
    dir: TempDir,
}

const Q: [usize; 4] = [2, 5, 4, 16];
const K: [usize; 4] = [2, 7, 2, 16];
const V: [usize; 4] = [2, 7, 2, 8];

fn tensors() -> Vec<Tensor> {
    let shapes = [("q", Q), ("k", K), ("v", V)];
    let tensors = shapes.map(|(name, shape)| Tensor::new(name, Dtype::F32, &shape));
    tensors.to_vec()
}

impl Folder {
    fn with(tensors: &[Tensor]) -> Self {
        let folder = Self {
            dir: TempDir::new().expect("a temporary folder"),
        };
        files::write(&folder.input(), tensors);
        folder
    }

    fn input(&self) -> PathBuf {
        self.dir.path().join("in.safetensors")
    }

    fn output(&self) -> PathBuf {
        self.dir.path().join("out.safetensors")
    }

    fn attend(&self, arguments: &[&str]) -> Outcome {
        self.attend_to(&self.output(), arguments)
    }

    fn attend_to(&self, output: &Path, arguments: &[&str]) -> Outcome {
        let input = self.input();
        let paths = [
            OsStr::new("attend"),
            input.as_os_str(),
            OsStr::new("--output"),
            output.as_os_str(),
        ];
        ferroflash(paths.into_iter().chain(arguments.iter().map(OsStr::new)))
    }

    /// Asserts that nothing but the input is here.
    #[track_caller]
    fn is_untouched(&self) {
        let files: Vec<_> = fs::read_dir(self.dir.path())
            .expect("the folder is there")
            .map(|entry| entry.expect("readable").file_name())
            .filter(|name| name != "in.safetensors")
            .collect();
        assert!(files.is_empty(), "left behind: {files:?}");
    }
}

/// Asserts that `attend` refuses the default input with `arguments`, on `argument`.
#[track_caller]
fn refused_arguments(arguments: &[&str], argument: &str, rest: &str) {
    let folder = Folder::with(&tensors());
    let outcome = folder.attend(arguments);
    assert_eq!(outcome.failed(2), (argument, rest));
    folder.is_untouched();
}

/// Asserts that `attend` refuses `tensors`, on `argument`.
#[track_caller]
fn refused_tensors(tensors: &[Tensor], argument: &str, rest: &str) {
    let folder = Folder::with(tensors);
    let outcome = folder.attend(&[]);
    assert_eq!(outcome.failed(2), (argument, rest));
    folder.is_untouched();
}

/// The default tensors with one of another shape.
fn reshaped(name: &str, shape: &[usize]) -> Vec<Tensor> {
    let mut tensors = tensors();
    for tensor in tensors.iter_mut().filter(|tensor| tensor.name == name) {
        *tensor = Tensor::new(tensor.name, tensor.dtype, shape);
    }
    tensors
}

#[test]
fn the_default_input_is_good() {
    let folder = Folder::with(&tensors());
    folder.attend(&[]).succeeded();
    assert!(folder.output().exists());
}

#[test]
fn a_missing_file() {
    let folder = Folder::with(&[]);
    fs::remove_file(folder.input()).expect("the input is there");
    let outcome = folder.attend(&[]);
    let wrong = format!(
        "{}: No such file or directory (os error 2); a safetensors file to read",
        folder.input().display()
    );
    assert_eq!(outcome.failed(2), ("INPUT", wrong.as_str()));
    folder.is_untouched();
}

#[test]
fn a_truncated_file() {
    let folder = Folder::with(&tensors());
    let bytes = fs::read(folder.input()).expect("readable");
    // In the length, in the header, and in the data.
    for length in [0, 5, 40, bytes.len() - 1] {
        fs::write(folder.input(), &bytes[..length]).expect("writable");
        let outcome = folder.attend(&[]);
        let (argument, rest) = outcome.failed(2);
        assert_eq!(argument, "INPUT");
        assert!(
            rest.contains("it is not a whole safetensors file"),
            "{rest}"
        );
        folder.is_untouched();
    }
}

#[test]
fn a_file_of_another_kind() {
    let folder = Folder::with(&tensors());
    for text in [
        "PK\u{3}\u{4} a zip archive, say",
        "just some text, long enough for a header",
    ] {
        fs::write(folder.input(), text).expect("writable");
        let outcome = folder.attend(&[]);
        let (argument, rest) = outcome.failed(2);
        assert_eq!(argument, "INPUT");
        assert!(
            rest.contains("it is not a whole safetensors file"),
            "{rest}"
        );
        folder.is_untouched();
    }
}

#[test]
fn a_missing_tensor() {
    let without_k: Vec<_> = tensors().into_iter().filter(|t| t.name != "k").collect();
    let rest = "the file has no such tensor, only: q, v; the tensors q, k and v are needed";
    let folder = Folder::with(&without_k);
    let outcome = folder.attend(&[]);
    let (argument, found) = outcome.failed(2);
    // The file keeps no order.
    assert_eq!(
        (argument, found.replace("v, q", "q, v").as_str()),
        ("k", rest)
    );
    folder.is_untouched();
}

#[test]
fn a_rank_other_than_four() {
    let allowed = "rank 4: [batch, seq, heads, dim] in bshd, [batch, heads, seq, dim] in bhsd";
    let rest = format!("its shape is [5, 4, 16], of rank 3; {allowed}");
    refused_tensors(&reshaped("q", &[5, 4, 16]), "q", &rest);
    let rest = format!("its shape is [1, 2, 7, 2, 8], of rank 5; {allowed}");
    refused_tensors(&reshaped("v", &[1, 2, 7, 2, 8]), "v", &rest);
}

#[test]
fn dtypes() {
    let mut mixed = tensors();
    mixed[1] = Tensor::new("k", Dtype::F16, &K);
    refused_tensors(&mixed, "k", "dtype is f16; f32, the dtype of q");
    // A conversion that was asked for does not hide it.
    let folder = Folder::with(&mixed);
    let outcome = folder.attend(&["--dtype", "bf16"]);
    assert_eq!(
        outcome.failed(2),
        ("k", "dtype is f16; f32, the dtype of q")
    );
    let mut integers = tensors();
    integers[2] = Tensor::new("v", Dtype::I32, &V);
    refused_tensors(&integers, "v", "its dtype is I32; F32, F16 or BF16");
}

#[test]
fn head_dims() {
    refused_tensors(
        &reshaped("q", &[2, 5, 4, 257]),
        "q",
        "head_dim is 257; 1 to 256",
    );
    refused_tensors(
        &reshaped("v", &[2, 7, 2, 257]),
        "v",
        "head_dim_v is 257; 1 to 256",
    );
    refused_tensors(
        &reshaped("q", &[2, 5, 4, 0]),
        "q",
        "head_dim is 0; 1 to 256",
    );
    refused_tensors(
        &reshaped("k", &[2, 7, 2, 8]),
        "k",
        "head_dim is 8; 16, the head_dim of q",
    );
}

#[test]
fn batch_seq_and_heads() {
    refused_tensors(
        &reshaped("k", &[3, 7, 2, 16]),
        "k",
        "batch is 3; 2, the batch of q",
    );
    refused_tensors(
        &reshaped("v", &[1, 7, 2, 8]),
        "v",
        "batch is 1; 2, the batch of q",
    );
    refused_tensors(
        &reshaped("v", &[2, 8, 2, 8]),
        "v",
        "seq_kv is 8; 7, the seq_kv of k",
    );
    refused_tensors(
        &reshaped("v", &[2, 7, 1, 8]),
        "v",
        "heads_kv is 1; 2, the heads_kv of k",
    );
    let allowed = "a positive multiple of heads_kv, which is 2";
    let rest = format!("heads_q is 3; {allowed}");
    refused_tensors(&reshaped("q", &[2, 5, 3, 16]), "q", &rest);
    let rest = format!("heads_q is 0; {allowed}");
    refused_tensors(&reshaped("q", &[2, 5, 0, 16]), "q", &rest);
}

#[test]
fn scale_and_softcap() {
    for (value, shown) in [
        ("nan", "NaN"),
        ("inf", "inf"),
        ("-inf", "-inf"),
        ("1e40", "inf"),
    ] {
        let rest = format!("it is {shown}; any finite number");
        refused_arguments(&["--softmax-scale", value], "--softmax-scale", &rest);
    }
    for (value, shown) in [("0", "0"), ("-3", "-3"), ("nan", "NaN"), ("inf", "inf")] {
        let rest = format!("it is {shown}; a finite number above 0");
        refused_arguments(&["--softcap", value], "--softcap", &rest);
    }
    let rest = "`x` is not valid; a number";
    refused_arguments(&["--softmax-scale", "x"], "--softmax-scale", rest);
}

#[test]
fn windows() {
    let rest = "`-1` is not valid; a whole number of keys, 0 or more";
    refused_arguments(&["--window-left", "-1"], "--window-left", rest);
    let rest = "2 keys after the query contradict --mask causal; 0, or leave one of them out";
    let arguments = ["--mask", "causal", "--window-right", "2"];
    refused_arguments(&arguments, "--window-right", rest);
}

#[test]
fn variants_and_backends() {
    let folder = Folder::with(&tensors());
    let outcome = folder.attend(&["--force", "warp9"]);
    let (argument, rest) = outcome.failed(2);
    assert_eq!(argument, "--force");
    assert!(
        rest.starts_with("unknown variant `warp9`; one of "),
        "{rest}"
    );
    assert!(rest.contains("simt") && rest.contains("tiled"), "{rest}");
    let rest = "variant simt cannot run this problem here: it runs on the cuda and sim backends; \
                one of tiled";
    refused_arguments(&["--force", "simt", "--backend", "cpu"], "--force", rest);
    let rest = "`gpu` is unknown; one of auto, cuda, sim, cpu";
    refused_arguments(&["--backend", "gpu"], "--backend", rest);
    let rest = "`thd` is unknown; one of bshd, bhsd";
    refused_arguments(&["--layout", "thd"], "--layout", rest);
    let rest = "`f64` is unknown; one of f32, f16, bf16";
    refused_arguments(&["--dtype", "f64"], "--dtype", rest);
}

#[test]
fn no_device() {
    let folder = Folder::with(&tensors());
    for arguments in [
        ["--backend", "cuda"].as_slice(),
        &["--backend", "cuda", "--force", "simt"],
    ] {
        let outcome = folder.attend(arguments);
        let (argument, rest) = outcome.failed(2);
        assert_eq!(argument, "--backend");
        assert!(
            rest.starts_with("cuda: no NVIDIA driver: /nowhere/libcuda.so.1"),
            "{rest}"
        );
        assert!(rest.ends_with("; an NVIDIA GPU and its driver are needed, or another backend"));
        folder.is_untouched();
    }
}

#[test]
fn out_of_device_memory() {
    let driver = paths::fake_driver();
    let driver = match &driver {
        Some(fake) => fake.as_path(),
        None if ferroflash::backend::cuda::CudaDevice::new(0).is_ok() => Path::new("libcuda.so.1"),
        None => {
            return not_run("out of device memory: no device, and the fake driver is not packed");
        }
    };
    // A tebibyte of q.
    let problem =
        "bench --backend cuda --batch 1 --heads 1 --seq-q 1073741823 --seq-kv 1 --head-dim 256";
    let environment = [(cuda_loader::LIBRARY_VARIABLE, driver.as_os_str())];
    let outcome = ferroflash_in(problem.split(' '), &environment);
    let (_, rest) = outcome.failed(1);
    assert!(
        rest.starts_with("out of memory allocating 2203318222844 bytes; "),
        "{rest}"
    );
}

#[test]
fn an_unwritable_output() {
    let folder = Folder::with(&tensors());
    let allowed = "a file name in an existing, writable folder";
    let missing = folder.dir.path().join("missing/out.safetensors");
    let below_a_file = folder.input().join("out.safetensors");
    for (path, wrong) in [
        (missing, "No such file or directory"),
        (below_a_file, "Not a directory"),
        (folder.dir.path().to_owned(), "it is a folder"),
    ] {
        let outcome = folder.attend_to(&path, &[]);
        let (argument, rest) = outcome.failed(2);
        assert_eq!(argument, "--output");
        assert!(
            rest.starts_with(&format!("{}: {wrong}", path.display())),
            "{rest}"
        );
        assert!(rest.ends_with(allowed), "{rest}");
        folder.is_untouched();
    }
}

#[test]
fn a_write_that_fails_midway() {
    let folder = Folder::with(&tensors());
    let old = b"what was here before";
    fs::write(folder.output(), old).expect("writable");
    // A limit on the size of files, reported as an error instead of a signal.
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -f 1; exec \"$@\"")
        .arg("sh")
        .arg(paths::binary())
        .arg("attend")
        .arg(folder.input())
        .arg("--output")
        .arg(folder.output())
        .args(["--backend", "cpu"]);
    let outcome = outcome(command);
    let (argument, rest) = outcome.failed(1);
    assert_eq!(argument, "--output");
    assert!(rest.ends_with("; nothing was written"), "{rest}");
    assert_eq!(fs::read(folder.output()).expect("readable"), old);
    fs::remove_file(folder.output()).expect("it is there");
    folder.is_untouched();
}

#[test]
fn command_lines() {
    let cases: [(&[&str], &str, &str); 8] = [
        (
            &[],
            "command",
            "missing; one of attend, verify, bench, info",
        ),
        (
            &["attention"],
            "command",
            "`attention` is unknown; one of attend, verify, bench, info",
        ),
        (
            &["attend"],
            "--output",
            "missing; this command needs --output, INPUT",
        ),
        (
            &["attend", "x", "--output"],
            "--output",
            "its value is missing; one value",
        ),
        (
            &["attend", "x", "--outptu", "y"],
            "--outptu",
            "no such argument; perhaps --output is meant",
        ),
        (
            &["verify", "--cases", "many"],
            "--cases",
            "`many` is not valid; a whole number, 0 or more",
        ),
        (
            &["verify", "--seed", "1", "--seed", "2"],
            "--seed",
            "given more than once; leave one of them out",
        ),
        (
            &["bench", "--pass", "sideways"],
            "--pass",
            "`sideways` is unknown; one of fwd",
        ),
    ];
    for (arguments, argument, rest) in cases {
        let outcome = ferroflash(arguments);
        assert_eq!(outcome.failed(2), (argument, rest));
    }
}
