//! If memory, threads or disk space run out, the command says so in one line.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use ferroflash_tests::command::{Outcome, ferroflash, ferroflash_in, outcome};
use ferroflash_tests::files::{Dtype, Tensor};
use ferroflash_tests::folder::{Folder, tensors};
use ferroflash_tests::paths;
use tempfile::TempDir;

/// Runs the command with `arguments` in a shell that runs `limit` first.
fn limited<A: AsRef<OsStr>>(limit: &str, arguments: impl IntoIterator<Item = A>) -> Outcome {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{limit}; exec \"$@\""), "sh"])
        .arg(paths::binary())
        .args(arguments);
    outcome(command)
}

/// A limit on address space, which takes no memory itself.
const ONE_GB: &str = "ulimit -v 1000000";

/// Memory may run out in the backend or elsewhere; the message is the same.
#[test]
fn problems_beyond_memory() {
    for (backend, seq_kv) in [
        ("sim", "300000000"),
        ("sim", "5000000"),
        ("cpu", "300000000"),
        ("cpu", "6000000"),
    ] {
        let sizes = "bench --heads 1 --head-dim 8 --batch 1 --seq-q 1 --json";
        let arguments = sizes
            .split(' ')
            .chain(["--backend", backend, "--seq-kv", seq_kv]);
        let outcome = limited(ONE_GB, arguments);
        let (argument, rest) = outcome.failed(1);
        assert_eq!(argument, "memory");
        assert!(rest.starts_with("no room for "), "{rest}");
    }
}

#[test]
fn sequences_beyond_counting() {
    for (sizes, argument) in [
        (
            "--batch 4000000000 --seq-q 1000000 --seq-kv 1 --varlen-seed 4",
            "--varlen-seed",
        ),
        (
            "--batch 18446744073709551615 --seq-q 1 --seq-kv 1 --varlen-seed 4",
            "--varlen-seed",
        ),
        (
            "--batch 1 --seq-q 18446744073709551615 --seq-kv 1 --varlen-seed 4",
            "--varlen-seed",
        ),
        (
            "--batch 1 --seq-q 1 --seq-kv 18446744073709551615 --varlen-seed 4",
            "--varlen-seed",
        ),
        ("--batch 18446744073709551615 --seq-q 1 --seq-kv 1", "shape"),
        ("--batch 1 --seq-q 18446744073709551615 --seq-kv 1", "shape"),
        ("--batch 1 --seq-q 1 --seq-kv 18446744073709551615", "shape"),
        (
            "--batch 1 --seq-q 1 --seq-kv 1 --heads-kv 18446744073709551615",
            "shape",
        ),
    ] {
        let arguments = format!("bench --heads 1 --head-dim 64 --backend cpu {sizes}");
        let outcome = limited(ONE_GB, arguments.split(' '));
        let (refused, _) = outcome.failed(2);
        assert_eq!(refused, argument, "{sizes}");
    }
    let heads =
        "bench --heads 18446744073709551615 --head-dim 8 --batch 1 --seq-q 1 --seq-kv 1 --alibi";
    let outcome = ferroflash(heads.split(' '));
    assert_eq!(outcome.failed(2).0, "--heads");
}

/// q, k and v of 16 MB each.
fn large() -> Folder {
    let tensors = ["q", "k", "v"].map(|name| Tensor::new(name, Dtype::F32, &[1, 65536, 1, 64]));
    Folder::with(&tensors)
}

fn attend_window(limit: &str, folder: &Folder) -> Outcome {
    let (input, output) = (folder.input(), folder.output());
    let paths = [input.as_os_str(), "--output".as_ref(), output.as_os_str()];
    let options = "--backend cpu --threads 1 --window-left 0 --window-right 0";
    let options = options.split(' ').map(OsStr::new);
    let arguments = ["attend".as_ref()].into_iter().chain(paths).chain(options);
    limited(limit, arguments)
}

#[test]
fn a_file_beyond_memory() {
    let folder = large();
    let outcome = attend_window("ulimit -v 60000", &folder);
    assert_eq!(outcome.failed(1).0, "memory");
    folder.is_untouched();
}

/// At most one tensor is held twice at a time.
#[test]
fn a_file_is_not_held_twice() {
    let folder = large();
    attend_window("ulimit -v 130000", &folder).succeeded();
}

/// Tensors other than q, k and v are not read.
#[test]
fn a_file_of_much_else() {
    let mut tensors = tensors();
    tensors.push(Tensor::new("other", Dtype::F32, &[25_000_000]));
    let folder = Folder::with(&tensors);
    attend_window("ulimit -v 90000", &folder).succeeded();
}

/// A stack size beyond any address space replaces a limit on threads, which root does not have.
const NO_THREADS: [(&str, &str); 1] = [("RUST_MIN_STACK", "70368744177664")];

#[test]
fn no_thread_can_be_started() {
    let environment = NO_THREADS.map(|(name, value)| (name, OsStr::new(value)));
    let run = |arguments: &[&OsStr]| ferroflash_in(arguments, &environment);
    let folder = Folder::with(&tensors());
    let (input, output) = (folder.input(), folder.output());
    let attend = |backend: &str| {
        let [attend, to, on] = ["attend", "--output", "--backend"].map(OsStr::new);
        let backend = OsStr::new(backend);
        run(&[
            attend,
            input.as_os_str(),
            to,
            output.as_os_str(),
            on,
            backend,
        ])
    };
    for backend in ["cpu", "sim"] {
        let outcome = attend(backend);
        outcome.succeeded();
        assert!(
            outcome.stderr.starts_with("threads: "),
            "{}",
            outcome.stderr
        );
    }
    let verify = ["verify", "--backend", "cpu", "--cases", "2"].map(OsStr::new);
    run(&verify).succeeded();
    let two = ["info", "--threads", "2"].map(OsStr::new);
    assert_eq!(run(&two).failed(2).0, "--threads");
}

#[test]
fn a_picture_is_written_whole_or_not_at_all() {
    let dir = TempDir::new().expect("a temporary folder");
    let picture = dir.path().join("picture.svg");
    fs::write(&picture, "old").expect("writable");
    let svg = ["--svg".as_ref(), picture.as_os_str()];
    for command in ["layout smem", "roofline"] {
        let arguments = command.split(' ').map(OsStr::new).chain(svg);
        let outcome = limited("trap '' XFSZ; ulimit -f 1", arguments);
        let (argument, rest) = outcome.failed(1);
        assert_eq!(argument, "--svg");
        assert!(rest.ends_with("; nothing was written"), "{rest}");
        assert_eq!(fs::read_to_string(&picture).expect("readable"), "old");
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1);
    }
    let full = ferroflash(["layout", "mma", "--svg", "/dev/full"]);
    assert_eq!(full.failed(1).0, "--svg");
}

#[test]
fn a_sweep_is_written_whole_or_not_at_all() {
    let dir = TempDir::new().expect("a temporary folder");
    let folder = dir.path().to_str().expect("a plain name");
    let point = "--batch 1 --heads 1 --head-dim 8 --seqs 8 --backend cpu";
    let arguments = ["bench", "--sweep", folder]
        .into_iter()
        .chain(point.split(' '));
    // The points fit in the limit; the picture does not.
    let outcome = limited("trap '' XFSZ; ulimit -f 2", arguments);
    let (argument, rest) = outcome.failed(1);
    assert_eq!(argument, "--sweep");
    assert!(
        rest.contains("sweep.svg: ") && rest.ends_with("; nothing was written"),
        "{rest}"
    );
    let files = fs::read_dir(dir.path()).expect("readable");
    let mut names: Vec<_> = files
        .map(|file| file.expect("readable").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["sweep.csv", "sweep.json"]);
}
