//! What is said on standard error beside results.

/// `eprintln!` to a standard error that may be closed or full: that nobody reads it is no failure.
macro_rules! say {
    ($($argument:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($argument)*);
    }};
}

pub(crate) use say;
