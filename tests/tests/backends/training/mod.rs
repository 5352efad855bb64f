//! Trains a tiny transformer on a text with the library's gradients, and compares it with one trained by exact ones.
//!
//! Slightly wrong gradients may pass a test of single calls; over many steps of training, the losses move away from
//! those of exact gradients.

mod attention;
mod model;

use ferroflash::{Backend, Cpu, Sim};
use ferroflash_tests::gpu::gpu_or_not_run;

use self::attention::{Attention, Exact, Library};
use self::model::Model;

/// The text to learn.
const TEXT: &str = include_str!("../../../../LICENSE-MIT");
const SEQ: usize = 24;
const BATCH: usize = 4;
const LEARNING_RATE: f64 = 3e-3;

/// The loss of every step of training with `attention`.
fn losses(attention: &mut impl Attention, steps: i32) -> Vec<f64> {
    let mut characters: Vec<char> = TEXT.chars().collect();
    characters.sort_unstable();
    characters.dedup();
    let number = |c| characters.binary_search(&c).expect("it is one of them");
    let text: Vec<usize> = TEXT.chars().map(number).collect();
    let mut model = Model::new(characters.len(), SEQ);
    let last = text.len() - SEQ - 1;
    let learn = |step: i32| {
        // Sequences spread over the text, different ones at every step.
        let begin = |i: usize| (step as usize * BATCH + i) * 389 % last;
        let batch: [_; BATCH] = std::array::from_fn(|i| &text[begin(i)..][..SEQ + 1]);
        let loss = model.learn(attention, &batch);
        model.update(LEARNING_RATE, step);
        loss
    };
    (1..=steps).map(learn).collect()
}

/// Largest allowed difference of the two losses at a step.
const ALLOWED: f64 = 1e-3;

fn learns_as_exactly<B: Backend>(backend: B, steps: i32) -> Vec<f64> {
    let exact = losses(&mut Exact, steps);
    let library = losses(&mut Library(backend), steps);
    for (step, (library, exact)) in library.iter().zip(&exact).enumerate() {
        let off = (library - exact).abs();
        assert!(
            off <= ALLOWED,
            "step {step}: a loss of {library}, exactly {exact}"
        );
    }
    library
}

#[test]
fn cpu() {
    let losses = learns_as_exactly(Cpu::new(), 150);
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (first, last) = (mean(&losses[..10]), mean(&losses[140..]));
    assert!(last < first - 1.0, "from {first} to {last}");
}

#[test]
fn sim() {
    learns_as_exactly(Sim::new(), 3);
}

#[test]
fn cuda() {
    if let Some(gpu) = gpu_or_not_run("a transformer that learns") {
        learns_as_exactly(gpu, 150);
    }
}
