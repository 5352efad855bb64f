//! Messages on standard error.

/// `eprintln!` that ignores errors: a closed or full standard error is no failure.
macro_rules! say {
    ($($argument:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($argument)*);
    }};
}

pub(crate) use say;
