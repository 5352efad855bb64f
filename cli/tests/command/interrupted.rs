//! A command that a signal ends leaves no partial file.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferroflash_tests::files::{Dtype, Tensor};
use ferroflash_tests::folder::Folder;
use ferroflash_tests::paths;
use libc::{SIGHUP, SIGINT, SIGTERM};

/// Inputs that keep the CPU busy for seconds.
fn long() -> Folder {
    let tensors = ["q", "k", "v"].map(|name| Tensor::new(name, Dtype::F32, &[1, 16384, 2, 64]));
    Folder::with(&tensors)
}

/// Starts `attend` on the input with the signals `ignored` ignored from the start, and no others: a shell that runs tests in the
/// background has SIGINT ignored, and no shell undoes that.
fn start(folder: &Folder, ignored: &str) -> Child {
    let mut command = Command::new("sh");
    // SAFETY: `signal` may be called between fork and exec, and nothing else is.
    unsafe {
        command.pre_exec(|| {
            for signal in [SIGHUP, SIGINT, SIGTERM] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    command
        .args(["-c", &format!("trap '' {ignored}; exec \"$@\""), "sh"])
        .arg(paths::binary())
        .arg("attend")
        .arg(folder.input())
        .arg("--output")
        .arg(folder.output())
        .args(["--backend", "cpu", "--threads", "1"])
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts")
}

fn is_partial_there(folder: &Folder) -> bool {
    let files = fs::read_dir(folder.dir.path()).expect("readable");
    let mut names = files.map(|file| file.expect("readable").file_name());
    names.any(|name| name.to_string_lossy().ends_with(".partial"))
}

fn wait_for_partial(folder: &Folder) {
    let started = Instant::now();
    while !is_partial_there(folder) {
        assert!(started.elapsed() < Duration::from_secs(60), "no file yet");
        sleep(Duration::from_millis(2));
    }
}

fn send(child: &Child, signal: i32) {
    // The shell's built-in `kill`, which needs no package.
    let kill = format!("kill -{signal} {}", child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.expect("a shell runs").success());
}

fn interrupted(signal: i32) -> ExitStatus {
    let folder = long();
    let mut child = start(&folder, "USR1");
    wait_for_partial(&folder);
    send(&child, signal);
    let status = child.wait().expect("it ends");
    folder.is_untouched();
    status
}

/// A shell reports 130 (INT), 143 (TERM) and 129 (HUP).
#[test]
fn a_signal_ends_it_and_leaves_no_file() {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        assert_eq!(interrupted(signal).signal(), Some(signal));
    }
}

/// `nohup` starts the command so, and a shell its background jobs.
#[test]
fn an_ignored_signal_stays_ignored() {
    let folder = long();
    let mut child = start(&folder, "INT HUP");
    wait_for_partial(&folder);
    send(&child, SIGINT);
    send(&child, SIGHUP);
    sleep(Duration::from_millis(100));
    assert!(is_partial_there(&folder), "it goes on");
    send(&child, SIGTERM);
    assert_eq!(child.wait().expect("it ends").signal(), Some(SIGTERM));
    folder.is_untouched();
}
