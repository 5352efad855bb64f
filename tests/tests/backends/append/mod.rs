//! Appending to a cache: every element against rotation in f64, and what must not be written.

mod properties;

use ferroflash::{Backend, Cpu, DType, RotaryStyle};
use ferroflash_testing::cases::{AppendCase, AppendSpec, Appended, DecodeSpec, ScaleKind};

const HALVES: [DType; 2] = [DType::F16, DType::Bf16];

/// The cache of `pages` keys a page whose rows end at, before and behind the end of a page, and one that has fewer keys than new
/// rows.
fn of_pages(dtype: DType, page_size: Option<usize>) -> AppendSpec {
    let cache = DecodeSpec {
        dtype,
        seq_q: 3,
        page_size,
        group: 3,
        heads_kv: 2,
        ..DecodeSpec::plain(&[15, 16, 17, 18, 2, 0, 49])
    };
    AppendSpec {
        cache,
        ..AppendSpec::plain(&[])
    }
}

#[track_caller]
fn run_right<B: Backend>(backend: &mut B, spec: &AppendSpec) -> Appended {
    let case = spec.build().unwrap();
    let run = case.run(backend).unwrap();
    if let Err(wrong) = case.check(&run) {
        panic!("{spec}: {wrong}");
    }
    run
}

fn bits(run: &Appended) -> Vec<u32> {
    let tensors = [Some(&run.k), Some(&run.v), run.rotated_q.as_ref()];
    let values = tensors.into_iter().flatten().map(|tensor| {
        let values = tensor.to_f32(ferroflash::Layout::Bhsd);
        values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    values.collect::<Vec<_>>().concat()
}

fn pages_of_any_size<B: Backend>(backend: &mut B, dtype: DType) {
    for page_size in [Some(1), Some(3), Some(16), Some(64), None] {
        for style in [RotaryStyle::Neox, RotaryStyle::Interleaved] {
            // Of 64 components, and of some.
            for (dim, e4m3) in [
                (2, None),
                (30, None),
                (64, None),
                (30, Some(ScaleKind::Head)),
                (64, Some(ScaleKind::Key)),
            ] {
                let mut spec = of_pages(dtype, page_size);
                spec.rotary = Some((style, dim));
                spec.cache.e4m3 = e4m3;
                let run = run_right(backend, &spec);
                assert!(!run.faults.any(), "{spec}");
                // The CPU rounds as kernels do.
                let on_cpu = run_right(&mut Cpu::new(), &spec);
                assert!(bits(&run) == bits(&on_cpu), "{spec}");
            }
        }
    }
}

/// NaN, infinities, and numbers up to the largest and down to the smallest, in each component that a thread takes.
fn values_of_any_size<B: Backend>(backend: &mut B, dtype: DType) {
    let values = [f32::NAN, f32::INFINITY, 3e4, -449.0, 1e-3, -1e-7];
    for e4m3 in [None, Some(ScaleKind::Head)] {
        for (style, dim) in [(RotaryStyle::Neox, 30), (RotaryStyle::Interleaved, 64)] {
            let mut spec = of_pages(dtype, Some(16));
            spec.rotary = Some((style, dim));
            spec.cache.e4m3 = e4m3;
            let mut case = spec.build().unwrap();
            for tensor in [&mut case.k, &mut case.v] {
                let heads = tensor.spec().shape.heads;
                for (number, &value) in values.iter().enumerate() {
                    // Of each row another quarter, so that others keep their values.
                    let (head, row) = (number % heads, number % 3);
                    for component in (number * 11 % 64..64).step_by(4) {
                        tensor.set(number, head, row, component, value);
                    }
                }
            }
            let run = case.run(backend).unwrap();
            case.check(&run)
                .unwrap_or_else(|wrong| panic!("{spec}: {wrong}"));
        }
    }
}

/// What a run leaves, which is the same where there is no word in which to say what is wrong.
fn told_or_not<B: Backend>(backend: &mut B, case: &AppendCase) -> Appended {
    let run = case.run(backend).unwrap();
    let cache = case.cache.cache(backend).unwrap().without_status();
    let untold = case.run_on(backend, cache).unwrap();
    assert!(!untold.faults.any() && bits(&untold) == bits(&run));
    run
}

/// What a run of `spec` leaves after `spoil`, checked as a case that has nothing of sequence 1.
fn spoilt<B: Backend>(
    backend: &mut B,
    spec: &AppendSpec,
    spoil: impl FnOnce(&mut AppendCase),
) -> Appended {
    let mut case = spec.build().unwrap();
    spoil(&mut case);
    let run = told_or_not(backend, &case);
    // Nothing but the other sequences' rows is written: as if those of sequence 1 went nowhere.
    let mut without = spec.build().unwrap();
    let seq = without.k.spec().shape.seq;
    let page_size = without.cache.k.spec().shape.seq;
    let slots = (0..without.cache.kv_lens.len()).flat_map(|sequence| {
        let of_row = |row| match without.place(sequence, row) {
            Some((page, place)) if sequence != 1 => (page * page_size + place) as i32,
            _ => -1,
        };
        (0..seq).map(of_row).collect::<Vec<_>>()
    });
    without.slots = Some(slots.collect());
    let mut others = run.clone();
    others.rotated_q = None;
    if let Err(wrong) = without.check(&others) {
        panic!("{spec}: {wrong}");
    }
    run
}

fn what_cannot_be_is_not_written<B: Backend>(
    backend: &mut B,
    dtype: DType,
    e4m3: Option<ScaleKind>,
) {
    let of_pages = |page_size| {
        let mut spec = of_pages(dtype, page_size);
        spec.cache.e4m3 = e4m3;
        spec
    };
    let is_nan = |run: &Appended, sequence: usize| {
        let rotated = run.rotated_q.as_ref().expect("it was asked for");
        let heads = 0..rotated.spec().shape.heads;
        heads
            .flat_map(|head| rotated.head(sequence, head, 0..3))
            .all(f64::is_nan)
    };
    for page_size in [Some(16), None] {
        let spec = of_pages(page_size);
        let capacity = match page_size {
            None => spec.build().unwrap().cache.k.spec().shape.seq,
            Some(size) => spec.build().unwrap().cache.block_table.unwrap().1 * size,
        };
        for length in [-1, i32::MIN, capacity as i32 + 1, i32::MAX] {
            let run = spoilt(backend, &spec, |case| case.cache.kv_lens[1] = length);
            assert!(run.faults.bad_length && !run.faults.bad_page, "{length}");
            assert!(is_nan(&run, 1) && !is_nan(&run, 0), "{length}");
        }
        for slot in [-2, i32::MIN, i32::MAX, 1 << 20] {
            let by_slots = AppendSpec {
                by_slots: true,
                ..spec.clone()
            };
            let mut case = by_slots.build().unwrap();
            case.slots.as_mut().unwrap()[0] = slot;
            let run = told_or_not(backend, &case);
            assert!(run.faults.bad_slot && !run.faults.bad_page, "{slot}");
            case.slots.as_mut().unwrap()[0] = -1;
            case.check(&run).unwrap();
        }
    }
    let spec = of_pages(Some(16));
    for page in [-1, i32::MIN, i32::MAX, 99] {
        // The three rows of the second sequence are keys 13, 14 and 15 of its only page.
        let run = spoilt(backend, &spec, |case| {
            let (table, max_pages) = case.cache.block_table.as_mut().unwrap();
            table[*max_pages] = page;
        });
        assert!(run.faults.bad_page && !run.faults.bad_length, "{page}");
        assert!(!is_nan(&run, 1));
    }
    // Angles for 49 positions, and keys 49 to 51.
    let run = spoilt(backend, &spec, |case| {
        case.cache.kv_lens[1] = 52;
    });
    assert!(run.faults.bad_position && is_nan(&run, 1));
}

/// A step: rows are appended, and rotated queries attend to them.
fn a_step_appends_and_attends<B: Backend>(backend: &mut B, dtype: DType, e4m3: Option<ScaleKind>) {
    let mut spec = of_pages(dtype, Some(16));
    spec.cache.e4m3 = e4m3;
    let case = spec.build().unwrap();
    let run = run_right(backend, &spec);
    let mut step = case.cache.clone();
    (step.k, step.v) = (run.k, run.v);
    step.q = run.rotated_q.expect("it was asked for");
    let (o, lse) = step.run(backend).unwrap();
    for sequence in 0..step.kv_lens.len() {
        let verdict = step.check(sequence, &o, &lse).unwrap();
        assert!(verdict.passed(), "sequence {sequence}: {verdict}");
    }
}

fn all_of<B: Backend>(backend: &mut B, dtype: DType) {
    pages_of_any_size(backend, dtype);
    values_of_any_size(backend, dtype);
    for e4m3 in [None, Some(ScaleKind::Page)] {
        what_cannot_be_is_not_written(backend, dtype, e4m3);
        a_step_appends_and_attends(backend, dtype, e4m3);
    }
}

fn all<B: Backend>(backend: &mut B) {
    for dtype in HALVES {
        all_of(backend, dtype);
    }
}

#[test]
fn on_cpu() {
    all_of(&mut Cpu::new(), DType::F32);
    all(&mut Cpu::new());
}

ferroflash_tests::on_simulator_and_gpu!(all, "appends to pages of any size", "append");
