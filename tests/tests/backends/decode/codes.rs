//! Every code of an e4m3 cache.

use ferroflash::{Backend, Cpu, DType, HostTensor, Layout, Mask};
use ferroflash_testing::cases::{DecodeSpec, ScaleKind};
use half::{bf16, f16};
use kernels_gpu::e4m3;

/// A sequence for each code, of one key. Output is then its value, and lse its score.
fn each_code<B: Backend>(backend: &mut B, dtype: DType, head_dim_v: usize) {
    let codes = 256;
    let spec = DecodeSpec {
        dtype,
        e4m3: Some(ScaleKind::Tensor),
        page_size: Some(1),
        heads_kv: 1,
        group: 1,
        head_dim: 64,
        head_dim_v,
        mask: Mask::None,
        scale_factor: Some(8.0),
        ..DecodeSpec::plain(&vec![1; codes])
    };
    let mut case = spec.build().unwrap();
    let one = |tensor: &HostTensor| HostTensor::from_f32(&[1.0], tensor.spec().shape, Layout::Bhsd);
    case.scales = case
        .scales
        .map(|scales| scales.each_ref().map(|x| one(x).unwrap()));
    case.q.fill(|| 0.0);
    let (table, max_pages) = case.block_table.clone().unwrap();
    for code in 0..codes {
        let page = table[code * max_pages] as usize;
        // Any component of 64 of k; of v each component has every code in some sequence.
        case.q.set(code, 0, 0, code % 64, 1.0);
        for dim in 0..64 {
            let value = if dim == code % 64 { code as u8 } else { 0x31 };
            case.k.set(page, 0, 0, dim, e4m3::to_f32(value));
        }
        for dim in 0..head_dim_v {
            case.v
                .set(page, 0, 0, dim, e4m3::to_f32((dim + code) as u8));
        }
    }
    let (o, lse) = case.run(backend).unwrap();
    // lse goes through log₂ and back; codes are 2⁻⁹ apart, or a sixteenth.
    for code in 0..codes {
        let score = e4m3::to_f32(code as u8);
        let found = lse.get(code, 0, 0, 0);
        assert!(
            (found - score).abs() < 1e-5 + score.abs() * 1e-6 || found.is_nan() && score.is_nan(),
            "score of code {code:#x}: {found} for {score}"
        );
        for dim in 0..head_dim_v {
            let value = e4m3::to_f32((dim + code) as u8);
            let exact = match dtype {
                DType::F16 => f16::from_f32(value).to_f32(),
                _ => bf16::from_f32(value).to_f32(),
            };
            let found = o.get(code, 0, 0, dim);
            let is_nan = exact.is_nan() || score.is_nan();
            assert!(
                found == exact && !is_nan || found.is_nan() && is_nan,
                "code {:#x} beside score {score}: {found} for {exact}",
                (dim + code) % 256
            );
        }
    }
}

/// Of every head_dim's kernel, scales of every kind, in pages and not.
fn scales_of_every_kind<B: Backend>(backend: &mut B, dtype: DType) {
    for head_dim in [64, 128, 256, 40, 80] {
        for kind in ScaleKind::ALL {
            for page_size in [Some(1), Some(16), None] {
                let spec = DecodeSpec {
                    dtype,
                    e4m3: Some(kind),
                    page_size,
                    head_dim,
                    head_dim_v: head_dim,
                    seq_q: 3,
                    group: 3,
                    ..DecodeSpec::plain(&[300, 1, 129])
                };
                super::run_right(backend, &spec);
            }
        }
    }
}

fn all<B: Backend>(backend: &mut B) {
    for dtype in [DType::F16, DType::Bf16] {
        for head_dim_v in [64, 128, 256] {
            each_code(backend, dtype, head_dim_v);
        }
        scales_of_every_kind(backend, dtype);
    }
}

#[test]
fn cpu() {
    all(&mut Cpu::new());
    scales_of_every_kind(&mut Cpu::new(), DType::F32);
}

ferroflash_tests::on_schedules_in_turn_and_gpu!(all, "codes of e4m3");
