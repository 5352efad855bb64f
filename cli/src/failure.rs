//! Failures of the command: one line on standard error, and an exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::say::say;
use ferroflash::Error;

/// Why the command stops. Printed as `<argument>: <what is wrong>; <what is allowed>`.
#[derive(Debug)]
pub enum Failure {
    /// An argument or an input is bad: exit code 2.
    Refused {
        argument: String,
        wrong: String,
        allowed: String,
    },
    /// Something failed while running: exit code 1.
    Failed(String),
    /// Standard output was closed, as by `ferroflash … | head`: exit code 1, without a message.
    Closed,
}

impl Failure {
    pub fn refused(
        argument: impl Into<String>,
        wrong: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Refused {
            argument: argument.into(),
            wrong: wrong.into(),
            allowed: allowed.into(),
        }
    }

    /// Exit code of a failure while running.
    pub const FAILED: u8 = 1;

    /// Prints the failure on standard error.
    pub fn report(&self) {
        if !matches!(self, Self::Closed) {
            say!("error: {self}");
        }
    }

    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Failed(_) | Self::Closed => ExitCode::from(Self::FAILED),
            Self::Refused { .. } => ExitCode::from(2),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Refused {
                argument,
                wrong,
                allowed,
            } => format!("{argument}: {wrong}; {allowed}"),
            Self::Failed(message) => message.clone(),
            Self::Closed => "standard output: closed; nothing more can be printed".to_owned(),
        };
        // One line, even if a driver's or the operating system's message has several.
        let words: Vec<_> = text.split_whitespace().collect();
        f.write_str(&words.join(" "))
    }
}

/// Options of the library that are flags of the command.
const FLAGS: [&str; 14] = [
    "softmax_scale",
    "softcap",
    "force",
    "dtype",
    "backend",
    "device",
    "heads",
    "seq",
    "head_dim",
    "dropout",
    "chunk",
    "dilation",
    "prefix_len",
    "n",
];

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Argument {
                argument,
                wrong,
                allowed,
            } => {
                let flag = FLAGS.contains(&argument.as_ref());
                let argument = match flag {
                    true => format!("--{}", argument.replace('_', "-")),
                    false => argument.into_owned(),
                };
                Self::refused(argument, wrong, allowed)
            }
            Error::NoDevice {
                backend,
                wrong,
                allowed,
            } => Self::refused("--backend", format!("{backend}: {wrong}"), allowed),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    /// An error of writing to standard output; failures of files are made where the files are used.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Failed(format!("standard output: {error}; it must be writable")),
        }
    }
}
