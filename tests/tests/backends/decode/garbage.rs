//! Lengths and pages that cannot be.

use ferroflash::{Backend, CacheFaults, DType, HostTensor, KvCache, Output, Variant, decode};
use ferroflash_testing::cases::{DecodeCase, DecodeSpec, ScaleKind};

use super::bits;

/// Runs a case, and returns what it found wrong too.
pub fn run<B: Backend>(
    backend: &mut B,
    case: &DecodeCase,
) -> ((HostTensor, HostTensor), CacheFaults) {
    let cache = case.cache(backend).unwrap();
    run_with(backend, case, &cache)
}

/// The same with a cache that has been made.
fn run_with<B: Backend>(
    backend: &mut B,
    case: &DecodeCase,
    cache: &KvCache<B::Memory>,
) -> ((HostTensor, HostTensor), CacheFaults) {
    let q = case.q.upload(backend.memory()).unwrap();
    let Output { o, lse, .. } = decode(backend, &q, cache, &case.options).unwrap();
    let memory = backend.memory();
    let result = (
        o.download(memory).unwrap(),
        lse.unwrap().download(memory).unwrap(),
    );
    (result, cache.faults(memory).unwrap())
}

pub fn is_poisoned(sequence: usize, result: &(HostTensor, HostTensor)) -> bool {
    let bits = bits(sequence, result);
    bits.iter().all(|&bits| f32::from_bits(bits).is_nan())
}

/// Sequence 1 of three is spoilt in every way; the others keep their bits. Then all three are. By a variant that may be forced.
pub fn poison_stays<B: Backend>(backend: &mut B, spec: &DecodeSpec, force: Option<Variant>) {
    let mut case = spec.build().unwrap();
    case.options.force = force;
    let (good, faults) = run(backend, &case);
    assert!(!faults.any());
    let capacity = match &case.block_table {
        None => case.k.spec().shape.seq,
        Some((_, max_pages)) => max_pages * spec.page_size.unwrap(),
    };
    for length in [-1, i32::MIN, capacity as i32 + 1, i32::MAX] {
        let mut case = case.clone();
        case.kv_lens[1] = length;
        let (spoilt, faults) = run(backend, &case);
        assert!(faults.bad_length && !faults.bad_page, "length {length}");
        assert_only_that_is_poisoned(&spoilt, &good, &format!("{spec}, length {length}"));
    }
    all_are_spoilt(backend, &case);
    nobody_is_told(backend, &case, &good);
    let Some((table, max_pages)) = &case.block_table else {
        return;
    };
    let last = (spec.kv_lens[1] - 1) / spec.page_size.unwrap();
    for (entry, page) in [
        (0, -1),
        (last, case.k.spec().shape.batch as i32),
        (last / 2, i32::MAX),
        (last, i32::MIN),
    ] {
        let mut case = case.clone();
        let mut table = table.clone();
        table[max_pages + entry] = page;
        case.block_table = Some((table, *max_pages));
        let (spoilt, faults) = run(backend, &case);
        assert!(faults.bad_page && !faults.bad_length, "page {page}");
        assert_only_that_is_poisoned(&spoilt, &good, &format!("{spec}, page {page}"));
    }
}

/// Every sequence is spoilt, by its length and then by its pages: several blocks note it in one word.
fn all_are_spoilt<B: Backend>(backend: &mut B, case: &DecodeCase) {
    let mut lengths = case.clone();
    lengths.kv_lens.fill(-1);
    let mut pages = case.clone();
    if let Some((table, _)) = &mut pages.block_table {
        table.fill(-1);
    }
    for (spoilt, is_page) in [(lengths, false), (pages, true)] {
        if is_page && spoilt.block_table.is_none() {
            continue;
        }
        let (result, faults) = run(backend, &spoilt);
        assert_eq!((faults.bad_page, faults.bad_length), (is_page, !is_page));
        assert!((0..case.kv_lens.len()).all(|sequence| is_poisoned(sequence, &result)));
    }
}

/// All pages of a sequence and the length of another that cannot be, which are spoilt too where there is no word to say so in.
fn nobody_is_told<B: Backend>(backend: &mut B, case: &DecodeCase, good: &(HostTensor, HostTensor)) {
    let mut spoilt = case.clone();
    spoilt.kv_lens[2] = -1;
    if let Some((table, max_pages)) = &mut spoilt.block_table {
        table[*max_pages..2 * *max_pages].fill(-1);
    }
    let cache = spoilt.cache(backend).unwrap().without_status();
    let (result, faults) = run_with(backend, &spoilt, &cache);
    assert!(!faults.any() && is_poisoned(2, &result));
    assert!(case.block_table.is_none() || is_poisoned(1, &result));
    assert_eq!(bits(0, &result), bits(0, good));
}

/// Sequence 1 is NaN, and others are what they are without it.
#[track_caller]
fn assert_only_that_is_poisoned(
    spoilt: &(HostTensor, HostTensor),
    good: &(HostTensor, HostTensor),
    what: &str,
) {
    assert!(is_poisoned(1, spoilt), "{what}");
    for other in [0, 2] {
        assert_eq!(bits(other, spoilt), bits(other, good), "{what}");
    }
}

/// A page that a window has left behind may have been given back.
fn pages_out_of_sight_are_not_looked_at<B: Backend>(backend: &mut B, dtype: DType) {
    let spec = DecodeSpec {
        dtype,
        seq_q: 2,
        mask: ferroflash::Mask::Window {
            left: Some(20),
            right: Some(0),
        },
        ..DecodeSpec::plain(&[600])
    };
    let mut case = spec.build().unwrap();
    let (good, _) = run(backend, &case);
    let (table, _) = case.block_table.as_mut().unwrap();
    // Keys 578 to 599 are seen: the first of them lies in page 36.
    table[..36].fill(-1);
    let (given_back, faults) = run(backend, &case);
    assert!(!faults.any());
    assert_eq!(bits(0, &given_back), bits(0, &good));
    case.block_table.as_mut().unwrap().0[36] = -1;
    let (spoilt, faults) = run(backend, &case);
    assert!(faults.bad_page && is_poisoned(0, &spoilt));
}

fn all_of<B: Backend>(backend: &mut B, dtype: DType) {
    for e4m3 in [None, Some(ScaleKind::Key)] {
        for (seq_q, page_size) in [(1, Some(16)), (3, Some(3)), (2, None)] {
            let spec = DecodeSpec {
                dtype,
                e4m3,
                seq_q,
                page_size,
                ..DecodeSpec::plain(&[40, 300, 7])
            };
            poison_stays(backend, &spec, None);
        }
    }
    pages_out_of_sight_are_not_looked_at(backend, dtype);
}

fn all<B: Backend>(backend: &mut B) {
    all_of(backend, DType::Bf16);
}

#[test]
fn cpu() {
    for dtype in [DType::F32, DType::Bf16] {
        all_of(&mut ferroflash::Cpu::new(), dtype);
    }
}

ferroflash_tests::on_simulator_and_gpu!(all, "impossible lengths and pages");
