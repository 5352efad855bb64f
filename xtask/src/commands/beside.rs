//! Commands of this program that run beside its own steps, so that neither waits for what keeps the other from all cores:
//! downloads, linkers, crates that nothing else can be compiled before.

use std::env;
use std::fs::File;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use xshell::Shell;

use xtask::paths;
use xtask::report::Report;
use xtask::times::Times;

/// A command's name in the list of times, and its arguments.
pub type Step = (&'static str, &'static [&'static str]);

/// Commands that run one after another.
pub struct Beside(JoinHandle<anyhow::Result<Vec<Ended>>>);

/// A command that has ended, and all that it printed.
struct Ended {
    name: &'static str,
    status: ExitStatus,
    output: String,
    took: Duration,
}

impl Beside {
    pub fn start(steps: &'static [Step]) -> Self {
        Self(thread::spawn(|| steps.iter().map(run).collect()))
    }

    /// Waits for the commands, prints what they printed, and adds their outcomes and times to this command's.
    pub fn finish(self, report: &mut Report, times: &mut Times) -> anyhow::Result<()> {
        let panicked = |_| anyhow!("the thread that runs commands panicked");
        for ended in self.0.join().map_err(panicked)?? {
            for line in ended.output.lines() {
                report.add_line(line);
            }
            times.add(ended.name, ended.took);
            // The report holds failed checks, but no other failure of the command.
            ensure!(
                ended.status.success() || report.has_failed(),
                "{}: {}",
                ended.name,
                ended.status
            );
        }
        Ok(())
    }
}

fn run((name, arguments): &Step) -> anyhow::Result<Ended> {
    let begin = Instant::now();
    // One file for both streams keeps their order.
    let path = paths::target().join("tmp").join(format!("{name}.log"));
    let shell = Shell::new()?;
    shell.create_dir(path.parent().context("a folder")?)?;
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    let status = Command::new(env::current_exe()?)
        .args(*arguments)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()?;
    Ok(Ended {
        name,
        status,
        output: shell.read_file(&path)?,
        took: begin.elapsed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report, and whether waiting succeeds, of a program that ends so and has printed `output`.
    fn finished(program: &str, output: &str) -> (Report, bool) {
        let ended = Ended {
            name: "one",
            status: Command::new(program).status().unwrap(),
            output: output.to_owned(),
            took: Duration::ZERO,
        };
        let beside = Beside(thread::spawn(|| Ok(vec![ended])));
        let mut report = Report::default();
        let succeeds = beside.finish(&mut report, &mut Times::default()).is_ok();
        (report, succeeds)
    }

    #[test]
    fn a_failure_is_told_by_a_line_or_by_the_status() {
        let (report, succeeds) = finished("true", "ok       all\n");
        assert!(succeeds && report.finish("one").is_ok());
        let (report, succeeds) = finished("false", "ok       all\nFAILED   some\n");
        assert!(succeeds && report.finish("one").is_err());
        let (_, succeeds) = finished("false", "error: before a check\n");
        assert!(!succeeds);
    }
}
