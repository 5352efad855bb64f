//! Running the command `ferroflash`.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::paths;

/// Exit code and output of a run of the command.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// `ferroflash ARGUMENTS`, without a CUDA driver unless `environment` names one.
pub fn ferroflash_in<A: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = A>,
    environment: &[(&str, &OsStr)],
) -> Outcome {
    let mut command = Command::new(paths::binary());
    command
        .env(cuda_loader::LIBRARY_VARIABLE, "/nowhere/libcuda.so.1")
        .envs(environment.iter().copied())
        .args(arguments);
    outcome(command)
}

/// `ferroflash ARGUMENTS`, without a CUDA driver.
pub fn ferroflash<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Outcome {
    ferroflash_in(arguments, &[])
}

/// `ferroflash` with the words of `text` as arguments, without a CUDA driver.
pub fn run(text: &str) -> Outcome {
    ferroflash(text.split_whitespace())
}

/// `ferroflash attend INPUT --output OUTPUT ARGUMENTS`, without a CUDA driver.
pub fn attend(input: &Path, output: &Path, arguments: &[&str]) -> Outcome {
    let paths = [
        OsStr::new("attend"),
        input.as_os_str(),
        OsStr::new("--output"),
        output.as_os_str(),
    ];
    ferroflash(paths.into_iter().chain(arguments.iter().map(OsStr::new)))
}

/// Runs a command to its end.
pub fn outcome(mut command: Command) -> Outcome {
    let output = command.output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("the command prints UTF-8");
    Outcome {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

impl Outcome {
    /// Asserts success and returns standard output.
    #[track_caller]
    pub fn succeeded(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:#?}");
        &self.stdout
    }

    /// Asserts that the command failed with `code` and one line
    /// `error: <argument>: <what is wrong>; <what is allowed>`, and returns `(argument, rest)`.
    #[track_caller]
    pub fn failed(&self, code: i32) -> (&str, &str) {
        let (argument, rest) = self.failed_on_device(code);
        let (wrong, allowed) = rest.split_once("; ").expect("what is allowed is said");
        assert!(!wrong.is_empty() && !allowed.is_empty(), "{self:#?}");
        (argument, rest)
    }

    /// Asserts that the command failed with `code` and one line `error: <device>: <what failed>`, and returns
    /// `(device, rest)`.
    #[track_caller]
    pub fn failed_on_device(&self, code: i32) -> (&str, &str) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert_eq!(self.stdout, "", "a failure prints no result");
        let errors: Vec<_> = self
            .stderr
            .lines()
            .filter_map(|line| line.strip_prefix("error: "))
            .collect();
        let [line] = errors.as_slice() else {
            panic!("not one error line: {self:#?}");
        };
        assert!(self.stderr.ends_with(&format!("error: {line}\n")));
        line.split_once(": ").expect("it is said what failed")
    }
}
