//! Report of a command's checks: passed, failed, or not run and why.

use std::fmt;

/// Outcome of one check.
pub enum Outcome {
    Passed(String),
    Failed(String),
    /// Not run, with the reason. Never counted as passed.
    NotRun(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(detail) => write!(f, "ok       {detail}"),
            Self::Failed(detail) => write!(f, "FAILED   {detail}"),
            Self::NotRun(reason) => write!(f, "NOT RUN  {reason}"),
        }
    }
}

/// Outcomes in the order in which they were added.
#[derive(Default)]
pub struct Report {
    outcomes: Vec<Outcome>,
}

impl Report {
    /// Prints an outcome and stores it.
    pub fn add(&mut self, outcome: Outcome) {
        println!("{outcome}");
        self.outcomes.push(outcome);
    }

    /// Adds the outcome that a line of another program's output states. Any other line is printed, except the program's
    /// own list of checks not run, which is indented.
    pub fn add_line(&mut self, line: &str) {
        let detail = |word| {
            line.strip_prefix(word)
                .map(|rest| rest.trim_start().to_owned())
        };
        if let Some(detail) = detail("ok  ") {
            self.add(Outcome::Passed(detail));
        } else if let Some(detail) = detail("FAILED  ") {
            self.add(Outcome::Failed(detail));
        } else if let Some(detail) = detail("NOT RUN  ") {
            self.add(Outcome::NotRun(detail));
        } else if !line.starts_with("  ") {
            println!("{line}");
        }
    }

    /// Whether some outcome is a failure.
    pub fn has_failed(&self) -> bool {
        self.outcomes
            .iter()
            .any(|o| matches!(o, Outcome::Failed(_)))
    }

    /// Prints the counts and again each check that was not run; returns an error if a check failed.
    pub fn finish(&self, what: &str) -> anyhow::Result<()> {
        let count =
            |wanted: fn(&Outcome) -> bool| self.outcomes.iter().filter(|o| wanted(o)).count();
        let failed = count(|o| matches!(o, Outcome::Failed(_)));
        let not_run = count(|o| matches!(o, Outcome::NotRun(_)));
        println!(
            "{what}: {} ok, {failed} failed, {not_run} not run",
            self.outcomes.len() - failed - not_run
        );
        for outcome in self
            .outcomes
            .iter()
            .filter(|o| matches!(o, Outcome::NotRun(_)))
        {
            println!("  {outcome}");
        }
        anyhow::ensure!(failed == 0, "{what}: {failed} failed");
        Ok(())
    }
}
