use super::AlibiSlopes;

/// How `q · k` becomes a score, in this order.
///
/// Code that computes scores destructures this by name, without `..`, so that it does not compile after an option is
/// added until it handles that option: the kernels' parameters (`plan/params.rs`), the CPU (`backend/cpu/score.rs`),
/// the oracle (`testing/src/oracle/score.rs`) and its yardstick (`testing/src/oracle/naive.rs`).
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Multiplies `q · k`.
    pub softmax_scale: f32,
    /// Scores become `softcap · tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// Biases that grow with distance.
    pub alibi: Option<AlibiSlopes>,
}

impl Score {
    /// Whether query heads may turn the same products into different scores, so that a tile of several heads would have
    /// to know which head a row belongs to.
    pub fn differs_by_head(&self) -> bool {
        let Self {
            softmax_scale: _,
            softcap: _,
            alibi,
        } = self;
        alibi.is_some()
    }
}
