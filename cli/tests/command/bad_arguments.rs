//! Every bad argument is refused by one line that names it, with its exit code, and leaves no file.

use std::fs;
use std::path::Path;
use std::process::Command;

use ferroflash_tests::command::{ferroflash, ferroflash_in, outcome};
use ferroflash_tests::files::Tensor;
use ferroflash_tests::folder::{Folder, tensors};
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::paths;

/// Asserts that `attend` refuses the default input with `arguments`, on `argument`.
#[track_caller]
fn refused_arguments(arguments: &[&str], argument: &str, rest: &str) {
    let folder = Folder::with(&tensors());
    let outcome = folder.attend(arguments);
    assert_eq!(outcome.failed(2), (argument, rest));
    folder.is_untouched();
}

#[test]
fn scale_and_softcap() {
    for (value, shown) in [
        ("nan", "NaN"),
        ("inf", "inf"),
        ("-inf", "-inf"),
        ("1e40", "inf"),
    ] {
        let rest = format!("it is {shown}; it must be finite");
        refused_arguments(&["--softmax-scale", value], "--softmax-scale", &rest);
    }
    for (value, shown) in [("0", "0"), ("-3", "-3"), ("nan", "NaN"), ("inf", "inf")] {
        let rest = format!("it is {shown}; it must be finite and above 0");
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

/// Slopes in the file without --alibi are refused: they would silently change nothing.
#[test]
fn slopes_that_nobody_asked_for() {
    let mut tensors = tensors();
    tensors.push(Tensor::of_f32s("alibi_slopes", &[0.5; 4], &[4]));
    let (argument, rest) = Folder::with(&tensors).refused(&[]);
    let expected = "the file has slopes, and --alibi is not given; --alibi to add their biases, or a file without them";
    assert_eq!(
        (argument.as_str(), rest.as_str()),
        ("alibi_slopes", expected)
    );
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
    let folder = Folder::with(&tensors());
    let outcome = folder.attend(&["--force", "tiled", "--backend", "sim"]);
    let (argument, rest) = outcome.failed(2);
    let wrong = "variant tiled cannot run this problem here: it runs on the cpu backend; one of ";
    assert_eq!((argument, rest.starts_with(wrong)), ("--force", true));
    folder.is_untouched();
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
    // q alone has a tebibyte.
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
    // A limit on file sizes, which fails the write instead of raising a signal.
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

/// A forward problem for `bench`, with an option that only a backward pass takes.
const DETERMINISTIC_FORWARD: &[&str] = &[
    "bench",
    "--heads",
    "1",
    "--head-dim",
    "8",
    "--batch",
    "1",
    "--seq-q",
    "1",
    "--seq-kv",
    "1",
    "--deterministic",
];

#[test]
fn command_lines() {
    let cases: [(&[&str], &str, &str); 17] = [
        (
            &[],
            "command",
            "missing; one of attend, verify, bench, info, roofline, ladder, layout, sim-report, completions",
        ),
        (
            &["attention"],
            "command",
            "`attention` is unknown; one of attend, verify, bench, info, roofline, ladder, layout, sim-report, completions",
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
            "`many` is not valid; a whole number, 1 or more",
        ),
        (
            &["verify", "--cases", "0"],
            "--cases",
            "`0` is not valid; a whole number, 1 or more",
        ),
        (
            &["verify", "--seed", "1", "--seed", "2"],
            "--seed",
            "given more than once; leave one of them out",
        ),
        (
            DETERMINISTIC_FORWARD,
            "--deterministic",
            "a forward pass always repeats bit for bit; --pass bwd beside it",
        ),
        (
            &["bench", "--pass", "sideways"],
            "--pass",
            "`sideways` is unknown; one of fwd, bwd",
        ),
        (
            &["bench", "--input", "odd"],
            "--input",
            "`odd` is unknown; one of random, planted, non-finite, large, low, sink-first, sink-middle, growing, \
             growing-fast, falling, falling-fast, growing-some, falling-some, scattered",
        ),
        (
            &["bench", "--varlen", "64,x"],
            "--varlen",
            "`x` is not valid; N or Q:K for each sequence, whole numbers, 0 or more",
        ),
        (
            &["bench", "--varlen", "64:-1"],
            "--varlen",
            "`64:-1` is not valid; N or Q:K for each sequence, whole numbers, 0 or more",
        ),
        (
            &["bench", "--varlen", "64", "--batch", "2"],
            "--varlen",
            "cannot be used with --batch; leave one of them out",
        ),
        (
            &["bench", "--sweep", "x", "--json"],
            "--sweep",
            "cannot be used with --json; leave one of them out",
        ),
        (
            &["roofline", "--results", "bench/results"],
            "--svg",
            "missing; this command needs --svg",
        ),
        (
            &[
                "roofline",
                "--svg",
                "/nowhere/x.svg",
                "--results",
                "/nowhere",
            ],
            "--results",
            "/nowhere: there is no such folder; a folder with files of bench/side_by_side.py --json",
        ),
    ];
    for (arguments, argument, rest) in cases {
        let outcome = ferroflash(arguments);
        assert_eq!(outcome.failed(2), (argument, rest));
    }
}
