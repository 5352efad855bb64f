//! How the command fails: one line, and an exit code.

use std::fmt;
use std::process::ExitCode;

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

    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Failed(_) => ExitCode::from(1),
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
        };
        // One line, whatever a driver or an operating system put into its message.
        let words: Vec<_> = text.split_whitespace().collect();
        f.write_str(&words.join(" "))
    }
}

/// Options of the library that are flags of the command.
const FLAGS: [&str; 5] = ["softmax_scale", "softcap", "force", "dtype", "backend"];

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
