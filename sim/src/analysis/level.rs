//! How values vary over the threads of a CTA.

/// How much a value varies over threads, from not at all upwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The same in every thread of the CTA.
    #[default]
    Cta,
    /// The same in every lane of a warp.
    Warp,
    /// A warp-uniform multiple of 32, plus the lane: `%tid.x` of a one-dimensional CTA, and values derived from it that
    /// keep this form.
    Thread,
    /// Any other value.
    Lane,
}

impl Level {
    /// Level of a value computed from two values.
    pub fn of_both(self, other: Self) -> Self {
        match self.max(other) {
            Self::Thread => Self::Lane,
            level => level,
        }
    }

    /// Level of a value that is one of two.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Thread, Self::Thread) => Self::Thread,
            _ => self.of_both(other),
        }
    }

    /// Level of a value written on a path that a branch of level `control` selects.
    pub fn under(self, control: Self) -> Self {
        match (self, control) {
            (Self::Thread, Self::Cta | Self::Warp) => Self::Thread,
            _ => self.of_both(control),
        }
    }
}
