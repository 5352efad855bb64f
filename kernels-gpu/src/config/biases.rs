//! For which problems a kernel with modifiers is: code for biases costs all others registers.

/// What becomes of biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// There are none.
    None,
    /// They are read one by one, if there are some.
    Read,
    /// There are some, which are read one by one.
    Present,
    /// There are some, which are copied to shared memory where they lie so that they can be.
    Copied,
}

impl Biases {
    /// Whether a kernel is for problems that have biases, or for others.
    pub const fn is_for(self, has_bias: bool) -> bool {
        match self {
            Self::None => !has_bias,
            Self::Read => true,
            Self::Present | Self::Copied => has_bias,
        }
    }

    /// Whether there may be some, or a score modification, which changes scores too.
    #[inline(always)]
    pub const fn may_be(self) -> bool {
        !matches!(self, Self::None)
    }
}
