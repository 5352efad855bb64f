//! Running programs.

use std::process::{Command, Output};

use crate::Error;

/// Runs to the end and returns what it printed, whatever its exit status.
pub fn output(command: &mut Command) -> Result<Output, Error> {
    command.output().map_err(|source| Error::Spawn {
        program: name(command),
        source,
    })
}

/// Runs to the end; a failure carries all that was printed.
pub fn checked(command: &mut Command) -> Result<String, Error> {
    let output = output(command)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(Error::Failed {
        program: name(command),
        status: output.status.to_string(),
        output: text,
    })
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}
