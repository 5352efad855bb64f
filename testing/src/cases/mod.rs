//! Problems to try a backend on: random and planted inputs, from a seed.
//!
//! `ferroflash verify` and the property tests draw from one [`strategy`](strategy()), so that a case which one of them
//! finds can be given to the other.

mod append;
mod arrangement;
mod backward;
mod cache_shape;
mod corpus;
mod decode;
mod decode_case;
mod decode_place;
mod decode_strategy;
mod fill;
mod foreign;
mod kind;
mod lengths;
mod limits;
mod modifiers;
mod planted;
mod reachable;
mod scales;
mod spec;
mod strategy;
mod stress;
mod tree;

pub use append::{AppendCase, AppendSpec, Appended};
pub use arrangement::Arrangement;
pub use backward::{BackwardCase, BackwardRun};
pub use cache_shape::CacheShape;
pub use corpus::{AttentionCase, CorpusCase, Pass};
pub use decode::{DecodeSpec, KeyKind};
pub use decode_case::{DecodeCase, QRows};
pub use decode_strategy::{append_strategy, cache_dtypes_of, decode_strategy, drawn_caches};
pub use fill::normal;
pub use kind::{InputKind, scatter};
pub use lengths::Lengths;
pub use limits::{Limits, dtypes_of, tile_sizes};
pub use modifiers::ModifierSpec;
pub use scales::ScaleKind;
pub use spec::{AlibiSpec, Case, CaseSpec};
pub use strategy::{drawn, few_queries, strategy};
pub use tree::TreeSpec;
