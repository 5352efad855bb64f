//! Faults: the error of a kernel, and its place.

use std::fmt;

use thiserror::Error;

/// A fault raised by a running kernel, with the place it was raised at.
#[derive(Clone, Debug, Error)]
#[error("{}", self.render())]
pub struct Fault {
    pub kind: FaultKind,
    pub kernel: String,
    /// 1-based PTX line of the instruction, and its text.
    pub line: u32,
    pub text: String,
    /// `%ctaid`.
    pub block: [u32; 3],
    /// `%tid`, or `None` where the whole warp or CTA is at fault.
    pub thread: Option<[u32; 3]>,
    /// Seed that reproduces the run.
    pub schedule_seed: u64,
}

impl Fault {
    fn render(&self) -> String {
        let [x, y, z] = self.block;
        let thread = match self.thread {
            Some([x, y, z]) => format!("thread ({x}, {y}, {z})"),
            None => "no single thread".into(),
        };
        format!(
            "{}\n  kernel {}, PTX line {}: {}\n  block ({x}, {y}, {z}), {thread}, schedule seed {}",
            self.kind, self.kernel, self.line, self.text, self.schedule_seed
        )
    }
}

/// An access named in a race report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// "write", "read", "cp.async write", …
    pub what: String,
    /// Who did it: a block and thread, or an asynchronous agent.
    pub who: String,
    /// 1-based PTX line.
    pub line: u32,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {} (PTX line {})", self.what, self.who, self.line)
    }
}

/// A warp's state in a deadlock report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockState {
    pub block: [u32; 3],
    pub warp: u32,
    /// One entry for each group of lanes that moves together: mask, line, and what it waits for.
    pub groups: Vec<(u32, u32, String)>,
}

impl fmt::Display for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.block;
        write!(f, "block ({x}, {y}, {z}) warp {}:", self.warp)?;
        if self.groups.is_empty() {
            write!(f, " exited")?;
        }
        for (i, (mask, line, waits)) in self.groups.iter().enumerate() {
            let sep = if i > 0 { ";" } else { "" };
            write!(f, "{sep} lanes {mask:#010x} at PTX line {line}: {waits}")?;
        }
        Ok(())
    }
}

fn list(states: &[BlockState]) -> String {
    states.iter().map(|s| format!("\n    {s}")).collect()
}

fn unstarted(clusters: u64) -> String {
    match clusters {
        0 => String::new(),
        n => format!(" while {n} clusters had not started: those begun may wait for them"),
    }
}

/// The kinds of fault. Each message says what happened and what would be right.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    #[error("out of bounds: {bytes} bytes at {space} address {address:#x} ({detail})")]
    OutOfBounds {
        space: &'static str,
        address: u64,
        bytes: u64,
        detail: String,
    },
    #[error(
        "shared address {address:#x} is CTA rank {rank}'s, but only `.shared::cluster` and generic accesses reach beyond the own CTA, of rank {cta}"
    )]
    AnotherCta { address: u64, rank: u32, cta: u32 },
    #[error("misaligned: {space} address {address:#x} must be a multiple of {align}")]
    Misaligned {
        space: &'static str,
        address: u64,
        align: u64,
    },
    #[error(
        "uninitialised: {bytes} bytes at {space} address {address:#x} ({detail}) were never written"
    )]
    Uninitialised {
        space: &'static str,
        address: u64,
        bytes: u64,
        detail: String,
    },
    /// Two accesses that nothing orders.
    #[error("data race on {space} address {address:#x}: {now}, not ordered after the {before}")]
    Race {
        space: &'static str,
        address: u64,
        now: Box<Access>,
        before: Box<Access>,
    },
    /// The synchronisation between two accesses has a scope that excludes one of the threads.
    #[error(
        "scope too small on {space} address {address:#x}: {now} and the {before} are in different CTAs, and the scope of one or of what should order them does not reach the other"
    )]
    Scope {
        space: &'static str,
        address: u64,
        now: Box<Access>,
        before: Box<Access>,
    },
    /// A grid launched to begin early touches what the grid before it uses.
    #[error(
        "grids overlap on global address {address:#x}: {now} may come before the {before}; a `griddepcontrol.wait` must come first"
    )]
    GridOverlap {
        address: u64,
        now: Box<Access>,
        before: Box<Access>,
    },
    /// Ordered, but not across the generic and async proxies.
    #[error(
        "missing proxy fence on {space} address {address:#x}: {now} may not see the {before}; a `fence.proxy.async` must lie between them"
    )]
    ProxyFence {
        space: &'static str,
        address: u64,
        now: Box<Access>,
        before: Box<Access>,
    },
    /// An access to bytes or registers an unfinished asynchronous operation still uses.
    #[error("asynchronous operation not waited for: {0}")]
    AsyncInFlight(String),
    #[error(
        "`{what}` reached by part of a warp: lanes {missing:#010x} of the live lanes {live:#010x} are missing"
    )]
    PartialWarp {
        what: String,
        missing: u32,
        live: u32,
    },
    #[error("warp-wide mask: {0}")]
    MemberMask(String),
    #[error("barrier misuse: {0}")]
    Barrier(String),
    #[error("mbarrier misuse: {0}")]
    Mbarrier(String),
    #[error("tensor operation: {0}")]
    Tensor(String),
    #[error("register budget: {0}")]
    RegisterBudget(String),
    #[error("deadlock: no warp can go on{}", list(.0))]
    Deadlock(Vec<BlockState>),
    #[error(
        "hang: {instructions} warp instructions were executed in one cluster{}; raise `max_instructions` if that is legitimate{}",
        unstarted(*.not_started), list(.warps)
    )]
    Hang {
        instructions: u64,
        warps: Vec<BlockState>,
        /// Clusters that had not started: there was no room (`max_resident`).
        not_started: u64,
    },
    #[error("unsupported: {0}")]
    Unsupported(String),
    #[error("the kernel executed `trap`")]
    Trap,
}

/// A fault before its place is known.
#[derive(Debug)]
pub(crate) struct Raise {
    pub(crate) kind: FaultKind,
    pub(crate) lane: Option<u32>,
}

pub(crate) type Exec<T> = Result<T, Box<Raise>>;

impl FaultKind {
    /// Raised by one lane.
    pub(crate) fn at(self, lane: usize) -> Box<Raise> {
        Box::new(Raise {
            kind: self,
            lane: Some(lane as u32),
        })
    }
}

impl From<FaultKind> for Box<Raise> {
    fn from(kind: FaultKind) -> Self {
        Box::new(Raise { kind, lane: None })
    }
}
