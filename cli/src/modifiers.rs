//! Arguments of options that concern single pairs of a query and a key.

use ferroflash::{Dropout, ForwardOptions, PrefixLengths};

use crate::arguments::{real, seed, small};
use crate::failure::Failure;

/// Options of masks and dropout.
#[derive(clap::Args)]
pub struct ModifierArgs {
    /// Drop probabilities after the softmax with this probability, by the seed of --seed
    #[arg(long, value_name = "P", value_parser = real, allow_hyphen_values = true)]
    dropout: Option<f32>,
    /// Seed of dropout
    #[arg(long, value_name = "N", value_parser = seed, default_value_t = 0)]
    seed: u64,
    /// Show the first N keys of a sequence to every query, whatever the mask
    #[arg(long, value_name = "N", value_parser = small, allow_hyphen_values = true)]
    prefix_len: Option<u32>,
    /// Show a query keys of its own chunk of N positions alone
    #[arg(long, value_name = "N", value_parser = small, allow_hyphen_values = true)]
    chunk: Option<u32>,
    /// Show a query every Nth key alone, counted from its own position
    #[arg(long, value_name = "N", value_parser = small, allow_hyphen_values = true)]
    dilation: Option<u32>,
}

impl ModifierArgs {
    /// `options` with those that are given.
    pub fn apply(&self, options: ForwardOptions) -> Result<ForwardOptions, Failure> {
        let dropout = self.dropout.map(|p| Dropout::new(p, self.seed));
        let prefix = |length: u32| PrefixLengths::uniform(length.min(i32::MAX as u32) as i32);
        Ok(options
            .dropout(dropout.transpose()?)
            .prefix(self.prefix_len.map(prefix))
            .chunk(self.chunk)
            .dilation(self.dilation))
    }
}
