//! The corpus: cases chosen for what they make the kernels execute.

use ferroflash::Variant;
use ferroflash::backend::{Device, Gpu};
use ferroflash_testing::cases::CorpusCase;
use ferroflash_tests::corpus;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::record;
use ferroflash_tests::record::Record;
use ferroflash_tests::replaced::is_untouched;
use ferroflash_tests::schedules::simulated_gpus;
use kernels_gpu::instances::Family;

const TEXT: &str = include_str!("../../corpus.jsonl");

/// The cases, with their numbers, of which `is_wanted`.
fn cases(is_wanted: impl Fn(&CorpusCase) -> bool) -> Vec<(usize, CorpusCase)> {
    let cases = corpus::parse(TEXT).expect("the file's text");
    let mut wanted: Vec<_> = cases.into_iter().enumerate().collect();
    wanted.retain(|(_, case)| is_wanted(case));
    wanted
}

fn agrees<D: Device>(gpu: &mut Gpu<D>, number: usize, case: &CorpusCase, record: &mut Record) {
    let kernels = corpus::kernels(gpu, case);
    let kernels = kernels.unwrap_or_else(|| panic!("line {}: nothing runs {case}", number + 1));
    if kernels.iter().all(|kernel| is_untouched(kernel)) {
        return;
    }
    let outcome = corpus::check(gpu, case);
    let checksum = outcome.unwrap_or_else(|wrong| panic!("line {}: {case}: {wrong}", number + 1));
    record.take(corpus::name(case).expect("parsed"), checksum);
}

/// Every case of a pass by a family, each on the schedule that its text chooses.
fn simulated(variant: Variant, is_forward: bool, mut record: Record) {
    let cases = cases(|case| case.variant() == variant && case.is_forward() == is_forward);
    assert!(!cases.is_empty());
    let mut sims = simulated_gpus();
    for (number, case) in cases {
        let schedule = corpus::schedule(&case).expect("parsed");
        agrees(&mut sims[schedule], number, &case, &mut record);
    }
    record.finish(&mut sims);
}

/// Every case of a pass by a family on the GPU of this machine, if it has one for which the family's kernels are.
fn on_gpu(variant: Variant, is_forward: bool) {
    let Some(mut gpu) = gpu_or_not_run("the corpus") else {
        return;
    };
    let here = gpu.gpu_capabilities().families;
    let is_named = |family: &Family| family.name() == variant.name();
    if variant != Variant::Decode && !here.iter().any(is_named) {
        not_run(&format!("the corpus's cases for {variant} on this GPU"));
        return;
    }
    // A GPU's exponentials and products have bits of their own.
    let mut unrecorded = Record::default();
    for (number, case) in cases(|case| case.variant() == variant && case.is_forward() == is_forward)
    {
        agrees(&mut gpu, number, &case, &mut unrecorded);
    }
}

/// The tests of a pass by a family.
macro_rules! corpus_tests {
    ($name:ident, $variant:expr, $is_forward:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn sim() {
                let record = record!(concat!("corpus-", stringify!($name)));
                simulated($variant, $is_forward, record);
            }

            #[test]
            fn cuda() {
                on_gpu($variant, $is_forward);
            }
        }
    };
}

corpus_tests!(forward_by_simt, Variant::Simt, true);
corpus_tests!(forward_by_mma, Variant::Mma, true);
corpus_tests!(forward_by_wgmma, Variant::Wgmma, true);
corpus_tests!(forward_by_decode, Variant::Decode, true);
corpus_tests!(backward_by_simt, Variant::Simt, false);
corpus_tests!(backward_by_mma, Variant::Mma, false);
corpus_tests!(backward_by_wgmma, Variant::Wgmma, false);

#[test]
fn the_text_is_as_it_is_written() {
    let cases = corpus::parse(TEXT).expect("the file's text");
    assert_eq!(corpus::text(&cases).expect("parsed"), TEXT);
}
