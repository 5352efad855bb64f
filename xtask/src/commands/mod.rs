//! One module for each command.

pub mod bench;
pub mod beside;
pub mod candle;
pub mod ci;
pub mod coverage;
pub mod dist;
pub mod docs;
pub mod doctor;
pub mod example;
pub mod mutants;
pub mod test;
pub mod verify;
pub mod wheel;
