//! How long the steps of a command took.

use std::fmt;
use std::time::{Duration, Instant};

/// Steps that have ended, in their order.
#[derive(Default)]
pub struct Times(Vec<(&'static str, Duration)>);

impl Times {
    /// Runs a step, and notes how long it took.
    pub fn of<T>(&mut self, name: &'static str, step: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let outcome = step();
        self.add(name, begin.elapsed());
        outcome
    }

    /// Notes how long a step took that ran elsewhere.
    pub fn add(&mut self, name: &'static str, took: Duration) {
        self.0.push((name, took));
    }
}

/// As in "lints 12 s, tests 80 s".
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, time)) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{name} {:.0} s", time.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_named_in_their_order() {
        let mut times = Times::default();
        assert_eq!(times.of("one", || 1), 1);
        let failed: Result<(), ()> = times.of("two", || Err(()));
        assert_eq!(failed, Err(()));
        assert_eq!(times.to_string(), "one 0 s, two 0 s");
    }
}
